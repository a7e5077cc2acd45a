"""Operators with one pass over the elements: add, fused_multiply_add, permute."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from schedules import te
from schedules.dtypes import DTYPES
from schedules.expr import Expr, ExprLike
from schedules.ops.base import Array, Operator, Param, Params, Types, piecewise


def _add(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    a, b = (te.placeholder((p["n"],), types.input, name) for name in "ab")
    return [a, b, te.compute((p["n"],), lambda i: te.cast(a[i] + b[i], types.output), "c")]


def _add_reference(p: Params, types: Types, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    return [np.asarray(inputs[0] + inputs[1])]


def _fma(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    a, b, c, d = (te.placeholder((p["n"],), types.input, name) for name in "abcd")
    e = te.compute((p["n"],), lambda i: te.cast(d[i] + (a[i] + b[i]) * c[i], types.output), "e")
    return [a, b, c, d, e]


def _fma_reference(p: Params, types: Types, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    return [piecewise(lambda a, b, c, d: d + (a + b) * c, types.output, *inputs)]


def _permute(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    shape, axes = p["shape"], p["axes"]
    x = te.placeholder(shape, types.input, "x")

    def value(*index: Expr) -> Expr:
        source: list[ExprLike] = [0] * len(axes)
        for d, a in enumerate(axes):
            source[a] = index[d]
        return x[tuple(source)]

    return [x, te.compute([shape[a] for a in axes], value, "y")]


def _permute_reference(p: Params, types: Types, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    return [np.ascontiguousarray(inputs[0].transpose(p["axes"]))]


def _check_permute(p: Params) -> str | None:
    n = len(p["shape"])
    if sorted(p["axes"]) != list(range(n)):
        return (
            f"axes={'x'.join(map(str, p['axes']))} is not a permutation of 0..{n - 1}, "
            f"the axes of shape={'x'.join(map(str, p['shape']))}"
        )
    return f"shape has {n} axes; at most 8 are supported" if n > 8 else None


# Parameters that operators of this file share.
_N = (Param("n", "elements"),)

ADD = Operator("add", "a(n), b(n) → a + b", _N, _add, _add_reference, lambda p: int(p["n"]))
FUSED_MULTIPLY_ADD = Operator(
    "fused_multiply_add",
    "a, b, c, d (n) → d + (a + b)·c",
    _N,
    _fma,
    _fma_reference,
    lambda p: int(3 * p["n"]),
)
PERMUTE = Operator(
    "permute",
    "x(shape) → x transposed so that axis d of the result is axis axes[d] of x (as numpy.transpose)",
    (
        Param("shape", "the input's extents", kind="list"),
        Param("axes", "a permutation of 0, 1, …", kind="list", minimum=0),
    ),
    _permute,
    _permute_reference,
    lambda p: 0,
    dtypes=tuple(DTYPES),
    check=_check_permute,
)
