"""cache_read_part: read a part of a buffer through a copy of that part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from schedules import affine
from schedules import expr as E
from schedules.expr import Const, Expr, Load
from schedules.ir import Block, Buffer, Nest
from schedules.ir.nest import axis_ranges, find_block, over_axes, reads
from schedules.loads import Indices
from schedules.model import Target
from schedules.primitives.base import Primitive, scope_in_words
from schedules.primitives.cache_read import check_copied, through_copy


@dataclass(frozen=True)
class CopyOfRead(Primitive[str]):
    """A copy for one of the reads of ``buffer`` in ``block``. ``place`` counts the block's different reads of
    the buffer from 0, in the order in which its value has them."""

    subject: ClassVar[str] = "buffer"
    block: str
    buffer: str
    place: int
    scope: str = "global"

    def check(self, nest: Nest, target: Target | None = None) -> None:
        check_copied(nest, self.name, self.block, self.buffer, self.scope, self.result())
        places = places_read(find_block(nest, self.block), self.buffer)
        if not 0 <= self.place < len(places):
            raise self.refused(
                f"block {self.block} reads it at {len(places)} places, and place {self.place} is asked for; "
                f"give one of 0..{len(places) - 1}"
            )

    def read(self, nest: Nest) -> Load:
        """The read."""
        return places_read(find_block(nest, self.block), self.buffer)[self.place]

    def copied(
        self, nest: Nest, shape: tuple[Expr, ...], of: Callable[[Indices], Indices], at: Indices
    ) -> Nest:
        """The nest in which the read takes ``copy[at]``, where the copy is ``copy[i] = buffer[of(i)]``."""
        read, new = self.read(nest), self.result()
        taken = Load(new, at, read.dtype)
        b = over_axes(
            find_block(nest, self.block), lambda v: E.rewrite(v, lambda e: taken if e == read else None)
        )
        copy = Buffer(new, shape, read.dtype, self.scope)
        return through_copy(nest, b, copy, lambda i: Load(self.buffer, of(i), read.dtype))


@dataclass(frozen=True)
class CacheReadPart(CopyOfRead):
    """Copy what one of the reads of ``buffer`` in ``block`` touches into ``<buffer>_<scope>_<block><place>``
    before the block. That read then takes the copy, and other reads of the buffer stay. ``place`` counts the
    block's different reads of the buffer from 0, in the order in which its value has them.

    Before: ``C[i, j] += A[i, k] * A[64 + j, k]``. After ``cache_read_part("C", "A", 1)``::

        A_global_C1[x0, x1] = A[64 + x0, x1]
        C[i, j] += A[i, k] * A_global_C1[j, k]

    So each operand of a product of parts of one buffer has a copy of its own, which can be packed for it.
    The copy is as large as the smallest box that holds what the read touches. It stands at the root;
    `ComputeAt` moves it inside, `Pack` changes its layout. Legal as `CacheRead` is, for a read that stands in
    no index of another. Cost: one more pass over the part.

    >>> s.cache_read_part("y", "w", 0)
    'w_global_y0'
    >>> s.blocks()
    ['w_global_y0', 'y', 'z']
    """

    name: ClassVar[str] = "cache_read_part"

    def result(self) -> str:
        return f"{self.buffer}_{self.scope}_{self.block}{self.place}"

    def sentence(self) -> str:
        return (
            f"Copy what read {self.place} of `{self.buffer}` in `{self.block}` touches "
            f"into `{self.result()}`, in {scope_in_words(self.scope)}; that read takes the copy."
        )

    def check(self, nest: Nest, target: Target | None = None) -> None:
        super().check(nest, target)
        if any(x.buffer == self.buffer for i in self.read(nest).indices for x in E.loads(i)):
            raise self.refused(
                f"place {self.place} of block {self.block} reads the buffer in its own index; use "
                "cache_read, which copies it whole"
            )

    def _box(self, nest: Nest) -> list[tuple[int, Expr]]:
        """(the first, how many) that the read touches of each dimension."""
        ranges, shape = axis_ranges(find_block(nest, self.block).iters), nest.buffer(self.buffer).shape
        return [_ends(ranges, i, n) for i, n in zip(self.read(nest).indices, shape, strict=True)]

    def is_whole(self, nest: Nest) -> bool:
        """Whether the read may touch all of the buffer."""
        return tuple(n for _, n in self._box(nest)) == nest.buffer(self.buffer).shape

    def apply(self, nest: Nest) -> Nest:
        box = self._box(nest)
        pairs = zip(self.read(nest).indices, box, strict=True)
        moved = tuple(affine.simplify(i - lo, {}) if lo else i for i, (lo, _) in pairs)

        def source(at: Indices) -> Indices:
            return tuple(x + lo if lo else x for x, (lo, _) in zip(at, box, strict=True))

        return self.copied(nest, tuple(n for _, n in box), source, moved)


def places_read(b: Block, buffer: str) -> list[Load]:
    """The different reads of a buffer by a block, in order."""
    return list(dict.fromkeys(x for x in reads(b) if x.buffer == buffer))


def _ends(ranges: affine.Ranges, index: Expr, n: Expr) -> tuple[int, Expr]:
    """(the first, how many) of what an index touches of a dimension of extent ``n``; all of it if that is not
    known."""
    ends = affine.bounds(index, ranges)
    if ends is None or not isinstance(n, Const):
        return 0, n
    lo, hi = max(ends[0], 0), min(ends[1], int(n.value) - 1)
    return (lo, Const(hi - lo + 1)) if lo <= hi else (0, n)
