"""Operators of elements: arithmetic, comparisons, logic, casts, activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from autotune.models.elements import of_aten
from autotune.models.lowering import functions as f
from autotune.models.lowering.base import UnsupportedForm
from autotune.models.lowering.base import read as _read
from autotune.models.lowering.base import stage as _stage
from autotune.models.lowering.powers import integer_power
from autotune.models.torch_ops.creation import filled
from autotune.models.torch_ops.table import KnownTensor, Scalar, TorchNode, Value, aten, of_dtype
from schedules import te
from schedules.dtypes import DTYPES, computed, is_float, rounded
from schedules.expr import Expr, dtype_of

ExprFn = Callable[..., Any]
Any_ = Value | Scalar


# --- one input --------------------------------------------------------------------------------

_FLOAT, _WHOLE, _ANY = of_aten("float"), of_aten("whole"), of_aten("any")


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
        return _round(node, x)  # type: ignore[return-value]
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


@aten("logical_not.default")
def _not(node: TorchNode, x: Value) -> te.Tensor:
    return node.elementwise(te.logical_not, x, common="bool")


@aten("isnan.default", "isinf.default", "isfinite.default")
def _is(node: TorchNode, x: Value) -> Value:
    """Integers are finite."""
    t = node.tensor(x)
    if not is_float(t.dtype):
        return filled(node, node.name == "isfinite")
    tests: dict[str, ExprFn] = {
        "isnan": lambda v: te.not_equal(v, v), "isinf": lambda v: te.equal(te.abs(v), te.inf),
        "isfinite": te.isfinite,
    }  # fmt: skip
    return node.elementwise(tests[node.name], t, common=t.dtype)


@aten("gelu.default")
def _gelu(node: TorchNode, x: Value, approximate: str = "none") -> te.Tensor:
    return node.elementwise(f.gelu_tanh if approximate == "tanh" else f.gelu, x)


@aten("elu.default")
def _elu(
    node: TorchNode, x: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> te.Tensor:
    def value(v: Expr) -> Expr:
        return te.select(v > 0, v, te.expm1(v * input_scale) * alpha) * scale

    return node.elementwise(value, x)


@aten("celu.default")
def _celu(node: TorchNode, x: Value, alpha: float = 1.0) -> te.Tensor:
    return node.elementwise(lambda v: f.celu(v, alpha), x)


@aten("leaky_relu.default")
def _leaky_relu(node: TorchNode, x: Value, slope: float = 0.01) -> te.Tensor:
    return node.elementwise(lambda v: te.select(v > 0, v, v * slope), x)


@aten("rrelu_with_noise_functional.default", "rrelu_with_noise.default")
def _rrelu(
    node: TorchNode, x: Value, noise: Value, low: float = 1 / 8, high: float = 1 / 3, training: bool = False,
    generator: Any = None,
) -> list[te.Tensor | None]:  # fmt: skip
    """Outside of training a leaky relu with the middle of both slopes."""
    if training:
        raise UnsupportedForm("it makes random numbers in training: export module.eval()")
    node.only(1)
    y = node.elementwise(lambda v: f.leaky_relu(v, (low + high) / 2), x)
    return [y, None]


@aten("softplus.default")
def _softplus(node: TorchNode, x: Value, beta: float = 1.0, threshold: float = 20.0) -> te.Tensor:
    """Linear above the threshold, where the difference is below the precision of float32."""

    def value(v: Expr) -> Expr:
        scaled = v * beta
        return te.select(scaled > threshold, v, f.softplus(scaled) / beta)

    return node.elementwise(value, x)


@aten("hardtanh.default")
def _hardtanh(node: TorchNode, x: Value, low: float = -1.0, high: float = 1.0) -> te.Tensor:
    ends = node.number(low), node.number(high)
    return node.elementwise(lambda v: te.minimum(te.maximum(v, ends[0]), ends[1]), x)


@aten("threshold.default")
def _threshold(node: TorchNode, x: Value, threshold: float, value: float) -> te.Tensor:
    least, other = node.number(threshold), node.number(value)
    return node.elementwise(lambda v: te.select(v <= least, other, v), x)


@aten("softshrink.default")
def _softshrink(node: TorchNode, x: Value, lambd: float = 0.5) -> te.Tensor:
    return _shrunk(node, x, lambd, lambd)


@aten("hardshrink.default")
def _hardshrink(node: TorchNode, x: Value, lambd: float = 0.5) -> te.Tensor:
    return _shrunk(node, x, 0.0, lambd)


def _shrunk(node: TorchNode, x: Value, bias: float, lambd: float) -> te.Tensor:
    """NaN stays."""
    return node.elementwise(lambda v: te.select(te.equal(v, v), f.shrink(v, bias, lambd), v), x)


# --- two inputs -------------------------------------------------------------------------------

_BINARY: dict[str, ExprFn] = {
    "mul": lambda a, b: a * b, "maximum": te.maximum, "minimum": te.minimum,
    "fmax": lambda a, b: f.without_nan(te.maximum, a, b),
    "fmin": lambda a, b: f.without_nan(te.minimum, a, b),
    "fmod": f.c_remainder, "remainder": lambda a, b: a % b,
}  # fmt: skip


@aten(
    "mul.Tensor", "mul.Scalar", "maximum.default", "minimum.default", "fmax.default", "fmin.default",
    "fmod.Tensor", "fmod.Scalar", "remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor",
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


@aten("atan2.default", "hypot.default", "copysign.Tensor", "copysign.Scalar")
def _of_two(node: TorchNode, a: Any_, b: Any_) -> te.Tensor:
    fns: dict[str, ExprFn] = {"atan2": f.atan2, "hypot": f.hypot, "copysign": f.with_sign}
    return node.elementwise(fns[node.name], a, b)


@aten("signbit.default")
def _sign_bit(node: TorchNode, x: Value) -> Value:
    t = node.tensor(x)
    if is_float(t.dtype):
        return node.elementwise(f.negative, t, common=t.dtype)
    if t.dtype == "bool":
        return filled(node, False)
    return node.elementwise(lambda v: v < 0, t, common=t.dtype)


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
        q = te.cast(te.cast(x / y, node.dtype), dtype_of(x))  # rounded before it is cut off
        return te.select(q < 0, te.ceil(q), te.floor(q))

    return node.elementwise(value, a, b, name="div")


@aten("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def _pow(node: TorchNode, a: Any_, b: Any_) -> te.Tensor:
    """A known exponent is a literal, of which small ones are products."""
    exponent = b.literal() if isinstance(b, KnownTensor) else None if isinstance(b, te.Tensor) else b
    if exponent is not None:
        known = float(exponent)
        if is_float(node.dtype) or (known.is_integer() and 0 <= known <= 64):
            if known == 0.5:
                return node.elementwise(te.sqrt, a, name="power")
            return node.elementwise(lambda v: te.pow(v, known), a, name="power")
    if not is_float(node.dtype):
        return integer_power(_as_tensor(node, a), _as_tensor(node, b), node.shape, node.dtype)
    return node.elementwise(te.pow, a, b, name="power")


def _as_tensor(node: TorchNode, x: Any_) -> te.Tensor:
    """An argument as a tensor of the dtype of the output."""
    if isinstance(x, (bool, int, float)):
        return _stage((), lambda: te.cast(node.number(x), node.dtype), "number")
    return node.cast(x)


_COMPARE = of_aten("compare")


@aten(*(f"{name}.{form}" for name in _COMPARE for form in ("Tensor", "Scalar")))
def _compare(node: TorchNode, a: Any_, b: Any_) -> te.Tensor:
    common = node.common
    if common == "bool" and node.name not in ("eq", "ne"):
        common = "int32"
    return node.elementwise(_COMPARE[node.name], a, b, common=common, name=node.name + "_")


_LOGIC = of_aten("logic")


@aten(*(f"{name}.default" for name in _LOGIC))
def _logic(node: TorchNode, a: Any_, b: Any_) -> te.Tensor:
    return node.elementwise(
        _LOGIC[node.name], a, b, common="bool", name=node.name.removeprefix("logical_") + "_"
    )


_BITS = of_aten("bits")
# What they are of bool; shifts are not.
_BITS_OF_BOOL: dict[str, ExprFn] = {
    "bitwise_and": te.all, "bitwise_or": te.any, "bitwise_xor": te.not_equal,
}  # fmt: skip


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


# --- more inputs ------------------------------------------------------------------------------


@aten("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(node: TorchNode, cond: Value, a: Any_, b: Any_) -> te.Tensor:
    c = node.cast(cond, "bool") if not isinstance(cond, KnownTensor) or cond.literal() is None else cond
    if isinstance(c, KnownTensor):
        chosen = a if bool(c.tensor.reshape(-1)[0]) else b
        return node.elementwise(lambda v: v, chosen, name="where")
    node.fits(a, b)
    mask, two = c, [node.operand(x) for x in (a, b)]

    def element(x: Any, at: tuple[Expr, ...]) -> Expr:
        return of_dtype(_read(x, at) if isinstance(x, te.Tensor) else x.item(), node.dtype)

    def value(*at: Expr) -> Expr:
        return te.cast(te.select(_read(mask, at), element(two[0], at), element(two[1], at)), node.dtype)

    return _stage(node.shape, value, "where")


@aten("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(node: TorchNode, x: Value, mask: Value, value: Any_) -> te.Tensor:
    return where(node, mask, value, x)  # type: ignore[return-value]


@aten("clamp.default", "clamp.Tensor", "clip.default", "clip.Tensor")
def _clamp(node: TorchNode, x: Value, low: Any_ | None = None, high: Any_ | None = None) -> te.Tensor:
    def value(*vs: Expr) -> Expr:
        out, rest = vs[0], list(vs[1:])
        out = out if low is None else te.maximum(out, rest.pop(0))
        return out if high is None else te.minimum(out, rest.pop(0))

    node.fits(low, high)
    return node.elementwise(value, x, *(b for b in (low, high) if b is not None), name="clip")


@aten("clamp_min.default", "clamp_min.Tensor", "clamp_max.default", "clamp_max.Tensor")
def _clamp_one(node: TorchNode, x: Value, bound: Any_) -> te.Tensor:
    node.fits(bound)
    return node.elementwise(te.maximum if node.name == "clamp_min" else te.minimum, x, bound, name="clip")


@aten("addcmul.default", "addcdiv.default")
def _addc(node: TorchNode, x: Value, a: Value, b: Value, value: Scalar = 1) -> te.Tensor:
    by = te.const(value, computed(node.dtype))
    divides = node.name == "addcdiv"
    return node.elementwise(lambda v, p, q: v + (p / q if divides else p * q) * by, x, a, b)


@aten("lerp.Scalar", "lerp.Tensor")
def _lerp(node: TorchNode, a: Value, b: Value, weight: Any_) -> te.Tensor:
    return node.elementwise(lambda x, y, w: x + (y - x) * w, a, b, weight)


# --- types and copies -------------------------------------------------------------------------


@aten("_to_copy.default", "to.dtype", "to.dtype_layout", "type_as.default")
def _to(node: TorchNode, x: Value, *rest: Any, **how: Any) -> Value:
    if node.dtype not in DTYPES:
        raise UnsupportedForm(f"type {node.dtype} is not supported")
    return node.cast(x)


@aten("clone.default", "contiguous.default", "detach.default", "alias.default", "lift_fresh_copy.default")
def _same(node: TorchNode, x: Value, **how: Any) -> Value:
    """Where elements lie is not a part of what is computed."""
    return x


@aten("dropout.default", "alpha_dropout.default", "feature_dropout.default")
def _dropout(node: TorchNode, x: Value, p: float, train: bool) -> Value:
    if train and p > 0:
        raise UnsupportedForm("it makes random numbers in training: export module.eval()")
    return x


@aten("copy.default")
def _copy(node: TorchNode, into: Value, x: Value, non_blocking: bool = False) -> te.Tensor:
    return node.elementwise(lambda v: v, x)
