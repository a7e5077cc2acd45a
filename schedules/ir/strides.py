"""What follows from the strides of a buffer: sizes, what lies side by side, and how lines of memory cut it.
`schedules.strides` says what strides are."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from itertools import pairwise

from schedules.dtypes import DTYPES
from schedules.expr import Const, Expr, maximum, wrap
from schedules.ir.nodes import Buffer, const
from schedules.model import LINE
from schedules.strides import inner_first, refitted, row_major, strides_of

Indices = tuple[Expr, ...]


def buffer_strides(b: Buffer) -> tuple[Expr, ...]:
    """`strides_of` a buffer, as expressions."""
    return tuple(map(wrap, strides_of(b)))


def given_strides(b: Buffer) -> tuple[int, ...]:
    """The strides of an argument in the shape that callers give, whatever its dimensions are merged or split
    into: both shapes count the same elements in the same order.

    ``float32[4, 96]`` with strides ``[200, 1]``, split into ``[4, 3, 32]``, has ``(200, 1)``.
    """
    if b.given is None:
        return known_strides(b)
    given = [const(n) or 1 for n in b.given]
    flat = row_major(given)
    within = list(zip(row_major(known_extents(b)), known_extents(b), known_strides(b), strict=True))
    return tuple(
        step if n == 1 else sum(step // apart % m * s for apart, m, s in within)
        for n, step in zip(given, flat, strict=True)
    )


def known_extents(b: Buffer) -> tuple[int, ...]:
    """Extents of a buffer, 1 where one is not decided yet."""
    return tuple(const(n) or 1 for n in b.shape)


def known_strides(b: Buffer) -> tuple[int, ...]:
    """Strides of a buffer, those of a row-major one as of `known_extents`."""
    return row_major(known_extents(b)) if b.strides is None else tuple(const(s) or 0 for s in b.strides)


def elements(b: Buffer) -> int:
    """Elements of memory that a buffer takes: its outermost dimension in whole steps. So the last row has the
    gap behind it that others have: vectors that run over the end of a row stay inside."""
    return max([1, *(n * abs(s) for n, s in zip(known_extents(b), known_strides(b), strict=True))])


def nbytes(b: Buffer) -> int:
    """Bytes of memory that a buffer with known extents takes."""
    return elements(b) * DTYPES[b.dtype].itemsize


def region_elements(b: Buffer, shape: Indices, pad: Expr) -> Expr:
    """`elements` of a buffer `resized` to what may speak of holes."""
    if not shape:
        return Const(1)
    extents, strides = known_extents(b), known_strides(b)
    new, order = refitted(extents, strides, shape, pad), inner_first(strides)
    takes = [shape[d] * wrap(new[d]) for d in order]
    nested = all(extents[d] * strides[d] <= strides[e] for d, e in pairwise(order))
    return takes[-1] if nested else reduce(maximum, takes)


def resized(b: Buffer, shape: Indices, pad: int = 0) -> Buffer:
    """The buffer with another shape, as its elements lie: see `schedules.strides.refitted`."""
    if b.strides is None and not pad:
        return replace(b, shape=shape)
    strides = refitted(known_extents(b), known_strides(b), shape, pad)
    return replace(b, shape=shape, strides=tuple(map(wrap, strides)))


def contiguous_dimension(b: Buffer) -> int | None:
    """The dimension whose indices are neighbours in memory; None where none are."""
    if b.strides is None:
        return len(b.shape) - 1 if b.shape else None
    near = [d for d, s in enumerate(known_strides(b)) if s == 1 and const(b.shape[d]) != 1]
    return near[0] if near else None


def row_elements(b: Buffer) -> int:
    """Elements from a row, along the dimension that lies closest together, to the next."""
    strides = known_strides(b)
    return strides[inner_first(strides)[1]] if len(strides) > 1 else elements(b)


def goes_on(b: Buffer, d: int) -> bool:
    """Whether dimension ``d + 1`` goes on in memory where it ends when ``d`` makes a step."""
    inner, strides = const(b.shape[d + 1]), known_strides(b)
    if b.strides is None or const(b.shape[d]) == 1:
        return True
    return inner is not None and strides[d] == inner * strides[d + 1]


def rows_are_lines(b: Buffer) -> bool:
    """Whether rows are whole lines of memory, so that every row lies as the first one does."""
    along = contiguous_dimension(b)
    if along is None:
        return False
    steps = [s for d, s in enumerate(known_strides(b)) if d != along and known_extents(b)[d] > 1]
    return all(n * DTYPES[b.dtype].itemsize % LINE == 0 for n in (*steps, elements(b)))


def as_row_major(b: Buffer, indices: Indices) -> tuple[Buffer, Indices]:
    """An access as one of a row-major buffer whose elements lie the same: what counts lines, or asks what is
    side by side, then knows one layout only. Dimensions come in the order of their strides; a gap
    belongs to the extent of the dimension further in; an innermost stride above 1 is a dimension of its own;
    a stride of 0 is left out. A gap that is no whole number of steps is rounded down.

    ``y[i, j]`` of ``y: float32[6, 8] strides [1, 7]`` is ``y[j, i]`` of ``y: float32[8, 7]``.
    """
    if b.strides is None:
        return b, indices
    extents, strides = known_extents(b), known_strides(b)
    place = [i if s >= 0 else n - 1 - i for i, n, s in zip(indices, extents, strides, strict=True)]
    steps = [abs(s) for s in strides]
    order = [d for d in reversed(inner_first(steps)) if extents[d] > 1 and steps[d]]
    shape = [extents[d] if k == 0 else max(extents[d], steps[order[k - 1]] // steps[d])
             for k, d in enumerate(order)]  # fmt: skip
    at = [place[d] for d in order]
    if order and steps[order[-1]] > 1:
        shape, at = [*shape, steps[order[-1]]], [*at, Const(0)]
    return replace(b, shape=tuple(map(wrap, shape)), strides=None), tuple(at)


# Bytes that change places together in a swizzle, and those of a line of banks.
CHUNK, BANKS = 16, 128
# Bytes of the rows of a swizzle. Behind 0, for none, the place of each is its ``CUtensorMapSwizzle``.
SWIZZLES = (32, 64, 128)


def swizzle_bits(b: Buffer) -> tuple[int, int]:
    """(the bits of an offset in bytes that a buffer's swizzle changes, how far above them those lie that
    change them). A chunk of 16 bytes moves within its ``swizzle`` bytes by the number of its line of 128
    bytes, or of its row where that is a power of two of lines. So chunks at the same place in neighbouring
    rows are in different banks, which is how matrices are read. For rows of up to 128 bytes these are the
    swizzle modes of tensor maps (CUDA driver API, ``CUtensorMapSwizzle``)."""
    lines = known_extents(b)[-1] * DTYPES[b.dtype].itemsize // BANKS
    return max(b.swizzle - CHUNK, 0), 3 + max((lines & -lines).bit_length() - 1, 0)


def swizzled(at: int, b: Buffer) -> int:
    """Where byte ``at`` of a buffer lies. It is linear over GF(2).

    >>> rows = Buffer("rows", (Const(8), Const(64)), "float16", "shared", swizzle=128)
    >>> [swizzled(128 * row + 16, rows) - 128 * row for row in range(4)]
    [16, 0, 48, 32]
    """
    mask, above = swizzle_bits(b)
    return at ^ (at >> above & mask)


def swizzle_period(b: Buffer) -> int:
    """Bytes after which a buffer's swizzle repeats; 1 where it has none."""
    mask, above = swizzle_bits(b)
    return mask + CHUNK << above if mask else 1


def widest_swizzle(b: Buffer, most: int) -> int:
    """The widest swizzle of at most so many bytes whose rows divide those of a buffer; 0 where none do."""
    row = known_extents(b)[-1] * DTYPES[b.dtype].itemsize if b.shape and b.strides is None else 0
    return max((n for n in SWIZZLES if row and n <= most and row % n == 0), default=0)
