"""The interpreter agrees with numpy's evaluator, and traps what no legal program does."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import expected, inputs, same
from programs import PROGRAMS, make, matmul

from schedules import ops
from schedules.expr import Const, Load, Var
from schedules.ir import Buffer, Loop, LoweredFunc, Store
from schedules.ir.interp import InterpError, run
from schedules.ir.nest import initial
from schedules.te.evaluator import evaluate

OUT = Buffer("Y", (Const(3),), "float32")
IN = Buffer("X", (Const(3),), "float32")


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_programs_agree_with_the_evaluator(name: str, dtype: str) -> None:
    dag = make(name, dtype)
    data = inputs(dag, 3)
    with np.errstate(over="ignore"):
        same(expected(dag, data), evaluate(dag, data), name)


@pytest.mark.parametrize("name", ["softmax", "layer_norm"])
def test_operators_agree_with_their_references(name: str) -> None:
    w = ops.workload(name, {"m": 3, "n": 7})
    rng = np.random.default_rng(0)
    data = [rng.standard_normal(t.shape).astype(t.dtype) for t in w.dag.inputs]
    for got, want in zip(expected(w.dag, data), ops.reference(w, data), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def lowered(index: object, value: object, extent: int = 3) -> LoweredFunc:
    return LoweredFunc("kernel", (IN, OUT), ("Y",), Loop("i", Const(extent), Store("Y", (index,), value)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("func", "message"),
    [
        (lowered(Var("i") + 1, Const(0.0, "float32")), r"writes Y\[3\], out of bounds of \[3\]"),
        (lowered(Var("i"), Load("X", (Var("i") - 1,), "float32")), r"reads X\[-1\], out of bounds of \[3\]"),
        (lowered(Var("i"), Const(0.0, "float32"), 2), r"Y: 1 of 3 elements never written, first at \[2\]"),
    ],
)
def test_traps(func: LoweredFunc, message: str) -> None:
    arrays = {"X": np.zeros(3, np.float32), "Y": np.zeros(3, np.float32)}
    with pytest.raises(InterpError, match=message):
        run(func, arrays)


def test_arrays_must_fit() -> None:
    nest = initial(matmul())
    arrays = {n: np.zeros((5, 6), np.float64) for n in "ABC"}
    with pytest.raises(InterpError, match=r"A: expected float32\[5, 6\], got float64\[5, 6\]"):
        run(nest, arrays)


def test_counts_are_those_of_the_program() -> None:
    dag = matmul()
    arrays = {t.name: np.ones(t.shape, np.float32) for t in dag.params}
    counts: dict[str, int] = {}
    run(initial(dag), arrays, counts=counts)
    assert counts == {"load A": 210, "load B": 210, "load C": 210, "store C": 245}
