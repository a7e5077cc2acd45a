"""conv2d_transpose: a product, and for each output point the sum of what falls on it.

Tap t of the kernel times element i of the input falls on output stride·i + t - padding. So output p of a
dimension gets the taps t for which p + padding - t is a multiple of the stride. With p + padding = stride·m +
a these are t = a + stride·j, times the input at m - j. No zero between or around elements is multiplied, as
it would make NaN of an infinite weight (Dumoulin & Visin, A guide to convolution arithmetic, 2016).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from schedules import te
from schedules.expr import Expr, ExprLike
from schedules.ops.base import Array, Operator, Param, Params, Types, stored, wide
from schedules.ops.window import BATCH, PADDING, STRIDE, channels_last, in_layout, named

# Layouts; the first is the default.
LAYOUTS = ("NHWC", "NCHW")
# Most taps of an output that are added where it is stored, without a stage of their own.
FEW = 16


def _out(p: Params) -> tuple[int, int]:
    """Rows and columns of the output."""
    s, pad_ = p["stride"], p["padding"]
    return (p["h"] - 1) * s - 2 * pad_ + p["kh"], (p["w"] - 1) * s - 2 * pad_ + p["kw"]


def _build(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    b, h, w, ci, co, kh, kw = (p[n] for n in ("b", "h", "w", "ci", "co", "kh", "kw"))
    nchw = layout == "NCHW"
    oh, ow = _out(p)
    rows, columns = (-(-k // p["stride"]) for k in (kh, kw))  # taps that fall on an output
    r, s, c = te.reduce_axis(rows, "r"), te.reduce_axis(columns, "s"), te.reduce_axis(ci, "c")
    if nchw:
        x = te.placeholder((b, ci, h, w), types.input, "x")
        k = te.placeholder((ci, co, kh, kw), types.input, "w")
        taps = te.compute(
            (b, co, kh, kw, h, w),
            lambda n, o, t, u, i, j: te.sum(x[n, c, i, j] * k[c, o, t, u], axis=c, dtype=types.accumulator),
            "taps",
        )
    else:
        x = te.placeholder((b, h, w, ci), types.input, "x")
        k = te.placeholder((kh, kw, ci, co), types.input, "w")
        taps = te.compute(
            (b, kh, kw, h, w, co),
            lambda n, t, u, i, j, o: te.sum(x[n, i, j, c] * k[t, u, c, o], axis=c, dtype=types.accumulator),
            "taps",
        )

    def landing(n: Expr, e: Expr, f: Expr, o: Expr, nth: tuple[ExprLike, ExprLike]) -> Expr:
        t, i, row = _source(e, nth[0], h, kh, p)
        u, j, column = _source(f, nth[1], w, kw, p)
        at = (n, o, t, u, i, j) if nchw else (n, t, u, i, j, o)
        return te.select(te.all(*row, *column), taps[at], 0)

    def total(n: Expr, e: Expr, f: Expr, o: Expr) -> Expr | te.Reduction:
        if rows * columns > FEW:
            return te.sum(landing(n, e, f, o, (r, s)), axis=(r, s), dtype=types.accumulator)
        first, *others = (landing(n, e, f, o, nth) for nth in np.ndindex(rows, columns))
        return te.cast(sum(others, first), types.output)

    if nchw:
        y = te.compute((b, co, oh, ow), named("nopq", lambda n, o, e, f: total(n, e, f, o)), "y")
    else:
        y = te.compute((b, oh, ow, co), named("npqo", total), "y")
    return [x, k, stored(y, types.output)]


def _source(at: Expr, nth: ExprLike, size: int, kernel: int, p: Params) -> tuple[Expr, Expr, list[Expr]]:
    """(tap, place in the input, conditions that both exist) of the ``nth`` tap that falls on an output."""
    stride, place = p["stride"], at + p["padding"]
    tap, i = place % stride + nth * stride, place // stride - nth
    return tap, i, [i >= 0, i < size, *([tap < kernel] if kernel % stride else [])]


def _reference(p: Params, types: Types, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    x = wide(channels_last(inputs[0], layout))
    w = wide(inputs[1].transpose(2, 3, 0, 1) if layout == "NCHW" else inputs[1])
    stride, padding = p["stride"], p["padding"]
    oh, ow = _out(p)
    y = np.zeros((p["b"], oh + 2 * padding, ow + 2 * padding, p["co"]), x.dtype)
    for r in range(p["kh"]):
        for s in range(p["kw"]):
            rows = slice(r, r + (p["h"] - 1) * stride + 1, stride)
            columns = slice(s, s + (p["w"] - 1) * stride + 1, stride)
            y[:, rows, columns] += np.tensordot(x, w[r, s], 1)
    inner = y[:, padding : padding + oh, padding : padding + ow]
    return [in_layout(inner, layout).astype(types.output)]


def _check(p: Params) -> str | None:
    for name, n in zip("hw", _out(p), strict=True):
        if n < 1:
            return f"padding={p['padding']} leaves nothing of the output along {name}; use less padding"
    return None


CONV2D_TRANSPOSE = Operator(
    "conv2d_transpose",
    "NHWC: x(b,h,w,ci), w(kh,kw,ci,co); NCHW: x(b,ci,h,w), w(ci,co,kh,kw); as torch's, output_padding 0; "
    "k=4 sets kh=kw=4",
    (
        BATCH,
        Param("h", "rows of the input"),
        Param("w", "columns of the input"),
        Param("ci", "input channels"),
        Param("co", "output channels"),
        Param("kh", "rows of the kernel"),
        Param("kw", "columns of the kernel"),
        STRIDE,
        PADDING,
    ),
    _build,
    _reference,
    lambda p: int(2 * p["b"] * p["h"] * p["w"] * p["ci"] * p["co"] * p["kh"] * p["kw"]),
    LAYOUTS,
    retyped=True,
    check=_check,
    shorthands=(("k", ("kh", "kw")),),
    weights=("w",),
)
