"""Convolutions with channels first: a pad stage, a sum of products, a bias in a map."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from autotune.models.lowering.base import cast, number, stage
from autotune.models.lowering.movement import padded
from autotune.models.lowering.windows import Windows
from schedules import te
from schedules.expr import Expr, ExprLike
from schedules.te.tensors import IterVar

Widen = Callable[[Expr], Expr]


def _same(x: Expr) -> Expr:
    return x


def convolution(
    x: te.Tensor, w: te.Tensor, bias: te.Tensor | None, at: Windows, groups: int = 1,
    widen: tuple[Widen, Widen] = (_same, _same), fill: float = 0.0,
) -> te.Tensor:  # fmt: skip
    """``x`` (n, c, sizes…) with ``w`` (o, c / groups, kernel…) to (n, o, windows…). ``widen``: what is
    multiplied of the elements of both, from whose dtype that of the result follows if it is not float.
    ``fill``: the value around ``x``."""
    depth, out = w.shape[1], w.shape[0]
    if x.shape[1] != depth * groups or out % groups:
        raise ValueError(f"{x.shape[1]} channels do not fit a kernel of {list(w.shape)} in {groups} groups")
    each = out // groups
    z = padded(x, 2, at.padding, fill)
    taps, over = _axes(at.kernel, "rstuvw")
    channels, c_axis = _axes([depth], "c")
    (c,) = channels
    of_x, of_w = widen

    def value(n: Expr, o: Expr, *place: Expr) -> te.Reduction | Expr:
        first = o // each * depth + c if groups > 1 else c
        product = of_x(z[(n, first, *at.places(place, taps))]) * of_w(w[(o, c, *taps)])
        axes = (*c_axis, *over)
        return te.sum(product, axis=axes) if axes else product

    y = stage((x.shape[0], out, *at.out), value, "conv")
    if bias is None:
        return cast(y, x.dtype) if widen == (_same, _same) else y
    b = bias

    def biased(n: Expr, o: Expr, *place: Expr) -> Expr:
        return te.cast(y[(n, o, *place)] + b[o], x.dtype)

    return stage(y.shape, biased, "bias_add")


def _axes(extents: Sequence[int], names: str) -> tuple[tuple[ExprLike, ...], tuple[IterVar, ...]]:
    """(an index for each extent, the reduction axes among them): none where an extent is 1."""
    index = tuple(0 if n == 1 else te.reduce_axis(n, names[d]) for d, n in enumerate(extents))
    return index, tuple(i for i in index if isinstance(i, IterVar))


def transposed_convolution(
    x: te.Tensor, w: te.Tensor, bias: te.Tensor | None, stride: Sequence[int], dilation: Sequence[int],
    before: Sequence[int], out: Sequence[int], groups: int = 1,
) -> te.Tensor:  # fmt: skip
    """``x`` (n, c, sizes…) with ``w`` (c, o / groups, kernel…) to (n, o, out…). Tap t times element i falls
    on output stride · i + dilation · t - before (Dumoulin and Visin, A guide to convolution arithmetic for
    deep learning, 2016).

    Output p gets every tap t for which p + before - dilation · t is a multiple of the stride. Where stride
    and dilation have no common divisor these are every stride-th one, else each tap is tested.
    """
    spatial = len(stride)
    channels, each = x.shape[1], w.shape[1]
    if w.shape[0] != channels or channels % groups:
        raise ValueError(f"{channels} channels do not fit a kernel of {list(w.shape)} in {groups} groups")
    depth, kernel, sizes = channels // groups, w.shape[2:], x.shape[2:]
    apart = [s if math.gcd(s, d) == 1 else 1 for s, d in zip(stride, dilation, strict=True)]
    nth, over = _axes([-(-k // a) for k, a in zip(kernel, apart, strict=True)], "rstuvw")
    (c,), c_axis = _axes([depth], "c")

    def value(n: Expr, o: Expr, *place: Expr) -> te.Reduction | Expr:
        taps: list[ExprLike] = []
        source: list[Expr] = []
        exist: list[Expr] = []
        for d in range(spatial):
            s, far, k, size = stride[d], dilation[d], kernel[d], sizes[d]
            q = place[d] + before[d]
            if apart[d] == s:
                tap: ExprLike = q * pow(far, -1, s) % s + nth[d] * s if s > 1 else nth[d]
                i = (q - tap * far) // s
                exist += [tap < k] if k % s else []
            else:
                tap = nth[d]
                i = (q - tap * far) // s
                exist += [(q - tap * far) % s < 1]
            taps.append(tap)
            source.append(i)
            exist += [i >= 0, i < size]
        group = o // each
        first = group * depth + c if groups > 1 else c
        own = o % each if groups > 1 else o
        product = x[(n, first, *source)] * w[(first, own, *taps)]
        kept = te.select(te.all(*exist), product, number(0, x.dtype))
        axes = (*c_axis, *over)
        return te.sum(kept, axis=axes) if axes else kept

    y = stage((x.shape[0], each * groups, *out), value, "conv_transpose")
    if bias is None:
        return cast(y, x.dtype)
    b = bias
    return stage(y.shape, lambda n, o, *p: te.cast(y[(n, o, *p)] + b[o], x.dtype), "bias_add")


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
    index, over = _axes(at.kernel, "rstuvw")

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
