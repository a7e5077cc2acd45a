"""Products with weights of few bits, as every front end states them.

A weight is a number that its code stands for, times the scale of its group: neighbours along the sum share a
scale. Activations are floats, or integers of 8 bits with scales of their own. What is stored of a weight ends
in the product:

    ``y[i, j] = sum over g of (sum over t of x[i, g, t] * number(w[j, g, t])) * x_scale[i, g] * s[j, g]``

So are products of language models whose weights take longer to read than to multiply (T. Dettmers et al.,
*LLM.int8()*, NeurIPS 2022; E. Frantar et al., *GPTQ*, ICLR 2023). Scales a group on both sides are those of
GGML's Q4_0 and Q8_0 beside Q8_0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from schedules import te
from schedules.dtypes import STORED_FLOATS, is_float
from schedules.expr import Expr, ExprLike
from schedules.ops.base import Array

Axes = tuple[Any, ...]  # of a stage, or places of axes
_CODES = 2  # of 4 bits, in a byte
LARGEST = 127  # code of an activation
# Groups of activations whose largest number is below this are 0: its reciprocal would be infinite.
LEAST = 1e-36


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How weights are stored: ``each`` numbers in an element of ``dtype``. ``values``: what codes of 4 bits
    stand for. ``zero``: of integers, the code that stands for 0. ``halves``: a byte has a number of the
    first half of its group in its lower bits, and one of the second half in its upper ones, as GGML has
    them; else neighbours, the first in its lower bits."""

    dtype: str
    each: int = 1
    values: tuple[float, ...] = ()
    zero: int | None = None
    halves: bool = False

    def at(self, w: te.Tensor, outer: tuple[Expr, ...], g: ExprLike, t: Expr, group: int) -> Expr:
        """The number at place ``t`` of group ``g`` of a row of weights."""
        if self.each == 1 and not self.zero:
            return w[(*outer, place(g, t, group))]
        code = self.code(w, outer, g, t, group)
        if self.zero is None:
            return te.lookup(self.values, code)
        return code - self.zero if self.zero else code

    def code(self, w: te.Tensor, outer: tuple[Expr, ...], g: ExprLike, t: Expr, group: int) -> Expr:
        """The code of a number, as int32; of those of 4 bits from 0."""
        if self.each == 1:
            return te.cast(w[(*outer, place(g, t, group))], "int32")
        if self.halves:
            half = group // _CODES
            byte, digit = place(g, t % half, half), t // half
        else:
            k = place(g, t, group)
            byte, digit = k // _CODES, k % _CODES
        return w[(*outer, byte)] >> 4 * te.cast(digit, "int32") & 15

    def numbers(self, w: Array, group: int) -> Array:
        """All numbers of an array (…, bytes of k), as float64 (…, k)."""
        if self.each == 1:
            return w.astype(np.float64) - (self.zero or 0)
        digits = [w & 15, w >> 4]
        if self.halves:
            parts = [x.reshape(*w.shape[:-1], -1, group // _CODES) for x in digits]
            codes = np.concatenate(parts, axis=-1)
        else:
            codes = np.stack(digits, axis=-1)
        return np.array(self.values)[codes.reshape(*w.shape[:-1], -1)]


# {name: how it is stored}. A format is a row.
FORMATS = {
    "int4": WeightFormat("uint8", _CODES, tuple(range(-8, 8)), zero=8),
    "float4_e2m1": WeightFormat("uint8", _CODES, te.FLOAT4_E2M1),
    "int8": WeightFormat("int8", zero=0),
    **{name: WeightFormat(name) for name in STORED_FLOATS},
    "uint8": WeightFormat("uint8", zero=128),
    "int4_halves": WeightFormat("uint8", _CODES, tuple(range(-8, 8)), zero=8, halves=True),
}
SCALES = ("float32", *STORED_FLOATS)


def place(g: ExprLike, t: Expr, group: int) -> Expr:
    """The place along the sum of number ``t`` of group ``g``."""
    return t if isinstance(g, int) and g == 0 else g * group + t


@dataclass(frozen=True, slots=True)
class FewBits:
    """Weights: ``codes`` (…, n, k / numbers in an element) in a format of `FORMATS`, and ``scales`` (…, n,
    k / ``group``) of any float dtype. ``offsets``: floats of the shape of scales, what is added to all
    numbers of a group after scaling; None: nothing."""

    form: WeightFormat
    codes: te.Tensor
    scales: te.Tensor
    group: int
    offsets: te.Tensor | None = None

    @property
    def depth(self) -> int:
        """Numbers along the sum."""
        return int(self.codes.shape[-1]) * self.form.each


@dataclass(frozen=True, slots=True)
class RoundedRows:
    """Activations as ``codes`` (…, k) of int8. ``scales``: float32, one for each group of weights (…, k /
    group), or one a row (…)."""

    codes: te.Tensor
    scales: te.Tensor


def rounded_rows(x: te.Tensor, group: int) -> RoundedRows:
    """Activations (…, k) of any float dtype as int8. Each group of neighbours along k has the scale that
    makes its largest number 127. They are rounded to the nearest code, halves to the even one."""
    *rows, k = x.shape
    t = te.reduce_axis(group, "t")

    def size(*at: Expr) -> te.Reduction:
        return te.max(te.abs(te.cast(x[(*at[:-1], at[-1] * group + t)], "float32")), axis=t)

    def code(*at: Expr) -> Expr:
        most = largest[(*at[:-1], at[-1] // group)]
        per = te.select(most >= LEAST, float(LARGEST) / most, 0.0)
        return te.cast(te.round(te.cast(x[at], "float32") * per), "int8")

    shape = (*rows, k // group)
    largest = te.compute(shape, size, "largest")
    scales = te.compute(shape, lambda *at: largest[at] / float(LARGEST), "x_scale")
    return RoundedRows(te.compute(x.shape, code, "x_codes"), scales)


def product(
    x: te.Tensor | RoundedRows,
    w: FewBits,
    rows: Sequence[int] | None = None,
    outputs: Sequence[int] | None = None,
    name: str = "y",
) -> te.Tensor:
    """``x · wᵀ`` as float32: (…, k) by (…, n, k) is (rows of x…, outputs of w…). Products of integers are
    summed in int32.

    ``rows``, ``outputs``: which axes of the result are those of ``x`` and those of ``w``, but for k. An axis
    may be one of both, as that of a batch."""
    codes, scales = (x.codes, x.scales) if isinstance(x, RoundedRows) else (x, None)
    before, of_w = len(codes.shape) - 1, len(w.codes.shape) - 1
    rows = range(before) if rows is None else rows
    outputs = range(before, before + of_w) if outputs is None else outputs
    extents = dict(zip(outputs, w.codes.shape, strict=False)) | dict(zip(rows, codes.shape, strict=False))
    shape = tuple(extents[n] for n in range(len(extents)))
    per_row = scales is not None and len(scales.shape) == before
    sums = _Sums(codes, w, tuple(rows), tuple(outputs), shape)

    def scaled(at: Axes, g: ExprLike) -> Expr:
        i, j = _of(at, rows), _of(at, outputs)
        by = scales[(*i, g)] if scales is not None and not per_row else None
        value = _times(te.cast(sums.codes(at, g), "float32"), by) * te.cast(w.scales[(*j, g)], "float32")
        if w.offsets is None:
            return value
        low = _times(te.cast(sums.of_x(i, g), "float32"), by)
        return value + low * te.cast(w.offsets[(*j, g)], "float32")

    if sums.groups == 1:
        y = te.compute(shape, lambda *at: scaled(at, 0), name)
    else:
        g = te.reduce_axis(sums.groups, "g")
        y = te.compute(shape, lambda *at: te.sum(scaled(at, g), axis=g), name)
    if not per_row or scales is None:
        return y
    return te.compute(shape, lambda *at: y[at] * scales[_of(at, rows)], f"{name}_scaled")


def _of(at: Axes, places: Sequence[int]) -> Axes:
    return tuple(at[n] for n in places)


def _times(e: Expr, by: Expr | None) -> Expr:
    return e if by is None else e * by


class _Sums:
    """The sums of a group of products, before its scale. Codes are multiplied as they are in integers, and
    what their zero adds is taken off."""

    def __init__(self, x: te.Tensor, w: FewBits, rows: Axes, outputs: Axes, shape: tuple[int, ...]) -> None:
        self.x, self.w, self.rows, self.outputs = x, w, rows, outputs
        self.groups = w.depth // w.group
        self.wide = "int32" if w.form.zero is not None and not is_float(x.dtype) else "float32"
        self.zero = w.form.zero or 0 if self.wide == "int32" else 0
        more = () if self.groups == 1 else (self.groups,)  # groups that are summed again
        self.part = te.compute((*shape, *more), self._product, "part")
        self.low: te.Tensor | None = None
        if self.zero or w.offsets is not None:
            self.low = te.compute((*x.shape[:-1], *more), self._low, "zeros" if w.offsets is None else "sums")

    def codes(self, at: Axes, g: ExprLike) -> Expr:
        """The sum of ``x`` times numbers of weights."""
        part = self.part[self._at(at, g)]
        if not self.zero or self.low is None:
            return part
        low = self.low[self._at(_of(at, self.rows), g)]
        return part - (low if self.w.offsets is None else low * self.zero)

    def of_x(self, i: Axes, g: ExprLike) -> Expr:
        """The sum of ``x``, where weights have offsets."""
        assert self.low is not None
        return self.low[self._at(i, g)]

    def _at(self, at: Axes, g: ExprLike) -> tuple[ExprLike, ...]:
        return at if self.groups == 1 else (*at, g)

    def _apart(self, at: Axes) -> tuple[Axes, ExprLike]:
        return (at, 0) if self.groups == 1 else (at[:-1], at[-1])

    def _wide(self, i: Axes, g: ExprLike, t: Expr) -> Expr:
        return te.cast(self.x[(*i, place(g, t, self.w.group))], self.wide)

    def _product(self, *at: Expr) -> te.Reduction:
        out, g = self._apart(at)
        t, w = te.reduce_axis(self.w.group, "t"), self.w
        read = w.form.code if self.zero else w.form.at
        number = read(w.codes, _of(out, self.outputs), g, t, w.group)
        return te.sum(self._wide(_of(out, self.rows), g, t) * te.cast(number, self.wide), axis=t)

    def _low(self, *at: Expr) -> te.Reduction:
        i, g = self._apart(at)
        u = te.reduce_axis(self.w.group, "u")
        value = self._wide(i, g, u)
        return te.sum(value * self.zero if self.w.offsets is None else value, axis=u)
