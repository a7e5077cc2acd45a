"""Twenty tasks under one budget: the task scheduler beside an equal split of the same seconds.

    python benchmarks/equal_split.py --budget 600 --out benchmarks/results/equal-split.json

The tasks and how often each runs are those of `network.toml`. Each way begins with an empty log: one gives
every task its twentieth, the other is ``tune --suite``. Then the kernels of both are timed in turns; each
round gives a ratio of sums of weight x time, and the median of the rounds counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from suite import commit  # noqa: E402

import autotune as at  # noqa: E402
from autotune import suites  # noqa: E402
from autotune.loading import load_workload  # noqa: E402
from autotune.targets import machine  # noqa: E402
from autotune.workloads import param_text  # noqa: E402


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--suite", default=str(ROOT / "benchmarks" / "network.toml"))
    parser.add_argument("--budget", type=float, default=600.0, help="seconds of each way")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    tasks = suites.read(args.suite)
    with tempfile.TemporaryDirectory() as tmp:
        equal, shared = Path(tmp) / "equal.db", Path(tmp) / "shared.db"
        common: dict[str, Any] = {"threads": args.threads}
        split: dict[str, list[Any]] = {"equal": [], "shared": []}
        for task in tasks:
            one = at.tune_suite([task.workload], budget_s=args.budget / len(tasks), db=equal, **common)
            split["equal"].append(one.tasks[0])
        together = at.tune_suite(args.suite, budget_s=args.budget, db=shared, **common)
        split["shared"] = list(together.tasks)
        kernels = [
            [load_workload(t.workload, threads=args.threads, db=db) for db in (equal, shared)] for t in tasks
        ]
        rounds = [[[k.time(repeat=3) for k in pair] for pair in kernels] for _ in range(args.rounds)]
    ratios = [
        sum(t.weight * a for t, (a, _) in zip(tasks, times, strict=True))
        / sum(t.weight * b for t, (_, b) in zip(tasks, times, strict=True))
        for times in rounds
    ]
    rows = [
        {
            "task": " ".join(f"{k}={param_text(v)}" for k, v in task.workload.params),
            "weight": task.weight,
            "equal_s": statistics.median(r[n][0] for r in rounds),
            "shared_s": statistics.median(r[n][1] for r in rounds),
            **{f"{how}_tuning_s": split[how][n].seconds for how in split},
            **{f"{how}_trials": split[how][n].result.measured for how in split},
        }
        for n, task in enumerate(tasks)
    ]
    found = {
        "command": f"equal_split.py --budget {args.budget:g} --threads {args.threads}",
        "commit": commit(),
        "machine": machine(),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
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
        f"(rounds {min(ratios):.3f} to {max(ratios):.3f})"
    )


if __name__ == "__main__":
    main()
