"""Functions of two inputs and more, element by element: arithmetic, comparisons, choices, types."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from autotune.models.operators import functions as f
from autotune.models.operators.base import (
    Operand,
    UnsupportedForm,
    cast,
    dtype_of,
    elementwise,
    read,
    stage,
)
from autotune.models.operators.elements import of_aten, of_onnx
from autotune.models.operators.known import KnownTensor, Scalar, Value
from autotune.models.operators.node import OnnxNode, TorchNode, element, named_type, supported
from autotune.models.operators.powers import integer_power
from autotune.models.operators.table import aten, onnx_op
from schedules import expr, te
from schedules.dtypes import DTYPES, computed, is_float, rounded
from schedules.expr import Expr

ExprFn = Callable[..., Any]
Any_ = Value | Scalar

# --- arithmetic -------------------------------------------------------------------------------

_ONNX_BINARY: dict[str, ExprFn] = {
    "Add": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Mul": lambda a, b: a * b,
    "Div": f.truncated_quotient,
}  # fmt: skip


@onnx_op(*_ONNX_BINARY)
def _onnx_binary(node: OnnxNode, a: Operand, b: Operand) -> te.Tensor:
    return node.elementwise(_ONNX_BINARY[node.op], a, b)


@onnx_op("Mod")
def _mod(node: OnnxNode, a: Operand, b: Operand, *, fmod: bool = False) -> te.Tensor:
    of_floats, of_integers = (te.fmod, f.c_remainder) if fmod else (te.remainder, lambda v, w: v % w)
    return node.elementwise(of_floats if is_float(dtype_of(a)) else of_integers, a, b)


_BINARY: dict[str, ExprFn] = {
    "mul": lambda a, b: a * b, "maximum": te.maximum, "minimum": te.minimum,
    "fmax": lambda a, b: f.without_nan(te.maximum, a, b),
    "fmin": lambda a, b: f.without_nan(te.minimum, a, b),
    "fmod": f.c_remainder, "remainder": lambda a, b: a % b, "atan2": te.atan2, "hypot": te.hypot,
    "copysign": f.with_sign,
}  # fmt: skip


@aten(
    "mul.Tensor", "mul.Scalar", "maximum.default", "minimum.default", "fmax.default", "fmin.default",
    "fmod.Tensor", "fmod.Scalar", "remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor",
    "atan2.default", "hypot.default", "copysign.Tensor", "copysign.Scalar",
)  # fmt: skip
def _binary(node: TorchNode, a: Any_, b: Any_) -> te.Tensor:
    if node.dtype == "bool":
        fn = te.any if node.name in ("maximum", "fmax") else te.all
        return node.elementwise(fn, a, b)
    if node.name in ("fmod", "remainder") and is_float(node.dtype):
        # torch rounds numbers beside these to the dtype of the tensor
        a, b = (x if isinstance(x, te.Tensor | KnownTensor) else rounded(x, node.dtype) for x in (a, b))
        return node.elementwise(te.fmod if node.name == "fmod" else te.remainder, a, b)
    return node.elementwise(_BINARY[node.name], a, b)


@aten("ldexp.Tensor")
def _ldexp(node: TorchNode, x: Any_, by: Any_) -> te.Tensor:
    return node.elementwise(lambda v, n: v * te.pow(te.const(2, computed(node.dtype)), n), x, by)


@aten("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Tensor", "rsub.Scalar")
def _sum(node: TorchNode, a: Any_, b: Any_, alpha: Scalar = 1) -> te.Tensor:
    """a + alpha · b, a - alpha · b, or b - alpha · a."""
    if node.dtype == "bool":
        return node.elementwise(te.any, a, b)
    if node.name == "rsub":
        a, b = b, a
    minus = node.name != "add"

    def value(x: Expr, y: Expr) -> Expr:
        scaled = y if alpha == 1 else y * te.const(alpha, computed(node.dtype))
        return x - scaled if minus else x + scaled

    return node.elementwise(value, a, b)


@aten("div.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode", "floor_divide.default")
def _div(node: TorchNode, a: Any_, b: Any_, rounding_mode: str | None = None) -> te.Tensor:
    mode = "floor" if node.name == "floor_divide" else rounding_mode
    integers = not is_float(node.dtype)

    def value(x: Expr, y: Expr) -> Expr:
        if mode is None:
            return x / y
        if integers:
            return x // y if mode == "floor" else f.truncated_quotient(x, y)
        if mode == "floor":
            return te.floor_divide(x, y)
        q = te.cast(te.cast(x / y, node.dtype), expr.dtype_of(x))  # rounded before it is cut off
        return te.trunc(q)

    return node.elementwise(value, a, b, name="div")


@onnx_op("Pow")
def _onnx_pow(node: OnnxNode, a: Value, b: Value) -> te.Tensor:
    """A known exponent is a literal, of which small ones are products."""
    x, y = node.operand(a), node.operand(b)
    dtype = dtype_of(x)
    if isinstance(y, np.ndarray):
        exponent = float(y.item())
        if is_float(dtype) or _is_small(exponent):
            return node.elementwise(lambda v, _: te.pow(v, exponent), x, y, name="power")
    if is_float(dtype):
        return node.elementwise(lambda v, w: te.pow(v, te.cast(w, computed(dtype))), x, y, name="power")
    if is_float(dtype_of(y)):
        wide = "float64"
        return node.elementwise(lambda v, w: te.pow(te.cast(v, wide), te.cast(w, wide)), x, y, name="power")
    both = "int64" if "int64" in (dtype, dtype_of(y)) else "int32"
    base, power = (cast(node.tensor(v), both) for v in (a, b))
    return cast(integer_power(base, power, np.broadcast_shapes(base.shape, power.shape), both), dtype)


def _is_small(exponent: float) -> bool:
    """Whether a power of integers is a product of a few."""
    return exponent.is_integer() and 0 <= exponent <= 64


@aten("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def _pow(node: TorchNode, a: Any_, b: Any_) -> te.Tensor:
    """A known exponent is a literal, of which small ones are products."""
    exponent = b.literal() if isinstance(b, KnownTensor) else None if isinstance(b, te.Tensor) else b
    if exponent is not None:
        known = float(exponent)
        if is_float(node.dtype) or _is_small(known):
            fn = te.sqrt if known == 0.5 else lambda v: te.pow(v, known)
            return node.elementwise(fn, a, name="power")
    if not is_float(node.dtype):
        return integer_power(_as_tensor(node, a), _as_tensor(node, b), node.shape, node.dtype)
    return node.elementwise(te.pow, a, b, name="power")


def _as_tensor(node: TorchNode, x: Any_) -> te.Tensor:
    """An argument as a tensor of the dtype of the output."""
    if isinstance(x, (bool, int, float)):
        return stage((), lambda: te.cast(node.number(x), node.dtype), "number")
    return node.cast(x)


_MANY: dict[str, ExprFn] = {
    "Sum": lambda a, b: a + b, "Mean": lambda a, b: a + b, "Max": te.maximum, "Min": te.minimum,
}  # fmt: skip


@onnx_op(*_MANY)
def _many(node: OnnxNode, *xs: Operand) -> te.Tensor:
    if not xs:
        raise UnsupportedForm("it has no inputs")

    def value(*vs: Expr) -> Expr:
        out = reduce(_MANY[node.op], vs)
        return out / float(len(vs)) if node.op == "Mean" else out

    return elementwise(value, *xs, name=node.op.lower())


@aten("addcmul.default", "addcdiv.default")
def _addc(node: TorchNode, x: Value, a: Value, b: Value, value: Scalar = 1) -> te.Tensor:
    by = te.const(value, computed(node.dtype))
    divides = node.name == "addcdiv"
    return node.elementwise(lambda v, p, q: v + (p / q if divides else p * q) * by, x, a, b)


@aten("lerp.Scalar", "lerp.Tensor")
def _lerp(node: TorchNode, a: Value, b: Value, weight: Any_) -> te.Tensor:
    return node.elementwise(lambda x, y, w: x + (y - x) * w, a, b, weight)


# --- comparisons, logic, bits -----------------------------------------------------------------

_ONNX_COMPARE, _ONNX_BITS = of_onnx("compare", "logic"), of_onnx("bits")
_COMPARE, _LOGIC, _BITS = of_aten("compare"), of_aten("logic"), of_aten("bits")
# What they are of bool; shifts are not.
_BITS_OF_BOOL: dict[str, ExprFn] = {
    "bitwise_and": te.all, "bitwise_or": te.any, "bitwise_xor": te.not_equal,
}  # fmt: skip


@onnx_op(*_ONNX_COMPARE, *_ONNX_BITS)
def _onnx_compare(node: OnnxNode, a: Operand, b: Operand) -> te.Tensor:
    if node.op in _ONNX_BITS:
        return node.elementwise(_ONNX_BITS[node.op], a, b, name="bits")
    return node.elementwise(_ONNX_COMPARE[node.op], a, b, dtype="bool", name=node.op.lower() + "_")


@onnx_op("BitShift")
def _shift(node: OnnxNode, a: Operand, b: Operand, *, direction: str) -> te.Tensor:
    return node.elementwise(te.left_shift if direction == "LEFT" else te.right_shift, a, b, name="shift")


@aten(*(f"{name}.{form}" for name in _COMPARE for form in ("Tensor", "Scalar")))
def _compare(node: TorchNode, a: Any_, b: Any_) -> te.Tensor:
    common = node.common
    if common == "bool" and node.name not in ("eq", "ne"):
        common = "int32"
    return node.elementwise(_COMPARE[node.name], a, b, common=common, name=node.name + "_")


@aten(*(f"{name}.default" for name in _LOGIC))
def _logic(node: TorchNode, a: Any_, b: Any_) -> te.Tensor:
    name = node.name.removeprefix("logical_") + "_"
    return node.elementwise(_LOGIC[node.name], a, b, common="bool", name=name)


@aten(
    *(f"{n}.Tensor" for n in _BITS),
    *(f"{n}.{'Tensor_Scalar' if n.endswith('t_shift') else 'Scalar'}" for n in _BITS),
)  # fmt: skip
def _bits(node: TorchNode, a: Any_, b: Any_) -> te.Tensor:
    """Of bool they are the logical ones."""
    fn: ExprFn = _BITS[node.name]
    if node.dtype == "bool":
        fn = _BITS_OF_BOOL.get(node.name, fn)
    return node.elementwise(fn, a, b, name="bits")


# --- choices and bounds -----------------------------------------------------------------------


@onnx_op("Where")
def _where(cond: Operand, a: Operand, b: Operand) -> te.Tensor:
    return elementwise(te.select, cond, a, b, dtype=dtype_of(a), name="where")


@aten("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(node: TorchNode, cond: Value, a: Any_, b: Any_) -> te.Tensor:
    if isinstance(cond, KnownTensor) and (found := cond.literal()) is not None:
        return node.elementwise(lambda v: v, a if bool(found) else b, name="where")
    node.fits(a, b)
    mask, x, y = node.cast(cond, "bool"), node.operand(a), node.operand(b)

    def value(*at: Expr) -> Expr:
        chosen = te.select(read(mask, at), element(x, at, node.dtype), element(y, at, node.dtype))
        return te.cast(chosen, node.dtype)

    return stage(node.shape, value, "where")


@aten("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(node: TorchNode, x: Value, mask: Value, value: Any_) -> te.Tensor:
    return where(node, mask, value, x)


@onnx_op("Clip", since=6)
def _onnx_clip(node: OnnxNode, x: te.Tensor, min: Any = None, max: Any = None) -> te.Tensor:
    """Bounds are attributes before version 11."""
    bounds = [np.array(b, x.dtype) if isinstance(b, float) else b for b in (min, max)]
    return node.elementwise(_clipped(*bounds), x, *(b for b in bounds if b is not None), name="clip")


def _clipped(low: Any | None, high: Any | None) -> ExprFn:
    """A function of an element, and of its bounds that are there."""

    def value(v: Expr, *bounds: Expr) -> Expr:
        out = v if low is None else te.maximum(v, bounds[0])
        return out if high is None else te.minimum(out, bounds[-1])

    return value


@aten(
    "clamp.default", "clamp.Tensor", "clip.default", "clip.Tensor", "clamp_min.default", "clamp_min.Tensor",
    "clamp_max.default", "clamp_max.Tensor",
)  # fmt: skip
def _clamp(node: TorchNode, x: Value, low: Any_ | None = None, high: Any_ | None = None) -> te.Tensor:
    if node.name == "clamp_max":
        low, high = None, low
    node.fits(low, high)
    return node.elementwise(_clipped(low, high), x, *(b for b in (low, high) if b is not None), name="clip")


# --- types ------------------------------------------------------------------------------------


@onnx_op("Cast", since=6)
def _cast(x: te.Tensor, *, to: int, saturate: int = 1) -> te.Tensor:
    return _stored(x, named_type(to), saturate)


@onnx_op("CastLike")
def _cast_like(x: te.Tensor, like: Value, *, saturate: int = 1) -> te.Tensor:
    return _stored(x, supported(like.dtype), saturate)


def _stored(x: te.Tensor, dtype: str, saturate: int) -> te.Tensor:
    """A cast. To floats of 8 bits it ends at the largest ones, unless ``saturate`` is 0."""
    if x.dtype == dtype or not is_float(dtype) or DTYPES[dtype].itemsize > 1 or not saturate:
        return cast(x, dtype)
    return elementwise(lambda v: te.cast(v, dtype, saturate=True), x, dtype=dtype, name="cast")


@aten("_to_copy.default", "to.dtype", "to.dtype_layout", "type_as.default")
def _to(node: TorchNode, x: Value, *rest: Any, **how: Any) -> Value:
    supported(node.dtype)
    return node.cast(x)


@aten("copy.default")
def _copy(node: TorchNode, into: Value, x: Value, non_blocking: bool = False) -> te.Tensor:
    return node.elementwise(lambda v: v, x)
