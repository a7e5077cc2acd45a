"""reorder: interchange nested loops."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from schedules.ir import Block, Loop, Nest, Stmt, blocks, const
from schedules.ir.deps import repeated
from schedules.ir.nest import find_loop, loop_path, loops_of, replace_stmt, vars_bound
from schedules.model import Target
from schedules.primitives.base import OfLoops, listed


@dataclass(frozen=True)
class Reorder(OfLoops[None]):
    """Put the named loops into the given order; loops not named keep their places.

    Before: ``for i: for j: for k: S``. After ``reorder(k, i)``: ``for k: for j: for i: S``. Legal if the
    loops are nested in one another with nothing beside them. Reductions are associative and commutative, so
    any order means the same if each still starts before it adds up. So two loops that both mix spatial and
    reduction axes keep their order, and a reduction loop stays inside one that computes the same elements
    again. Cost: locality only.

    >>> s.reorder("y_k", "y_j")
    >>> s.loops("y")
    ['y_i', 'y_k', 'y_j']
    """

    name: ClassVar[str] = "reorder"

    def _chain(self, nest: Nest) -> list[Loop]:
        """The perfectly nested loops from the outermost named to the innermost named."""
        wanted = set(self.loops)
        paths = {v: loop_path(nest, v) for v in self.loops}
        top = min(self.loops, key=lambda v: len(paths[v]))
        chain: list[Loop] = []
        s: Stmt = find_loop(nest, top)
        while wanted:
            if not isinstance(s, Loop):
                missing = ", ".join(sorted(wanted))
                raise self.refused(
                    f"{missing} is not nested directly below {top}: other statements stand beside it; "
                    "reorder before compute_at or decompose_reduction puts them there"
                )
            chain.append(s)
            wanted.discard(s.var)
            s = s.body
        return chain

    def sentence(self) -> str:
        return f"Nest the loops in the order {listed(self.loops, 'then')}, outermost first."

    def check(self, nest: Nest, target: Target | None = None) -> None:
        if len(set(self.loops)) != len(self.loops):
            raise self.refused(f"a loop is named twice in {list(self.loops)}")
        if len(self.loops) < 2:
            raise self.refused(f"needs at least two loops, got {list(self.loops)}")
        for loop in self._chain(nest):
            if loop.kind == "vectorize":
                raise self.refused(f"{loop.var} is vectorized; reorder before vectorize")
        for b in blocks(self._chain(nest)[-1].body):
            if b.init:
                self._check_start(nest, b)

    def _check_start(self, nest: Nest, b: Block) -> None:
        """Check the start of ``b``. An element starts where all reduction iterations are 0. That must remain
        its first instance, and come again before it is added up again."""
        chain = self._chain(nest)
        was, now = [x.var for x in chain], self._ordered(chain)
        around = loops_of(nest, b.name)
        within = around[around.index(chain[-1]) + 1 :]
        red, spa = vars_bound(b, "reduce"), vars_bound(b, "spatial")
        for n, r in enumerate(now):
            if r.var not in red or const(r.extent) in (None, 1):
                continue
            inner = [*now[n + 1 :], *within]
            passed = {x.var for x in now[n + 1 :]} & set(was[: was.index(r.var)])
            for v in sorted(passed):
                if {v, r.var} <= red & spa:
                    raise self.refused(
                        f"{v} and {r.var} both mix spatial and reduction axes of block {b.name}, so it would "
                        f"add to elements before their first value; keep {v} outside, or reorder before fuse"
                    )
            twice = repeated(b, inner)
            again = [v for v in was if v in passed & set(twice)]
            if again:
                raise self.refused(
                    f"{again[0]} computes the same elements of block {b.name} again; {r.var} outside it "
                    f"would add to them several times; keep {r.var} inside {again[0]}"
                )

    def _ordered(self, chain: list[Loop]) -> list[Loop]:
        """The loops of the chain in their new order."""
        by_name = {x.var: x for x in chain}
        order = iter(self.loops)
        return [by_name[next(order)] if x.var in set(self.loops) else x for x in chain]

    def apply(self, nest: Nest) -> Nest:
        chain = self._chain(nest)
        body = chain[-1].body
        for x in reversed(self._ordered(chain)):
            body = replace(x, body=body)
        return replace_stmt(nest, chain[0], body)
