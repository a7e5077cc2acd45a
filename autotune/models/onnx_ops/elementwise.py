"""Operators of elements: arithmetic, comparisons, logic, casts, activations."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
from onnx import helper

from autotune.models.elements import of_onnx
from autotune.models.lowering import functions as f
from autotune.models.lowering.base import Operand, UnsupportedForm, cast, dtype_of, elementwise
from autotune.models.lowering.powers import integer_power
from autotune.models.onnx_ops.table import OnnxNode, Value, named_type, onnx_op
from schedules import te
from schedules.dtypes import computed, is_float
from schedules.expr import Expr

ExprFn = Callable[..., Any]


# --- one input --------------------------------------------------------------------------------

_FLOAT, _ANY = of_onnx("float", "whole"), of_onnx("any")


@onnx_op(*_FLOAT)
def _float(node: OnnxNode, x: Value) -> te.Tensor:
    return elementwise(_FLOAT[node.op], node.floats(x), name=node.op.lower())


@onnx_op(*_ANY)
def _any(node: OnnxNode, x: Value) -> te.Tensor:
    return elementwise(_ANY[node.op], node.tensor(x), name=node.op.lower())


@onnx_op("Identity")
def _identity(node: OnnxNode, x: Value) -> Value:
    return x


@onnx_op("Not")
def _not(node: OnnxNode, x: Value) -> te.Tensor:
    return elementwise(te.logical_not, node.tensor(x), name="not_")


@onnx_op("BitwiseNot")
def _bitwise_not(node: OnnxNode, x: Value) -> te.Tensor:
    return elementwise(te.bitwise_not, node.tensor(x), name="not_")


@onnx_op("IsNaN")
def _isnan(node: OnnxNode, x: Value) -> te.Tensor:
    return elementwise(lambda v: te.not_equal(v, v), node.floats(x), dtype="bool", name="isnan")


@onnx_op("IsInf")
def _isinf(node: OnnxNode, x: Value) -> te.Tensor:
    ends = [s * te.inf for s, n in ((1, "detect_positive"), (-1, "detect_negative")) if node.attr(n, 1)]

    def value(v: Expr) -> Expr:
        return te.any(*(te.equal(v, e) for e in ends))

    return elementwise(value, node.floats(x), dtype="bool", name="isinf")


@onnx_op("Elu", "Selu", "Celu", "LeakyRelu", "HardSigmoid", "ThresholdedRelu", "Shrink", "Swish")
def _activation(node: OnnxNode, x: Value) -> te.Tensor:
    names = {
        "Elu": (f.elu, ("alpha",)), "Selu": (f.selu, ("alpha", "gamma")), "Celu": (f.celu, ("alpha",)),
        "LeakyRelu": (f.leaky_relu, ("alpha",)), "HardSigmoid": (f.hard_sigmoid, ("alpha", "beta")),
        "ThresholdedRelu": (f.thresholded_relu, ("alpha",)), "Shrink": (f.shrink, ("bias", "lambd")),
        "Swish": (f.swish, ("alpha",)),
    }  # fmt: skip
    fn, attributes = names[node.op]
    given = [float(node.attr(a)) for a in attributes]
    return elementwise(lambda v: fn(v, *given), node.floats(x), name=node.op.lower())  # type: ignore[operator]


@onnx_op("Gelu")
def _gelu(node: OnnxNode, x: Value) -> te.Tensor:
    fn = f.gelu_tanh if node.attr("approximate") == "tanh" else f.gelu
    return elementwise(fn, node.floats(x), name="gelu")


@onnx_op("Dropout")
def _dropout(
    node: OnnxNode, x: Value, ratio: Value | None = None, training: Value | None = None
) -> list[Value]:
    """At inference a copy."""
    if training is not None and bool(node.known(training, "training_mode").any()):
        ratio_is_zero = ratio is not None and not node.known(ratio, "ratio").any()
        if not ratio_is_zero:
            raise UnsupportedForm("training_mode=1 makes random numbers")
    if node.version < 7 and not node.attr("is_test", 0):
        raise UnsupportedForm("is_test=0 makes random numbers")
    if not node.wants(1):
        return [x]
    return [x, np.broadcast_to(np.array(True), x.shape)]


# --- two inputs -------------------------------------------------------------------------------


def _pair(node: OnnxNode, a: Value | None, b: Value | None) -> tuple[Operand, Operand]:
    """Both inputs; an older form broadcasts by its attributes."""
    if node.version < 7 and node.attr("broadcast", 0):
        raise UnsupportedForm(f"version {node.version} broadcasts by an axis; convert the model to opset 13")
    return node.operand(a), node.operand(b)


_BINARY: dict[str, ExprFn] = {
    "Add": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Mul": lambda a, b: a * b,
    "Div": f.truncated_quotient,
}  # fmt: skip


@onnx_op(*_BINARY)
def _binary(node: OnnxNode, a: Value, b: Value) -> te.Tensor:
    return elementwise(_BINARY[node.op], *_pair(node, a, b), name=node.op.lower())


@onnx_op("Pow")
def _pow(node: OnnxNode, a: Value, b: Value) -> te.Tensor:
    """A known exponent is a literal, of which small ones are products."""
    x, y = _pair(node, a, b)
    dtype = dtype_of(x)
    if isinstance(y, np.ndarray):
        exponent = float(y.item())
        if is_float(dtype) or (exponent.is_integer() and 0 <= exponent <= 64):
            return elementwise(lambda v, _: te.pow(v, exponent), x, y, name="power")
    if is_float(dtype):
        return elementwise(lambda v, w: te.pow(v, te.cast(w, computed(dtype))), x, y, name="power")
    if is_float(dtype_of(y)):
        return elementwise(
            lambda v, w: te.pow(te.cast(v, "float64"), te.cast(w, "float64")), x, y, dtype=dtype, name="power"
        )
    both = "int64" if "int64" in (dtype, dtype_of(y)) else "int32"
    base, power = (cast(node.tensor(v), both) for v in (a, b))
    return cast(integer_power(base, power, np.broadcast_shapes(base.shape, power.shape), both), dtype)


_COMPARE = of_onnx("compare", "logic")


@onnx_op(*_COMPARE)
def _compare(node: OnnxNode, a: Value, b: Value) -> te.Tensor:
    return elementwise(_COMPARE[node.op], *_pair(node, a, b), dtype="bool", name=node.op.lower() + "_")


_BITS = of_onnx("bits")


@onnx_op(*_BITS)
def _bits(node: OnnxNode, a: Value, b: Value) -> te.Tensor:
    return elementwise(_BITS[node.op], *_pair(node, a, b), name="bits")


@onnx_op("BitShift")
def _shift(node: OnnxNode, a: Value, b: Value) -> te.Tensor:
    fn = te.left_shift if node.attr("direction") == "LEFT" else te.right_shift
    return elementwise(fn, *_pair(node, a, b), name="shift")


@onnx_op("Mod")
def _mod(node: OnnxNode, a: Value, b: Value) -> te.Tensor:
    x, y = _pair(node, a, b)
    if is_float(dtype_of(x)):
        return elementwise(te.fmod if node.attr("fmod", 0) else te.remainder, x, y, name="mod")
    return elementwise(f.c_remainder if node.attr("fmod", 0) else lambda v, w: v % w, x, y, name="mod")


@onnx_op("PRelu")
def _prelu(node: OnnxNode, x: Value, slope: Value) -> te.Tensor:
    return elementwise(f.prelu, node.tensor(x), node.operand(slope), name="prelu")


@onnx_op("Where")
def _where(node: OnnxNode, cond: Value, a: Value, b: Value) -> te.Tensor:
    c, x, y = node.operand(cond), node.operand(a), node.operand(b)
    return elementwise(te.select, c, x, y, dtype=dtype_of(x), name="where")


# --- any number of inputs ---------------------------------------------------------------------

_MANY: dict[str, ExprFn] = {
    "Sum": lambda a, b: a + b, "Mean": lambda a, b: a + b, "Max": te.maximum, "Min": te.minimum,
}  # fmt: skip


@onnx_op(*_MANY)
def _many(node: OnnxNode, *xs: Value) -> te.Tensor:
    given = [node.operand(x) for x in xs]
    if not given:
        raise UnsupportedForm("it has no inputs")

    def value(*vs: Expr) -> Expr:
        out = reduce(_MANY[node.op], vs)
        return out / float(len(vs)) if node.op == "Mean" else out

    return elementwise(value, *given, name=node.op.lower())


@onnx_op("Clip", since=6)
def _clip(node: OnnxNode, x: Value, low: Value | None = None, high: Value | None = None) -> te.Tensor:
    """Bounds are attributes before version 11."""
    t = node.tensor(x)
    if node.version < 11:
        low, high = (
            np.array(node.attr(n), t.dtype) if n in node.attributes else None for n in ("min", "max")
        )
    bounds = [None if b is None else node.operand(b) for b in (low, high)]

    def value(*vs: Expr) -> Expr:
        out, rest = vs[0], list(vs[1:])
        if bounds[0] is not None:
            out = te.maximum(out, rest.pop(0))
        return te.minimum(out, rest.pop(0)) if bounds[1] is not None else out

    return elementwise(value, t, *(b for b in bounds if b is not None), name="clip")


# --- types ------------------------------------------------------------------------------------


@onnx_op("Cast", since=6)
def _cast(node: OnnxNode, x: Value) -> te.Tensor:
    return cast(node.tensor(x), named_type(int(node.attr("to"))))


@onnx_op("CastLike")
def _cast_like(node: OnnxNode, x: Value, like: Value) -> te.Tensor:
    return cast(node.tensor(x), named_type(helper.np_dtype_to_tensor_dtype(np.dtype(like.dtype))))
