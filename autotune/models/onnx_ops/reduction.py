"""Reductions over axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autotune.models.lowering import reduction as r
from autotune.models.lowering.base import floating, positive, positives
from autotune.models.onnx_ops.table import OnnxNode, Value, onnx_op
from schedules import te

Fn = Callable[..., Any]
# Those that change nothing where each element is on its own.
_SAME_OF_ONE = frozenset(
    {"ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceMean", "ReduceLogSumExp"}
)
# {operator: (reduction, function before, function after)}.
_REDUCE: dict[str, tuple[Fn, Fn | None, Fn | None]] = {
    "ReduceSum": (te.sum, None, None),
    "ReduceMax": (te.max, None, None),
    "ReduceMin": (te.min, None, None),
    "ReduceProd": (te.prod, None, None),
    "ReduceL1": (te.sum, te.abs, None),
    "ReduceL2": (te.sum, lambda v: v * v, te.sqrt),
    "ReduceSumSquare": (te.sum, lambda v: v * v, None),
    "ReduceLogSum": (te.sum, None, te.log),
    "ReduceMean": (te.sum, None, None),
    "ReduceLogSumExp": (te.sum, None, None),
}


def _axes(node: OnnxNode, x: te.Tensor, axes: Value | None) -> tuple[int, ...]:
    """Axes are an attribute or an input, by version; none are all, or none."""
    given = node.either("axes", axes)
    if not given:
        return () if node.attr("noop_with_empty_axes", 0) else tuple(range(len(x.shape)))
    return positives(given, len(x.shape))


@onnx_op(*_REDUCE)
def _reduce(node: OnnxNode, x: Value, axes: Value | None = None) -> te.Tensor:
    t = node.tensor(x)
    where, keep = _axes(node, t, axes), bool(node.attr("keepdims", 1))
    if not where and node.op in _SAME_OF_ONE:
        return t
    if node.op == "ReduceMean":
        return r.mean(t, where, keep)
    if node.op == "ReduceLogSumExp":
        return r.log_sum_exp(floating(t), where, keep)
    fold, before, after = _REDUCE[node.op]
    t = t if after is None else floating(t)
    return r.reduce(t, where, keep, fold, before or (lambda v: v), after)


@onnx_op("ArgMax", "ArgMin")
def _arg(node: OnnxNode, x: Value) -> te.Tensor:
    t = node.tensor(x)
    axis = positive(node.attr("axis", 0), len(t.shape))
    last = bool(node.attr("select_last_index", 0))
    return r.arg_extreme(t, axis, bool(node.attr("keepdims", 1)), node.op == "ArgMax", last)


@onnx_op("CumSum", "CumProd")
def _cumulative(node: OnnxNode, x: Value, axis: Value) -> te.Tensor:
    t = node.tensor(x)
    d = positive(int(node.known(axis, "axis").item()), len(t.shape))
    fold, neutral = (te.sum, 0.0) if node.op == "CumSum" else (te.prod, 1.0)
    return r.cumulative(t, d, bool(node.attr("exclusive", 0)), bool(node.attr("reverse", 0)), fold, neutral)
