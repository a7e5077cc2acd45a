"""conv2d_transpose: a product, and for each output point the sum of what falls on it.

Tap t of the kernel times element i of the input falls on output stride·i + dilation·t - padding. So output p
of a dimension gets the taps t for which q - dilation·t is a multiple of the stride, q = p + padding. Where
stride and dilation have no common divisor, these are every stride-th one from t = q / dilation (modulo the
stride) on; where g divides both, every (stride / g)-th one, of each g-th q only. No zero between or around
elements is multiplied, as it would make NaN of an infinite weight (Dumoulin & Visin, A guide to convolution
arithmetic, 2016).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from schedules import te
from schedules.expr import Expr, ExprLike
from schedules.ops.axes import each, named
from schedules.ops.base import Array, Operator, Param, Params, Types, stored, wide
from schedules.ops.window import (
    BATCH,
    CI,
    CO,
    DILATION,
    GROUPS,
    PADDING,
    STRIDE,
    apart,
    by_axis,
    channels_last,
    in_layout,
    in_order,
    kernel_names,
    sizes,
    uneven_groups,
)

# Layouts; the first is the default.
LAYOUTS = ("NHWC", "NCHW")
# Most taps of an output that are added where it is stored, without a stage of their own.
FEW = 16


class Taps:
    """What is known of the taps of one direction by its kernel, its stride and its dilation."""

    __slots__ = ()
    kernel: int
    stride: int
    dilation: int

    @property
    def common(self) -> int:
        return math.gcd(self.stride, self.dilation)

    @property
    def far(self) -> int:
        """The distance of the elements that neighbouring taps of an output meet."""
        return self.dilation // self.common

    @property
    def apart(self) -> int:
        """The distance between taps that fall on the same output."""
        return self.stride // self.common

    @property
    def landing(self) -> int:
        """Most taps that fall on an output."""
        return -(-self.kernel // self.apart)

    def first(self, place: Expr) -> Expr:
        """The first tap that falls on an output. ``place``: of the output, in steps of `common`."""
        return place * pow(self.far, -1, self.apart) % self.apart


@dataclass(frozen=True, slots=True)
class _Axis(Taps):
    """One direction. ``more``: output_padding."""

    name: str
    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    more: int

    @property
    def out(self) -> int:
        """Extent of the output."""
        reach = self.dilation * (self.kernel - 1) + 1
        return (self.size - 1) * self.stride - 2 * self.padding + reach + self.more

    def source(self, at: Expr, nth: ExprLike) -> tuple[Expr, Expr, list[Expr]]:
        """(tap, place in the input, conditions that both exist) of the ``nth`` tap that falls on an
        output."""
        place = at + self.padding
        every = [place % self.common < 1] if self.common > 1 else []
        place, step = place // self.common, self.apart
        tap = self.first(place) + nth * step
        i = place // step - nth if self.far == 1 else (place - tap * self.far) // step
        short = [tap < self.kernel] if self.kernel % step else []
        return tap, i, [i >= 0, i < self.size, *short, *every]


def _axes(p: Params) -> tuple[_Axis, _Axis]:
    """Both directions."""
    names = ("stride", "padding", "dilation", "output_padding")
    how = zip(*(each(p[name], 2) for name in names), strict=True)
    rows, columns = (_Axis(n, p[n], p[k], *x) for n, k, x in zip("hw", ("kh", "kw"), how, strict=True))
    return rows, columns


def _build(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    b, h, w, ci, co, kh, kw, groups = (p[n] for n in ("b", "h", "w", "ci", "co", "kh", "kw", "groups"))
    cig, cog = ci // groups, co // groups
    nchw = layout == "NCHW"
    rows, columns = _axes(p)
    r, s, c = (te.reduce_axis(n, x) for n, x in zip((rows.landing, columns.landing, cig), "rsc", strict=True))
    x = te.placeholder(in_order(layout, b, (h, w), ci), types.input, "x")
    k = te.placeholder((ci, cog, kh, kw) if nchw else (kh, kw, ci, cog), types.input, "w")

    # Where there are groups, they are an axis of the products, so that no place is a quotient.
    split, letters = ((co,), "o") if groups == 1 else ((groups, cog), "go")
    shape = in_order(layout, b, (kh, kw, h, w), *split)

    def product(*axes: Expr) -> te.Reduction:
        n, (t, u, i, j), (*group, o) = apart(layout, axes, len(split))
        d = group[0] * cig + c if group else c
        weight = k[d, o, t, u] if nchw else k[t, u, d, o]
        return te.sum(x[in_order(layout, n, (i, j), d)] * weight, axis=c, dtype=types.accumulator)

    taps = te.compute(shape, named(in_order(layout, "n", "tuij", *letters), product), "taps")

    def landing(n: Expr, e: Expr, f: Expr, o: Expr, nth: tuple[ExprLike, ExprLike]) -> Expr:
        t, i, row = rows.source(e, nth[0])
        u, j, column = columns.source(f, nth[1])
        channel = (o,) if groups == 1 else (o // cog, o % cog)
        return te.select(te.all(*row, *column), taps[in_order(layout, n, (t, u, i, j), *channel)], 0)

    def total(*axes: Expr) -> Expr | te.Reduction:
        n, (e, f), (o,) = apart(layout, axes)
        if rows.landing * columns.landing > FEW:
            return te.sum(landing(n, e, f, o, (r, s)), axis=(r, s), dtype=types.accumulator)
        first, *others = (landing(n, e, f, o, nth) for nth in np.ndindex(rows.landing, columns.landing))
        return te.cast(sum(others, first), types.output)

    out = in_order(layout, b, (rows.out, columns.out), co)
    y = te.compute(out, named(in_order(layout, "n", "pq", "o"), total), "y")
    return [x, k, stored(y, types.output)]


def _reference(p: Params, types: Types, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    x = wide(channels_last(inputs[0], layout))
    w = wide(inputs[1].transpose(2, 3, 0, 1) if layout == "NCHW" else inputs[1])
    axes, groups = _axes(p), p["groups"]
    cig, cog = p["ci"] // groups, p["co"] // groups
    y = np.zeros((p["b"], *(a.out + 2 * a.padding for a in axes), p["co"]), x.dtype)
    for at in np.ndindex(p["kh"], p["kw"]):
        first = [t * a.dilation for t, a in zip(at, axes, strict=True)]
        hit = [slice(f, f + (a.size - 1) * a.stride + 1, a.stride) for f, a in zip(first, axes, strict=True)]
        for g in range(groups):
            inside, outside = slice(g * cig, (g + 1) * cig), slice(g * cog, (g + 1) * cog)
            y[:, *hit, outside] += np.tensordot(x[..., inside], w[*at, inside], 1)
    inner = (slice(a.padding, a.padding + a.out) for a in axes)
    return [in_layout(y[:, *inner], layout).astype(types.output)]


def _check(p: Params) -> str | None:
    if wrong := uneven_groups(p):
        return wrong
    for a in _axes(p):
        if a.more >= max(a.stride, a.dilation):
            return (
                f"output_padding={a.more} along {a.name} is not below its stride {a.stride} nor its dilation "
                f"{a.dilation}; use a smaller one, or a longer input"
            )
        if a.out < 1:
            return f"padding={a.padding} leaves nothing of the output along {a.name}; use less padding"
    return None


CONV2D_TRANSPOSE = Operator(
    "conv2d_transpose",
    "NHWC: x(b,h,w,ci), w(kh,kw,ci,co/groups); NCHW: x(b,ci,h,w), w(ci,co/groups,kh,kw); as torch's; "
    "k=4 sets kh=kw=4",
    (
        BATCH,
        *sizes(("h", "w")),
        CI,
        CO,
        *sizes(("kh", "kw")),
        by_axis(STRIDE, 2),
        by_axis(PADDING, 2),
        Param(
            "output_padding",
            "rows and columns added at the end of the output",
            0,
            minimum=0,
            axes=2,
            optional=True,
        ),
        replace(GROUPS, optional=True),
        replace(by_axis(DILATION, 2), optional=True),
    ),
    _build,
    _reference,
    lambda p: int(2 * p["b"] * p["h"] * p["w"] * p["ci"] * p["co"] // p["groups"] * p["kh"] * p["kw"]),
    LAYOUTS,
    retyped=True,
    check=_check,
    shorthands=kernel_names(("kh", "kw")),
    weights=("w",),
)
