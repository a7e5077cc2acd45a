"""Sizes that vary: a kernel for a range, at sizes drawn by a seed, beside kernels tuned for each size alone.

    python benchmarks/dynamic.py --range 1..512 --n 512 --k 512 --budget 60 --out dynamic.json

The range of rows of a matrix product is tuned for ``--budget`` seconds and each drawn size alone for
``--alone`` seconds, in a log of its own. Both kernels of a size are timed in turns. The time of the first
call of a size and the error of its result are told too. ``--every`` also calls each size of the range.
``--markdown`` prints the table of a file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import timeit
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
from suite import commit  # noqa: E402

import autotune as at  # noqa: E402

ROUNDS = 7
CALLS = 2000


def product(m: int, n: int, k: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(m)
    return rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)


def error(kernel: Any, a: Any, b: Any) -> float:
    """The largest error, of the largest value."""
    want = a @ b
    return float(np.max(np.abs(kernel(a, b) - want)) / np.max(np.abs(want)))


def dispatch_s() -> float:
    """Seconds that finding the kernel of a size adds to a call of the least product."""
    with tempfile.TemporaryDirectory() as tmp:
        db = os.path.join(tmp, "log.db")
        at.tune("matmul", m=at.dim(1, 2, open=False), n=1, k=1, threads=1, trials=0, db=db)
        kernel: Any = at.load("matmul", m=at.dim(1, 2, open=False), n=1, k=1, threads=1, db=db)
        a, b = product(1, 1, 1)
        out = np.empty((1, 1), np.float32)
        own = kernel.at(m=1)
        found = [
            min(timeit.repeat(lambda f=f: f(a, b, out=out), number=CALLS, repeat=40)) for f in (kernel, own)
        ]
        return (found[0] - found[1]) / CALLS


def row(m: int, n: int, k: int, kernel: Any, threads: int, alone_s: float) -> dict[str, Any]:
    a, b = product(m, n, k)
    begun = time.perf_counter()
    wrong = error(kernel, a, b)
    first = time.perf_counter() - begun
    with tempfile.TemporaryDirectory() as tmp:
        db = os.path.join(tmp, "log.db")
        at.tune("matmul", m=m, n=n, k=k, threads=threads, budget_s=alone_s, db=db)
        alone = at.load("matmul", m=m, n=n, k=k, threads=threads, db=db)
    own = kernel.at(m=m)
    times = [(own.time(a, b, repeat=3), alone.time(a, b, repeat=3)) for _ in range(ROUNDS)]
    return {
        "m": m,
        "chosen_by": own.chosen_by,
        "first_s": first,
        "error": wrong,
        "time_s": statistics.median(x for x, _ in times),
        "alone_s": statistics.median(y for _, y in times),
        "ratio": statistics.median(x / y for x, y in times),
    }


def markdown(found: dict[str, Any]) -> str:
    rows = found["rows"]
    out = ["| m | chosen by | first call | time ÷ tuned alone |", "|---|---|---|---|"]
    out += [f"| {r['m']} | {r['chosen_by']} | {r['first_s']:.2f} s | {r['ratio']:.2f} |" for r in rows]
    ratios = [r["ratio"] for r in rows]
    mean = statistics.geometric_mean(ratios)
    out.append(f"| {len(rows)} sizes | | | {mean:.3f}, at most {max(ratios):.2f} |")
    out.append(f"\nFinding the kernel of a size takes {found['dispatch_s'] * 1e6:.2f} µs of a call.")
    return "\n".join(out)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--range", default="1..512", help="least and largest number of rows")
    parser.add_argument("--n", type=int, default=512)
    parser.add_argument("--k", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tuning of the range")
    parser.add_argument("--alone", type=float, default=10.0, help="seconds of tuning of each drawn size")
    parser.add_argument("--sizes", type=int, default=24, help="how many sizes are drawn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", action="store_true", help="also call every size of the range")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/dynamic.json")
    parser.add_argument("--markdown", action="store_true", help="print the table of the file and stop")
    options = parser.parse_args()
    if options.markdown:
        print(markdown(json.loads(options.out.read_text())))
        return
    lo, hi = map(int, options.range.split(".."))
    n, k = options.n, options.k
    drawn = sorted(np.random.default_rng(options.seed).integers(lo, hi + 1, options.sizes).tolist())
    with tempfile.TemporaryDirectory() as tmp:
        os.environ["AUTOTUNE_CACHE_DIR"] = os.path.join(tmp, "cache")
        db = os.path.join(tmp, "log.db")
        m = at.dim(lo, hi, open=False)
        result = at.tune("matmul", m=m, n=n, k=k, threads=options.threads, budget_s=options.budget, db=db)
        kernel: Any = at.load("matmul", m=m, n=n, k=k, threads=options.threads, db=db)
        found: dict[str, Any] = {
            "range": options.range, "n": n, "k": k, "threads": options.threads, "budget_s": options.budget,
            "alone_s": options.alone, "seed": options.seed, "arch": kernel.target.arch, "commit": commit(),
            "sizes": [list(s) for s in kernel.sizes], "elapsed_s": result.elapsed_s,
            "dispatch_s": dispatch_s(), "rows": [],
        }  # fmt: skip
        for size in drawn:
            found["rows"].append(row(size, n, k, kernel, options.threads, options.alone))
            options.out.write_text(json.dumps(found, indent=1) + "\n")
            last = found["rows"][-1]
            print(f"m={size}: {last['ratio']:.2f}, {last['first_s']:.2f} s", file=sys.stderr, flush=True)
        if options.every:
            found["largest_error"] = max(error(kernel, *product(size, n, k)) for size in range(lo, hi + 1))
            options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(markdown(found))


if __name__ == "__main__":
    main()
