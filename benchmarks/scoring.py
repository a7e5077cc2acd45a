"""How many candidates a second a search can score on one core, and where the time goes.

    python benchmarks/scoring.py [--rows 20000] [--chunk 2048] [--json FILE]

For each task, random valid rows of its sketches, in chunks. CPU seconds of this thread, the least of several
passes: neighbours slow wall-clock time only. "scored" is features and the shipped model, what a search does
before its first trial; with trees of its own on top "fitted"; "evolved" adds making the row and its limits.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from autotune import backends
from autotune.search.columns import compile_columns
from autotune.search.evolutionary import model_features, model_matrix
from cost_model import pretrained
from cost_model.analytic import AnalyticModel
from cost_model.draft_then_verify import draft_then_verify
from cost_model.xgb import XGBModel
from schedules import ops
from schedules.space.base import Rows
from schedules.space.derive import DerivedSpace, derive

TASKS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "matmul 512": ("matmul", {"m": 512, "n": 512, "k": 512}, None),
    "conv2d 56 3x3": ("conv2d", {"h": 56, "w": 56, "ci": 64, "co": 64, "kh": 3, "kw": 3, "padding": 1}, None),
    "softmax 4096x1024": ("softmax", {"m": 4096, "n": 1024}, None),
    "attention 1024": ("attention", {"seq": 1024, "dim": 64, "heads": 12}, None),
    "matmul 512 on a GPU": ("matmul", {"m": 512, "n": 512, "k": 512}, "h100"),
}
OWN = 128  # trials of the task that its own trees are fitted to
PASSES = 7
Chunks = list[tuple[int, Rows]]


def chunks(space: DerivedSpace, rows: int, size: int, rng: np.random.Generator) -> Chunks:
    """About ``rows`` valid rows over all sketches, at most ``size`` of one sketch at a time."""
    each = -(-rows // len(space.sketches))
    found: Chunks = []
    for s in range(len(space.sketches)):
        left = each
        for _ in range(50):
            drawn = space.sample(s, 2 * size, rng)
            drawn = drawn[space.valid(s, drawn)][: min(size, left)]
            if len(drawn):
                found.append((s, drawn))
            left -= len(drawn)
            if left <= 0:
                break
    return found


def cpu_s(work: Callable[[], object]) -> float:
    """CPU seconds of this thread, the least of a few passes."""
    best = float("inf")
    for _ in range(PASSES):
        start = time.thread_time()
        work()
        best = min(best, time.thread_time() - start)
    return best


def speeds(space: DerivedSpace, rows: int, size: int) -> dict[str, float]:
    """Microseconds a candidate of each part, and candidates a second of what a search does with them."""
    rng = np.random.default_rng(0)
    work = chunks(space, rows, size, rng)
    n = sum(len(r) for _, r in work)
    names = model_features(space)
    matrices = [model_matrix(space, s, r) for s, r in work]
    document = pretrained.shipped(space.target)
    prior = pretrained.Prior(names, matrices[0], document) if pretrained.knows(names, document) else None
    own = XGBModel(names, prior=prior)
    sample = np.concatenate(matrices)
    sample = sample[rng.choice(len(sample), OWN)]
    own.fit(sample, AnalyticModel(names).predict(sample) * rng.uniform(0.5, 1.0, OWN))
    parts = {
        "sample": cpu_s(lambda: [space.sample(s, len(r), rng) for s, r in work]),
        "mutate": cpu_s(lambda: [space.mutate(s, r, rng) for s, r in work]),
        "limits": cpu_s(lambda: [space.valid(s, r) for s, r in work]),
        "features": cpu_s(lambda: [model_matrix(space, s, r) for s, r in work]),
        "analytic": cpu_s(lambda: [AnalyticModel(names).predict(m) for m in matrices]),
        "prior": 0.0 if prior is None else cpu_s(lambda: [draft_then_verify(prior, m) for m in matrices]),
        "own": cpu_s(lambda: [draft_then_verify(own, m) for m in matrices]),
    }
    us = {k: 1e6 * v / n for k, v in parts.items()}
    first = us["features"] + (us["analytic"] if prior is None else us["prior"])
    fitted = us["features"] + us["own"]
    rates = {"scored": first, "fitted": fitted, "evolved": fitted + us["mutate"] + us["limits"]}
    return {"rows": float(n), **us, **{k: 1e6 / v for k, v in rates.items()}}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rows", type=int, default=20_000)
    p.add_argument("--chunk", type=int, default=2048, help="rows of one sketch at a time")
    p.add_argument("--task", help="only tasks whose name contains this")
    p.add_argument("--json", type=Path)
    args = p.parse_args()
    found = {}
    for name, (op, shape, target) in TASKS.items():
        if args.task and args.task not in name:
            continue
        space = derive(ops.workload(op, shape).dag, backends.parse(target, threads=1), compile_columns)
        got = found[name] = speeds(space, args.rows, args.chunk)
        print(f"{name:22}", *(f"{k} {v:9,.2f}" if v < 1000 else f"{k} {v:9,.0f}" for k, v in got.items()))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
