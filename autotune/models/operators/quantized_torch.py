"""Quantized tensors as torch exports them: `torch.ops.quantized_decomposed` of PT2E, and its own products.

What each computes is told by `torch/ao/quantization/fx/_decomposed.py`. Parameters are numbers, or tensors of
one element, one a channel, one a row ("token") or one a group of the last axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autotune.models.operators.axes import positive, reshape
from autotune.models.operators.base import Operand, UnsupportedForm, cast, elementwise, stage
from autotune.models.operators.matmul import linear, matmul
from autotune.models.operators.node import TorchNode
from autotune.models.operators.quantization import STORED, along, product
from autotune.models.operators.reduction import reduce
from autotune.models.operators.table import Floats, aten
from schedules import expr as E
from schedules import te
from schedules.dtypes import is_float, is_storage
from schedules.expr import Expr

Read = Callable[[Sequence[Expr]], Expr]
LIBRARY = "quantized_decomposed::"
EPSILON = float(np.finfo(np.float32).eps)  # the least scale of a row with a zero point


def _quantized(
    node: TorchNode, x: te.Tensor, scale: Read, zero: Read, ends: tuple[int, int], added_first: bool = False
) -> te.Tensor:
    """round(x * (1 / scale)) + zero point, cut off at ``ends``, computed in float64 where the scale is that.
    ``added_first``: the zero point is added before rounding."""
    if node.dtype not in STORED:
        raise UnsupportedForm(f"a result of {node.dtype} is not supported")

    def value(*at: Expr) -> Expr:
        inverse = 1.0 / E.widen(scale(at))
        wide = E.dtype_of(inverse)
        v, z = te.cast(x[at], wide) * inverse, te.cast(zero(at), wide)
        q = te.round(v + z) if added_first else te.round(v) + z
        return te.cast(te.cast(te.clip(q, float(ends[0]), float(ends[1])), "int32"), node.dtype)

    return stage(x.shape, value, "quantize")


def _dequantized(node: TorchNode, x: te.Tensor, scale: Read, zero: Read | None) -> te.Tensor:
    """(x - zero point) * scale."""

    def value(*at: Expr) -> Expr:
        v: Expr = te.cast(x[at], "int32")
        if zero is not None:
            z = zero(at)
            kind = "float32" if is_float(E.dtype_of(z)) else "int32"
            v = te.cast(v, kind) - te.cast(z, kind)
        return te.cast(te.cast(v, "float32") * te.cast(scale(at), "float32"), node.dtype)

    return stage(x.shape, value, "dequantize")




# --- one scale for all ----------------------------------------------------------------------------


@aten(LIBRARY + "quantize_per_tensor.default")
def _quantize(
    node: TorchNode, x: Floats, scale: float, zero: int, low: int, high: int, dtype: Any
) -> te.Tensor:
    inverse, z = te.const(float(np.float32(1.0 / scale)), "float32"), te.const(float(zero), "float32")

    def value(*at: Expr) -> Expr:
        q = te.round(te.cast(x[at], "float32") * inverse)
        q = te.clip(q + z if zero else q, float(low), float(high))
        return te.cast(te.cast(q, "int32"), node.dtype)

    if node.dtype not in STORED:
        raise UnsupportedForm(f"a result of {node.dtype} is not supported")
    return stage(x.shape, value, "quantize")


@aten(LIBRARY + "quantize_per_tensor.tensor", LIBRARY + "quantize_per_tensor.tensor2")
def _quantize_by_tensors(
    node: TorchNode, x: Floats, scale: te.Tensor, zero: te.Tensor, low: Any, high: Any, dtype: Any
) -> te.Tensor:
    ends = node.integer(low, "quant_min"), node.integer(high, "quant_max")
    return _quantized(node, x, along(x.shape, scale, 0), along(x.shape, zero, 0), ends)


@aten(LIBRARY + "dequantize_per_tensor.default")
def _dequantize(
    node: TorchNode, x: te.Tensor, scale: float, zero: int, low: int, high: int, dtype: Any, *,
    out_dtype: Any = None,
) -> te.Tensor:  # fmt: skip
    s, z = te.const(float(np.float32(scale)), "float32"), te.const(zero, "int32")
    return _dequantized(node, x, lambda at: s, (lambda at: z) if zero else None)


@aten(LIBRARY + "dequantize_per_tensor.tensor", LIBRARY + "dequantize_per_tensor.tensor2")
def _dequantize_by_tensors(
    node: TorchNode, x: te.Tensor, scale: te.Tensor, zero: te.Tensor, low: Any, high: Any, dtype: Any, *,
    out_dtype: Any = None,
) -> te.Tensor:  # fmt: skip
    return _dequantized(node, x, along(x.shape, scale, 0), along(x.shape, zero, 0))


@aten(LIBRARY + "choose_qparams.tensor", LIBRARY + "choose_qparams_symmetric.tensor")
def _parameters(node: TorchNode, x: Floats, low: int, high: int, eps: float, dtype: Any) -> list[te.Tensor]:
    """(a scale as float64, a zero point as int64) that cover all elements and 0."""
    symmetric = "symmetric" in node.op
    every, none = range(len(x.shape)), te.const(0.0, "float32")
    top, least = (cast(reduce(x, every, False, fold), "float32") for fold in (te.max, te.min))

    def scales(i: Expr) -> Expr:
        above, below = te.maximum(top[()], none), te.minimum(least[()], none)
        span = te.maximum(-below, above) / ((high - low) / 2) if symmetric else (above - below) / (high - low)
        return te.maximum(span, float(np.float32(eps)))

    scale = stage((1,), scales, "scale")

    def zeros(i: Expr) -> Expr:
        if symmetric:
            return te.const(128 if str(dtype) in ("torch.uint8", "torch.quint8") else 0, "int64")
        place = low - te.cast(te.round(te.minimum(least[()], none) / scale[i]), "int32")
        return te.cast(te.clip(place, low, high), "int64")

    return [cast(scale, "float64"), stage((1,), zeros, "zero_point")]


# --- one a channel --------------------------------------------------------------------------------


@aten(LIBRARY + "quantize_per_channel.default")
def _quantize_channels(
    node: TorchNode, x: Floats, scale: te.Tensor, zero: te.Tensor, axis: int, low: int, high: int, dtype: Any
) -> te.Tensor:
    d = positive(axis, len(x.shape))
    return _quantized(node, x, along(x.shape, scale, d), along(x.shape, zero, d), (low, high))


@aten(LIBRARY + "dequantize_per_channel.default")
def _dequantize_channels(
    node: TorchNode, x: te.Tensor, scale: te.Tensor, zero: te.Tensor | None, axis: int, low: int, high: int,
    dtype: Any, *, out_dtype: Any = None,
) -> te.Tensor:  # fmt: skip
    d = positive(axis, len(x.shape))
    return _dequantized(node, x, along(x.shape, scale, d), None if zero is None else along(x.shape, zero, d))


# --- one a row, one a group -----------------------------------------------------------------------


def _by_row(x: te.Tensor, parameter: te.Tensor) -> Read:
    """A reader of a number a row of the last axis."""
    return along(x.shape, reshape(parameter, (*x.shape[:-1], 1)), 0)


@aten(LIBRARY + "quantize_per_token.default")
def _quantize_rows(
    node: TorchNode, x: Floats, scale: te.Tensor, zero: te.Tensor, low: int, high: int, dtype: Any
) -> te.Tensor:
    return _quantized(node, x, _by_row(x, scale), _by_row(x, zero), (low, high), True)


@aten(LIBRARY + "dequantize_per_token.default")
def _dequantize_rows(
    node: TorchNode, x: te.Tensor, scale: te.Tensor, zero: te.Tensor, low: int, high: int, dtype: Any,
    output_dtype: Any = None,
) -> te.Tensor:  # fmt: skip
    return _dequantized(node, x, _by_row(x, scale), _by_row(x, zero))


@aten(LIBRARY + "choose_qparams_per_token.default")
def _row_scales(node: TorchNode, x: Floats, dtype: Any) -> list[te.Tensor | None]:
    """The largest absolute value of each row, over 127, and zero points that are 0."""
    scale = reduce(x, [len(x.shape) - 1], True, te.max, te.abs, lambda v: te.maximum(v, 1e-5) / 127.0)
    zero = stage(scale.shape, lambda *at: te.const(0, "int64"), "zero_point")
    return [cast(scale, node.dtype), zero]


@aten(
    LIBRARY + "choose_qparams_per_token_asymmetric.default",
    LIBRARY + "_choose_qparams_per_token_asymmetric_impl.default",
)
def _row_parameters(node: TorchNode, x: Floats, dtype: Any) -> list[te.Tensor]:
    """(scales, zero points) of int8 that cover each row and 0, the end that is met better (XNNPACK,
    `src/xnnpack/quantization.h`)."""
    last, none = [len(x.shape) - 1], te.const(0.0, "float32")
    top = reduce(cast(x, "float32"), last, True, te.max, after=lambda v: te.maximum(v, none))
    least = reduce(cast(x, "float32"), last, True, te.min, after=lambda v: te.minimum(v, none))
    scale = elementwise(lambda a, b: te.maximum((a - b) / 255.0, EPSILON), top, least, name="scale")

    def zeros(*at: Expr) -> Expr:
        below, above = least[at] / scale[at], top[at] / scale[at]
        place = te.select((below - 128.0) + (above + 127.0) > 0.0, -128.0 - below, 127.0 - above)
        whole = te.cast(te.round(te.clip(place, -128.0, 127.0)), "int32")
        return te.cast(te.clip(whole, -128, 127), "int64")

    return [cast(scale, "float64"), stage(scale.shape, zeros, "zero_point")]


def _by_group(x: te.Tensor, parameter: te.Tensor, size: int) -> Read:
    """A reader of a number a group of so many elements of the last axis of a matrix."""
    size = x.shape[-1] if size > x.shape[-1] and parameter.shape[-1] == 1 else size
    if size < 1 or x.shape[-1] % size:
        raise ValueError(f"rows of {x.shape[-1]} elements are no groups of {size}")
    return along(x.shape, reshape(parameter, (x.shape[0], x.shape[1] // size)), 1, size)


@aten(LIBRARY + "quantize_per_channel_group.default")
def _quantize_groups(
    node: TorchNode, x: Floats, scale: te.Tensor, zero: te.Tensor, low: int, high: int, dtype: Any,
    group_size: int = 128,
) -> te.Tensor:  # fmt: skip
    readers = _by_group(x, scale, group_size), _by_group(x, zero, group_size)
    return _quantized(node, x, *readers, (low, high), True)


@aten(LIBRARY + "dequantize_per_channel_group.default")
def _dequantize_groups(
    node: TorchNode, x: te.Tensor, scale: te.Tensor, zero: te.Tensor | None, low: int, high: int, dtype: Any,
    group_size: int = 128, output_dtype: Any = None,
) -> te.Tensor:  # fmt: skip
    of_zero = None if zero is None else _by_group(x, zero, group_size)
    return _dequantized(node, x, _by_group(x, scale, group_size), of_zero)


@aten(LIBRARY + "convert_element_type.no_fuse")
def _convert(node: TorchNode, x: te.Tensor, dtype: Any) -> te.Tensor:
    return node.cast(x)


# --- products -------------------------------------------------------------------------------------


@aten("_weight_int8pack_mm.default")
def _of_int8(node: TorchNode, x: Floats, w: te.Tensor, scales: te.Tensor) -> te.Tensor:
    """x times rows of int8, each row with a scale."""
    dot = linear(cast(x, "float32"), cast(w, "float32"))
    return stage(dot.shape, lambda *at: te.cast(dot[at] * te.cast(scales[at[-1]], "float32"), node.dtype))


@aten("_scaled_mm.default")
def _scaled(
    node: TorchNode, a: Floats, b: Floats, a_scale: te.Tensor, b_scale: te.Tensor,
    bias: te.Tensor | None = None, result_scale: te.Tensor | None = None, out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> te.Tensor:  # fmt: skip
    """A product of floats of 8 bits, times a scale each: one for all, or one a row of ``a`` and one a column
    of ``b``."""
    if result_scale is not None:
        raise UnsupportedForm("a scale of the result is not supported")
    rows, columns = a.shape[0], b.shape[1]
    of_a, of_b = _scale(a_scale, (rows, 1)), _scale(b_scale, (1, columns))
    dot, by = matmul(a, b), product([of_a, of_b])
    every: list[Operand] = [dot, by, *([] if bias is None else [bias])]

    def value(v: Expr, s: Expr, *c: Expr) -> Expr:
        y = v * s
        return y + te.cast(c[0], "float32") if c else y

    made = elementwise(value, *every, dtype="float32", name="scaled")
    return node.cast(made) if is_storage(node.dtype) else cast(made, node.dtype)


def _scale(x: te.Tensor, shape: tuple[int, int]) -> te.Tensor:
    """Scales with axes: one, or as many as ``shape`` has."""
    if int(np.prod(x.shape)) == 1:
        return reshape(x, ())
    if int(np.prod(x.shape)) != int(np.prod(shape)):
        raise UnsupportedForm(f"scales of {list(x.shape)} for blocks are not supported")
    return reshape(x, shape)
