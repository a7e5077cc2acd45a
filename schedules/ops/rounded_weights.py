"""Weights rounded to few bits, by groups along their last axis, as GGML rounds them: Q4_0, Q8_0
(`ggml-quants.c`, `quantize_row_q4_0_ref` and `quantize_row_q8_0_ref`; groups of 32 there).

Rows are rounded some at a time, so that no whole copy in float32 is made.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from schedules.dtypes import DTYPES
from schedules.ops.base import Array
from schedules.ops.few_bits import FORMATS

# Elements that are widened at a time.
PIECE = 1 << 20
Rounded = tuple[Array, Array]


def q4_0(weights: Array, group: int = 32, scales: str = "float16", format: str = "int4") -> Rounded:
    """Weights (…, k) as (codes (…, k / 2) of uint8 in that format, int4 or int4_halves; scales (…, k /
    group)). The number of largest magnitude in a group is -8 times its scale.

    Raises ValueError for a group that does not divide k, or is odd. A scale that its dtype has no number for
    is infinite.

    >>> codes, scales = q4_0(np.array([[-8.0, 7.0, 1.4, 0.0]], "float32"), group=4)
    >>> codes, scales
    (array([[240, 137]], dtype=uint8), array([[1.]], dtype=float16))
    """
    if group % 2:
        raise ValueError(f"groups of {group}: a byte has two weights; give an even group")

    def rounded(x: Array) -> Rounded:
        most = np.take_along_axis(x, np.abs(x).argmax(axis=-1)[..., None], axis=-1)
        d = most / np.float32(-8)
        codes = np.trunc(x * _reciprocal(d) + np.float32(8.5)).clip(0, 15).astype(np.uint8)
        return paired(codes, group if FORMATS[format].halves else 2), d[..., 0]

    return _by_rows(weights, group, scales, rounded)


def q8_0(weights: Array, group: int = 32, scales: str = "float16") -> Rounded:
    """Weights (…, k) as (codes (…, k) of int8, scales (…, k / group)). The number of largest magnitude in a
    group is 127 or -127 times its scale; halves are rounded away from 0. Raises ValueError for a group that
    does not divide k.

    >>> q8_0(np.array([[-127.0, 2.5]], "float32"), group=2)
    (array([[-127,    3]], dtype=int8), array([[1.]], dtype=float16))
    """

    def rounded(x: Array) -> Rounded:
        d = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
        scaled = x * _reciprocal(d)
        size = np.abs(scaled)
        whole = np.floor(size)
        codes = np.sign(scaled) * (whole + np.floor(2 * (size - whole)))
        return codes.astype(np.int8), d[..., 0]

    return _by_rows(weights, group, scales, rounded)


def paired(codes: Array, group: int) -> Array:
    """Codes (…, k) of 4 bits as bytes (…, k / 2): those of the first half of each group in lower bits, those
    of the second half in upper ones. Groups of 2 are neighbours."""
    half = codes.astype(np.uint8).reshape(*codes.shape[:-1], -1, 2, group // 2)
    made: Array = (half[..., 0, :] | half[..., 1, :] << 4).reshape(*codes.shape[:-1], -1)
    return made


def unpacked(codes: Array, scales: Array, group: int, format: str, dtype: str = "float32") -> Array:
    """The numbers that codes and scales stand for, (…, k) in that dtype."""
    numbers = FORMATS[format].numbers(codes, group)
    by = np.repeat(scales.astype(np.float64), group, axis=-1)
    return (numbers * by).astype(DTYPES[dtype].numpy)


def _reciprocal(d: Array) -> Array:
    with np.errstate(divide="ignore"):
        made: Array = np.where(d == 0, np.float32(0), np.float32(1) / d)
    return made


def _by_rows(weights: Array, group: int, scales: str, rounded: Callable[[Array], Rounded]) -> Rounded:
    """Round rows of groups, some at a time."""
    *outer, k = weights.shape
    if group < 1 or k % group:
        raise ValueError(f"groups of {group} do not divide rows of {k} weights")
    flat, kind = weights.reshape(-1, k), np.dtype(DTYPES[scales].numpy)

    def make(rows: slice) -> Rounded:
        x = flat[rows].astype(np.float32).reshape(-1, k // group, group)
        with np.errstate(over="ignore", invalid="ignore"):
            codes, d = rounded(x)
            return codes, d.astype(kind)

    codes, found = by_pieces(len(flat), k, make)
    return codes.reshape(*outer, codes.shape[1]), found.reshape(*outer, k // group)


def by_pieces(rows: int, columns: int, make: Callable[[slice], tuple[Array, ...]]) -> tuple[Array, ...]:
    """What ``make`` gives of ``rows``, each array as a matrix of as many. It is asked for about `PIECE`
    elements at a time."""
    step = max(1, PIECE // max(columns, 1))
    made: tuple[Array, ...] = ()
    for at in range(0, max(rows, 1), step):
        piece = slice(at, min(at + step, rows))
        parts = [p.reshape(piece.stop - at, prod(p.shape[1:])) for p in make(piece)]
        made = made or tuple(np.empty((rows, p.shape[1]), p.dtype) for p in parts)
        for whole, part in zip(made, parts, strict=True):
            whole[piece] = part
    return made
