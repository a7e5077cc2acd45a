"""Quantized tensors: integers with a scale and a zero point, one each or one a slice of an axis."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from autotune.models.lowering.base import Operand, UnsupportedForm, dtype_of, read, stage
from autotune.models.lowering.base import positive as axis_of
from autotune.models.lowering.matmul import matmul
from autotune.models.lowering.reduction import reduce
from autotune.models.onnx_ops.table import OnnxNode, Value, named_type, onnx_op
from schedules import te
from schedules.dtypes import DTYPES, computed, is_integer
from schedules.expr import Expr

Read = Callable[[tuple[Expr, ...]], Expr]


def _along(node: OnnxNode, t: te.Tensor, x: Operand, axis: int) -> Read:
    """A reader of a scale or zero point at an element of ``t``: one for all, one a slice, or one a block."""
    if (
        isinstance(x, np.ndarray)
        or not x.shape
        or (len(x.shape) == 1 and x.shape[0] == 1 and len(t.shape) != 1)
    ):
        return lambda at: _one(x)
    d = axis_of(axis, len(t.shape))
    if len(x.shape) == 1:
        if x.shape[0] != t.shape[d]:
            raise ValueError(f"{x.shape[0]} scales for the {t.shape[d]} slices of axis {d}")
        return lambda at: x[at[d]]
    block = node.attr("block_size", 0)
    if not block or len(x.shape) != len(t.shape):
        raise UnsupportedForm(f"scales of {list(x.shape)} without block_size are not supported")
    return lambda at: x[tuple(i // block if a == d else i for a, i in enumerate(at))]


@onnx_op("DequantizeLinear")
def _dequantize(node: OnnxNode, x: Value, scale: Value, zero: Value | None = None) -> te.Tensor:
    t, s = node.tensor(x), node.operand(scale, "scale")
    out = node.attr("output_dtype", 0)
    dtype = dtype_of(s) if not out else named_type(out)
    axis = node.attr("axis", 1)
    of_scale = _along(node, t, s, axis)
    of_zero = None if zero is None else _along(node, t, node.operand(zero, "zero point"), axis)
    wide = computed(dtype)

    def value(*at: Expr) -> Expr:
        v: Expr = te.cast(t[at], "int32")
        if of_zero is not None:
            v = v - te.cast(of_zero(at), "int32")
        return te.cast(te.cast(v, wide) * te.cast(of_scale(at), wide), dtype)

    return stage(t.shape, value, "dequantize")


@onnx_op("QuantizeLinear")
def _quantize(node: OnnxNode, x: Value, scale: Value, zero: Value | None = None) -> te.Tensor:
    t, s = node.tensor(x), node.operand(scale, "scale")
    z = None if zero is None else node.operand(zero, "zero point")
    out = node.attr("output_dtype", 0)
    dtype = dtype_of(z) if z is not None else named_type(out) if out else "uint8"
    if dtype not in ("int8", "uint8"):
        raise UnsupportedForm(f"a result of {dtype} is not supported")
    axis = node.attr("axis", 1)
    of_scale = _along(node, t, s, axis)
    of_zero = None if z is None else _along(node, t, z, axis)
    return stage(
        t.shape, lambda *at: _quantized(t[at], of_scale(at), of_zero and of_zero(at), dtype), "quantize"
    )


def _quantized(x: Expr, scale: Expr, zero: Expr | None, dtype: str) -> Expr:
    """round(x / scale) + zero, halves to even, cut off at the ends of ``dtype``."""
    low, high = DTYPES[dtype].range[0], DTYPES[dtype].range[-1]
    q = te.cast(te.round(te.cast(x, "float32") / te.cast(scale, "float32")), "int32")
    # An int32 is far from its ends here: a zero point has 8 bits.
    q = te.clip(q, -(2**30), 2**30)
    return te.cast(te.clip(q if zero is None else q + te.cast(zero, "int32"), low, high), dtype)


@onnx_op("DynamicQuantizeLinear")
def _dynamic_quantize(node: OnnxNode, x: Value) -> list[te.Tensor]:
    """Quantized to uint8, with the scale and the zero point that its range has, which 0 is in. Where all is 0
    the scale is 1, as ONNX Runtime has it."""
    t = node.tensor(x)
    every, zero = range(len(t.shape)), te.const(0.0, "float32")
    top, low = (reduce(t, every, False, fold) for fold in (te.max, te.min))

    def scales() -> Expr:
        span = te.maximum(top[()], zero) - te.minimum(low[()], zero)
        return te.select(te.equal(span, zero), te.const(1.0, "float32"), span / 255.0)

    scale = stage((), scales, "scale")

    def zeros() -> Expr:
        place = zero - te.minimum(low[()], zero) / scale[()]
        return te.cast(te.round(te.select(place < 255.0, te.maximum(place, zero), 255.0)), "uint8")

    point = stage((), zeros, "zero_point")

    def value(*at: Expr) -> Expr:
        v = te.round(t[at] / scale[()]) + te.cast(point[()], "float32")
        return te.cast(te.select(v > 0.0, te.minimum(v, 255.0), zero), "uint8")  # NaN is 0

    return [stage(t.shape, value, "quantize"), scale, point]


def _one(x: Operand) -> Expr:
    """The element of an operand that has one."""
    return read(x, ()) if isinstance(x, np.ndarray) else x[(0,) * len(x.shape)]


@onnx_op("QLinearMatMul")
def _qlinear_matmul(
    node: OnnxNode, a: Value, a_scale: Value, a_zero: Value, b: Value, b_scale: Value, b_zero: Value,
    y_scale: Value, y_zero: Value,
) -> te.Tensor:  # fmt: skip
    """A product of int32, then requantized. Scales and zero points are one number each."""
    x, y = node.tensor(a), node.tensor(b)
    ones = [node.operand(v) for v in (a_scale, a_zero, b_scale, b_zero, y_scale, y_zero)]
    if any(np.prod(v.shape) != 1 for v in ones):
        raise UnsupportedForm("a scale or zero point a row is not supported")
    sa, za, sb, zb, sy, zy = (partial(_one, v) for v in ones)
    if not is_integer(x.dtype):
        raise UnsupportedForm(f"{x.dtype} is not supported by it")

    def minus(zero: Callable[[], Expr]) -> Callable[[Expr], Expr]:
        return lambda v: te.cast(v, "int32") - te.cast(zero(), "int32")

    dot = matmul(x, y, (minus(za), minus(zb)))
    dtype = dtype_of(ones[5])
    if dtype not in ("int8", "uint8"):
        raise UnsupportedForm(f"a result of {dtype} is not supported")

    def value(*at: Expr) -> Expr:
        scale = te.cast(sa(), "float32") * te.cast(sb(), "float32") / te.cast(sy(), "float32")
        return _quantized(te.cast(dot[at], "float32") * scale, te.const(1.0, "float32"), zy(), dtype)

    return stage(dot.shape, value, "quantize")
