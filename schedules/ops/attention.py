"""Attention and its first half: attention, transpose_batch_matmul_softmax."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from schedules import te
from schedules.dtypes import FLOATS
from schedules.expr import Expr
from schedules.ops.axes import broadcast, named
from schedules.ops.base import Array, Operator, Param, Params, Types, flag, text, wide
from schedules.ops.normalize import exponentials, soft


def _attention(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    seq = p["seq"]
    shape = (p["b"], p["heads"], seq, p["dim"])
    q, k, v = (te.placeholder(shape, types.input, n) for n in "qkv")
    mask = None if p["attn_mask"] is None else te.placeholder(p["attn_mask"], types.input, "attn_mask")
    d, j = te.reduce_axis(p["dim"], "d"), te.reduce_axis(seq, "j")
    dot = te.compute(
        (*shape[:3], seq), lambda z, h, i, j: te.sum(q[z, h, i, d] * k[z, h, j, d], axis=d), "dot"
    )

    def score(*at: Expr) -> Expr:
        value = dot[at] * _scale(p)
        if mask is not None:
            value = value + mask[broadcast(mask.shape, at)]
        return te.select(at[3] <= at[2], value, -te.inf) if p["is_causal"] else value

    scores = te.compute(dot.shape, named("zhij", score), "scores")
    e, inv = exponentials(scores, 3, "zhij", rounded_weights(types.input))
    mixed = te.compute(shape, lambda z, h, i, c: te.sum(e[z, h, i, j] * v[z, h, j, c], axis=j), "mixed")
    y = te.compute(shape, lambda z, h, i, c: te.cast(mixed[z, h, i, c] * inv[z, h, i], types.output), "y")
    return [q, k, v, *([] if mask is None else [mask]), y]


def rounded_weights(dtype: str) -> str | None:
    """The dtype that weights are rounded to, before they are normalised, in attention of values of ``dtype``.
    None: they are not rounded. With bfloat16 the second product is one of bfloat16 too, for which CPUs have
    instructions. torch rounds these weights too (flash attention, aten/src/ATen/native/cpu). Each is between
    0 and 1 and is rounded by 2^-9 of it at most; they are divided by the sum of the rounded ones. The
    result, a mean of values, is rounded to bfloat16 anyway.

    >>> rounded_weights("bfloat16")
    'bfloat16'
    """
    return dtype if dtype == "bfloat16" else None


def _scale(p: Params) -> float:
    return float(p["dim"] ** -0.5 if p["scale"] is None else p["scale"])


def _attention_reference(p: Params, types: Types, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    q, k, v, *mask = map(wide, inputs)
    scores = sum(mask, q @ k.swapaxes(-1, -2) * _scale(p))
    if p["is_causal"]:
        scores = np.where(np.tri(p["seq"], dtype=bool), scores, -np.inf)
    if (dtype := rounded_weights(types.input)) is None:
        return [(soft(scores) @ v).astype(types.output)]
    e = wide(np.exp(scores - scores.max(-1, keepdims=True)).astype(dtype))
    return [(e @ v / e.sum(-1, keepdims=True)).astype(types.output)]


def _check_mask(p: Params) -> str | None:
    mask, full = p["attn_mask"], (p["b"], p["heads"], p["seq"], p["seq"])
    if mask is None:
        return None
    if 2 <= len(mask) <= 4 and all(n in (1, m) for n, m in zip(reversed(mask), reversed(full), strict=False)):
        return None
    return (
        f"attn_mask={text(mask)} does not broadcast to the scores, {text(full)}; give the mask's "
        f"shape, such as attn_mask={text(full[2:])}"
    )


def _transposed(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    shape = (p["b"], p["seq"], p["heads"], p["dim"])
    q, k = te.placeholder(shape, types.input, "q"), te.placeholder(shape, types.input, "k")
    d = te.reduce_axis(p["dim"], "d")
    scores = te.compute(
        (p["b"], p["heads"], p["seq"], p["seq"]),
        lambda z, h, i, j: te.sum(q[z, i, h, d] * k[z, j, h, d], axis=d),
        "scores",
    )
    e, inv = exponentials(scores, 3, "zhij")
    y = te.compute(scores.shape, lambda z, h, i, j: te.cast(e[z, h, i, j] * inv[z, h, i], types.output), "y")
    return [q, k, y]


def _transposed_reference(
    p: Params, types: Types, layout: str | None, inputs: Sequence[Array]
) -> list[Array]:
    q, k = (wide(x).swapaxes(1, 2) for x in inputs)
    return [soft(q @ k.swapaxes(-1, -2)).astype(types.output)]


def _product_flops(p: Params) -> int:
    return int(2 * p["b"] * p["heads"] * p["seq"] ** 2 * p["dim"])


# Parameters that operators of this file share.
_BATCH = Param("b", "batch", 1)
_SEQ, _HEADS, _DIM = (
    Param("seq", "positions", example=128),
    Param("heads", "heads", example=12),
    Param("dim", "elements a head", example=64),
)

ATTENTION = Operator(
    "attention",
    "q, k, v(b,heads,seq,dim) → softmax(q·kᵀ / √dim)·v; attn_mask after v, where it is given, is added to "
    "the scores q·kᵀ / √dim",
    (
        _BATCH,
        _HEADS,
        _SEQ,
        _DIM,
        flag("is_causal", "1: positions see those up to their own only", optional=True),
        Param(
            "attn_mask", "the extents of a mask that is added, such as SEQxSEQ", kind="list", optional=True
        ),
        Param(
            "scale", "the factor of q·kᵀ, 1 / √dim without it", kind="float", minimum=-(2**34), optional=True
        ),
    ),
    _attention,
    _attention_reference,
    lambda p: 2 * _product_flops(p),  # of masked scores too, as of padded taps
    dtypes=FLOATS,
    check=_check_mask,
    shorthands=(("causal", ("is_causal",)),),
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
