"""Normalisations."""

from __future__ import annotations

import math
from collections.abc import Callable

from autotune.models.lowering import normalization as n
from autotune.models.lowering.base import UnsupportedForm, positive
from autotune.models.lowering.movement import reshape
from autotune.models.onnx_ops.table import OnnxNode, Value, onnx_op
from schedules import te


@onnx_op("Softmax", "LogSoftmax", "Hardmax")
def _softmax(node: OnnxNode, x: Value) -> te.Tensor:
    """Before version 13 all axes from ``axis`` on are one."""
    t = node.tensor(x)

    def apply(y: te.Tensor, axis: int) -> te.Tensor:
        return n.hardmax(y, axis) if node.op == "Hardmax" else n.softmax(y, axis, node.op == "LogSoftmax")

    if node.version >= 13:
        return apply(t, positive(node.attr("axis", -1), len(t.shape)))
    axis = positive(node.attr("axis", 1), len(t.shape))
    flat = reshape(t, (math.prod(t.shape[:axis]), math.prod(t.shape[axis:])))
    return reshape(apply(flat, 1), t.shape)


@onnx_op("BatchNormalization", since=7)
def _batch_norm(node: OnnxNode, x: Value, scale: Value, bias: Value, mean: Value, var: Value) -> te.Tensor:
    if node.attr("training_mode", 0):
        raise UnsupportedForm("training_mode=1 is not supported")
    node.only(1)
    if node.attr("spatial", 1) == 0:
        raise UnsupportedForm("spatial=0 is not supported")
    gamma, beta, middle, spread = (node.tensor(v) for v in (scale, bias, mean, var))
    return n.batch_norm(node.tensor(x), gamma, beta, middle, spread, node.attr("epsilon"))


@onnx_op("LayerNormalization")
def _layer_norm(node: OnnxNode, x: Value, scale: Value, bias: Value | None = None) -> list[te.Tensor | None]:
    t = node.tensor(x)
    axis = positive(node.attr("axis", -1), len(t.shape))
    beta = None if bias is None else node.operand(bias)
    y, mean, inv = n.layer_norm(t, axis, node.operand(scale), beta, node.attr("epsilon"))
    makers: tuple[Callable[[], te.Tensor], ...] = (mean, inv)
    return [y, *(make() if node.wants(i) else None for i, make in enumerate(makers, 1))]


@onnx_op("RMSNormalization")
def _rms_norm(node: OnnxNode, x: Value, scale: Value) -> te.Tensor:
    t = node.tensor(x)
    return n.rms_norm(
        t, positive(node.attr("axis", -1), len(t.shape)), node.operand(scale), node.attr("epsilon")
    )


@onnx_op("InstanceNormalization", since=6)
def _instance_norm(node: OnnxNode, x: Value, scale: Value, bias: Value) -> te.Tensor:
    t = node.tensor(x)
    return n.group_norm(t, t.shape[1], node.tensor(scale), node.tensor(bias), node.attr("epsilon"))


@onnx_op("GroupNormalization", since=21)
def _group_norm(node: OnnxNode, x: Value, scale: Value, bias: Value) -> te.Tensor:
    """Version 18 has a scale a group; the function of ONNX states that."""
    return n.group_norm(
        node.tensor(x), node.attr("num_groups"), node.tensor(scale), node.tensor(bias), node.attr("epsilon")
    )


@onnx_op("LpNormalization")
def _lp_norm(node: OnnxNode, x: Value) -> te.Tensor:
    t = node.tensor(x)
    p = node.attr("p", 2)
    if p not in (1, 2):
        raise UnsupportedForm(f"p={p} is not 1 or 2")
    return n.lp_normalization(t, positive(node.attr("axis", -1), len(t.shape)), p)


@onnx_op("LRN")
def _lrn(node: OnnxNode, x: Value) -> te.Tensor:
    how = (node.attr(a) for a in ("size", "alpha", "beta", "bias"))
    return n.local_response(node.tensor(x), *how)
