"""Share of the FMA peak that the hand-written schedules reach, one thread.

Kernel and FMA loop take turns on the same core in the same process; each round gives a ratio of CPU times,
and the median of the rounds counts. ``python benchmarks/handwritten.py [--rounds 30]``
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from autotune.backends.building.from_trace import build_object
from autotune.backends.peaks.cpu_peaks import FmaLoop
from autotune.codegen.llvm.compile import load_object
from autotune.targets import detect
from examples import handwritten
from schedules.te.evaluator import evaluate
from schedules.units import of_peak, peak_share

CASES = {
    "matmul 1024x1024x1024": (lambda t: handwritten.matmul(1024, 1024, 1024, t), 2 * 1024**3),
    "matmul 512x512x512": (lambda t: handwritten.matmul(512, 512, 512, t), 2 * 512**3),
    "matmul 997x991x983": (lambda t: handwritten.matmul(997, 991, 983, t), 2 * 997 * 991 * 983),
    "conv2d 56x56x64->64 3x3": (lambda t: handwritten.conv2d(56, 56, 64, 64, t), 2 * 56 * 56 * 64 * 64 * 9),
    "conv2d 14x14x256->256 3x3": (
        lambda t: handwritten.conv2d(14, 14, 256, 256, t),
        2 * 14 * 14 * 256 * 256 * 9,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    target = detect(threads=1)
    tiles = handwritten.AVX512 if target.limit("vector_bytes") == 64 else handwritten.AVX2
    peak = FmaLoop(target, "float32")
    peak_runs = max(1, round(2e-3 / (peak.seconds(100) / 100)))
    rng = np.random.default_rng(0)
    for name, (make, flops) in CASES.items():
        s = make(tiles)
        kernel = load_object(build_object(s.dag, s.trace, target))
        inputs = [rng.standard_normal(t.shape).astype(t.dtype) for t in s.dag.inputs]
        out = np.full(s.dag.tensors[s.dag.outputs[0]].shape, np.nan, np.float32)
        pointers = [a.ctypes.data for a in (*inputs, out)]
        kernel.run(pointers)
        np.testing.assert_allclose(out, evaluate(s.dag, inputs)[0], rtol=1e-3, atol=1e-2)
        n = max(1, round(10e-3 / (kernel.bench(pointers, 1) / 1e9)))
        shares = []
        for _ in range(rounds):
            rate = peak.flops * peak_runs / peak.seconds(peak_runs, cpu_clock=True)
            seconds = kernel.bench(pointers, n, cpu_clock=True) / n / 1e9
            rate_after = peak.flops * peak_runs / peak.seconds(peak_runs, cpu_clock=True)
            shares.append(flops / seconds / max(rate, rate_after))
        low, high = min(shares), max(shares)
        share = of_peak(statistics.median(shares))
        print(f"{name:28s} {share}  (min {peak_share(low)}, max {peak_share(high)})")


if __name__ == "__main__":
    main()
