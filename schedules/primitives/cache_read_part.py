"""cache_read_part: read a part of a buffer through a copy of that part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from schedules import affine
from schedules import expr as E
from schedules.expr import Const, Expr, Load, Var
from schedules.ir import Access, Block, Buffer, Iter, Nest
from schedules.ir.nest import add_buffer, find_block, fresh_each, insert, map_blocks, reads, wrap_loops
from schedules.model import Target
from schedules.primitives.base import Primitive, scope_in_words
from schedules.primitives.cache_read import check_copied, in_reads


@dataclass(frozen=True)
class CacheReadPart(Primitive[str]):
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
    subject: ClassVar[str] = "buffer"
    block: str
    buffer: str
    place: int
    scope: str = "global"

    def result(self) -> str:
        return f"{self.buffer}_{self.scope}_{self.block}{self.place}"

    def sentence(self) -> str:
        return (
            f"Copy what read {self.place} of `{self.buffer}` in `{self.block}` touches "
            f"into `{self.result()}`, in {scope_in_words(self.scope)}; that read takes the copy."
        )

    def check(self, nest: Nest, target: Target | None = None) -> None:
        check_copied(nest, self.name, self.block, self.buffer, self.scope, self.result())
        places = places_read(find_block(nest, self.block), self.buffer)
        if not 0 <= self.place < len(places):
            raise self.refused(
                f"block {self.block} reads it at {len(places)} places, and place {self.place} is asked for; "
                f"give one of 0..{len(places) - 1}"
            )
        if any(x.buffer == self.buffer for i in places[self.place].indices for x in E.loads(i)):
            raise self.refused(
                f"place {self.place} of block {self.block} reads the buffer in its own index; use "
                "cache_read, which copies it whole"
            )

    def _box(self, nest: Nest) -> list[tuple[int, Expr]]:
        """(the first, how many) that the read touches of each dimension."""
        b = find_block(nest, self.block)
        read, shape = places_read(b, self.buffer)[self.place], nest.buffer(self.buffer).shape
        return [_ends(b, i, n) for i, n in zip(read.indices, shape, strict=True)]

    def is_whole(self, nest: Nest) -> bool:
        """Whether the read may touch all of the buffer."""
        return tuple(n for _, n in self._box(nest)) == nest.buffer(self.buffer).shape

    def apply(self, nest: Nest) -> Nest:
        src, new = nest.buffer(self.buffer), self.result()
        read = places_read(find_block(nest, self.block), self.buffer)[self.place]
        box = self._box(nest)
        iters = tuple(Iter(f"x{d}", n, "spatial") for d, (_, n) in enumerate(box))
        at = tuple(Var(i.var) for i in iters)
        source = tuple(x + lo if lo else x for x, (lo, _) in zip(at, box, strict=True))
        copied: Expr = Load(self.buffer, source, src.dtype)
        copy = Block(new, iters, tuple(Const(0) for _ in iters), (Access(new, at),), (copied,))

        def shifted(e: Expr) -> Expr | None:
            if e != read:
                return None
            moved = (
                affine.simplify(i - lo, {}) if lo else i for i, (lo, _) in zip(read.indices, box, strict=True)
            )
            return Load(new, tuple(moved), src.dtype)

        nest = map_blocks(nest, lambda x: in_reads(x, shifted) if x.name == self.block else x)
        nest = add_buffer(nest, Buffer(new, tuple(n for _, n in box), src.dtype, self.scope))
        stmt = wrap_loops(copy, fresh_each(nest, (f"{new}_{i.var}" for i in iters)))
        return insert(nest, None, stmt, before=find_block(nest, self.block))


def places_read(b: Block, buffer: str) -> list[Load]:
    """The different reads of a buffer by a block, in order."""
    return list(dict.fromkeys(x for x in reads(b) if x.buffer == buffer))


def _ends(b: Block, index: Expr, n: Expr) -> tuple[int, Expr]:
    """(the first, how many) of what an index touches of a dimension of extent ``n``; all of it if that is not
    known."""
    ranges = {i.var: (0, int(i.extent.value) - 1) for i in b.iters if isinstance(i.extent, Const)}
    ends = affine.bounds(index, ranges)
    if ends is None or not isinstance(n, Const):
        return 0, n
    lo, hi = max(ends[0], 0), min(ends[1], int(n.value) - 1)
    return (lo, Const(hi - lo + 1)) if lo <= hi else (0, n)
