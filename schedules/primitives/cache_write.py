"""cache_write: write a buffer through a copy."""

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
    readers,
    redirect,
    root_child,
    wrap_loops,
    writers,
)
from schedules.model import Target
from schedules.primitives.base import Primitive


@dataclass(frozen=True)
class CacheWrite(Primitive[str]):
    """Let ``block`` compute into ``<buffer>_<scope>`` and copy that out afterwards (block
    ``<buffer>_write``).

    Before: ``C[i] += A[i, k]``. After: ``C_local[i] += A[i, k]; C[x] = C_local[x]``. With
    `ReverseComputeAt` on the copy, the cache shrinks to a tile: accumulators in registers.
    Legal for a block with one output that no other block writes. Cost: one more copy.
    """

    name: ClassVar[str] = "cache_write"
    block: str
    scope: str = "local"

    def result(self) -> str:
        return f"{self.block}_write"

    def check(self, nest: Nest, target: Target | None = None) -> None:
        b = find_block(nest, self.block)
        if self.scope not in SCOPES:
            raise ScheduleError(
                f"cache_write {self.block}: scope {self.scope!r} is not one of {', '.join(SCOPES)}"
            )
        if len(b.writes) != 1:
            raise ScheduleError(
                f"cache_write {self.block}: it has {len(b.writes)} outputs; only one can be cached"
            )
        if b.reducer is not None and not b.init:
            raise ScheduleError(f"cache_write {self.block}: use it before decompose_reduction")
        buffer = b.writes[0].buffer
        others = [x.name for x in writers(nest, buffer) if x is not b]
        if others:
            raise ScheduleError(
                f"cache_write {self.block}: {others[0]} writes {buffer} too; use cache_write before "
                "decompose_reduction"
            )
        here = root_child(nest, self.block)
        users = [x.name for x in readers(nest, buffer) if x is not b and any(x is y for y in blocks(here))]
        if users:
            raise ScheduleError(
                f"cache_write {self.block}: {users[0]} reads {buffer} inside a loop around both, so the copy "
                "would be too late; use cache_write before compute_at"
            )
        for n in (self.result(), f"{b.writes[0].buffer}_{self.scope}"):
            if n in block_names(nest) or any(x.name == n for x in nest.buffers):
                raise ScheduleError(f"cache_write {self.block}: {n} exists already")

    def apply(self, nest: Nest) -> Nest:
        block = find_block(nest, self.block)
        out = nest.buffer(block.writes[0].buffer)
        local = f"{out.name}_{self.scope}"
        iters = tuple(Iter(f"x{d}", n, "spatial") for d, n in enumerate(out.shape))
        at = tuple(Var(i.var) for i in iters)
        copy = Block(
            self.result(),
            iters,
            tuple(Const(0) for _ in iters),
            (Access(out.name, at),),
            (Load(local, at, out.dtype),),
        )
        nest = map_blocks(nest, lambda b: redirect(b, out.name, local) if b.name == self.block else b)
        nest = add_buffer(nest, Buffer(local, out.shape, out.dtype, self.scope))
        stmt = wrap_loops(copy, fresh_each(nest, (f"{self.result()}_{i.var}" for i in iters)))
        users = readers(nest, out.name)
        return insert(nest, None, stmt, before=users[0] if users else None)


