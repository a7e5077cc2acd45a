"""Transposed convolution: conv2d_transpose, as the sum that each output point is.

Output p of a dimension gets the taps r with (p + padding - r) divisible by the stride. Written p + padding =
stride·i + a, those are r = a + stride·j, and the input is at i - j: a convolution for each of the stride
phases a, none of which multiplies an inserted zero (Dumoulin & Visin, A guide to convolution
arithmetic, 2016).
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
    first = padding // stride  # the phases' first point
    counts = [(n + padding - 1) // stride - first + 1 for n in (oh, ow)]
    before = max(0, max(taps) - 1 - first)
    # the last point reads its own place
    after = max(0, *(first + c - n for c, n in zip(counts, (h, w), strict=True)))
    r, s, c = te.reduce_axis(taps[0], "r"), te.reduce_axis(taps[1], "s"), te.reduce_axis(ci, "c")

    if nchw:
        x, k = te.placeholder((b, ci, h, w), dtype, "x"), te.placeholder((ci, co, kh, kw), dtype, "w")
        z = pad(x, (before, after), (2, 3), 0, "nchw")
    else:
        x, k = te.placeholder((b, h, w, ci), dtype, "x"), te.placeholder((kh, kw, ci, co), dtype, "w")
        z = pad(x, (before, after), (1, 2), 0, "nhwc")
    weights = _whole_phases(k, kh, kw, stride, nchw)

    def term(n: Expr, i: Expr, a: Expr, j: Expr, e: Expr, o: Expr) -> te.Reduction:
        row, column = i + (first + before) - r, j + (first + before) - s
        tap, tap_ = a + r * stride, e + s * stride
        if nchw:
            return te.sum(z[n, c, row, column] * weights[c, o, tap, tap_], axis=(r, s, c))
        return te.sum(z[n, row, column, c] * weights[tap, tap_, c, o], axis=(r, s, c))

    (rows, columns), skip = counts, padding - first * stride

    def split(p: Expr) -> tuple[Expr, Expr]:
        return (p + skip) // stride, (p + skip) % stride

    if nchw:
        shape = (b, co, stride, stride, rows, columns)
        phases = te.compute(shape, named("noabij", lambda n, o, a, e, i, j: term(n, i, a, j, e, o)), "phases")

        def place(n: Expr, o: Expr, p: Expr, q: Expr) -> Expr:
            (i, a), (j, e) = split(p), split(q)
            return phases[n, o, a, e, i, j]

        return [x, k, te.compute((b, co, oh, ow), named("nopq", place), "y")]
    shape = (b, stride, stride, rows, columns, co)
    phases = te.compute(shape, named("nabijo", lambda n, a, e, i, j, o: term(n, i, a, j, e, o)), "phases")

    def place_last(n: Expr, p: Expr, q: Expr, o: Expr) -> Expr:
        (i, a), (j, e) = split(p), split(q)
        return phases[n, a, e, i, j, o]

    return [x, k, te.compute((b, oh, ow, co), named("npqo", place_last), "y")]


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
)
