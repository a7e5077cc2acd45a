"""How good a kernel is that nobody tuned, beside the tuned one: `load(fallback=True)` of many shapes.

    python benchmarks/untuned.py --budget 10 --out benchmarks/results/untuned.json

One matrix product is tuned first (``--known``), so that the log is neither empty nor full. Then each shape of
``untuned.toml`` is loaded in a process of its own, as a program would. Its first use is timed: the seconds
until there is a result, which is compared with the reference. Then the shape is tuned in another log, and
both kernels are timed in turns. Rows that the file has are kept, so that a run can be resumed. ``--markdown``
prints its table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
from suite import commit  # noqa: E402

import autotune as at  # noqa: E402
from autotune.run.describing import describe  # noqa: E402
from autotune.tuning.suites import read  # noqa: E402
from schedules import ops  # noqa: E402
from schedules.model import Workload  # noqa: E402

SHAPES = ROOT / "benchmarks" / "untuned.toml"
ROUNDS = 7


def inputs_of(workload: Workload) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(t.shape).astype(t.dtype) for t in workload.dag.inputs]


def first_use(number: int, threads: int, db: str) -> dict[str, Any]:
    """In this process: load a shape that is not tuned and call it."""
    workload = read(str(SHAPES))[number].workload
    inputs = inputs_of(workload)
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernel = at.load(workload, threads=threads, db=db, fallback=True)
    out = kernel(*inputs)
    took = time.perf_counter() - begun
    want = ops.reference(workload, inputs)[0]
    got = np.asarray(out[0] if isinstance(out, tuple) else out)
    return {
        "first_s": took,
        "chosen_by": kernel.chosen_by,
        "error": float(np.max(np.abs(got - want)) / max(float(np.max(np.abs(want))), 1e-30)),
    }


def row(number: int, workload: Workload, threads: int, budget_s: float, known: str) -> dict[str, Any]:
    """A shape: its first use in another process, and both kernels in turns."""
    words = [sys.executable, __file__, "--first-use", str(number), "--threads", str(threads), "--db", known]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    first = json.loads(done.stdout)
    with tempfile.TemporaryDirectory() as tmp, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        db = os.path.join(tmp, "log.db")
        at.tune(workload, threads=threads, budget_s=budget_s, db=db, progress=None)
        tuned = at.load(workload, threads=threads, db=db)
        untuned = at.load(workload, threads=threads, db=known, fallback=True)
        inputs = inputs_of(workload)
        times = [(untuned.time(*inputs, repeat=3), tuned.time(*inputs, repeat=3)) for _ in range(ROUNDS)]
    return {
        "shape": describe(workload),
        **first,
        "untuned_s": statistics.median(u for u, _ in times),
        "tuned_s": statistics.median(t for _, t in times),
        "ratio": statistics.median(u / t for u, t in times),
        "arch": tuned.target.arch,
        "threads": threads,
        "commit": commit(),
    }


def markdown(rows: list[dict[str, Any]]) -> str:
    out = ["| shape | chosen by | first use | untuned ÷ tuned |", "|---|---|---|---|"]
    out += [f"| {r['shape']} | {r['chosen_by']} | {r['first_s']:.2f} s | {r['ratio']:.2f} |" for r in rows]
    ratios = [r["ratio"] for r in rows]
    worst = max(r["first_s"] for r in rows)
    mean = statistics.geometric_mean(ratios)
    out.append(f"| {len(rows)} shapes | | at most {worst:.2f} s | {mean:.2f}, at most {max(ratios):.2f} |")
    return "\n".join(out)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of tuning of each shape")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--known", default="m=64,n=512,k=512", help="the matrix product that is tuned before")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/untuned.json")
    parser.add_argument("--markdown", action="store_true", help="print the table of the file and stop")
    parser.add_argument("--first-use", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--db", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.first_use is not None:
        print(json.dumps(first_use(options.first_use, options.threads, options.db)))
        return
    rows: list[dict[str, Any]] = json.loads(options.out.read_text()) if options.out.exists() else []
    if not options.markdown:
        have = {r["shape"] for r in rows}
        with tempfile.TemporaryDirectory() as tmp:
            os.environ["AUTOTUNE_CACHE_DIR"] = os.path.join(tmp, "cache")
            known = os.path.join(tmp, "known.db")
            shape = ops.parse_shape(options.known)
            at.tune("matmul", **shape, threads=options.threads, budget_s=options.budget, db=known)
            for number, task in enumerate(read(str(SHAPES))):
                if describe(task.workload) in have:
                    continue
                rows.append(row(number, task.workload, options.threads, options.budget, known))
                options.out.write_text(json.dumps(rows, indent=1) + "\n")
                ratio, first = rows[-1]["ratio"], rows[-1]["first_s"]
                print(f"{rows[-1]['shape']}: {ratio:.2f}, {first:.2f} s", file=sys.stderr, flush=True)
    print(markdown(rows))


if __name__ == "__main__":
    main()
