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
import math
import tempfile
from pathlib import Path
from typing import Any

import autotune as at
from autotune import targets
from kernels_db import Log

TASKS: dict[str, tuple[str, dict[str, int]]] = {
    "matmul 256": ("matmul", {"m": 256, "n": 256, "k": 256}),
    "matmul 128x512x256": ("matmul", {"m": 128, "n": 512, "k": 256}),
    "conv2d 28x28x64": ("conv2d", {"h": 28, "w": 28, "ci": 64, "co": 64, "k": 3, "padding": 1}),
}


def times(db: Path, workload: str, target: str) -> list[float]:
    """Seconds of the trials of a task in the order they were made; infinite for failures."""
    with Log(db, read_only=True) as log:
        trials = [r for r in log.records(workload=workload, target=target) if r.kind == "trial"]
    return [r.time_s if r.status == "ok" and r.time_s else math.inf for r in trials]


def needed(trials: list[float], best: float, share: float = 0.9) -> int:
    """Trials until one reaches the share of the best; one more than there are where none does."""
    return next((i for i, t in enumerate(trials, 1) if best / t >= share), len(trials) + 1)


def one_task(op: str, params: dict[str, int], args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    there = targets.parse(args.elsewhere, 1)
    common: dict[str, Any] = {"budget_s": 300.0, "threads": 1}
    at.tune(op, **params, target=there, trials=args.teach, db=folder / "there.db", budget_s=300.0)
    with Log(folder / "there.db") as log:
        log.export(folder / "there.jsonl")
    runs: dict[str, list[list[float]]] = {"with": [], "without": []}
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
            runs[kind].append(times(db, result.workload.digest, result.target.digest))
    best = min(t for found in runs.values() for run in found for t in run)
    return {
        "best_s": best,
        **{kind: [needed(run, best) for run in found] for kind, found in runs.items()},
        "first_8_share": {
            kind: [round(best / min(run[:8]), 3) for run in found] for kind, found in runs.items()
        },
    }


def main() -> None:
    kept = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=kept)
    parser.add_argument("--elsewhere", default="x86-64-v3")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=48)
    parser.add_argument("--teach", type=int, default=96, help="trials of the other CPU's log")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    machine = targets.machine()
    asked = {k: v for k, v in vars(args).items() if k != "out"}
    result: dict[str, Any] = {"cpu": machine["cpu"], **asked}
    for name, (op, params) in TASKS.items():
        with tempfile.TemporaryDirectory() as folder:
            result[name] = one_task(op, params, args, Path(folder))
        print(name, json.dumps(result[name]), flush=True)
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
