"""Quantized tensors: integers with a scale and a zero point, one each or one a slice of an axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from autotune.models.operators.axes import positive
from autotune.models.operators.base import (
    Operand,
    UnsupportedForm,
    dtype_of,
    elementwise,
    read,
    stage,
)
from autotune.models.operators.known import KnownTensor, Value
from autotune.models.operators.narrow_integers import KEPT_AS, Codes, above, ends_of, kept, may_be_packed
from autotune.models.operators.node import OnnxNode, TorchNode, named_type, numpy_type
from autotune.models.operators.reduction import reduce
from autotune.models.operators.table import Axis, Floats, aten, onnx_op
from schedules import te
from schedules.dtypes import computed, is_float, is_integer
from schedules.expr import Const, Expr

Read = Callable[[Sequence[Expr]], Expr]
STORED = ("int8", "uint8")  # what quantized tensors are of


def along(shape: Sequence[int], x: Operand, axis: int, block: int = 0) -> Read:
    """A reader of a scale or zero point at an element of a tensor of ``shape``: one for all, one a slice of
    ``axis``, one a ``block`` of it, or one a row and the like, with extents of 1 in the other axes."""
    if isinstance(x, np.ndarray):
        return lambda at: read(x, ())
    if math.prod(x.shape) == 1 and len(shape) != 1:
        return lambda at: x[(0,) * len(x.shape)]
    if len(x.shape) == 0:
        return lambda at: x[()]
    d = positive(axis, len(shape))
    if len(x.shape) == 1:
        if x.shape[0] != shape[d]:
            raise ValueError(f"{x.shape[0]} scales for the {shape[d]} slices of axis {d}")
        return lambda at: x[at[d]]
    if block and len(x.shape) == len(shape):
        return lambda at: x[tuple(i // block if a == d else i for a, i in enumerate(at))]
    if len(x.shape) == len(shape) and all(n in (1, m) for n, m in zip(x.shape, shape, strict=True)):
        return lambda at: x[tuple(0 if n == 1 else i for i, n in zip(at, x.shape, strict=True))]
    raise UnsupportedForm(f"scales of {list(x.shape)} without block_size are not supported")


def centered(x: te.Tensor, zero: Operand | None, axis: int = 0) -> te.Tensor:
    """Integers less their zero points, as int32."""
    if not is_integer(x.dtype):
        raise UnsupportedForm(f"{x.dtype} is not supported by it")
    of_zero = None if zero is None else along(x.shape, zero, axis)

    def value(*at: Expr) -> Expr:
        v = te.cast(x[at], "int32")
        return v if of_zero is None else v - te.cast(of_zero(at), "int32")

    return stage(x.shape, value, "centered")


def dequantized(
    x: te.Tensor, scale: Operand, zero: Operand | None, axis: int = 1, block: int = 0, dtype: str = "float32"
) -> te.Tensor:
    """(x - zero point) * scale, in what ``dtype`` is computed with, then as that. ``x``: of integers, or of
    floats of 8 bits."""
    of_scale, wide = along(x.shape, scale, axis, block), computed(dtype)
    of_zero = None if zero is None else along(x.shape, zero, axis, block)
    kind = wide if is_float(x.dtype) else "int32"

    def value(*at: Expr) -> Expr:
        v: Expr = te.cast(x[at], kind)
        if of_zero is not None:
            v = v - te.cast(of_zero(at), kind)
        return te.cast(te.cast(v, wide) * te.cast(of_scale(at), wide), dtype)

    return stage(x.shape, value, "dequantize")


def quantized(
    x: te.Tensor, scale: Operand, zero: Operand | None, dtype: str = "", axis: int = 1, block: int = 0,
    limited: bool = True,
) -> te.Tensor:  # fmt: skip
    """`nearest` of x / scale, as ``dtype``, by default that of the zero point. A float of 8 bits ends at its
    largest numbers if it is ``limited``, as a cast of ONNX does."""
    dtype = dtype or ("uint8" if zero is None else dtype_of(zero))
    of_scale = along(x.shape, scale, axis, block)
    of_zero = None if zero is None else along(x.shape, zero, axis, block)

    def value(*at: Expr) -> Expr:
        v = te.cast(x[at], "float32") / te.cast(of_scale(at), "float32")
        z = of_zero and of_zero(at)
        if is_float(dtype):
            v = v if z is None else v + te.cast(z, "float32")
            return te.cast(v, dtype, saturate=limited)
        return nearest(v, z, dtype)

    return stage(x.shape, value, "quantize")


def nearest(v: Expr, zero: Expr | None, dtype: str) -> Expr:
    """A float32 rounded, halves to even, then a zero point is added, then it is cut off at the ends of
    ``dtype``, and only then an integer, of what that is kept as."""
    if dtype not in (*STORED, "int16", "uint16", *KEPT_AS):
        raise UnsupportedForm(f"a result of {dtype} is not supported")
    low, high = map(float, ends_of(dtype))
    q = te.round(v)
    if isinstance(zero, Const):
        q = q + float(zero.value) if zero.value else q
    elif zero is not None:
        q = q + te.cast(zero, "float32")
    return te.cast(te.cast(te.clip(q, low, high), "int32"), KEPT_AS.get(dtype, dtype))


def requantized(
    total: te.Tensor, factors: Sequence[Operand], scale: Operand, zero: Operand | None
) -> te.Tensor:
    """Sums of integers times ``factors``, which broadcast to them, over ``scale``; then as `quantized`. What
    they are multiplied with is one number for each that the factors have."""
    by = product([*factors], scale)

    def value(*at: Expr) -> Expr:
        v = te.cast(total[at], "float32") * read(by, at)
        return nearest(v, None if zero is None else one(zero), "uint8" if zero is None else dtype_of(zero))

    return stage(total.shape, value, "quantize")


def product(factors: Sequence[Operand], over: Operand | None = None) -> Operand:
    """The product of scales that broadcast, over another one: a literal where all are."""
    every = [*factors, *([] if over is None else [over])]

    def value(*xs: Expr) -> Expr:
        top = xs[0]
        for x in xs[1 : len(factors)]:
            top = top * x
        return top if over is None else top / xs[-1]

    known = [np.float32(x.item()) for x in every if isinstance(x, np.ndarray)]
    if len(known) == len(every):
        made = np.prod(known[: len(factors)], dtype=np.float32)
        return np.asarray(made if over is None else made / known[-1], np.float32)
    return elementwise(value, *every, dtype="float32", name="scale")


def one(x: Operand) -> Expr:
    """The element of an operand that has one."""
    if math.prod(x.shape) != 1:
        raise UnsupportedForm("a scale or zero point a row is not supported for its result")
    return read(x, ()) if isinstance(x, np.ndarray) else x[(0,) * len(x.shape)]


@onnx_op("DequantizeLinear", "com.microsoft::DequantizeLinear")
def _dequantize(
    node: OnnxNode, x: Value, scale: Operand, zero: Value | None = None, *, axis: int = 1,
    block_size: int = 0, output_dtype: int = 0,
) -> te.Tensor:  # fmt: skip
    dtype = named_type(output_dtype) if output_dtype else dtype_of(scale)
    if block_size and isinstance(x, KnownTensor) and may_be_packed(x):
        return _unpacked(node, x, scale, zero, axis, block_size, dtype)
    point = None if zero is None else node.operand(kept(zero))
    return dequantized(node.tensor(kept(x)), scale, point, axis, block_size, dtype)


def _unpacked(
    node: OnnxNode, x: KnownTensor, scale: Operand, zero: Value | None, axis: int, block: int, dtype: str
) -> te.Tensor:
    """`dequantized` weights of few bits, which stay packed along ``axis``."""
    codes = Codes(x, positive(axis, len(x.shape)), node.constant)
    read_code, of_scale, wide = codes.reader(), along(x.shape, scale, axis, block), computed(dtype)
    least = codes.least
    if isinstance(zero, KnownTensor):
        zero, least = KnownTensor(above(zero, least), zero.weight, zero.name), 0
    of_zero = None if zero is None else along(x.shape, node.operand(zero), axis, block)

    def value(*at: Expr) -> Expr:
        v = te.cast(read_code(at), wide)
        if least:
            v = v - float(-least)
        if of_zero is not None:
            v = v - te.cast(of_zero(at), wide)
        return te.cast(v * te.cast(of_scale(at), wide), dtype)

    return stage(x.shape, value, "unpacked")


@onnx_op("QuantizeLinear", "com.microsoft::QuantizeLinear")
def _quantize(
    node: OnnxNode, x: te.Tensor, scale: Operand, zero: Value | None = None, *, axis: int = 1,
    block_size: int = 0, output_dtype: int = 0, saturate: bool = True,
) -> te.Tensor:  # fmt: skip
    """Without a zero point and a type it is of uint8."""
    if zero is not None:
        dtype = zero.dtype
    else:
        dtype = numpy_type(output_dtype).name if output_dtype else "uint8"
    point = None if zero is None else node.operand(kept(zero))
    return quantized(x, scale, point, dtype, axis, block_size, saturate)


@onnx_op("DynamicQuantizeLinear")
def dynamic_quantized(x: te.Tensor) -> list[te.Tensor]:
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
