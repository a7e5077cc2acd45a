"""cache_read: read a buffer through a copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from schedules.errors import ScheduleError
from schedules.expr import Const, Load, Var
from schedules.ir import SCOPES, Access, Block, Buffer, Iter, Nest, blocks
from schedules.ir.nest import (
    add_buffer,
    block_names,
    find_block,
    fresh_each,
    insert,
    map_blocks,
    reads,
    redirect,
    root_child,
    wrap_loops,
    writers,
)
from schedules.model import Target
from schedules.primitives.base import Primitive


@dataclass(frozen=True)
class CacheRead(Primitive[str]):
    """Copy ``buffer`` into ``<buffer>_<scope>`` before ``block``, which then reads the copy.

    Before: ``C[i] = A[i] * 2``. After: ``A_shared[x] = A[x]; C[i] = A_shared[i] * 2``. The copy is whole and
    stands at the root. `ComputeAt` moves it inside and shrinks it, `Pack` changes its layout. Legal for a
    buffer that the block only reads and that is complete before the outermost loop around the block. Cost:
    one more pass over the data.
    """

    name: ClassVar[str] = "cache_read"
    block: str
    buffer: str
    scope: str = "global"

    def result(self) -> str:
        return f"{self.buffer}_{self.scope}"

    def check(self, nest: Nest, target: Target | None = None) -> None:
        b = find_block(nest, self.block)
        if self.scope not in SCOPES:
            raise ScheduleError(
                f"cache_read {self.buffer}: scope {self.scope!r} is not one of {', '.join(SCOPES)}"
            )
        have = sorted({x.buffer for x in reads(b)})
        if self.buffer not in have:
            raise ScheduleError(
                f"cache_read {self.buffer}: block {self.block} does not read it; it reads "
                f"{', '.join(have) or 'nothing'}"
            )
        if any(w.buffer == self.buffer for w in b.writes):
            raise ScheduleError(f"cache_read {self.buffer}: block {self.block} writes it; use cache_write")
        here = root_child(nest, self.block)
        for w in writers(nest, self.buffer):
            if any(w is x for x in blocks(here)):
                raise ScheduleError(
                    f"cache_read {self.buffer}: {w.name} computes it inside a loop around block "
                    f"{self.block}, so the copy would be too early; use cache_read before compute_at"
                )
        if self.result() in block_names(nest) or any(x.name == self.result() for x in nest.buffers):
            raise ScheduleError(f"cache_read {self.buffer}: {self.result()} exists already")

    def apply(self, nest: Nest) -> Nest:
        src = nest.buffer(self.buffer)
        new = self.result()
        iters = tuple(Iter(f"x{d}", n, "spatial") for d, n in enumerate(src.shape))
        at = tuple(Var(i.var) for i in iters)
        copy = Block(
            new,
            iters,
            tuple(Const(0) for _ in iters),
            (Access(new, at),),
            (Load(self.buffer, at, src.dtype),),
        )
        nest = map_blocks(
            nest, lambda b: redirect(b, self.buffer, new, writing=False) if b.name == self.block else b
        )
        nest = add_buffer(nest, Buffer(new, src.shape, src.dtype, self.scope))
        stmt = wrap_loops(copy, fresh_each(nest, (f"{new}_{i.var}" for i in iters)))
        return insert(nest, None, stmt, before=find_block(nest, self.block))
