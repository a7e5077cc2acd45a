"""The largest elements."""

from __future__ import annotations

from autotune.models.lowering import ordering as o
from autotune.models.lowering.base import positive
from autotune.models.onnx_ops.table import OnnxNode, Value, onnx_op
from schedules import te


@onnx_op("TopK")
def _topk(node: OnnxNode, x: Value, k: Value | None = None) -> list[te.Tensor]:
    """In order, also where that was not asked for. How many is an attribute before version 10."""
    t = node.tensor(x)
    axis = positive(node.attr("axis", -1), len(t.shape))
    count = int(node.attr("k")) if k is None else int(node.known(k, "K").item())
    if not 1 <= count <= t.shape[axis]:
        raise ValueError(f"K is {count}, of {t.shape[axis]} elements")
    o.afford(t.shape[axis])
    return list(o.ordered(t, axis, count, bool(node.attr("largest", 1))))
