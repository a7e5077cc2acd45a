"""What training for quantization leaves in a model: floats that are rounded as integers would be."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autotune.models.lowering.base import positive, stage
from autotune.models.torch_ops.table import TorchNode, Value, aten
from schedules import te
from schedules.dtypes import computed
from schedules.expr import Expr

# (scale, zero point) at an index.
Parameters = Callable[[tuple[Expr, ...]], tuple[Expr, Expr]]


def _rounded(node: TorchNode, t: te.Tensor, of: Parameters, low: int, high: int) -> list[te.Tensor | None]:
    """(clip(round(x / scale) + zero point) back as floats, whether nothing was clipped)."""
    wide = computed(t.dtype)

    def whole(at: tuple[Expr, ...]) -> tuple[Expr, Expr, Expr]:
        scale, zero = of(at)
        return te.round(t[at] * (1.0 / scale)) + zero, scale, zero

    def value(*at: Expr) -> Expr:
        q, scale, zero = whole(at)
        return te.cast((te.maximum(te.minimum(q, float(high)), float(low)) - zero) * scale, t.dtype)

    def inside(*at: Expr) -> Expr:
        q, _, _ = whole(at)
        return te.cast(te.all(q >= te.const(low, wide), q <= te.const(high, wide)), "bool")

    mask = stage(t.shape, inside, "inside") if 1 in node.used else None
    return [stage(t.shape, value, "fake_quantize"), mask]


@aten("fake_quantize_per_tensor_affine_cachemask.default")
def _of_tensor(
    node: TorchNode, x: Value, scale: float, zero: int, low: int, high: int
) -> list[te.Tensor | None]:
    t = node.floats(x)
    wide = computed(t.dtype)
    s = float(np.float32(scale))
    return _rounded(node, t, lambda at: (te.const(s, wide), te.const(zero, wide)), low, high)


@aten("fake_quantize_per_channel_affine_cachemask.default")
def _of_channel(
    node: TorchNode, x: Value, scale: Value, zero: Value, axis: int, low: int, high: int
) -> list[te.Tensor | None]:
    t, s, z = node.floats(x), node.tensor(scale), node.tensor(zero)
    d, wide = positive(axis, len(t.shape)), computed(t.dtype)
    return _rounded(node, t, lambda at: (te.cast(s[at[d]], wide), te.cast(z[at[d]], wide)), low, high)
