"""benchmarks/instructions.py: its schedules are right, and its peak is one."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import instructions as bench

import autotune as at
from autotune.codegen.llvm.intrinsic import has
from autotune.measure.inputs import random_inputs
from autotune.targets import parse
from schedules import te
from schedules.instructions import INSTRUCTIONS


@pytest.mark.parametrize("name", bench.INTERLEAVE)
def test_a_small_product(name: str) -> None:
    ins, here = INSTRUCTIONS[name], parse("cpu", 1)
    dag = bench.product(ins, 8, 64, 64)
    inputs = random_inputs(dag)
    inputs = [np.round(x.astype("float32")).astype(x.dtype) for x in inputs]  # sums are exact
    kernel = at.build(bench.schedule(dag, ins, here), here)
    np.testing.assert_array_equal(kernel(*inputs), te.evaluate(dag, inputs)[0])


@pytest.mark.parametrize("name", bench.INTERLEAVE)
def test_the_peak_is_above_that_of_float32(name: str) -> None:
    ins, here = INSTRUCTIONS[name], parse("cpu", 1)
    if not has(ins, here.features):
        pytest.skip(f"this CPU has no {', '.join(ins.features)}")
    assert bench.peak_loop(ins, here)(10) > 2e10
