"""Blocks of ggml: weights that lie together in a row of a matrix, as codes of few bits, scales and offsets.

A type is a row of `BLOCKS`. Its function takes blocks apart as `dequantize_row_*` of ggml-quants.c does. No
number is rounded: codes stay integers, and a scale of float16 times a small integer is exact in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from schedules.ops.base import Array
from schedules.ops.few_bits import FORMATS, WeightFormat
from schedules.ops.rounded_weights import by_pieces, paired

Parts = tuple[Array, ...]  # codes, scales, and offsets where there are any
# Codes of 4 bits from 0 on, in halves.
UINT4_HALVES = replace(FORMATS["int4_halves"], values=tuple(range(16)), zero=0)
BYTE = FORMATS["int8"]


@dataclass(frozen=True, slots=True)
class BlockType:
    """``weights`` of a block, of which ``group`` neighbours have a scale. ``form``: how their codes are kept.
    ``parts``: the parts of blocks (…, bytes of one), each with the elements of a block last."""

    weights: int
    group: int
    form: WeightFormat
    parts: Callable[[Array], Parts]

    def unpacked(self, blocks: Array, order: Array | None = None) -> Parts:
        """The parts of rows of blocks (rows, blocks, bytes), each (rows, elements), with rows in another
        ``order``. Some rows are taken at a time."""

        def make(rows: slice) -> Parts:
            return self.parts(blocks[rows if order is None else order[rows]])

        return by_pieces(len(blocks), blocks[0].size, make)


def _q8_0(b: Array) -> Parts:
    return _part(b, 2, 34, "i1"), _half(b, 0)


def _q4_0(b: Array) -> Parts:
    return b[..., 2:], _half(b, 0)


def _q4_1(b: Array) -> Parts:
    return b[..., 4:], _half(b, 0), _half(b, 2)


def _q5_0(b: Array) -> Parts:
    return (_five_bits(b[..., 2:6], b[..., 6:]) - 16).astype(np.int8), _half(b, 0)


def _q5_1(b: Array) -> Parts:
    return _five_bits(b[..., 4:8], b[..., 8:]).view(np.int8), _half(b, 0), _half(b, 2)


def _five_bits(high: Array, low: Array) -> Array:
    """32 codes: a bit of each, then the lower 4 bits of the first half and those of the second."""
    bits = np.unpackbits(high, axis=-1, bitorder="little")
    made: Array = np.concatenate([low & 15, low >> 4], axis=-1) | bits << 4
    return made


def _q4_k(b: Array) -> Parts:
    scales, offsets = _scales_k(b)
    return paired(_low_k(b[..., 16:]), 32), scales, offsets


def _q5_k(b: Array) -> Parts:
    scales, offsets = _scales_k(b)
    codes = _low_k(b[..., 48:]) | _flat((b[..., None, 16:48] >> _digits(1)) & 1) << 4
    return codes.view(np.int8), scales, offsets


def _q6_k(b: Array) -> Parts:
    low = _flat((_split(b[..., :128], 64) >> _digits(4)) & 15)
    high = _flat((_split(b[..., 128:192], 32) >> _digits(2)) & 3)
    codes = (low | high << 4).astype(np.int8) - np.int8(32)
    return codes, _scaled(_half(b, 208), _part(b, 192, 208, "i1"))


def _low_k(b: Array) -> Array:
    """Codes of 4 bits: 32 bytes have those of a group, then those of the next."""
    return _flat((_split(b, 32) >> _digits(4)) & 15)


def _scales_k(b: Array) -> tuple[Array, Array]:
    """Scales and offsets of the 8 groups of Q4_K and Q5_K: integers of 6 bits in 12 bytes, each times one of
    two scales. Bytes of the last 4 groups lie in three."""
    first, second, third = b[..., 4:8], b[..., 8:12], b[..., 12:16]
    scale = np.concatenate([first & 63, (third & 15) | first >> 6 << 4], axis=-1)
    least = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=-1)
    return _scaled(_half(b, 0), scale), -_scaled(_half(b, 2), least)


def _scaled(d: Array, by: Array) -> Array:
    with np.errstate(invalid="ignore"):  # infinite scales of damaged files
        made: Array = d.astype(np.float32) * by.astype(np.float32)
    return made


def _part(b: Array, begin: int, end: int, dtype: str) -> Array:
    return np.ascontiguousarray(b[..., begin:end]).view(dtype)


def _half(b: Array, begin: int) -> Array:
    """A float16 of each block."""
    return _part(b, begin, begin + 2, "<f2")


def _split(b: Array, size: int) -> Array:
    """Bytes in runs of that size, each with an axis before it."""
    return b.reshape(*b.shape[:-1], -1, 1, size)


def _digits(bits: int) -> Array:
    """Where each digit of a byte begins, lowest first, as a column."""
    return np.arange(0, 8, bits, dtype=np.uint8)[:, None]


def _flat(codes: Array) -> Array:
    """Codes (rows, blocks, …) with those of a block on one axis."""
    return codes.reshape(*codes.shape[:2], -1)


# {type of ggml: how its blocks are read}. Codes of 5 and 6 bits are kept in 8.
BLOCKS = {
    "Q8_0": BlockType(32, 32, BYTE, _q8_0),
    "Q4_0": BlockType(32, 32, FORMATS["int4_halves"], _q4_0),
    "Q4_1": BlockType(32, 32, UINT4_HALVES, _q4_1),
    "Q5_0": BlockType(32, 32, BYTE, _q5_0),
    "Q5_1": BlockType(32, 32, BYTE, _q5_1),
    "Q4_K": BlockType(256, 32, UINT4_HALVES, _q4_k),
    "Q5_K": BlockType(256, 32, BYTE, _q5_k),
    "Q6_K": BlockType(256, 16, BYTE, _q6_k),
}
