"""Products with weights of few bits: weight_only_matmul.

Weights are kept in a format of their own, and each group of neighbours along the sum has a scale. What is
stored of a weight ends in the product: ``y[i, j] = sum over g of s[j, g] * (sum over t of x[i, g, t] *
number(w[j, g, t]))``. So are products of language models whose weights take longer to read than to multiply
(T. Dettmers et al., *LLM.int8()*, NeurIPS 2022; E. Frantar et al., *GPTQ*, ICLR 2023). float4_e2m1 with
scales of float8_e4m3fn for each 16 is NVFP4. Scales of MXFP4 (OCP Microscaling Formats, version 1.0) are
powers of two, which bfloat16 has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from schedules import te
from schedules.dtypes import STORED_FLOATS, is_float
from schedules.expr import Expr, ExprLike
from schedules.ops.base import Array, Operator, Param, Params, Types, stored

_CODES = 2  # of 4 bits, in a byte


@dataclass(frozen=True, slots=True)
class _Format:
    """How weights are stored: ``each`` numbers in an element of ``dtype``, the first in its lowest bits.
    ``values``: what codes of 4 bits stand for. ``zero``: of integers, the code that stands for 0."""

    dtype: str
    each: int = 1
    values: tuple[float, ...] = ()
    zero: int | None = None

    def at(self, w: te.Tensor, j: Expr, k: Expr) -> Expr:
        """The number of row ``j`` at place ``k`` of the sum."""
        if self.each == 1:
            return w[j, k]
        code = self.code(w, j, k)
        return te.lookup(self.values, code) if self.zero is None else code - self.zero

    def code(self, w: te.Tensor, j: Expr, k: Expr) -> Expr:
        """The code of a number, as int32 from 0."""
        return w[j, k // _CODES] >> 4 * te.cast(k % _CODES, "int32") & 15

    def numbers(self, w: Array) -> Array:
        """All numbers of an array, as float64."""
        if self.each == 1:
            return w.astype(np.float64)
        codes = np.stack([w & 15, w >> 4], axis=-1).reshape(len(w), -1)
        return np.array(self.values)[codes]


# {name: how it is stored}. A format is a row.
FORMATS = {
    "int4": _Format("uint8", _CODES, tuple(range(-8, 8)), zero=8),
    "float4_e2m1": _Format("uint8", _CODES, te.FLOAT4_E2M1),
    "int8": _Format("int8", zero=0),
    **{name: _Format(name) for name in STORED_FLOATS},
}
SCALES = ("float32", *STORED_FLOATS)


def _build(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    m, n, k, group = p["m"], p["n"], p["k"], p["group"]
    form, floats = FORMATS[p["weights"]], is_float(types.input)
    x = te.placeholder((m, k), types.input, "x")
    w = te.placeholder((n, k // form.each), form.dtype, "w")
    s = te.placeholder((n, k // group), p["scales"], "s")
    sums = _sums(p, x, w, "int32" if form.zero is not None and not floats else "float32")

    def scaled(i: Expr, j: Expr, g: ExprLike) -> Expr:
        return te.cast(sums(i, j, g), "float32") * te.cast(s[j, g], "float32")

    if group == k:
        y = te.compute((m, n), lambda i, j: scaled(i, j, 0), "y")
    else:
        g = te.reduce_axis(k // group, "g")
        y = te.compute((m, n), lambda i, j: te.sum(scaled(i, j, g), axis=g), "y")
    if floats:
        return [x, w, s, stored(y, types.output)]
    of_x = te.placeholder((m,), "float32", "x_scale")
    return [x, w, s, of_x, te.compute((m, n), lambda i, j: y[i, j] * of_x[i], "y_scaled")]


def _sums(p: Params, x: te.Tensor, w: te.Tensor, wide: str) -> Callable[[Expr, Expr, ExprLike], Expr]:
    """The sum of a group of products, before its scale, by row, output and group. ``wide``: the dtype that
    it is made in. Codes are multiplied as they are in integers, and what their zero adds is taken off."""
    m, n, k, group = p["m"], p["n"], p["k"], p["group"]
    form = FORMATS[p["weights"]]
    zero = form.zero or 0 if wide == "int32" else 0
    more = () if group == k else (k // group,)  # groups that are summed again

    def of_x(i: Expr, at: Expr) -> Expr:
        return te.cast(x[i, at], wide)

    def product(i: Expr, j: Expr, *g: Expr) -> te.Reduction:
        t = te.reduce_axis(group, "t")
        at = g[0] * group + t if g else t
        number = form.code(w, j, at) if zero else form.at(w, j, at)
        return te.sum(of_x(i, at) * te.cast(number, wide), axis=t)

    def low(i: Expr, *g: Expr) -> te.Reduction:
        u = te.reduce_axis(group, "u")
        return te.sum(of_x(i, g[0] * group + u if g else u) * zero, axis=u)

    part = te.compute((m, n, *more), product, "part")
    if not zero:
        return lambda i, j, g: part[(i, j, g) if more else (i, j)]
    zeros = te.compute((m, *more), low, "zeros")
    return lambda i, j, g: part[(i, j, g) if more else (i, j)] - zeros[(i, g) if more else (i,)]


def _reference(p: Params, types: Types, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    x, w, s, *of_x = inputs
    wide, y, group = FORMATS[p["weights"]].numbers(w), np.zeros((p["m"], p["n"])), p["group"]
    for g in range(p["k"] // group):  # scaled as sums: an infinite scale makes no NaN of a 0 in its group
        at = slice(g * group, (g + 1) * group)
        y += x[:, at].astype(np.float64) @ wide[:, at].T * s[:, g].astype(np.float64)
    if of_x:
        y = y * of_x[0][:, None]
    return [y.astype(types.output if is_float(types.output) else "float32")]


def _check(p: Params) -> str | None:
    each = FORMATS[p["weights"]].each
    if p["k"] % each:
        return f"k={p['k']} is odd, but a byte has {each} weights of {p['weights']}; use an even k"
    if p["k"] % p["group"]:
        return f"group={p['group']} does not divide k={p['k']}; give a group that does, or group={p['k']}"
    return None


WEIGHT_ONLY_MATMUL = Operator(
    "weight_only_matmul",
    "x(m,k), w(n,k) in a format of few bits, s(n,k/group), x_scale(m) of activations of int8 → "
    "x · (numbers of w, each times the scale of its group)ᵀ, times x_scale",
    (
        Param("m", "rows of activations", example=1),
        Param("n", "outputs"),
        Param("k", "length of the sum"),
        Param("group", "weights along k that share a scale; k: each output has one", 32),
        Param("weights", "format of the weights: 4-bit codes lie in pairs, the first in the lower half of a "
              "byte (int4: 8 stands for 0)", "int4", "word", options=tuple(FORMATS)),
        Param("scales", "dtype of the scales", "float32", "word", options=SCALES),
    ),
    _build,
    _reference,
    lambda p: 2 * p["m"] * p["n"] * p["k"],
    dtypes=("float32", "bfloat16", "float16", "int8"),
    check=_check,
    weights=("w", "s"),
)  # fmt: skip
