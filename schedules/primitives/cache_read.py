"""cache_read: read a buffer through a copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from schedules.errors import ScheduleError
from schedules.expr import Expr, Load
from schedules.ir import SCOPES, Block, Buffer, Nest, blocks
from schedules.ir.nest import (
    add_buffer,
    block_names,
    copy_block,
    find_block,
    fresh_each,
    insert,
    reads,
    redirect_reads,
    replace_stmt,
    root_child,
    wrap_loops,
    writers,
)
from schedules.loads import Indices
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
        src, new = nest.buffer(self.buffer), self.result()
        b = redirect_reads(find_block(nest, self.block), self.buffer, new)
        copy = Buffer(new, src.shape, src.dtype, self.scope)
        return through_copy(nest, b, copy, lambda at: Load(self.buffer, at, src.dtype))


def through_copy(nest: Nest, b: Block, copy: Buffer, of: Callable[[Indices], Expr]) -> Nest:
    """The nest with block ``b`` in place of that of its name, and before it a stage that makes the buffer
    ``copy`` which it reads; ``of``: the elements, by their indices."""
    made = copy_block(copy.name, copy.shape, [copy.name], lambda at: (of(at),))
    nest = add_buffer(replace_stmt(nest, find_block(nest, b.name), b), copy)
    stmt = wrap_loops(made, fresh_each(nest, (f"{copy.name}_{i.var}" for i in made.iters)))
    return insert(nest, None, stmt, before=b)


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
    check_complete(nest, what, block, buffer)
    if new in block_names(nest) or any(x.name == new for x in nest.buffers):
        raise ScheduleError(f"{what} {buffer}: {new} exists already")


def check_complete(nest: Nest, what: str, block: str, buffer: str) -> None:
    """Raise ScheduleError unless ``buffer`` is complete before the outermost loop around ``block``."""
    here = root_child(nest, block)
    for w in writers(nest, buffer):
        if any(w is x for x in blocks(here)):
            raise ScheduleError(
                f"{what} {buffer}: {w.name} computes it inside a loop around block {block}, so the copy "
                f"would be too early; use {what} before compute_at"
            )
