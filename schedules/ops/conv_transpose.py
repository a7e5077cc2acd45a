"""Transposed convolution: conv2d_transpose, as the sum that each output point is.

Output p of a dimension gets the taps r with (p + padding - r) divisible by the stride. Written
p = stride·i + e and e + padding = stride·m + a, those are r = a + stride·j, and the input is at i + m - j: a
convolution for each of the stride phases e, none of which multiplies an inserted zero (Dumoulin & Visin, A
guide to convolution arithmetic, 2016).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from schedules import te
from schedules.expr import Expr
from schedules.ops.base import Array, Operator, Param, Params, wide
from schedules.ops.window import BATCH, PADDING, STRIDE, channels_last, in_layout, named, pad

LAYOUTS = ("NHWC", "NCHW")


def _out(p: Params) -> tuple[int, int]:
    """Rows and columns of the output."""
    s, pad_ = p["stride"], p["padding"]
    return (p["h"] - 1) * s - 2 * pad_ + p["kh"], (p["w"] - 1) * s - 2 * pad_ + p["kw"]


def _build(p: Params, dtype: str, layout: str | None) -> list[te.Tensor]:
    b, h, w, ci, co, kh, kw = (p[n] for n in ("b", "h", "w", "ci", "co", "kh", "kw"))
    stride, padding = p["stride"], p["padding"]
    nchw = layout == "NCHW"
    oh, ow = _out(p)
    taps = [-(-k // stride) for k in (kh, kw)]  # of one phase
    rows, columns = (-(-n // stride) for n in (oh, ow))  # points of one phase
    before = max(0, *(t - 1 - padding // stride for t in taps))
    furthest = (stride - 1 + padding) // stride
    after = max(0, rows + furthest - h, columns + furthest - w)
    r, s, c = te.reduce_axis(taps[0], "r"), te.reduce_axis(taps[1], "s"), te.reduce_axis(ci, "c")

    if nchw:
        x, k = te.placeholder((b, ci, h, w), dtype, "x"), te.placeholder((ci, co, kh, kw), dtype, "w")
        z = pad(x, (before, after), (2, 3), 0, "nchw")
    else:
        x, k = te.placeholder((b, h, w, ci), dtype, "x"), te.placeholder((kh, kw, ci, co), dtype, "w")
        z = pad(x, (before, after), (1, 2), 0, "nhwc")
    weights = _whole_phases(k, kh, kw, stride, nchw)

    def term(n: Expr, e: Expr, f: Expr, i: Expr, j: Expr, o: Expr) -> te.Reduction:
        row, column = i + ((e + padding) // stride + before) - r, j + ((f + padding) // stride + before) - s
        tap, tap_ = (e + padding) % stride + r * stride, (f + padding) % stride + s * stride
        if nchw:
            return te.sum(z[n, c, row, column] * weights[c, o, tap, tap_], axis=(r, s, c))
        return te.sum(z[n, row, column, c] * weights[tap, tap_, c, o], axis=(r, s, c))

    if nchw:
        shape = (b, co, stride, stride, rows, columns)
        phases = te.compute(shape, lambda n, o, e, f, i, j: term(n, e, f, i, j, o), "phases")

        def place(n: Expr, o: Expr, p: Expr, q: Expr) -> Expr:
            return te.cast(phases[n, o, p % stride, q % stride, p // stride, q // stride], dtype)

        return [x, k, te.compute((b, co, oh, ow), place, "y")]
    phases = te.compute((b, stride, stride, rows, columns, co), named("nefijo", term), "phases")

    def place_last(n: Expr, p: Expr, q: Expr, o: Expr) -> Expr:
        return te.cast(phases[n, p % stride, q % stride, p // stride, q // stride, o], dtype)

    return [x, k, te.compute((b, oh, ow, co), place_last, "y")]


def _whole_phases(w: te.Tensor, kh: int, kw: int, stride: int, nchw: bool) -> te.Tensor:
    """The weights with zeros behind, so that every phase has as many taps; as they are where it has."""
    full = [-(-k // stride) * stride for k in (kh, kw)]
    if full == [kh, kw]:
        return w
    axes = (2, 3) if nchw else (0, 1)
    shape = tuple(full[axes.index(d)] if d in axes else n for d, n in enumerate(w.shape))

    def value(*at: Expr) -> Expr:
        inside = te.all(*(at[d] < w.shape[d] for d in axes))
        return te.select(inside, w[at], 0)

    return te.compute(shape, named("cors" if nchw else "rsco", value), "pad_w")


def _reference(p: Params, dtype: str, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
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
    return [in_layout(inner, layout).astype(dtype)]


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
    check=_check,
    shorthands=(("k", ("kh", "kw")),),
    weights=("w",),
)
