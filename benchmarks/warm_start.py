"""What the log of another CPU is worth: trials to 90 % of the best known, with it and without.

    python benchmarks/warm_start.py --out benchmarks/results/warm-start.json

The other CPU is a described one that this machine can stand in for (`--elsewhere`, of `configs/targets`): its
log is made here, exported, and imported into an empty log, from which its kernels are not loaded. Then this
machine is tuned with that log and with none, over several seeds, in turns. A trial counts when its time is
within 90 % of the fastest of all runs of the task.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import autotune as at
from autotune import backends
from autotune.backends.building.generator_version import this_machine
from autotune.measure.measurer import Measurer
from autotune.tuning import preparation
from kernels_db import Log
from schedules.model import Trace

SHARE = 0.9

TASKS: dict[str, tuple[str, dict[str, int]]] = {
    "matmul 256": ("matmul", {"m": 256, "n": 256, "k": 256}),
    "matmul 128x512x256": ("matmul", {"m": 128, "n": 512, "k": 256}),
    "matmul 300x200x100": ("matmul", {"m": 300, "n": 200, "k": 100}),
    "conv2d 28x28x64": ("conv2d", {"h": 28, "w": 28, "ci": 64, "co": 64, "k": 3, "padding": 1}),
    "depthwise 56x56x64": ("depthwise_conv2d", {"h": 56, "w": 56, "c": 64, "k": 3, "padding": 1}),
    "softmax 512x512": ("softmax", {"m": 512, "n": 512}),
}


@dataclass(frozen=True)
class Chosen:
    """The fastest candidate of a run's first ``trials`` trials, by the times that the run had."""

    trials: int
    trace: Trace
    time_s: float


def path(db: Path, workload: str, target: str) -> list[Chosen]:
    """What a run would have given at each of its trials that was faster than those before."""
    with Log(db, read_only=True) as log:
        records = [r for r in log.records(workload=workload, target=target) if r.kind == "trial"]
    found: list[Chosen] = []
    for i, r in enumerate(records, 1):
        if r.status == "ok" and r.time_s and (not found or r.time_s < found[-1].time_s):
            found.append(Chosen(i, r.trace, r.time_s))
    return found


def speeds(measurer: Measurer, champion: Chosen, run: list[Chosen]) -> list[float]:
    """Of each, times that of the champion, timed in turns with it: a trial's own time is a lucky or an
    unlucky one."""
    measured = measurer.finalists([champion.trace, *(c.trace for c in run)], rounds=12)
    best = measured[0].time_s
    assert best is not None
    return [best / m.time_s if m.time_s else 0.0 for m in measured[1:]]


def one_task(op: str, params: dict[str, int], args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    there = backends.parse(args.elsewhere, 1)
    common: dict[str, Any] = {"budget_s": 300.0, "threads": 1}
    at.tune(op, **params, target=there, trials=args.teach, db=folder / "there.db", budget_s=300.0)
    with Log(folder / "there.db") as log:
        log.export(folder / "there.jsonl")
    runs: dict[str, list[list[Chosen]]] = {"with": [], "without": []}
    for seed in range(args.seeds):
        for kind in runs:
            db = folder / f"{kind}{seed}.db"
            if kind == "with":
                with Log(db) as log:
                    log.merge(folder / "there.jsonl")
                try:
                    at.best(op, **params, threads=1, db=db)
                    raise SystemExit("a kernel of another CPU was taken for this one's")
                except at.KernelNotFound:
                    pass
            result = at.tune(op, **params, **common, trials=args.trials, seed=seed, db=db)
            runs[kind].append(path(db, result.workload.digest, result.target.digest))
    champion = min((c for found in runs.values() for run in found for c in run), key=lambda c: c.time_s)
    with preparation.measurer(result.workload, result.target, 300.0) as measurer:
        found = {kind: [speeds(measurer, champion, run) for run in runs[kind]] for kind in runs}
    best = max(x for each in found.values() for run in each for x in run)

    def needed(run: list[Chosen], speed: list[float]) -> int:
        """Trials until the run's choice has the share; one more than there are where none does."""
        enough = (c.trials for c, x in zip(run, speed, strict=True) if x >= SHARE * best)
        return next(enough, args.trials + 1)

    def after(n: int, run: list[Chosen], speed: list[float]) -> float:
        """The share that the run's choice has after ``n`` trials."""
        return max((c.trials, x / best) for c, x in zip(run, speed, strict=True) if c.trials <= n)[1]

    return {
        kind: {
            "trials": [needed(*pair) for pair in zip(runs[kind], found[kind], strict=True)],
            "share_after_8": [
                round(after(8, *pair), 3) for pair in zip(runs[kind], found[kind], strict=True)
            ],
        }
        for kind in runs
    }


def summary(tasks: dict[str, Any]) -> dict[str, Any]:
    """Geometric means over tasks and seeds."""

    def mean(kind: str, what: str) -> float:
        return round(statistics.geometric_mean([x for t in tasks.values() for x in t[kind][what]]), 3)

    kinds = ("with", "without")
    return {what: {kind: mean(kind, what) for kind in kinds} for what in ("trials", "share_after_8")}


def main() -> None:
    kept = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=kept)
    parser.add_argument("--elsewhere", default="x86-64-v3")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=48)
    parser.add_argument("--teach", type=int, default=96, help="trials of the other CPU's log")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    machine = this_machine()
    asked = {k: v for k, v in vars(args).items() if k != "out"}
    result: dict[str, Any] = {"cpu": machine["cpu"], **asked}
    for name, (op, params) in TASKS.items():
        with tempfile.TemporaryDirectory() as folder:
            result[name] = one_task(op, params, args, Path(folder))
        print(name, json.dumps(result[name]), flush=True)
    result["geometric_mean"] = summary({name: result[name] for name in TASKS})
    print("geometric mean", json.dumps(result["geometric_mean"]))
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
