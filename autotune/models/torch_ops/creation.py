"""Operators that take no more of a tensor than its shape. What takes no tensor torch computes itself."""

from __future__ import annotations

from typing import Any

from autotune.models.torch_ops.table import Known, Node, Scalar, Value, aten


@aten("full_like.default", "new_full.default")
def _full(node: Node, x: Value, *given: Any, **how: Any) -> Known:
    """The number is the last argument."""
    return _filled(node, given[-1])


@aten("zeros_like.default", "new_zeros.default", "empty_like.default", "new_empty.default")
def _zeros(node: Node, x: Value, *given: Any, **how: Any) -> Known:
    return _filled(node, 0)


@aten("ones_like.default", "new_ones.default")
def _ones(node: Node, x: Value, *given: Any, **how: Any) -> Known:
    return _filled(node, 1)


def _filled(node: Node, value: Scalar) -> Known:
    """One number that is seen everywhere."""
    import torch

    return Known(torch.full((), value, dtype=getattr(torch, node.dtype)).expand(node.shape), False)
