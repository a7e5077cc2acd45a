"""Softmax and normalisations."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from autotune.models.lowering import normalization as n
from autotune.models.lowering.base import UnsupportedForm, positive, positives
from autotune.models.lowering.reduction import reduce
from autotune.models.torch_ops.table import TorchNode, Value, aten
from schedules import te
from schedules.dtypes import DTYPES, computed


@aten("_softmax.default", "_log_softmax.default", "softmax.int", "log_softmax.int", along=True)
def _softmax(node: TorchNode, x: Value, dim: int, wide: Any = None) -> te.Tensor:
    t = node.cast(x)
    return n.softmax(t, positive(dim, len(t.shape)), "log" in node.name)


@aten("_safe_softmax.default", along=True)
def _safe_softmax(node: TorchNode, x: Value, dim: int, dtype: Any = None) -> te.Tensor:
    """Rows of -inf alone give 0."""
    t = node.cast(x)
    return n.softmax(t, positive(dim, len(t.shape)), empty_rows=True)


@aten("layer_norm.default", "native_layer_norm.default")
def _layer_norm(
    node: TorchNode, x: Value, shape: list[int], w: Value | None = None, b: Value | None = None,
    eps: float = 1e-5, cudnn: bool = True,
) -> list[te.Tensor | None]:  # fmt: skip
    t = node.floats(x)
    gamma, beta = (None if v is None else node.operand(v) for v in (w, b))
    y, mean, inv = n.layer_norm(t, len(t.shape) - len(shape), gamma, beta, eps)
    return [y, mean() if 1 in node.used else None, inv() if 2 in node.used else None]


@aten("rms_norm.default")
def _rms_norm(
    node: TorchNode, x: Value, shape: list[int], w: Value | None = None, eps: float | None = None
) -> te.Tensor:
    t = node.floats(x)
    least = eps if eps is not None else DTYPES[t.dtype].epsilon
    return n.rms_norm(t, len(t.shape) - len(shape), None if w is None else node.operand(w), least)


@aten("group_norm.default")
def _group_norm(
    node: TorchNode, x: Value, groups: int, w: Value | None = None, b: Value | None = None,
    eps: float = 1e-5, cudnn: bool = True,
) -> te.Tensor:  # fmt: skip
    return n.group_norm(node.floats(x), groups, node.optional(w), node.optional(b), eps)


@aten("native_group_norm.default")
def _native_group_norm(
    node: TorchNode, x: Value, w: Value | None, b: Value | None, n_: int, c: int, size: int, groups: int,
    eps: float,
) -> list[te.Tensor | None]:  # fmt: skip
    node.only(1)
    return [n.group_norm(node.floats(x), groups, node.optional(w), node.optional(b), eps), None, None]


@aten("instance_norm.default")
def _instance_norm(
    node: TorchNode, x: Value, w: Value | None, b: Value | None, mean: Value | None, var: Value | None,
    use_input_stats: bool, momentum: float, eps: float, cudnn: bool,
) -> te.Tensor:  # fmt: skip
    t = node.floats(x)
    if not use_input_stats:
        return _normalized(node, t, w, b, mean, var, eps)
    if mean is not None:
        raise UnsupportedForm("it updates its running statistics: export module.eval()")
    return n.group_norm(t, t.shape[1], node.optional(w), node.optional(b), eps)


@aten("_native_batch_norm_legit_no_training.default")
def _batch_norm(
    node: TorchNode, x: Value, w: Value | None, b: Value | None, mean: Value, var: Value, momentum: float,
    eps: float,
) -> list[te.Tensor | None]:  # fmt: skip
    node.only(1)
    return [_normalized(node, node.floats(x), w, b, mean, var, eps), None, None]


@aten("_native_batch_norm_legit.no_stats")
def _batch_norm_of_batch(
    node: TorchNode, x: Value, w: Value | None, b: Value | None, training: bool, momentum: float, eps: float
) -> list[te.Tensor | None]:
    """Without running statistics: those of the batch itself."""
    node.only(1)
    t = node.floats(x)
    axes = [d for d in range(len(t.shape)) if d != 1]
    var, mean = n.variance(t, axes, False, 0.0, root=False)
    return [n.batch_norm(t, node.optional(w), node.optional(b), mean(), var, eps), None, None]


@aten("native_batch_norm.default")
def _native_batch_norm(
    node: TorchNode, x: Value, w: Value | None, b: Value | None, mean: Value | None, var: Value | None,
    training: bool, momentum: float, eps: float,
) -> list[te.Tensor | None]:  # fmt: skip
    if training:
        raise UnsupportedForm("it is in training: export module.eval()")
    return _batch_norm(node, x, w, b, mean, var, momentum, eps)  # type: ignore[return-value]


def _normalized(
    node: TorchNode, t: te.Tensor, w: Value | None, b: Value | None, mean: Value | None, var: Value | None,
    eps: float,
) -> te.Tensor:  # fmt: skip
    if mean is None or var is None:
        raise UnsupportedForm("it has no running statistics")
    return n.batch_norm(t, node.optional(w), node.optional(b), node.tensor(mean), node.tensor(var), eps)


@aten("linalg_vector_norm.default", along=True)
def _vector_norm(
    node: TorchNode, x: Value, order: float = 2, dim: list[int] | None = None, keepdim: bool = False,
    dtype: Any = None,
) -> te.Tensor:  # fmt: skip
    t = node.cast(x)
    axes = positives(dim, len(t.shape)) if dim else tuple(range(len(t.shape)))
    one, none = (te.const(v, computed(t.dtype)) for v in (1, 0))
    known: dict[float, tuple[Any, Any, Any]] = {
        2: (te.sum, lambda v: v * v, te.sqrt), 1: (te.sum, te.abs, None), math.inf: (te.max, te.abs, None),
        -math.inf: (te.min, te.abs, None), 0: (te.sum, lambda v: te.select(te.equal(v, 0), none, one), None),
    }  # fmt: skip
    if order in known:
        return reduce(t, axes, keepdim, *known[order], name="norm")
    by = float(order)
    return reduce(
        t, axes, keepdim, te.sum, lambda v: te.pow(te.abs(v), by), lambda v: te.pow(v, 1 / by), name="norm"
    )


@aten("dist.default")
def _dist(node: TorchNode, x: Value, y: Value, order: float = 2) -> te.Tensor:
    """The norm of a difference."""
    shape = np.broadcast_shapes(x.shape, y.shape)
    return _vector_norm(node, replace(node, shape=shape).elementwise(lambda a, b: a - b, x, y), order)  # type: ignore[return-value]
