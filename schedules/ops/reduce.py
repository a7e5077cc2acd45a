"""Plain reductions: reduce_sum, norm2."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from schedules import te
from schedules.dtypes import FLOATS
from schedules.ops.base import Array, Operator, Param, Params, Types, stored, wide


def _reduce_sum(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    x = te.placeholder((p["m"], p["n"]), types.input, "x")
    k = te.reduce_axis(p["n"], "k")
    y = te.compute((p["m"],), lambda i: te.sum(x[i, k], axis=k, dtype=types.accumulator), "y")
    return [x, stored(y, types.output)]


def _reduce_sum_reference(
    p: Params, types: Types, layout: str | None, inputs: Sequence[Array]
) -> list[Array]:
    return [wide(inputs[0]).sum(1).astype(types.output)]


def _norm2(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    x = te.placeholder((p["b"], p["m"], p["n"]), types.input, "x")
    i, j = te.reduce_axis(p["m"], "i"), te.reduce_axis(p["n"], "j")
    squares = te.compute((p["b"],), lambda z: te.sum(x[z, i, j] * x[z, i, j], axis=(i, j)), "sq_sum")
    return [x, te.compute((p["b"],), lambda z: te.cast(te.sqrt(squares[z]), types.output), "y")]


def _norm2_reference(p: Params, types: Types, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    x = wide(inputs[0])
    return [np.sqrt((x * x).sum((1, 2))).astype(types.output)]


REDUCE_SUM = Operator(
    "reduce_sum",
    "x(m,n) → Σ over n (m,)",
    (Param("m", "rows"), Param("n", "columns, summed")),
    _reduce_sum,
    _reduce_sum_reference,
    lambda p: int(p["m"] * p["n"]),
    retyped=True,
)
NORM2 = Operator(
    "norm2",
    "x(b,m,n) → √Σx² (b,), the Frobenius norm",
    (Param("b", "batch", 1), Param("m", "rows"), Param("n", "columns")),
    _norm2,
    _norm2_reference,
    lambda p: int(2 * p["b"] * p["m"] * p["n"]),
    dtypes=FLOATS,
)
