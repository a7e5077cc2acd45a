"""Attention and its first half: attention, transpose_batch_matmul_softmax."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from schedules import te
from schedules.dtypes import FLOATS
from schedules.ops.base import Array, Operator, Param, Params, Types, wide


def _softmax(s: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
    """(exponentials over the last axis of scores(b, heads, i, j), inverse of their sums)."""
    b, heads, m, n = s.shape
    k, r = te.reduce_axis(n, "k"), te.reduce_axis(n, "k")
    top = te.compute((b, heads, m), lambda z, h, i: te.max(s[z, h, i, k], axis=k), "row_max")
    e = te.compute(s.shape, lambda z, h, i, j: te.exp(s[z, h, i, j] - top[z, h, i]), "e")
    total = te.compute((b, heads, m), lambda z, h, i: te.sum(e[z, h, i, r], axis=r), "row_sum")
    return e, te.compute((b, heads, m), lambda z, h, i: 1.0 / total[z, h, i], "inv_sum")


def _attention(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    shape = (p["b"], p["heads"], p["seq"], p["dim"])
    q, k, v = (te.placeholder(shape, types.input, n) for n in "qkv")
    d, j = te.reduce_axis(p["dim"], "d"), te.reduce_axis(p["seq"], "j")
    scale = p["dim"] ** -0.5
    dot = te.compute(
        (*shape[:3], p["seq"]), lambda z, h, i, j: te.sum(q[z, h, i, d] * k[z, h, j, d], axis=d), "dot"
    )
    scores = te.compute(dot.shape, lambda z, h, i, j: dot[z, h, i, j] * scale, "scores")
    e, inv = _softmax(scores)
    mixed = te.compute(shape, lambda z, h, i, c: te.sum(e[z, h, i, j] * v[z, h, j, c], axis=j), "mixed")
    y = te.compute(shape, lambda z, h, i, c: te.cast(mixed[z, h, i, c] * inv[z, h, i], types.output), "y")
    return [q, k, v, y]


def _soft(s: Array) -> Array:
    e = np.exp(s - s.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def _attention_reference(p: Params, types: Types, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    q, k, v = map(wide, inputs)
    return [(_soft(q @ k.swapaxes(-1, -2) * p["dim"] ** -0.5) @ v).astype(types.output)]


def _transposed(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    shape = (p["b"], p["seq"], p["heads"], p["dim"])
    q, k = te.placeholder(shape, types.input, "q"), te.placeholder(shape, types.input, "k")
    d = te.reduce_axis(p["dim"], "d")
    scores = te.compute(
        (p["b"], p["heads"], p["seq"], p["seq"]),
        lambda z, h, i, j: te.sum(q[z, i, h, d] * k[z, j, h, d], axis=d),
        "scores",
    )
    e, inv = _softmax(scores)
    y = te.compute(scores.shape, lambda z, h, i, j: te.cast(e[z, h, i, j] * inv[z, h, i], types.output), "y")
    return [q, k, y]


def _transposed_reference(
    p: Params, types: Types, layout: str | None, inputs: Sequence[Array]
) -> list[Array]:
    q, k = (wide(x).swapaxes(1, 2) for x in inputs)
    return [_soft(q @ k.swapaxes(-1, -2)).astype(types.output)]


def _product_flops(p: Params) -> int:
    return int(2 * p["b"] * p["heads"] * p["seq"] ** 2 * p["dim"])


# Parameters that operators of this file share.
_BATCH = Param("b", "batch", 1)
_SEQ, _HEADS, _DIM = Param("seq", "positions"), Param("heads", "heads"), Param("dim", "elements a head")

ATTENTION = Operator(
    "attention",
    "q, k, v(b,heads,seq,dim) → softmax(q·kᵀ / √dim)·v, no mask",
    (_BATCH, _HEADS, _SEQ, _DIM),
    _attention,
    _attention_reference,
    lambda p: 2 * _product_flops(p),
    dtypes=FLOATS,
)
TRANSPOSE_BATCH_MATMUL_SOFTMAX = Operator(
    "transpose_batch_matmul_softmax",
    "q, k(b,seq,heads,dim) → softmax over the last axis of q·kᵀ(b,heads,seq,seq), not scaled",
    (_BATCH, _SEQ, _HEADS, _DIM),
    _transposed,
    _transposed_reference,
    _product_flops,
    dtypes=FLOATS,
)
