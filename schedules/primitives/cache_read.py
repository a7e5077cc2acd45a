"""cache_read: read a buffer through a copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from schedules import expr as E
from schedules.errors import ScheduleError
from schedules.expr import Const, Expr, Load, Var
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
from schedules.primitives.base import Primitive, scope_in_words


@dataclass(frozen=True)
class CacheRead(Primitive[str]):
    """Copy ``buffer`` into ``<buffer>_<scope>`` before ``block``, which then reads the copy.

    Before: ``C[i] = A[i] * 2``. After: ``A_shared[x] = A[x]; C[i] = A_shared[i] * 2``. The copy is whole and
    stands at the root. `ComputeAt` moves it inside and shrinks it, `Pack` changes its layout. Legal for a
    buffer that the block only reads and that is complete before the outermost loop around the block. Cost:
    one more pass over the data.

    >>> s.cache_read("y", "w")
    'w_global'
    >>> s.blocks()
    ['w_global', 'y', 'z']
    """

    name: ClassVar[str] = "cache_read"
    subject: ClassVar[str] = "buffer"
    block: str
    buffer: str
    scope: str = "global"

    def result(self) -> str:
        return f"{self.buffer}_{self.scope}"

    def sentence(self) -> str:
        return (
            f"Copy `{self.buffer}` into `{self.result()}`, in {scope_in_words(self.scope)}; "
            f"`{self.block}` reads the copy."
        )

    def check(self, nest: Nest, target: Target | None = None) -> None:
        check_copied(nest, self.name, self.block, self.buffer, self.scope, self.result())

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


def check_copied(nest: Nest, what: str, block: str, buffer: str, scope: str, new: str) -> None:
    """Raise ScheduleError unless ``block`` can read ``buffer`` through a copy ``new`` that is made before.
    ``what``: the name of the primitive."""
    b = find_block(nest, block)
    if scope not in SCOPES:
        raise ScheduleError(f"{what} {buffer}: scope {scope!r} is not one of {', '.join(SCOPES)}")
    have = sorted({x.buffer for x in reads(b)})
    if buffer not in have:
        raise ScheduleError(
            f"{what} {buffer}: block {block} does not read it; it reads {', '.join(have) or 'nothing'}"
        )
    if any(w.buffer == buffer for w in b.writes):
        raise ScheduleError(f"{what} {buffer}: block {block} writes it; use cache_write")
    here = root_child(nest, block)
    for w in writers(nest, buffer):
        if any(w is x for x in blocks(here)):
            raise ScheduleError(
                f"{what} {buffer}: {w.name} computes it inside a loop around block {block}, so the copy "
                f"would be too early; use {what} before compute_at"
            )
    if new in block_names(nest) or any(x.name == new for x in nest.buffers):
        raise ScheduleError(f"{what} {buffer}: {new} exists already")


def in_reads(b: Block, f: Callable[[Expr], Expr | None]) -> Block:
    """The block with ``f`` applied to its values and conditions (`expr.rewrite`)."""
    values, where = (tuple(E.rewrite(x, f) for x in es) for es in (b.values, b.where))
    return replace(b, values=values, where=where)
