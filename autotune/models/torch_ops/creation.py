"""Operators that take no more of a tensor than its shape. What takes no tensor torch computes itself."""

from __future__ import annotations

from typing import Any

from autotune.models.torch_ops.table import KnownTensor, Scalar, TorchNode, Value, aten
from schedules import te


@aten("full_like.default", "new_full.default")
def _full(node: TorchNode, x: Value, *given: Any, **how: Any) -> Value:
    """The number is the last argument."""
    if isinstance(given[-1], te.Tensor):
        return node.elementwise(lambda v: v, given[-1])
    return filled(node, given[-1])


@aten("zeros_like.default", "new_zeros.default", "empty_like.default", "new_empty.default")
def _zeros(node: TorchNode, x: Value, *given: Any, **how: Any) -> KnownTensor:
    return filled(node, 0)


@aten("ones_like.default", "new_ones.default")
def _ones(node: TorchNode, x: Value, *given: Any, **how: Any) -> KnownTensor:
    return filled(node, 1)


def filled(node: TorchNode, value: Scalar) -> KnownTensor:
    """One number that is seen everywhere."""
    import torch

    return KnownTensor(torch.full((), value, dtype=getattr(torch, node.dtype)).expand(node.shape), False)
