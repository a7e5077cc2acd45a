"""Operators with one pass over the elements: add, fused_multiply_add, permute."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from schedules import te
from schedules.dtypes import DTYPES
from schedules.expr import Expr, ExprLike
from schedules.ops.axes import LETTERS, MOST_AXES, broadcast, named
from schedules.ops.base import Array, Operator, Param, Params, Types, piecewise, text


def _shapes(p: Params) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of add's inputs."""
    a = p.get("shape") or (p["n"],)
    return a, p["other"] or a


def _add(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    a, b = (te.placeholder(shape, types.input, name) for shape, name in zip(_shapes(p), "ab", strict=True))
    out = np.broadcast_shapes(a.shape, b.shape)

    def value(*index: Expr) -> Expr:
        return te.cast(a[broadcast(a.shape, index)] + b[broadcast(b.shape, index)], types.output)

    return [a, b, te.compute(out, named(LETTERS[: len(out)], value), "c")]


def _add_reference(p: Params, types: Types, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    return [np.asarray(inputs[0] + inputs[1])]


def _check_add(p: Params) -> str | None:
    a, b = _shapes(p)
    for name, shape in (("shape", a), ("other", b)):
        if len(shape) > MOST_AXES:
            return f"{name} has {len(shape)} axes; at most {MOST_AXES} are supported"
    for n, m in zip(reversed(a), reversed(b), strict=False):
        if n != m and 1 not in (n, m):
            return (
                f"other={text(b)} does not broadcast with {text(a)}: of each pair of extents from the last "
                f"on, such as {n} and {m}, both must be equal or one must be 1"
            )
    return None


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
            f"axes={text(p['axes'])} is not a permutation of 0..{n - 1}, the axes of shape={text(p['shape'])}"
        )
    return f"shape has {n} axes; at most {MOST_AXES} are supported" if n > MOST_AXES else None


# Parameters that operators of this file share.
_N = (Param("n", "elements"),)

ADD = Operator(
    "add",
    "a(n), b(n) → a + b; or a(shape), b(other), which broadcast as numpy's do",
    (
        Param("n", "elements", instead="shape"),
        Param("shape", "the extents of a", kind="list", optional=True),
        Param("other", "the extents of b, where they are not those of a", kind="list", optional=True),
    ),
    _add,
    _add_reference,
    lambda p: math.prod(np.broadcast_shapes(*_shapes(p))),
    check=_check_add,
)
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
        Param("shape", "the input's extents", kind="list", example=(64, 32)),
        Param("axes", "a permutation of 0, 1, …", kind="list", minimum=0, example=(1, 0)),
    ),
    _permute,
    _permute_reference,
    lambda p: 0,
    dtypes=tuple(DTYPES),
    check=_check_permute,
)
