"""A factor that is computed in a stage of its own."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import check_interpreted

from schedules import te
from schedules.expr import Cast, Expr, dtype_of
from schedules.ir.nest import find_block
from schedules.primitives.stage_factor import factors, fits
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG
from schedules.te.evaluator import evaluate


def codes() -> ComputeDAG:
    """Three times products of int8 with codes of 4 bits, two in a byte."""
    x, w = te.placeholder((10,), "int8", "x"), te.placeholder((7, 5), "uint8", "w")
    k = te.reduce_axis(10, "k")

    def term(i: Expr) -> Expr:
        return te.cast(x[k], "int32") * ((w[i, k // 2] >> (4 * te.cast(k % 2, "int32"))) & 15) * 3

    return te.dag([x, w, te.compute((7,), lambda i: te.sum(term(i), axis=k), "y")])


@pytest.mark.parametrize(
    ("place", "dtype", "shape"),
    [
        (0, "int8", (10,)),
        (0, "int32", (10,)),
        (1, "uint8", (7, 10)),
        (1, "int8", (7, 10)),
        (2, "uint8", (7,)),
    ],
)
def test_a_factor_of_codes(place: int, dtype: str, shape: tuple[int, ...]) -> None:
    """Its stage has the axes that it depends on; of a number the first of the block."""
    dag = codes()
    s = Schedule(dag)
    name = s.stage_factor("y", place, dtype)
    assert s.blocks() == [name, "y"] and s.nest.buffer(name).dtype == dtype
    assert tuple(int(n.value) for n in s.nest.buffer(name).shape) == shape
    values = find_block(s.nest, "y").values
    assert isinstance(factors(values[0])[place], Cast) is (dtype != "int32")
    rng = np.random.default_rng(0)
    data = [rng.integers(-128, 128, 10).astype("int8"), rng.integers(0, 256, (7, 5)).astype("uint8")]
    want = evaluate(dag, data)
    check_interpreted(s.nest, dag, data, want)
    s.compute_at(name, s.loops("y")[-1])
    check_interpreted(s.nest, dag, data, want)
    again = Schedule.replay(dag, s.trace)
    assert again.nest == s.nest


def test_which_dtypes_have_all_values_of_a_factor() -> None:
    x = te.placeholder((4,), "uint8", "x")
    i, wide = x[0], te.placeholder((4,), "int32", "z")[0]
    fitting: list[tuple[Expr, str, bool]] = [
        (te.cast(i, "int32"), "uint8", True),
        (te.cast(i, "int32"), "int8", False),
        (te.cast(i, "int32") >> 1, "int8", True),
        (te.cast(i, "int32") & 127, "int8", True),
        (wide & 255, "uint8", True),
        (wide & 256, "uint8", False),
        (wide & -1, "uint8", False),
        (wide >> 24, "int8", True),
        (wide >> 23, "int8", False),
        (wide >> te.cast(i, "int32"), "int8", False),
        (te.cast(i, "int32") - 1, "uint8", False),
        (te.select(i > 3, te.cast(i, "int32") & 3, 9), "uint8", True),
        (te.cast(i, "float32"), "uint8", False),
        (te.cast(i, "float32"), "float32", True),
    ]
    for e, dtype, want in fitting:
        assert fits(e, dtype) is want, (str(e), dtype_of(e), dtype)
