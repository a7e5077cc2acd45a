"""Which kinds of expression have a space without a good schedule?

    OPENBLAS_NUM_THREADS=1 python benchmarks/spaces.py --count 300 --out benchmarks/results/spaces.json

Draws expressions (`expressions.py`), and times on one thread of each: the first pick (`load(fallback=True)`
with an empty log), the fastest of a few trials, and numpy's obvious program. Those that take more
than ``--limit`` times as long as numpy's are listed at the end. What is done is kept in the
file of results, so that it can be stopped. ``--again NUMBERS`` does some again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from expressions import Drawn, drawn
from suite import commit

import autotune as at
from autotune.backends.building.generator_version import this_machine
from schedules import te
from schedules.space import derive

ROUNDS = 15


def shortest(runs: dict[str, Callable[[], object]], least: float = 0.004) -> dict[str, float]:
    """The least seconds of each call, of this thread's own, so that others on the machine count little. In
    rounds, in which each has its turn of ``least`` seconds."""
    counts = {}
    for name, run in runs.items():
        run()
        begin = time.thread_time()
        run()
        counts[name] = max(1, round(least / max(time.thread_time() - begin, 1e-7)))
    best = dict.fromkeys(runs, math.inf)
    for _ in range(ROUNDS):
        for name, run in runs.items():
            run()  # what another has just pushed out of the cache is there again
            begin = time.thread_time()
            for _ in range(counts[name]):
                run()
            best[name] = min(best[name], (time.thread_time() - begin) / counts[name])
    return best


def compared(x: Drawn, trials: int, seed: int) -> dict[str, Any]:
    """Seconds of the first pick, of the tuned kernel and of numpy's program, and what was tried."""
    dag = te.dag(x.tensors)
    with tempfile.TemporaryDirectory() as tmp, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that nothing is stored
        first = at.load(x.tensors, threads=1, db=os.path.join(tmp, "none.db"), fallback=True)
        log = os.path.join(tmp, "tuning.db")
        result = at.tune(x.tensors, threads=1, trials=trials, budget_s=60, db=log, seed=seed, progress=None)
        tuned = at.load(x.tensors, threads=1, db=log, fallback=True)
    rng = np.random.default_rng(seed)
    inputs = [rng.standard_normal(t.shape).astype(t.dtype) for t in dag.inputs]
    out = tuned(*inputs)
    runs = {
        "first_s": lambda: first(*inputs, out=out),
        "tuned_s": lambda: tuned(*inputs, out=out),
        "numpy_s": lambda: x.numpy(*inputs),
    }
    return {
        "expression": x.label,
        "sketches": len(derive(dag, tuned.target).sketches),
        "trials": result.trials.measured,
        "failed": result.trials.failed,
        **shortest(runs),
    }


def told(row: dict[str, Any]) -> str:
    """A row as people read it: the first pick and the tuned kernel as multiples of numpy's time."""
    first, tuned = (row[k] / row["numpy_s"] for k in ("first_s", "tuned_s"))
    numpy_us = row["numpy_s"] * 1e6
    return f"{row['number']:4d} {first:6.2f} {tuned:6.2f} of {numpy_us:9.1f} µs  {row['expression']}"


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=16, help="trials of each")
    parser.add_argument("--limit", type=float, default=1.5, help="ratio to numpy above which one is listed")
    parser.add_argument("--again", type=int, nargs="*", default=[], help="numbers to do again")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/spaces.json"))
    o = parser.parse_args()
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":
        parser.error(
            "numpy's products may use other threads, whose time is not counted; set OPENBLAS_NUM_THREADS=1"
        )
    old = json.loads(o.out.read_text())["rows"] if o.out.exists() else []
    rows = {r["number"]: r for r in old if r["number"] not in o.again}
    for number in range(o.count):
        if number in rows:
            continue
        found = compared(drawn(o.seed, number), o.trials, o.seed)
        rows[number] = {"number": number, "commit": commit(), **found}
        print(told(rows[number]), flush=True)
        head = {
            "command": f"spaces.py --count {o.count} --seed {o.seed} --trials {o.trials}",
            "machine": this_machine(),
        }
        o.out.write_text(json.dumps({**head, "rows": [rows[k] for k in sorted(rows)]}, indent=1) + "\n")
    for what in ("first_s", "tuned_s"):
        slow = [r for r in rows.values() if r[what] > o.limit * r["numpy_s"]]
        print(f"{what}: {len(slow)} of {len(rows)} take more than {o.limit:g} times as long as numpy's")
        for row in sorted(slow, key=lambda r: -r[what] / r["numpy_s"]):
            print(told(row))


if __name__ == "__main__":
    main()
