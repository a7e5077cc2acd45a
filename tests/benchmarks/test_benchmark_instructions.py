"""benchmarks/instructions.py: its schedules are right, and timed by the clock of the peak."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import instructions as benchmark

import autotune as at
from autotune.backends import parse
from autotune.codegen.llvm.compile import LoadedObject
from autotune.codegen.llvm.intrinsic import has
from autotune.measure.inputs import random_inputs
from schedules import te
from schedules.instructions import INSTRUCTIONS


@pytest.mark.parametrize("name", benchmark.TIMED)
def test_a_small_product(name: str) -> None:
    ins, here = INSTRUCTIONS[name], parse("cpu", 1)
    dag = benchmark.product(ins, 8 if ins.registers is None else 64, 64, 64)
    inputs = random_inputs(dag)
    inputs = [np.round(x.astype("float32")).astype(x.dtype) for x in inputs]  # sums are exact
    kernel = at.build(benchmark.schedule(dag, ins, here), here)
    np.testing.assert_array_equal(kernel(*inputs), te.evaluate(dag, inputs)[0])


def test_kernels_and_peak_are_timed_by_one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where others work on this machine, wall clock over CPU time would be any share."""
    ins, here = INSTRUCTIONS["vpdpbusd"], parse("cpu", 1)
    if not has(ins, here.features):
        pytest.skip(f"this CPU has no {', '.join(ins.features)}")
    clocks: list[bool] = []
    real = LoadedObject.bench

    def bench(self: LoadedObject, pointers: list[int], n: int, **how: bool) -> int:
        clocks.append(how.get("cpu_clock", False))
        return real(self, pointers, n, **how)

    monkeypatch.setattr(LoadedObject, "bench", bench)
    monkeypatch.setattr(benchmark, "SAMPLE_S", 1e-5)
    found = benchmark.compare(ins, 64, here, rounds=1)
    assert set(found) == {"packed in the call", "packed ahead"} and all(clocks) and len(clocks) >= 6
