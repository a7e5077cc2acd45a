"""Quantized tensors: integers with a scale and a zero point, one each or one a slice of an axis."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from autotune.models.operators.axes import positive
from autotune.models.operators.base import Operand, UnsupportedForm, dtype_of, read, stage
from autotune.models.operators.matmul import matmul
from autotune.models.operators.node import TorchNode, named_type
from autotune.models.operators.reduction import reduce
from autotune.models.operators.table import Axis, Floats, aten, onnx_op
from schedules import te
from schedules.dtypes import DTYPES, computed, is_integer
from schedules.expr import Expr

Read = Callable[[tuple[Expr, ...]], Expr]


def _along(t: te.Tensor, x: Operand, axis: int, block: int) -> Read:
    """A reader of a scale or zero point at an element of ``t``: one for all, one a slice, or one a block."""
    if (
        isinstance(x, np.ndarray)
        or not x.shape
        or (len(x.shape) == 1 and x.shape[0] == 1 and len(t.shape) != 1)
    ):
        return lambda at: _one(x)
    d = positive(axis, len(t.shape))
    if len(x.shape) == 1:
        if x.shape[0] != t.shape[d]:
            raise ValueError(f"{x.shape[0]} scales for the {t.shape[d]} slices of axis {d}")
        return lambda at: x[at[d]]
    if not block or len(x.shape) != len(t.shape):
        raise UnsupportedForm(f"scales of {list(x.shape)} without block_size are not supported")
    return lambda at: x[tuple(i // block if a == d else i for a, i in enumerate(at))]


@onnx_op("DequantizeLinear")
def _dequantize(
    x: te.Tensor, scale: Operand, zero: Operand | None = None, *, axis: int = 1, block_size: int = 0,
    output_dtype: int = 0,
) -> te.Tensor:  # fmt: skip
    dtype = named_type(output_dtype) if output_dtype else dtype_of(scale)
    of_scale = _along(x, scale, axis, block_size)
    of_zero = None if zero is None else _along(x, zero, axis, block_size)
    wide = computed(dtype)

    def value(*at: Expr) -> Expr:
        v: Expr = te.cast(x[at], "int32")
        if of_zero is not None:
            v = v - te.cast(of_zero(at), "int32")
        return te.cast(te.cast(v, wide) * te.cast(of_scale(at), wide), dtype)

    return stage(x.shape, value, "dequantize")


@onnx_op("QuantizeLinear")
def _quantize(
    x: te.Tensor, scale: Operand, zero: Operand | None = None, *, axis: int = 1, block_size: int = 0,
    output_dtype: int = 0,
) -> te.Tensor:  # fmt: skip
    dtype = dtype_of(zero) if zero is not None else named_type(output_dtype) if output_dtype else "uint8"
    _check_result(dtype)
    of_scale = _along(x, scale, axis, block_size)
    of_zero = None if zero is None else _along(x, zero, axis, block_size)
    return stage(
        x.shape, lambda *at: _quantized(x[at], of_scale(at), of_zero and of_zero(at), dtype), "quantize"
    )


def _check_result(dtype: str) -> None:
    if dtype not in ("int8", "uint8"):
        raise UnsupportedForm(f"a result of {dtype} is not supported")


def _quantized(x: Expr, scale: Expr, zero: Expr | None, dtype: str) -> Expr:
    """round(x / scale) + zero, halves to even, cut off at the ends of ``dtype``."""
    low, high = DTYPES[dtype].range[0], DTYPES[dtype].range[-1]
    q = te.cast(te.round(te.cast(x, "float32") / te.cast(scale, "float32")), "int32")
    # An int32 is far from its ends here: a zero point has 8 bits.
    q = te.clip(q, -(2**30), 2**30)
    return te.cast(te.clip(q if zero is None else q + te.cast(zero, "int32"), low, high), dtype)


@onnx_op("DynamicQuantizeLinear")
def _dynamic_quantize(x: te.Tensor) -> list[te.Tensor]:
    """Quantized to uint8, with the scale and the zero point that its range has, which 0 is in. Where all is 0
    the scale is 1, as ONNX Runtime has it."""
    every, zero = range(len(x.shape)), te.const(0.0, "float32")
    top, low = (reduce(x, every, False, fold) for fold in (te.max, te.min))

    def scales() -> Expr:
        span = te.maximum(top[()], zero) - te.minimum(low[()], zero)
        return te.select(te.equal(span, zero), te.const(1.0, "float32"), span / 255.0)

    scale = stage((), scales, "scale")

    def zeros() -> Expr:
        place = zero - te.minimum(low[()], zero) / scale[()]
        return te.cast(te.round(te.select(place < 255.0, te.maximum(place, zero), 255.0)), "uint8")

    point = stage((), zeros, "zero_point")

    def value(*at: Expr) -> Expr:
        v = te.round(x[at] / scale[()]) + te.cast(point[()], "float32")
        return te.cast(te.select(v > 0.0, te.minimum(v, 255.0), zero), "uint8")  # NaN is 0

    return [stage(x.shape, value, "quantize"), scale, point]


def _one(x: Operand) -> Expr:
    """The element of an operand that has one."""
    return read(x, ()) if isinstance(x, np.ndarray) else x[(0,) * len(x.shape)]


@onnx_op("QLinearMatMul")
def _qlinear_matmul(
    a: te.Tensor, a_scale: Operand, a_zero: Operand, b: te.Tensor, b_scale: Operand, b_zero: Operand,
    y_scale: Operand, y_zero: Operand,
) -> te.Tensor:  # fmt: skip
    """A product of int32, then requantized. Scales and zero points are one number each."""
    ones = (a_scale, a_zero, b_scale, b_zero, y_scale, y_zero)
    if any(np.prod(v.shape) != 1 for v in ones):
        raise UnsupportedForm("a scale or zero point a row is not supported")
    sa, za, sb, zb, sy, zy = (partial(_one, v) for v in ones)
    if not is_integer(a.dtype):
        raise UnsupportedForm(f"{a.dtype} is not supported by it")

    def minus(zero: Callable[[], Expr]) -> Callable[[Expr], Expr]:
        return lambda v: te.cast(v, "int32") - te.cast(zero(), "int32")

    dot = matmul(a, b, (minus(za), minus(zb)))
    dtype = dtype_of(y_zero)
    _check_result(dtype)

    def value(*at: Expr) -> Expr:
        scale = te.cast(sa(), "float32") * te.cast(sb(), "float32") / te.cast(sy(), "float32")
        return _quantized(te.cast(dot[at], "float32") * scale, te.const(1.0, "float32"), zy(), dtype)

    return stage(dot.shape, value, "quantize")


# --- what training for quantization leaves in a model: floats that are rounded as integers would be -----

# (scale, zero point) at an index.
Parameters = Callable[[tuple[Expr, ...]], tuple[Expr, Expr]]


def _rounded(node: TorchNode, t: te.Tensor, of: Parameters, low: int, high: int) -> list[te.Tensor | None]:
    """(clip(round(x / scale) + zero point) back as floats, whether nothing was clipped)."""
    wide = computed(t.dtype)

    def whole(at: tuple[Expr, ...]) -> tuple[Expr, Expr, Expr]:
        scale, zero = of(at)
        return te.round(t[at] * (1.0 / scale)) + zero, scale, zero

    def value(*at: Expr) -> Expr:
        q, scale, zero = whole(at)
        return te.cast((te.maximum(te.minimum(q, float(high)), float(low)) - zero) * scale, t.dtype)

    def inside(*at: Expr) -> Expr:
        q, _, _ = whole(at)
        return te.cast(te.all(q >= te.const(low, wide), q <= te.const(high, wide)), "bool")

    mask = stage(t.shape, inside, "inside") if 1 in node.used else None
    return [stage(t.shape, value, "fake_quantize"), mask]


@aten("fake_quantize_per_tensor_affine_cachemask.default")
def _of_tensor(
    node: TorchNode, x: Floats, scale: float, zero: int, low: int, high: int
) -> list[te.Tensor | None]:
    s, wide = float(np.float32(scale)), computed(x.dtype)
    return _rounded(node, x, lambda at: (te.const(s, wide), te.const(zero, wide)), low, high)


@aten("fake_quantize_per_channel_affine_cachemask.default")
def _of_channel(
    node: TorchNode, x: Floats, scale: te.Tensor, zero: te.Tensor, axis: Axis, low: int, high: int
) -> list[te.Tensor | None]:
    wide = computed(x.dtype)

    def of(at: tuple[Expr, ...]) -> tuple[Expr, Expr]:
        return te.cast(scale[at[axis]], wide), te.cast(zero[at[axis]], wide)

    return _rounded(node, x, of, low, high)
