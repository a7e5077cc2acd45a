"""decompose_reduction: initialise a reduction in loops of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from schedules.expr import Const
from schedules.ir import Block, Loop, Nest, loops_around
from schedules.ir.deps import recovered
from schedules.ir.nest import (
    block_names,
    block_path,
    bound,
    find_block,
    find_loop,
    in_loops_like,
    insert_before,
    loop_path,
    loop_vars,
    loops_of,
    replace_stmt,
    started,
    vars_bound,
)
from schedules.model import Target
from schedules.primitives.base import Primitive


@dataclass(frozen=True)
class DecomposeReduction(Primitive[str]):
    """Write the identity in a block ``<block>_init`` just before ``loop``, instead of at the first
    iteration of the reduction.

    Before: ``for i: for k: (if k == 0: C[i] = 0); C[i] += A[i, k]``. After ``decompose_reduction(C, k)``::

        for i:
          C[i] = 0
          for k: C[i] += A[i, k]

    Legal if no reduction loop of the block stands outside ``loop``. The spatial loops inside ``loop`` are
    repeated around the new block with their kinds, named ``<loop>_init``. Cost: one more pass over the
    accumulators, and one branch less in the inner loop.

    >>> s.decompose_reduction("y", "y_k")
    'y_init'
    >>> s.blocks()
    ['y_init', 'y', 'z']
    """

    name: ClassVar[str] = "decompose_reduction"
    block: str
    loop: str

    def result(self) -> str:
        return f"{self.block}_init"

    def sentence(self) -> str:
        return f"Set `{self.block}` to its start value before loop `{self.loop}`, not in its first iteration."

    def check(self, nest: Nest, target: Target | None = None) -> None:
        b = find_block(nest, self.block)
        if b.reducer is None:
            raise self.refused("it is not a reduction")
        if not b.init:
            raise self.refused("it is decomposed already")
        around = [x.var for x in loops_of(nest, self.block)]
        if self.loop not in around:
            find_loop(nest, self.loop)
            raise self.refused(f"{self.loop} is not around it; its loops are {', '.join(around)}")
        red, spa = vars_bound(b, "reduce"), vars_bound(b, "spatial")
        outside = [v for v in loop_vars(loop_path(nest, self.loop))[:-1] if v in red]
        if outside:
            raise self.refused(
                f"{outside[0]} is a reduction loop outside {self.loop}; decompose at {outside[0]}"
            )
        both = [v for v in around[around.index(self.loop) :] if v in red and v in spa]
        if both:
            raise self.refused(f"{both[0]} mixes spatial and reduction axes; do not fuse those")
        self._check_once(nest, b)
        if self.result() in block_names(nest):
            raise self.refused(f"{self.result()} exists already")

    def _check_once(self, nest: Nest, b: Block) -> None:
        """Check that one run of ``loop`` computes each element once. An element that is computed again, for
        an overlapping region or by a loop that the block does not use, needs a new start there."""
        path = block_path(nest, self.block)
        inner = [
            s
            for s in path[next(n for n, s in enumerate(path) if isinstance(s, Loop) and s.var == self.loop) :]
            if isinstance(s, Loop)
        ]
        spatial = {s.var: s.extent for s in inner if s.var not in vars_bound(b, "reduce")}
        told = recovered([bound(b, i) for i in b.writes[0].indices], spatial)
        again = [v for v, n in spatial.items() if v not in told and n != Const(1)]
        if again:
            raise self.refused(
                f"{again[0]} computes the same elements of it again; choose a loop inside {again[0]}"
            )

    def apply(self, nest: Nest) -> Nest:
        b = find_block(nest, self.block)
        loop = find_loop(nest, self.loop)
        used = vars_bound(b, "spatial")
        inner = [x for x in loops_around(b, loop) if x.var in used]
        init = in_loops_like(nest, inner, started(b, self.result(), b.writes), "init")
        nest = replace_stmt(nest, b, replace(b, init=False))
        return insert_before(nest, self.loop, init)
