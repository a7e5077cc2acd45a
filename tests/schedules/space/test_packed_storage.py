"""Weights of few bytes an element that are packed in panels: panels have lanes of float32, registers more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers import interpret, same
from space_cases import target

from schedules import te
from schedules.constants import split_constants
from schedules.dtypes import DTYPES
from schedules.ir import Guard, walk
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.te.compute_dag import ComputeDAG
from schedules.te.evaluator import evaluate


def product(dtype: str, m: int, n: int, k: int) -> ComputeDAG:
    x, w, r = te.placeholder((m, k), name="x"), te.placeholder((n, k), dtype, "w"), te.reduce_axis(k, "r")
    y = te.compute((m, n), lambda i, j: te.sum(x[i, r] * te.cast(w[j, r], "float32"), axis=r), "y")
    return replace(te.dag([x, w, y]), constants=("w",))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float8_e5m2"])
def test_panels_of_any_width_are_packed_in_whole_squares(dtype: str) -> None:
    """A register of bytes is wider than a panel of three registers of float32: no square has a tail, which
    would be copied element by element, and takes LLVM seconds."""
    dag, t = product(dtype, 9, 96, 64), target(vector_bytes=64)
    rng = np.random.default_rng(0)
    values = [rng.integers(-3, 4, x.shape).astype(DTYPES[x.dtype].numpy) for x in dag.inputs]
    space = derive(dag, t)
    s = next(k for k, name in enumerate(space.sketches) if "pack=root" in name)
    rows = space.sample(s, 512, rng)
    rows = rows[space.valid(s, rows)]
    width = rows[:, space.holes(s).index("y.vec")]
    for w in (16, 48, 96):
        nest = Schedule.replay(dag, space.trace(s, rows[width == w][0]), t).nest
        packing = split_constants(nest, dag.constants)[1]["w"]
        assert not any(isinstance(x, Guard) for x in walk(lower(packing).body)), w
        if w == 48:
            same(interpret(lower(nest), dag, values), evaluate(dag, values), str(w))
