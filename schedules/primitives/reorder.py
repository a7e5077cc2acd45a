"""reorder: interchange nested loops."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from schedules.errors import ScheduleError
from schedules.ir import Loop, Nest, Stmt
from schedules.model import Target
from schedules.nest import find_loop, loop_path, replace_stmt
from schedules.primitives.base import Primitive


@dataclass(frozen=True)
class Reorder(Primitive):
    """Put the named loops into the given order; loops not named keep their places.

    Before: ``for i: for j: for k: S``. After ``reorder(k, i)``: ``for k: for j: for i: S``.
    Legal when the loops are nested in one another with nothing beside them; reductions are
    associative and commutative, so that any order means the same. Cost: locality only.
    """

    name: ClassVar[str] = "reorder"
    loops: tuple[str, ...]

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
                raise ScheduleError(
                    f"reorder: {missing} is not nested directly below {top}: other statements stand beside "
                    "it; reorder before compute_at or decompose_reduction puts them there"
                )
            chain.append(s)
            wanted.discard(s.var)
            s = s.body
        return chain

    def check(self, nest: Nest, target: Target | None = None) -> None:
        if len(set(self.loops)) != len(self.loops):
            raise ScheduleError(f"reorder: a loop is named twice in {list(self.loops)}")
        if len(self.loops) < 2:
            raise ScheduleError(f"reorder: needs at least two loops, got {list(self.loops)}")
        for loop in self._chain(nest):
            if loop.kind == "vectorize":
                raise ScheduleError(f"reorder: {loop.var} is vectorized; reorder before vectorize")

    def apply(self, nest: Nest) -> Nest:
        chain = self._chain(nest)
        by_name = {x.var: x for x in chain}
        order = iter(self.loops)
        new = [by_name[next(order)] if x.var in set(self.loops) else x for x in chain]
        body = chain[-1].body
        for x in reversed(new):
            body = replace(x, body=body)
        return replace_stmt(nest, chain[0], body)
