"""inline: compute an elementwise stage where it is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from schedules import expr as E
from schedules.expr import Expr, Load, Var
from schedules.ir import Block, Nest, blocks
from schedules.ir.deps import check_races
from schedules.ir.nest import (
    drop_unused_buffers,
    find_block,
    find_loop,
    loops_of,
    map_blocks,
    over_axes,
    places_of,
    readers,
    reads,
    replace_stmt,
    subtree_of,
    writers,
)
from schedules.loads import with_loads
from schedules.model import Target
from schedules.primitives.base import Primitive


def outgrown(nest: Nest, b: Block, nodes: int, depth: int) -> Block | None:
    """A reader of which an expression would have more than ``nodes`` nodes or ``depth`` levels with the block
    inlined; None if there is none."""
    name = b.writes[0].buffer
    own, levels = E.size(b.values[0])
    for u in readers(nest, name):
        for v in (*u.values, *u.where, *places_of(u)):
            n, d = E.size(v)
            if n + own * sum(x.buffer == name for x in E.loads(v)) > nodes or d + levels > depth:
                return u
    return None


@dataclass(frozen=True)
class Inline(Primitive[None]):
    """Substitute a block's value into its readers and drop it (TVM: compute_inline).

    Before: ``B[i] = A[i] + 1; C[j] = B[j] * 2``. After: ``C[j] = (A[j] + 1) * 2``. Legal for a block without
    a reduction whose output is not an argument of the kernel. What a parallel loop around it computes for
    itself must stay inside, unless its iterations write elements of their own. Cost: the value is computed
    again at every read.

    >>> a = te.compute((64,), lambda i: x[0, i] + 1.0, name="a")
    >>> b = te.compute((64,), lambda i: a[i] * 2.0, name="b")
    >>> t = at.Schedule([x, b])
    >>> t.inline("a")
    >>> t.blocks()
    ['b']
    """

    name: ClassVar[str] = "inline"
    block: str

    def sentence(self) -> str:
        return f"Compute `{self.block}` where it is read, at each read, and store it nowhere."

    def check(self, nest: Nest, target: Target | None = None) -> None:
        b = find_block(nest, self.block)
        if b.reducer is not None:
            raise self.refused("it is a reduction; use compute_at instead")
        if len(b.writes) != 1:
            raise self.refused(f"it has {len(b.writes)} outputs; only one can be inlined")
        w = b.writes[0]
        if w.buffer in nest.params:
            raise self.refused(f"{w.buffer} is an output of the kernel; inline its producers instead")
        if w.indices != tuple(Var(i.var) for i in b.iters) or b.where:
            raise self.refused("its writes are not one element per iteration in order")
        others = [x.name for x in writers(nest, w.buffer) if x is not b]
        if others:
            raise self.refused(f"{others[0]} writes {w.buffer} too; only a whole stage can be inlined")
        if not readers(nest, w.buffer):
            raise self.refused(f"nothing reads {w.buffer}")
        u = outgrown(nest, b, E.MAX_NODES, E.MAX_DEPTH)
        if u is not None:
            raise self.refused(
                f"the expression of {u.name} would have more than {E.MAX_NODES} operations and operands, or "
                f"{E.MAX_DEPTH} levels; use compute_at instead"
            )
        self._check_private(nest, b)

    def _check_private(self, nest: Nest, b: Block) -> None:
        """Check values that each iteration of a parallel loop computes for itself. Readers outside would
        share them, so iterations must not write the same elements."""
        for loop in loops_of(nest, b.name):
            if loop.kind in ("serial", "unroll", "vectorize"):
                continue
            inside = {x.name for x in blocks(loop.body)}
            own = any(w.name in inside for x in reads(b) for w in writers(nest, x.buffer))
            if own and any(u.name not in inside for u in readers(nest, b.writes[0].buffer)):
                after = self.apply(nest)
                check_races(after, find_loop(after, loop.var), f"inline {self.block}: {loop.kind}")

    def apply(self, nest: Nest) -> Nest:
        b = find_block(nest, self.block)
        name, value = b.writes[0].buffer, b.values[0]

        def computed(x: Load) -> Expr | None:
            if x.buffer != name:
                return None
            return E.substitute(value, dict(zip((i.var for i in b.iters), x.indices, strict=True)))

        users = {x.name for x in readers(nest, name)}
        nest = map_blocks(
            nest, lambda x: over_axes(x, lambda v: with_loads(v, computed)) if x.name in users else x
        )
        return drop_unused_buffers(replace_stmt(nest, subtree_of(nest, self.block), None))
