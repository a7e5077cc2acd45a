"""Convolutions with channels first: a pad stage, a sum of products, a bias in a map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autotune.models.operators.base import cast, number, stage
from autotune.models.operators.movement import padded
from autotune.models.operators.node import OnnxNode, TorchNode
from autotune.models.operators.table import Floats, Ints, aten, onnx_op
from autotune.models.operators.windows import Windows, aten_windows, batched, each, onnx_windows, spatial
from schedules import affine, te
from schedules.expr import Const, Expr, ExprLike, Var
from schedules.ops.conv_transpose import Taps
from schedules.te.tensors import IterVar


def convolution(
    x: te.Tensor, w: te.Tensor, bias: te.Tensor | None, at: Windows, groups: int = 1,
) -> te.Tensor:  # fmt: skip
    """``x`` (n, c, sizes…) with ``w`` (o, c / groups, kernel…) to (n, o, windows…), zeros around ``x``."""
    depth, out = w.shape[1], w.shape[0]
    if x.shape[1] != depth * groups or out % groups:
        raise ValueError(f"{x.shape[1]} channels do not fit a kernel of {list(w.shape)} in {groups} groups")
    each = out // groups
    z = padded(x, 2, at.padding)
    taps, over = window_axes(at.kernel, "rstuvw")
    channels, c_axis = window_axes([depth], "c")
    (c,) = channels

    def value(n: Expr, o: Expr, *place: Expr) -> te.Reduction | Expr:
        first = o // each * depth + c if groups > 1 else c
        product = z[(n, first, *at.places(place, taps))] * w[(o, c, *taps)]
        axes = (*c_axis, *over)
        return te.sum(product, axis=axes) if axes else product

    y = stage((x.shape[0], out, *at.out), value, "conv")
    if bias is None:
        return cast(y, x.dtype)
    b = bias

    def biased(n: Expr, o: Expr, *place: Expr) -> Expr:
        return te.cast(y[(n, o, *place)] + b[o], x.dtype)

    return stage(y.shape, biased, "bias_add")


def window_axes(extents: Sequence[int], names: str) -> tuple[tuple[ExprLike, ...], tuple[IterVar, ...]]:
    """(an index for each extent, the reduction axes among them): none where an extent is 1."""
    index = tuple(0 if n == 1 else te.reduce_axis(n, names[d]) for d, n in enumerate(extents))
    return index, tuple(i for i in index if isinstance(i, IterVar))


def transposed_convolution(
    x: te.Tensor, w: te.Tensor, bias: te.Tensor | None, stride: Sequence[int], dilation: Sequence[int],
    before: Sequence[int], out: Sequence[int], groups: int = 1,
) -> te.Tensor:  # fmt: skip
    """``x`` (n, c, sizes…) with ``w`` (c, o / groups, kernel…) to (n, o, out…). Tap t times element i falls
    on output stride · i + dilation · t - before (Dumoulin and Visin, A guide to convolution arithmetic for
    deep learning, 2016, chapter 4).

    With a stride of 1 it is a convolution with its taps in reverse. Else the outputs of each remainder by the
    stride, a phase, are one with every stride-th tap or so: a sum without a condition, but for the taps that
    not every phase has."""
    channels, each = x.shape[1], w.shape[1]
    if w.shape[0] != channels or channels % groups:
        raise ValueError(f"{channels} channels do not fit a kernel of {list(w.shape)} in {groups} groups")
    depth, kernel, sizes = channels // groups, w.shape[2:], x.shape[2:]
    axes = [_Phases(*of) for of in zip(sizes, kernel, stride, dilation, before, out, strict=True)]

    def swapped(o: Expr, c: Expr, *taps: Expr) -> Expr:
        at = [k - 1 - t if a.stride == 1 else t for a, k, t in zip(axes, kernel, taps, strict=True)]
        return w[(o // each * depth + c, o % each, *at) if groups > 1 else (c, o, *at)]

    weights = stage((each * groups, depth, *kernel), swapped, "swapped")
    z = padded(x, 2, [a.sides for a in axes])
    nth, over = window_axes([a.landing for a in axes], "rstuvw")
    (c,), c_axis = window_axes([depth], "c")

    def value(n: Expr, o: Expr, *place: Expr) -> te.Reduction | Expr:
        rest = iter(place)
        source: list[Expr] = []
        taps: list[ExprLike] = []
        exist: list[Expr] = []
        for a, t in zip(axes, nth, strict=True):
            i, phase = next(rest), next(rest) if a.stride > 1 else Const(0)
            tap, conditions = a.tap(phase, t)
            source.append(a.source(i, phase, t))
            taps.append(tap)
            exist += conditions
        first = o // each * depth + c if groups > 1 else c
        product = z[(n, first, *source)] * weights[(o, c, *taps)]
        kept = te.select(te.all(*exist), product, number(0, x.dtype)) if exist else product
        summed = (*c_axis, *over)
        return te.sum(kept, axis=summed) if summed else kept

    y = stage((x.shape[0], each * groups, *(n for a in axes for n in a.shape)), value, "conv_transpose")

    def placed(n: Expr, o: Expr, *place: Expr) -> Expr:
        own = y[(n, o, *(i for a, p in zip(axes, place, strict=True) for i in a.digits(p)))]
        return te.cast(own if bias is None else own + bias[o], x.dtype)

    if bias is None and all(a.stride == 1 for a in axes):
        return cast(y, x.dtype)
    return stage((*y.shape[:2], *out), placed, "interleaved" if bias is None else "bias_add")


@dataclass(frozen=True)
class _Phases(Taps):
    """One axis of a transposed convolution. Output p = stride · i + a is output i of phase a. It gets tap t
    where a + before - dilation · t is a multiple of the stride: of a stride and a dilation with the common
    divisor g, every (stride / g)-th one, if a + before is a multiple of g."""

    size: int
    kernel: int
    stride: int
    dilation: int
    before: int
    out: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the outputs: those of a phase, and the phases if there are several."""
        return (self.out,) if self.stride == 1 else (-(-self.out // self.stride), self.stride)

    def digits(self, p: Expr) -> tuple[Expr, ...]:
        """Where an output lies in ``shape``."""
        return (p,) if self.stride == 1 else (p // self.stride, p % self.stride)

    def tap(self, a: Expr, nth: ExprLike) -> tuple[ExprLike, list[Expr]]:
        """(the ``nth`` tap of a phase, conditions that there is one)."""
        q = a + self.before
        tap = self.first(q // self.common) + nth * self.apart
        exist = [q % self.common < 1] if self.common > 1 else []
        return tap, exist + ([tap < self.kernel] if self.kernel % self.apart else [])

    def _element(self, i: Expr, a: Expr, nth: ExprLike) -> Expr:
        """The element of the input that a tap of an output is multiplied with; below 0 or beyond the last it
        is 0."""
        if self.stride == 1:  # taps are in reverse
            return i + nth * self.dilation + (self.before - self.dilation * (self.kernel - 1))
        q = (a + self.before) // self.common
        if self.far == 1:
            return i + q // self.apart - nth
        return i + (q - self.first(q) * self.far) // self.apart - nth * self.far

    @property
    def _reach(self) -> tuple[int, int]:
        """The first and the last element that may be asked for."""
        names = [Var(n) for n in ("i", "a", "nth")]
        extents = (self.shape[0], self.stride, self.landing)
        ranges = {v.name: (0, n - 1) for v, n in zip(names, extents, strict=True)}
        found = affine.bounds(affine.simplify(self._element(*names), ranges), ranges)
        assert found is not None
        return found

    @property
    def sides(self) -> tuple[int, int]:
        """What the input needs around it; below 0: how much of it nothing asks for."""
        first, last = self._reach
        return -first, last - self.size + 1

    def source(self, i: Expr, a: Expr, nth: ExprLike) -> Expr:
        """The place of an element in the input with `sides`."""
        return self._element(i, a, nth) - self._reach[0]


# --- windows as columns -----------------------------------------------------------------------


def columns(x: te.Tensor, at: Windows) -> te.Tensor:
    """Every window of ``x`` (n, c, sizes…) as a column: (n, c · taps, windows), the last axis and the taps in
    row-major order."""
    z = padded(x, 2, at.padding)
    taps, out = math.prod(at.kernel), at.out

    def value(n: Expr, k: Expr, w: Expr) -> Expr:
        places = at.places(_unflattened(w, out), _unflattened(k % taps, at.kernel))
        return z[(n, k // taps, *places)]

    return stage((x.shape[0], x.shape[1] * taps, math.prod(out)), value, "columns")


def of_columns(x: te.Tensor, at: Windows) -> te.Tensor:
    """The sum of windows over each element of (n, c, sizes…), of columns (n, c · taps, windows): the adjoint
    of `columns`. Raises ValueError where their numbers are others."""
    taps, out, sizes = math.prod(at.kernel), at.out, at.sizes
    if x.shape[1] % taps or x.shape[2] != math.prod(out):
        raise ValueError(f"columns of {list(x.shape)} for {taps} taps and {list(out)} windows")
    channels = x.shape[1] // taps
    index, over = window_axes(at.kernel, "rstuvw")

    def value(n: Expr, c: Expr, *place: Expr) -> te.Reduction | Expr:
        k: ExprLike = c
        w: ExprLike = 0
        exist: list[Expr] = []
        for d, i in enumerate(place):
            step = at.stride[d]
            start = i + at.sides[d][0] - index[d] * at.dilation[d]
            nth = start // step
            exist += [te.equal(start % step, 0)] if step > 1 else []
            exist += [nth >= 0, nth < out[d]]
            k, w = k * at.kernel[d] + index[d], w * out[d] + nth
        own = te.select(te.all(*exist), x[n, k, w], number(0, x.dtype))
        return te.sum(own, axis=over) if over else own

    return cast(stage((x.shape[0], channels, *sizes), value, "image"), x.dtype)


def _unflattened(flat: Expr, shape: Sequence[int]) -> list[Expr]:
    """The index of a row-major place."""
    index = [flat] * len(shape)
    for d in reversed(range(len(shape))):
        index[d], flat = (flat % shape[d] if d else flat), flat // shape[d]
    return index


# --- rows -------------------------------------------------------------------------------------


def kernel_extents(w: te.Tensor, sizes: Sequence[int], stated: Sequence[int] | None) -> tuple[int, ...]:
    """The extents of a kernel of ONNX. Raises ValueError where others are stated."""
    kernel = w.shape[2:]
    if tuple(stated or kernel) != kernel or len(kernel) != len(sizes):
        raise ValueError(f"its kernel of {list(w.shape)} does not fit kernel_shape {list(stated or kernel)}")
    return kernel


@onnx_op("Conv")
def _conv(
    node: OnnxNode, x: te.Tensor, w: te.Tensor, bias: te.Tensor | None = None, *, group: int = 1,
    kernel_shape: Sequence[int] | None = None,
) -> te.Tensor:  # fmt: skip
    sizes = spatial(x)
    at = onnx_windows(node, sizes, kernel_extents(w, sizes, kernel_shape))
    if bias is not None and bias.shape != w.shape[:1]:
        raise ValueError(f"bias of {list(bias.shape)} for {w.shape[0]} channels")
    return convolution(x, w, bias, at, group)


@onnx_op("ConvTranspose")
def _conv_transpose(
    x: te.Tensor, w: te.Tensor, bias: te.Tensor | None = None, *, group: int = 1, auto_pad: str = "NOTSET",
    kernel_shape: Sequence[int] | None = None, strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None, pads: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None, output_shape: Sequence[int] | None = None,
) -> te.Tensor:  # fmt: skip
    sizes = spatial(x)
    kernel, rank = kernel_extents(w, sizes, kernel_shape), len(sizes)
    stride, dilation, more = strides or [1] * rank, dilations or [1] * rank, output_padding or [0] * rank
    pads = pads or [0] * 2 * rank
    if (
        any(len(n) != rank for n in (stride, dilation, more))
        or len(pads) != 2 * rank
        or min(*stride, *dilation) < 1
    ):
        raise ValueError(
            f"strides, dilations, output_padding or pads are not one number for each of {rank} axes"
        )
    before, out = [], []
    for d in range(rank):
        full = (sizes[d] - 1) * stride[d] + more[d] + dilation[d] * (kernel[d] - 1) + 1
        if output_shape is not None or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            n = output_shape[-rank:][d] if output_shape is not None else sizes[d] * stride[d]
            total = max(0, full - n)
            first = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
        else:
            first, n = (0, full) if auto_pad == "VALID" else (pads[d], full - pads[d] - pads[d + rank])
        before.append(first)
        out.append(n)
    if any(n < 1 for n in out):
        raise ValueError(f"nothing is left: the result has shape {out}")
    return transposed_convolution(x, w, bias, stride, dilation, before, out, group)


@aten("convolution.default", shaped=True)
def _convolution(
    node: TorchNode, x: Floats, w: te.Tensor, bias: te.Tensor | None, stride: Any, padding: Any,
    dilation: Any, transposed: bool, output_padding: Any, groups: int,
) -> te.Tensor:  # fmt: skip
    rank = len(w.shape) - 2
    x, by, far = batched(x, rank), each(stride, rank, 1), each(dilation, rank, 1)
    if transposed:
        pad = each(padding, rank, 0)
        return transposed_convolution(x, w, bias, by, far, pad, node.shape[-rank:], groups)
    return convolution(x, w, bias, aten_windows(x.shape[2:], w.shape[2:], by, padding, far), groups)


@onnx_op("Col2Im")
def _onnx_of_columns(node: OnnxNode, x: te.Tensor, image_shape: Ints, block_shape: Ints) -> te.Tensor:
    """Columns back to an image: the sum of the windows over each element."""
    return of_columns(x, onnx_windows(node, image_shape, block_shape))


@aten("im2col.default", shaped=True)
def _columns(x: te.Tensor, kernel: Any, dilation: Any, padding: Any, stride: Any) -> te.Tensor:
    x = batched(x, 2)
    return columns(x, aten_windows(x.shape[2:], kernel, stride, padding, dilation))


@aten("col2im.default", shaped=True)
def _of_columns(x: te.Tensor, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> te.Tensor:
    at = aten_windows(each(size, 2, 1), kernel, stride, padding, dilation)
    return of_columns(batched(x, 1), at)
