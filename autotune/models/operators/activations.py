"""Functions of one input, element by element: those of `elements`, and others that take parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from autotune.models.operators import functions as f
from autotune.models.operators.base import Operand, UnsupportedForm
from autotune.models.operators.elements import of_aten, of_onnx
from autotune.models.operators.known import KnownTensor, Value
from autotune.models.operators.node import OnnxNode, TorchNode
from autotune.models.operators.table import Floats, Values, aten, onnx_op
from autotune.models.operators.views import filled
from schedules import te
from schedules.dtypes import DTYPES, computed, is_float
from schedules.expr import Expr

ExprFn = Callable[..., Any]
_FLOAT, _WHOLE, _ANY = of_aten("float"), of_aten("whole"), of_aten("any")
_ONNX_FLOAT, _ONNX_ANY = of_onnx("float", "whole"), of_onnx("any")


@onnx_op(*_ONNX_FLOAT)
def _onnx_float(node: OnnxNode, x: Floats) -> te.Tensor:
    return node.elementwise(_ONNX_FLOAT[node.op], x)


@onnx_op(*_ONNX_ANY)
def _onnx_any(node: OnnxNode, x: te.Tensor) -> te.Tensor:
    return node.elementwise(_ONNX_ANY[node.op], x)


@aten(*(f"{name}.default" for name in _FLOAT))
def _float(node: TorchNode, x: Value) -> te.Tensor:
    return node.elementwise(_FLOAT[node.name], x)


@aten(*(f"{name}.default" for name in _WHOLE))
def _round(node: TorchNode, x: Value) -> Value:
    """Integers are what they are."""
    return node.elementwise(_WHOLE[node.name], x) if is_float(node.dtype) else x


@aten("round.decimals")
def _round_at(node: TorchNode, x: Value, *, decimals: int) -> Value:
    """Scaled by a power of ten, rounded, and scaled back."""
    if decimals == 0 or not is_float(node.dtype):
        return _round(node, x)
    wide = computed(node.dtype)
    with np.errstate(over="ignore"):
        by = te.const(float(DTYPES[wide].numpy.type(10.0 ** abs(decimals))), wide)

    def value(v: Expr) -> Expr:
        return te.round(v * by) / by if decimals > 0 else te.round(v / by) * by

    return node.elementwise(value, x)


@aten(*(f"{name}.default" for name in _ANY), "bitwise_not.default")
def _any(node: TorchNode, x: Value) -> Value:
    if node.dtype == "bool":
        if node.name == "sign":
            return x
        if node.name != "bitwise_not":
            raise UnsupportedForm("bool is not supported by it")
        return node.elementwise(te.logical_not, x)
    if node.name == "sign" and is_float(node.dtype):  # torch's is 0 of NaN
        return node.elementwise(lambda v: te.select(te.equal(v, v), f.sign(v), node.number(0)), x)
    return node.elementwise(_ANY.get(node.name, te.bitwise_not), x)


@onnx_op("Not", "BitwiseNot")
def _onnx_not(node: OnnxNode, x: te.Tensor) -> te.Tensor:
    return node.elementwise(te.logical_not if node.op == "Not" else te.bitwise_not, x, name="not_")


@aten("logical_not.default")
def _not(node: TorchNode, x: Value) -> te.Tensor:
    return node.elementwise(te.logical_not, x, common="bool")


@onnx_op("IsNaN")
def _isnan(node: OnnxNode, x: Floats) -> te.Tensor:
    return node.elementwise(lambda v: te.not_equal(v, v), x, dtype="bool")


@onnx_op("IsInf")
def _isinf(
    node: OnnxNode, x: Floats, *, detect_positive: bool = True, detect_negative: bool = True
) -> te.Tensor:
    ends = [te.inf] * detect_positive + [-te.inf] * detect_negative
    return node.elementwise(lambda v: te.any(*(te.equal(v, e) for e in ends)), x, dtype="bool")


@aten("isnan.default", "isinf.default", "isfinite.default")
def _is(node: TorchNode, x: te.Tensor) -> Value:
    """Integers are finite."""
    if not is_float(x.dtype):
        return filled(node, node.name == "isfinite")
    tests: dict[str, ExprFn] = {
        "isnan": lambda v: te.not_equal(v, v), "isinf": lambda v: te.equal(te.abs(v), te.inf),
        "isfinite": te.isfinite,
    }  # fmt: skip
    return node.elementwise(tests[node.name], x, common=x.dtype)


@aten("signbit.default")
def _sign_bit(node: TorchNode, x: te.Tensor) -> Value:
    if x.dtype == "bool":
        return filled(node, False)
    return node.elementwise(f.negative if is_float(x.dtype) else lambda v: v < 0, x, common=x.dtype)


# --- activations ------------------------------------------------------------------------------

_ACTIVATIONS: dict[str, tuple[ExprFn, tuple[str, ...]]] = {
    "Elu": (f.elu, ("alpha",)), "Selu": (f.selu, ("alpha", "gamma")), "Celu": (f.celu, ("alpha",)),
    "LeakyRelu": (f.leaky_relu, ("alpha",)), "HardSigmoid": (f.hard_sigmoid, ("alpha", "beta")),
    "ThresholdedRelu": (f.thresholded_relu, ("alpha",)), "Shrink": (f.shrink, ("bias", "lambd")),
    "Swish": (f.swish, ("alpha",)),
}  # fmt: skip


@onnx_op(*_ACTIVATIONS)
def _activation(node: OnnxNode, x: Floats) -> te.Tensor:
    fn, attributes = _ACTIVATIONS[node.op]
    given = [float(node.attributes[a]) for a in attributes]
    return node.elementwise(lambda v: fn(v, *given), x)


@onnx_op("Gelu")
@aten("gelu.default")
def _gelu(node: OnnxNode | TorchNode, x: Floats, approximate: str = "none") -> te.Tensor:
    return node.elementwise(f.gelu_tanh if approximate == "tanh" else f.gelu, x, name="gelu")


@aten("rrelu_with_noise_functional.default", "rrelu_with_noise.default")
def _rrelu(
    node: TorchNode, x: Value, noise: Value, low: float = 1 / 8, high: float = 1 / 3, training: bool = False,
    generator: Any = None,
) -> list[te.Tensor | None]:  # fmt: skip
    """Outside of training a leaky relu with the middle of both slopes."""
    if training:
        raise UnsupportedForm("it makes random numbers in training: export module.eval()")
    node.only(1)
    return [node.elementwise(lambda v: f.leaky_relu(v, (low + high) / 2), x), None]


@aten("hardtanh.default")
def _hardtanh(node: TorchNode, x: Value, low: float = -1.0, high: float = 1.0) -> te.Tensor:
    ends = node.number(low), node.number(high)
    return node.elementwise(lambda v: te.minimum(te.maximum(v, ends[0]), ends[1]), x)


@aten("threshold.default")
def _threshold(node: TorchNode, x: Value, threshold: float, value: float) -> te.Tensor:
    least, other = node.number(threshold), node.number(value)
    return node.elementwise(lambda v: te.select(v <= least, other, v), x)


_PARAMETRIC = {
    "elu": f.scaled_elu, "celu": f.celu, "leaky_relu": f.leaky_relu_of_nan, "softplus": f.scaled_softplus,
    "softshrink": f.softshrink, "hardshrink": f.hardshrink,
}  # fmt: skip


@aten(*(f"{name}.default" for name in _PARAMETRIC))
def _parametric(node: TorchNode, x: Value, *parameters: float, **named: float) -> te.Tensor:
    fn: ExprFn = _PARAMETRIC[node.name]
    return node.elementwise(lambda v: fn(v, *parameters, **named), x)


@onnx_op("PRelu")
def _prelu(node: OnnxNode, x: te.Tensor, slope: Operand) -> te.Tensor:
    return node.elementwise(f.prelu, x, slope)


@onnx_op("Dropout")
def _onnx_dropout(
    node: OnnxNode, x: Value, ratio: Value | None = None, training_mode: Values | None = None
) -> list[Value]:
    """At inference a copy."""
    training = training_mode is not None and bool(training_mode.any())
    if training and (ratio is None or node.known(ratio, "ratio").any()):
        raise UnsupportedForm("training_mode=1 makes random numbers")
    if node.version < 7 and not node.attributes.get("is_test"):
        raise UnsupportedForm("is_test=0 makes random numbers")
    return [x, KnownTensor(np.broadcast_to(np.array(True), x.shape))] if 1 in node.used else [x]


@aten("dropout.default", "alpha_dropout.default", "feature_dropout.default")
def _dropout(x: Value, p: float, train: bool) -> Value:
    if train and p > 0:
        raise UnsupportedForm("it makes random numbers in training: export module.eval()")
    return x
