"""cache_write: write the outputs of a block through copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from schedules.expr import Load
from schedules.ir import SCOPES, Block, Buffer, Nest, blocks
from schedules.ir.nest import (
    add_buffer,
    block_names,
    copy_block,
    find_block,
    fresh_each,
    insert,
    readers,
    redirect,
    replace_stmt,
    root_child,
    wrap_loops,
    writers,
)
from schedules.model import Target
from schedules.primitives.base import Primitive, scope_in_words


@dataclass(frozen=True)
class CacheWrite(Primitive[str]):
    """Let ``block`` compute into ``<buffer>_<scope>`` and copy that out afterwards (block
    ``<block>_write``), all outputs of a tuple together.

    Before: ``C[i] += A[i, k]``. After: ``C_local[i] += A[i, k]; C[x] = C_local[x]``. With
    `ReverseComputeAt` on the copy, the cache shrinks to a tile: accumulators in registers.
    Legal for a block whose outputs no other block writes. Cost: one more copy.

    >>> s.cache_write("y")
    'y_write'
    >>> s.blocks()
    ['y', 'y_write', 'z']
    """

    name: ClassVar[str] = "cache_write"
    block: str
    scope: str = "local"

    def result(self) -> str:
        return f"{self.block}_write"

    def sentence(self) -> str:
        return (
            f"Compute `{self.block}` into {scope_in_words(self.scope)} and copy the result out afterwards "
            f"(`{self.result()}`)."
        )

    def check(self, nest: Nest, target: Target | None = None) -> None:
        b = find_block(nest, self.block)
        if self.scope not in SCOPES:
            raise self.refused(f"scope {self.scope!r} is not one of {', '.join(SCOPES)}")
        check_written_apart(nest, b, self)
        shapes = {tuple(nest.buffer(w.buffer).shape): w.buffer for w in b.writes}
        if len(shapes) > 1:
            one, other, *_ = shapes.values()
            raise self.refused(
                f"its outputs {one} and {other} have unlike shapes; use it before split_dim or merge_dims, "
                "or those on all outputs"
            )
        for n in (self.result(), *(self._cache(w.buffer) for w in b.writes)):
            if n in block_names(nest) or any(x.name == n for x in nest.buffers):
                raise self.refused(f"{n} exists already")

    def _cache(self, buffer: str) -> str:
        return f"{buffer}_{self.scope}"

    def apply(self, nest: Nest) -> Nest:
        block = find_block(nest, self.block)
        outs = [nest.buffer(w.buffer) for w in block.writes]
        copy = copy_block(
            self.result(),
            outs[0].shape,
            [out.name for out in outs],
            lambda at: tuple(Load(self._cache(out.name), at, out.dtype) for out in outs),
        )
        here = block
        for out in outs:
            here = redirect(here, out.name, self._cache(out.name))
            nest = add_buffer(nest, Buffer(self._cache(out.name), out.shape, out.dtype, self.scope))
        nest = replace_stmt(nest, block, here)
        stmt = wrap_loops(copy, fresh_each(nest, (f"{self.result()}_{i.var}" for i in copy.iters)))
        read = {b.name for out in outs for b in readers(nest, out.name)}
        first = next((b for b in blocks(nest.body) if b.name in read), None)
        return insert(nest, None, stmt, before=first)


def check_written_apart(nest: Nest, b: Block, p: Primitive[Any]) -> None:
    """Raise ScheduleError unless a stage at the root can write the outputs of a block, after it, in its
    place. ``p``: the primitive that errors name."""
    if b.reducer is not None and not b.init:
        raise p.refused("use it before decompose_reduction")
    here = blocks(root_child(nest, b.name))
    for buffer in (w.buffer for w in b.writes):
        others = [x.name for x in writers(nest, buffer) if x is not b]
        if others:
            raise p.refused(
                f"{others[0]} writes {buffer} too; use {p.name} before decompose_reduction"
            )
        users = [x.name for x in readers(nest, buffer) if x is not b and any(x is y for y in here)]
        if users:
            raise p.refused(
                f"{users[0]} reads {buffer} inside a loop around both, so the copy would be too late; "
                f"use {p.name} before compute_at"
            )
