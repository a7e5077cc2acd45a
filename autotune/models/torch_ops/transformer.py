"""Operators that are whole layers: what torch's own transformer modules call in evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune.models.lowering import functions as f
from autotune.models.lowering import matmul as mm
from autotune.models.lowering.attention import attention
from autotune.models.lowering.base import UnsupportedForm, elementwise
from autotune.models.lowering.movement import part, reshape, transpose
from autotune.models.lowering.normalization import layer_norm
from autotune.models.torch_ops.table import TorchNode, Value, aten
from schedules import te


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
    node: TorchNode, xs: tuple[te.Tensor, te.Tensor, te.Tensor], heads: int, weights: Sequence[Value],
    seen: te.Tensor | None,
) -> te.Tensor:  # fmt: skip
    """Attention of projections of three tensors, projected again. A row that sees nothing is NaN."""
    w, b, out, out_bias = (node.tensor(x) for x in weights)
    n, size = xs[0].shape[0], w.shape[0] // 3

    def projected(i: int) -> te.Tensor:
        y = mm.linear(xs[i], part(w, 0, i * size, size), part(b, 0, i * size, size))
        return transpose(reshape(y, (n, y.shape[1], heads, size // heads)), (0, 2, 1, 3))

    q, k, v = map(projected, range(3))
    mixed = attention(q, k, v, seen, False, (size // heads) ** -0.5, empty_rows=False)
    joined = reshape(transpose(mixed, (0, 2, 1, 3)), (n, xs[0].shape[1], size))
    return mm.linear(joined, out, out_bias)


@aten("_native_multi_head_attention.default")
def _attention(
    node: TorchNode, query: Value, key: Value, value: Value, size: int, heads: int, w: Value, b: Value,
    out: Value, out_bias: Value, mask: Value | None = None, need_weights: bool = True, average: bool = True,
    mask_type: int | None = None,
) -> list[te.Tensor | None]:  # fmt: skip
    node.only(1)
    xs = (node.floats(query), node.floats(key), node.floats(value))
    return [_attended(node, xs, heads, (w, b, out, out_bias), _seen(node, mask, mask_type)), None]


@aten("_transformer_encoder_layer_fwd.default")
def _encoder_layer(
    node: TorchNode, src: Value, size: int, heads: int, w: Value, b: Value, out: Value, out_bias: Value,
    use_gelu: bool, norm_first: bool, eps: float, gamma_1: Value, beta_1: Value, gamma_2: Value,
    beta_2: Value, up: Value, up_bias: Value, down: Value, down_bias: Value, mask: Value | None = None,
    mask_type: int | None = None,
) -> te.Tensor:  # fmt: skip
    """Attention and two products, each added to what it is given. Norms stand before or after."""
    x, seen = node.floats(src), _seen(node, mask, mask_type)
    act = f.gelu if use_gelu else f.relu

    def mixed(t: te.Tensor) -> te.Tensor:
        return _attended(node, (t, t, t), heads, (w, b, out, out_bias), seen)

    def fed(t: te.Tensor) -> te.Tensor:
        wide = mm.linear(t, node.tensor(up), node.tensor(up_bias))
        return mm.linear(elementwise(act, wide, name="act"), node.tensor(down), node.tensor(down_bias))

    def normed(t: te.Tensor, gamma: Value, beta: Value) -> te.Tensor:
        return layer_norm(t, len(t.shape) - 1, node.operand(gamma), node.operand(beta), eps)[0]

    def added(t: te.Tensor, of: Callable[[te.Tensor], te.Tensor], gamma: Value, beta: Value) -> te.Tensor:
        if norm_first:
            return elementwise(lambda p, q: p + q, t, of(normed(t, gamma, beta)), name="residual")
        return normed(elementwise(lambda p, q: p + q, t, of(t), name="residual"), gamma, beta)

    return added(added(x, mixed, gamma_1, beta_1), fed, gamma_2, beta_2)
