"""Sampling at places that are data."""

from __future__ import annotations

from autotune.models.lowering import sampling as sa
from autotune.models.torch_ops.table import TorchNode, Value, aten
from schedules import te

_MODES, _PADDINGS = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")


@aten("grid_sampler_2d.default", "grid_sampler_3d.default", "grid_sampler.default")
def _grid_sample(
    node: TorchNode, x: Value, grid: Value, mode: int, padding: int, align_corners: bool
) -> te.Tensor:
    t, g = node.floats(x), node.floats(grid)
    return sa.grid_sample(t, g, _MODES[mode], _PADDINGS[padding], align_corners)


@aten("affine_grid_generator.default")
def _affine_grid(node: TorchNode, theta: Value, size: list[int], align_corners: bool) -> te.Tensor:
    return sa.affine_grid(node.floats(theta), [int(n) for n in size[2:]], align_corners)
