"""Are first picks on a busy machine those of a quiet one?

    python benchmarks/first_picks.py --busy 4 --shapes 40 --out first_picks.json

For each of some shapes, drawn by a seed, a first pick is made with the machine as it is, and another beside
busy processes. Both kernels are timed in turns. A pick is that of a quiet machine if its schedule is the same
or as fast up to a tenth. Schedules that only noise tells apart differ between two picks on a quiet machine
too: ``--busy 0`` says by how much.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from autotune import backends  # noqa: E402
from autotune.run.describing import describe  # noqa: E402
from autotune.run.kernels import kernel_of  # noqa: E402
from autotune.tuning.first_pick import Pick, first_pick  # noqa: E402
from schedules import ops  # noqa: E402
from schedules.model import Target, Workload  # noqa: E402

ROUNDS, NEAR = 7, 1.1
KINDS: dict[str, dict[str, tuple[int, int]]] = {
    "matmul": {"m": (1, 1024), "n": (16, 4096), "k": (16, 4096)},
    "batch_matmul": {"b": (2, 16), "m": (8, 256), "n": (8, 256), "k": (16, 256)},
    "softmax": {"m": (8, 2048), "n": (16, 4096)},
    "conv2d": {"ci": (3, 128), "h": (7, 64), "w": (7, 64), "co": (8, 128), "kh": (3, 3), "kw": (3, 3)},
}


def shapes(number: int, seed: int) -> Iterator[Workload]:
    """Workloads whose sizes are drawn, evenly on a logarithmic scale."""
    rng = np.random.default_rng(seed)
    for i in range(number):
        name = list(KINDS)[i % len(KINDS)]
        sizes = {k: round(2 ** rng.uniform(np.log2(a), np.log2(b))) for k, (a, b) in KINDS[name].items()}
        yield ops.workload(name, ({"b": 1} if name == "conv2d" else {}) | sizes)


@contextlib.contextmanager
def beside(number: int) -> Iterator[None]:
    """So many processes that do nothing but keep a CPU busy."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for p in busy:
            p.kill()
            p.wait()


def picked(workload: Workload, target: Target, number: int) -> tuple[Pick, float]:
    """A first pick and the seconds that it took, beside so many busy processes."""
    with beside(number), tempfile.TemporaryDirectory() as tmp:
        begin = time.monotonic()
        pick = first_pick(workload, target, f"{tmp}/none.db")
        took = time.monotonic() - begin
    assert pick is not None, describe(workload)
    return pick, took


def row(workload: Workload, target: Target, number: int) -> dict[str, Any]:
    (quiet, quiet_s), (busy, busy_s) = (picked(workload, target, n) for n in (0, number))
    ratio = 1.0
    if quiet.trace != busy.trace:
        rng = np.random.default_rng(0)
        inputs = [rng.standard_normal(t.shape).astype(t.dtype) for t in workload.dag.inputs]
        kernels = [kernel_of(workload, target, p.trace, None, p.chosen_by) for p in (quiet, busy)]
        times = [[k.time(*inputs, repeat=3) for k in kernels] for _ in range(ROUNDS)]
        ratio = statistics.median(b / a for a, b in times)
    return {
        "shape": describe(workload),
        "same": quiet.trace == busy.trace,
        "ratio": ratio,
        "plain": busy.chosen_by == "default" != quiet.chosen_by,
        "checked": busy.time_s is not None,
        "quiet_s": quiet_s,
        "busy_s": busy_s,
    }


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--busy", type=int, default=4, help="busy processes")
    parser.add_argument("--shapes", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a file for the rows (JSON)")
    options = parser.parse_args()
    target, rows = backends.parse("cpu", 1), []
    for workload in shapes(options.shapes, options.seed):
        rows.append(row(workload, target, options.busy))
        r = rows[-1]
        found = "the same" if r["same"] else f"{r['ratio']:.2f} times as long"
        print(f"{r['shape']}: {found}; {r['quiet_s']:.1f} s, busy {r['busy_s']:.1f} s", flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(rows, indent=1) + "\n")
    alike = sum(r["same"] or r["ratio"] <= NEAR for r in rows)
    plain, unchecked = (sum(r[k] == v for r in rows) for k, v in (("plain", True), ("checked", False)))
    print(f"{alike} of {len(rows)} as on a quiet machine; {plain} plain loops, {unchecked} not checked")


if __name__ == "__main__":
    main()
