"""reduce_ahead: the part of a reduction in the steps of a scan that does not wait for them, before them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from schedules import affine
from schedules import expr as E
from schedules.expr import Const, Expr, Var
from schedules.ir import Block, Loop, Nest, loops_around
from schedules.ir.carried import carried_buffers
from schedules.ir.nest import (
    axis_ranges,
    block_names,
    bound,
    find_block,
    find_loop,
    in_loops_like,
    insert_before,
    loops_of,
    reads,
    replace_stmt,
    writers,
)
from schedules.model import Target
from schedules.primitives.base import Primitive
from schedules.te.infeasible import impossible, negation


@dataclass(frozen=True)
class ReduceAhead(Primitive[str]):
    """Do the part of a reduction that reads what is there before ``loop`` in a block ``<block>_ahead`` that
    stands before the loop. ``loop`` runs over the last steps of a scan, as `split` of the loop of its steps
    makes it.

    Before: ``for co: for ci in range(4): for i: for k: if k < c: s[c, i] += L[k, i] * L[k, c]`` and
    ``L[c, i]`` of that, where c is ``co * 4 + ci``. After ``reduce_ahead(s, ci)``::

        for co:
          for ci in range(4): for i: for k: if k < c // 4 * 4: s[c, i] += L[k, i] * L[k, c]
          for ci in range(4):
            for i: for k: if k < c and k >= c // 4 * 4: s[c, i] += L[k, i] * L[k, c]
            L[c, i] = ...

    So most of the reduction is a product, whose loops may have another order. Where its last loop is that of
    the reduction, terms are added in the order that they had. Legal if the indices at which it reads what the
    scan makes tell, all alike, whether an iteration of ``loop`` stores that. The loops of the new block are
    called ``<loop>_ahead``. Cost: the results of all iterations of ``loop`` are kept.

    >>> L, k = te.state((8, 8), name="L"), te.reduce_axis(7, "k")
    >>> u = te.compute((8, 8), lambda c, i: te.sum(te.select(k < c, L[k, i] * L[k, c], 0.0), axis=k), "u")
    """

    name: ClassVar[str] = "reduce_ahead"
    block: str
    loop: str

    def result(self) -> str:
        return f"{self.block}_ahead"

    def sentence(self) -> str:
        return f"Do the part of `{self.block}` that reads nothing of loop `{self.loop}` before that loop."

    def check(self, nest: Nest, target: Target | None = None) -> None:
        b, loop = find_block(nest, self.block), find_loop(nest, self.loop)
        if b.reducer is None:
            raise self.refused("it is not a reduction; name the block of one")
        if not b.init:
            raise self.refused("it starts elsewhere; use reduce_ahead before decompose_reduction")
        if not any(x is loop for x in loops_of(nest, self.block)):
            raise self.refused(f"{self.loop} is not around it; choose the loop of the last steps of its scan")
        if self.result() in block_names(nest):
            raise self.refused(f"{self.result()} exists already; use reduce_ahead once for each block")
        self._before(nest, b, loop)

    def _before(self, nest: Nest, b: Block, loop: Loop) -> Expr:
        """The condition, in axes of the block, under which a term reads nothing that the loop stores."""
        found = set[Expr]()
        own = dict(zip((i.var for i in b.iters), b.binds, strict=True))
        for x in reads(b):
            if x.buffer not in carried_buffers(nest):
                continue
            for w in writers(nest, x.buffer):
                made = next([bound(w, i) for i in a.indices] for a in w.writes if a.buffer == x.buffer)
                at = [d for d, e in enumerate(made) if loop.var in E.variables(e)]
                axes = [v for v, e in own.items() if len(at) == 1 and e == made[at[0]]]
                if not axes:
                    raise self.refused(
                        f"it reads {E.show(x)}, and no axis of it tells which of that loop {self.loop} "
                        "stores; choose the loop of the last steps of its scan"
                    )
                found.add(_before(x.indices[at[0]], b, axes[0], loop))
        if len(found) != 1:
            raise self.refused(
                "it reads what the scan makes at several steps, or nothing of that; choose another reduction"
            )
        return found.pop()

    def apply(self, nest: Nest) -> Nest:
        b, loop = find_block(nest, self.block), find_loop(nest, self.loop)
        before = self._before(nest, b, loop)
        ranges = axis_ranges(b.iters)
        told = tuple(c for c in b.where if not impossible((before, negation(c)), ranges))
        first = replace(b, name=self.result(), where=(*told, before))
        ahead = in_loops_like(nest, loops_around(b, loop), first, "ahead")
        nest = replace_stmt(nest, b, replace(b, init=False, where=(*b.where, negation(before))))
        return insert_before(nest, self.loop, ahead)


def _before(at: Expr, b: Block, axis: str, loop: Loop) -> Expr:
    """Whether an index along an axis is that of a step before the first iteration of the loop, where that is
    at its own point of the axis."""
    c, n = Var(axis), loop.extent
    step, _ = affine.isolate(bound(b, c), loop.var)
    if step == Const(-1):
        last = next(i.extent for i in b.iters if i.var == axis) - 1
        return E.compare("<", last - (last - c) // n * n, at)
    return E.compare("<", at, c // n * n)
