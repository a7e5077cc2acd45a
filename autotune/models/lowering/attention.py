"""Scaled dot-product attention, as `schedules/ops/attention.py` states it, over any axes in front."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.models.lowering.base import read, stage
from autotune.models.lowering.normalization import exponentials
from schedules import te
from schedules.expr import Expr, ExprLike
from schedules.ops.axes import broadcast


def attention(
    q: te.Tensor, k: te.Tensor, v: te.Tensor, mask: te.Tensor | None, is_causal: bool, scale: float,
    shared_heads: bool = False, empty_rows: bool = True,
) -> te.Tensor:  # fmt: skip
    """softmax(q·kᵀ · scale + mask)·v (Vaswani et al., Attention is all you need, 2017).

    ``q`` (…, rows, dim), ``k`` (…, columns, dim), ``v`` (…, columns, out); axes in front broadcast. ``mask``
    broadcasts to (…, rows, columns): floats are added, and bool says what is seen. A row that sees nothing is
    0, or NaN without ``empty_rows``. ``is_causal``: row i sees columns up to i. ``shared_heads``: every head
    of ``k`` and ``v``, the third axis from the end, serves several of ``q``, side by side.
    """
    front = [t.shape[:-2] for t in (q, k, v)]
    groups = [1, 1, 1]
    if shared_heads:
        groups = [q.shape[-3] // t.shape[-3] for t in (q, k, v)]
        front = [(*f[:-1], f[-1] * g) for f, g in zip(front, groups, strict=True)]
    outer = np.broadcast_shapes(*front)
    rows, columns = q.shape[-2], k.shape[-2]

    def lead(t: int, at: Sequence[Expr]) -> tuple[ExprLike, ...]:
        own = broadcast(front[t], at)
        return (*own[:-1], own[-1] // groups[t]) if groups[t] > 1 else own

    d, j = te.reduce_axis(q.shape[-1], "d"), te.reduce_axis(columns, "j")

    def product(*at: Expr) -> te.Reduction:
        i, c = at[-2:]
        return te.sum(q[(*lead(0, at[:-2]), i, d)] * k[(*lead(1, at[:-2]), c, d)], axis=d)

    dot = stage((*outer, rows, columns), product, "dot")

    def score(*at: Expr) -> Expr:
        value = dot[at] * te.const(scale, dot.dtype)
        hidden = te.const(-te.inf, dot.dtype)
        if mask is not None and mask.dtype == "bool":
            value = te.select(read(mask, at), value, hidden)
        elif mask is not None:
            value = value + te.cast(read(mask, at), dot.dtype)
        return te.select(at[-1] <= at[-2], value, hidden) if is_causal else value

    scores = stage(dot.shape, score, "scores")
    e, inverse = exponentials(scores, len(outer) + 1, empty_rows=empty_rows and mask is not None)

    def mixed(*at: Expr) -> te.Reduction:
        i, c = at[-2:]
        return te.sum(e[(*at[:-2], i, j)] * v[(*lead(2, at[:-2]), j, c)], axis=j)

    sums = stage((*outer, rows, v.shape[-1]), mixed, "mixed")
    return stage(sums.shape, lambda *at: te.cast(sums[at] * inverse[at[:-1]], q.dtype), "attention")
