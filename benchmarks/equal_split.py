"""Twenty tasks under one budget: the task scheduler beside an equal split of the same seconds.

    python benchmarks/equal_split.py --budget 600 --out benchmarks/results/equal-split.json

The tasks and how often each runs are those of `--suite`: the much alike convolutions of `network.toml`, or
the mixed ones of `two_networks.toml`. Each way begins with an empty log: one gives
every task its twentieth, the other is ``tune --suite``. Then the kernels of both are timed in turns, in
several processes, for which pages a kernel's arrays are in decides up to some percent; each round gives a
ratio of sums of weight x time, and the median of the rounds counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import statistics
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from suite import commit  # noqa: E402

import autotune as at  # noqa: E402
from autotune.backends.building.generator_version import this_machine  # noqa: E402
from autotune.run.asked import Asked  # noqa: E402
from autotune.run.loading import load_workload  # noqa: E402
from autotune.run.workloads import param_text  # noqa: E402
from autotune.tuning import suites  # noqa: E402


def timed(suite: str, logs: list[Path], threads: int, rounds: int) -> list[list[list[float]]]:
    """Seconds of each task's best kernel of each log, [rounds, tasks, logs]."""
    tasks = [t.workload for t in suites.read(suite)]
    kernels = [[load_workload(w, Asked.of("cpu", threads, db)) for db in logs] for w in tasks]
    return [[[k.time(repeat=3) for k in row] for row in kernels] for _ in range(rounds)]


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--suite", default=str(ROOT / "benchmarks" / "network.toml"))
    parser.add_argument("--budget", type=float, default=600.0, help="seconds of each way")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--processes", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=6, help="in each process")
    parser.add_argument("--logs", type=Path, help="a folder for the two logs, to keep them")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    tasks = suites.read(args.suite)
    with contextlib.ExitStack() as stack:
        logs = args.logs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        logs.mkdir(exist_ok=True)
        equal, shared = logs / "equal.db", logs / "shared.db"
        common: dict[str, Any] = {"threads": args.threads}
        split: dict[str, list[Any]] = {"equal": [], "shared": []}
        for task in tasks:
            one = at.tune_suite([task.workload], budget_s=args.budget / len(tasks), db=equal, **common)
            split["equal"].append(one.tasks[0])
        together = at.tune_suite(args.suite, budget_s=args.budget, db=shared, **common)
        split["shared"] = list(together.tasks)
        rounds = []
        for _ in range(args.processes):
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                asked = process.submit(timed, args.suite, [equal, shared], args.threads, args.rounds)
                rounds += asked.result()
    ratios = [
        sum(t.weight * a for t, (a, _) in zip(tasks, times, strict=True))
        / sum(t.weight * b for t, (_, b) in zip(tasks, times, strict=True))
        for times in rounds
    ]
    rows = [
        {
            "task": " ".join(
                [task.workload.op, *(f"{k}={param_text(v)}" for k, v in task.workload.params)]
            ),
            "weight": task.weight,
            "equal_s": statistics.median(r[n][0] for r in rounds),
            "shared_s": statistics.median(r[n][1] for r in rounds),
            **{f"{how}_tuning_s": split[how][n].seconds for how in split},
            **{f"{how}_trials": split[how][n].result.measured for how in split},
        }
        for n, task in enumerate(tasks)
    ]
    found = {
        "command": f"equal_split.py --suite {Path(args.suite).name} --budget {args.budget:g}"
        f" --threads {args.threads}",
        "commit": commit(),
        "machine": this_machine(),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "by_process": [
            statistics.median(ratios[i : i + args.rounds]) for i in range(0, len(ratios), args.rounds)
        ],
        "seconds": {how: sum(one.seconds for one in each) for how, each in split.items()},
        "tasks": rows,
    }
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    for row in rows:
        print(
            f"{row['task'][:70]:70s} x{row['weight']:g}  {row['equal_s'] * 1e3:8.3f} ms "
            f"{row['shared_s'] * 1e3:8.3f} ms  {row['equal_trials']:4d} {row['shared_trials']:4d} trials"
        )
    print(
        f"weighted latency of the equal split over that of the shared budget: {found['ratio']:.3f} "
        f"(processes {', '.join(f'{x:.3f}' for x in found['by_process'])}; "
        f"rounds {min(ratios):.3f} to {max(ratios):.3f})"
    )


if __name__ == "__main__":
    main()
