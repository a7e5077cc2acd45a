"""Which lane of a warp has which element of a tile, and in which of its registers.

A tile's extents are powers of two, so an index is bits. So are the number of a lane and that of a place in
its registers. A layout says for each bit of these two of which dimension's index it is a bit. That is a
linear map over bits (GF(2)), in which every bit stands for one other.

A lane's elements of an operand in shared memory are those that lie side by side from its address on.

Source: PTX ISA, "Matrix Fragments for mma.m16n8k16" and its neighbours, and "ldmatrix".
"""

from __future__ import annotations

from dataclasses import dataclass

Bit = tuple[int, int]  # (dimension, bit of its index)
LANES = 32


@dataclass(frozen=True)
class Layout:
    """``lanes``: what each bit of the number of a lane is, the lowest first; None: lanes that differ in it
    have the same elements. ``registers``: what each bit of the number of a place in a lane is, the lowest
    first.

    >>> c = Layout(((1, 1), (1, 2), (0, 0), (0, 1), (0, 2)), ((1, 0), (0, 3)))  # the sums of m16n8
    >>> c.shape
    (16, 8)
    >>> c.at(lane=5, register=3)
    (9, 3)
    """

    lanes: tuple[Bit | None, ...]
    registers: tuple[Bit, ...]

    @property
    def _every(self) -> tuple[Bit, ...]:
        """All bits of indices."""
        return (*filter(None, self.lanes), *self.registers)

    @property
    def size(self) -> int:
        """Elements of a lane."""
        return 1 << len(self.registers)

    @property
    def rank(self) -> int:
        """Dimensions of the tile."""
        return 1 + max(d for d, _ in self._every)

    def bits(self, dimension: int) -> int:
        """Bits of an index of the tile."""
        return sum(d == dimension for d, _ in self._every)

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the tile."""
        return tuple(1 << self.bits(d) for d in range(self.rank))

    def has(self, dimension: int, bit: int) -> bool:
        """Whether a bit of an index is one within a tile."""
        return (dimension, bit) in self._every

    def at(self, lane: int, register: int) -> tuple[int, ...]:
        """The index of the element that a lane has in a place."""
        out = [0] * self.rank
        for number, bits in ((lane, self.lanes), (register, self.registers)):
            for n, b in enumerate(bits):
                if b is not None:
                    out[b[0]] |= (number >> n & 1) << b[1]
        return tuple(out)

    def along(self, dimensions: tuple[int, ...]) -> Layout:
        """The layout of the tile whose dimension ``dimensions[d]`` is dimension ``d`` of this one."""

        def moved(b: Bit) -> Bit:
            return dimensions[b[0]], b[1]

        lanes = tuple(b and moved(b) for b in self.lanes)
        return Layout(lanes, tuple(map(moved, self.registers)))

    def begins(self, other: Layout) -> bool:
        """Whether a tile of this layout is a part of one of the other, whose lanes have it side by side."""
        n = len(self.registers)
        return self.lanes == other.lanes and self.registers == other.registers[:n]


def rows_of_words(itemsize: int) -> tuple[tuple[Bit | None, ...], int]:
    """A matrix of 8 rows of 16 bytes, a word of 4 bytes for each lane, as mma and ldmatrix have it: (bits of
    the lane, as of a layout whose rows are dimension 0; bits of an index within a word)."""
    e = (4 // itemsize).bit_length() - 1
    return ((1, e), (1, e + 1), (0, 0), (0, 1), (0, 2)), e


def left(itemsize: int) -> Layout:
    """The first operand ``[16 rows, 32 bytes]`` of a product."""
    lanes, e = rows_of_words(itemsize)
    return Layout(lanes, (*((1, b) for b in range(e)), (0, 3), (1, e + 2)))


def right(itemsize: int) -> Layout:
    """The second operand as columns, ``[8 columns, 32 bytes]``."""
    lanes, e = rows_of_words(itemsize)
    return Layout(lanes, (*((1, b) for b in range(e)), (1, e + 2)))


def two_right(itemsize: int) -> Layout:
    """`right` of 16 columns, those of the first 8 before the others."""
    one = right(itemsize)
    return Layout(one.lanes, (*one.registers, (0, 3)))


SUMS = Layout(((1, 1), (1, 2), (0, 0), (0, 1), (0, 2)), ((1, 0), (0, 3)))  # [16 rows, 8 columns]
