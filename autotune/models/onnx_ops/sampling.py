"""Sampling at places that are data."""

from __future__ import annotations

from autotune.models.lowering import sampling as sa
from autotune.models.onnx_ops.table import OnnxNode, Value, onnx_op
from schedules import te

# {how older versions call a mode: how newer ones do}.
_MODES = {"bilinear": "linear", "bicubic": "cubic"}


@onnx_op("GridSample")
def _grid_sample(node: OnnxNode, x: Value, grid: Value) -> te.Tensor:
    t, g = node.floats(x), node.tensor(grid)
    mode = node.attr("mode", "linear")
    mode, padding = _MODES.get(mode, mode), node.attr("padding_mode", "zeros")
    return sa.grid_sample(t, g, mode, padding, bool(node.attr("align_corners", 0)))


@onnx_op("AffineGrid")
def _affine_grid(node: OnnxNode, theta: Value, size: Value) -> te.Tensor:
    t, sizes = node.tensor(theta), node.ints(size, "size")
    if sizes[:1] != [t.shape[0]] or any(n < 1 for n in sizes):
        raise ValueError(f"size {sizes} for theta of {list(t.shape)}")
    return sa.affine_grid(t, sizes[2:], bool(node.attr("align_corners", 0)))
