"""Scaled dot-product attention, as `schedules/ops/attention.py` states it, over any axes in front."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autotune.models.operators import functions as f
from autotune.models.operators.axes import reshape
from autotune.models.operators.base import Operand, UnsupportedForm, elementwise, read, stage
from autotune.models.operators.known import Value
from autotune.models.operators.matmul import linear
from autotune.models.operators.movement import part, transpose
from autotune.models.operators.node import TorchNode
from autotune.models.operators.normalization import exponentials, layer_norm
from autotune.models.operators.table import Floats, aten
from schedules import te
from schedules.expr import Expr, ExprLike
from schedules.ops.attention import rounded_weights
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
    e, inverse = exponentials(
        scores, len(outer) + 1, empty_rows and mask is not None, rounded_weights(v.dtype)
    )

    def mixed(*at: Expr) -> te.Reduction:
        i, c = at[-2:]
        return te.sum(e[(*at[:-2], i, j)] * v[(*lead(2, at[:-2]), j, c)], axis=j)

    sums = stage((*outer, rows, v.shape[-1]), mixed, "mixed")
    return stage(sums.shape, lambda *at: te.cast(sums[at] * inverse[at[:-1]], q.dtype), "attention")


@aten("scaled_dot_product_attention.default")
def _attention(
    q: Floats, k: Floats, v: Floats, mask: te.Tensor | None = None, dropout: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> te.Tensor:  # fmt: skip
    if dropout > 0:
        raise UnsupportedForm("its dropout makes random numbers: export module.eval(), or give dropout_p=0")
    by = q.shape[-1] ** -0.5 if scale is None else float(scale)
    return attention(q, k, v, mask, is_causal, by, enable_gqa)


# --- whole layers, which torch's own transformer modules call in evaluation -----------------------


def _seen(node: TorchNode, mask: Value | None, kind: int | None) -> te.Tensor | None:
    """What is seen, for (batch, heads, rows, columns). A mask says what is hidden: of rows and columns
    (kind 0), of columns of each sample (1), or of all four (2)."""
    if mask is None:
        return None
    t = node.cast(mask, "bool")
    if kind == 1:
        t = reshape(t, (t.shape[0], 1, 1, t.shape[1]))
    elif kind not in (0, 2):
        raise UnsupportedForm(f"mask_type {kind} is not supported")
    return elementwise(te.logical_not, t, name="seen")


def _attended(
    xs: Sequence[te.Tensor], heads: int, weights: Sequence[te.Tensor], seen: te.Tensor | None
) -> te.Tensor:
    """Attention of projections of three tensors, projected again. A row that sees nothing is NaN."""
    w, b, out, out_bias = weights
    n, size = xs[0].shape[0], w.shape[0] // 3

    def projected(i: int) -> te.Tensor:
        y = linear(xs[i], part(w, 0, i * size, size), part(b, 0, i * size, size))
        return transpose(reshape(y, (n, y.shape[1], heads, size // heads)), (0, 2, 1, 3))

    q, k, v = map(projected, range(3))
    mixed = attention(q, k, v, seen, False, (size // heads) ** -0.5, empty_rows=False)
    joined = reshape(transpose(mixed, (0, 2, 1, 3)), (n, xs[0].shape[1], size))
    return linear(joined, out, out_bias)


@aten("_native_multi_head_attention.default")
def _of_heads(
    node: TorchNode, query: Floats, key: Floats, value: Floats, size: int, heads: int, w: te.Tensor,
    b: te.Tensor, out: te.Tensor, out_bias: te.Tensor, mask: Value | None = None, need_weights: bool = True,
    average: bool = True, mask_type: int | None = None,
) -> list[te.Tensor | None]:  # fmt: skip
    node.only(1)
    seen = _seen(node, mask, mask_type)
    return [_attended((query, key, value), heads, (w, b, out, out_bias), seen), None]


@aten("_transformer_encoder_layer_fwd.default")
def _encoder_layer(
    node: TorchNode, x: Floats, size: int, heads: int, w: te.Tensor, b: te.Tensor, out: te.Tensor,
    out_bias: te.Tensor, use_gelu: bool, norm_first: bool, eps: float, gamma_1: Operand, beta_1: Operand,
    gamma_2: Operand, beta_2: Operand, up: te.Tensor, up_bias: te.Tensor, down: te.Tensor,
    down_bias: te.Tensor, mask: Value | None = None, mask_type: int | None = None,
) -> te.Tensor:  # fmt: skip
    """Attention and two products, each added to what it is given. Norms stand before or after."""
    seen = _seen(node, mask, mask_type)

    def mixed(t: te.Tensor) -> te.Tensor:
        return _attended((t, t, t), heads, (w, b, out, out_bias), seen)

    def fed(t: te.Tensor) -> te.Tensor:
        wide = elementwise(f.gelu if use_gelu else f.relu, linear(t, up, up_bias), name="act")
        return linear(wide, down, down_bias)

    def added(t: te.Tensor, of: Callable[[te.Tensor], te.Tensor], gamma: Operand, beta: Operand) -> te.Tensor:
        def normed(y: te.Tensor) -> te.Tensor:
            return layer_norm(y, len(y.shape) - 1, gamma, beta, eps)[0]

        more = elementwise(lambda p, q: p + q, t, of(normed(t) if norm_first else t), name="residual")
        return more if norm_first else normed(more)

    return added(added(x, mixed, gamma_1, beta_1), fed, gamma_2, beta_2)
