"""fuse: nested loops into one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import ClassVar

from schedules.errors import ScheduleError
from schedules.expr import Const, Expr, Var
from schedules.ir import Loop, Nest, blocks, const
from schedules.ir.deps import repeated
from schedules.ir.nest import bind_loops, find_loop, loops_of, replace_stmt, vars_bound
from schedules.model import Target
from schedules.primitives.base import (
    OfLoops,
    extent_of,
    listed,
    require_extent,
    require_new,
    require_serial,
)


@dataclass(frozen=True)
class Fuse(OfLoops[str]):
    """Fuse directly nested serial loops, outermost first, into one named ``i_j``.

    Before: ``for i in range(n): for j in range(m): S(i, j)``. After::

        for i_j in range(n * m):
          S(i_j // m, i_j % m)

    Legal if each loop holds the next and nothing else, and none that reduces a block is fused with one that
    computes the same elements of it again. Cost: a division where an index needs the parts; none if the fused
    loop is split at ``m`` again or ``m`` is a constant.

    >>> s.fuse("y_i", "y_j")
    'y_i_y_j'
    """

    name: ClassVar[str] = "fuse"

    def result(self) -> str:
        return "_".join(self.loops)

    def sentence(self) -> str:
        return f"Fuse loops {listed(self.loops)} into one loop, `{self.result()}`."

    def check(self, nest: Nest, target: Target | None = None) -> None:
        require_nested(nest, self.loops, self.name)
        self._check_reductions(nest)

    def _check_reductions(self, nest: Nest) -> None:
        """Check that a loop over a reduction adds up each step once. Else rfactor, vectorize and
        decompose_reduction would later add it up several times."""
        for b in blocks(find_loop(nest, self.loops[-1]).body):
            around = loops_of(nest, b.name)
            own = around[[x.var for x in around].index(self.loops[0]) :]
            red = {x.var for x in own if const(x.extent) not in (None, 1)} & vars_bound(b, "reduce")
            reducing = [v for v in self.loops if v in red]
            again = [v for v in repeated(b, own) if v in self.loops] if reducing else []
            if again:
                raise self.refused(
                    f"{reducing[0]} reduces block {b.name}, and {again[0]} computes the same elements of it "
                    "again; fuse only loops of the reduction"
                )

    def apply(self, nest: Nest) -> Nest:
        chain = [find_loop(nest, v) for v in self.loops]
        fused: Expr = Var(self.result())
        total: Expr = Const(1)
        env: dict[str, Expr] = {}
        rest = fused
        for n, loop in enumerate(reversed(chain)):
            last = n == len(chain) - 1
            env[loop.var] = rest if last else rest % loop.extent
            rest = rest // loop.extent
            total = loop.extent * total
        body = bind_loops(chain[-1].body, env)
        return replace_stmt(nest, chain[0], Loop(self.result(), total, body))


def require_nested(nest: Nest, loops: tuple[str, ...], what: str) -> None:
    """Raise ScheduleError unless loops are serial, each directly inside the one before, and can be one, of
    their names together."""
    if len(loops) < 2:
        raise ScheduleError(f"{what}: needs at least two loops, got {list(loops)}")
    for outer, inner in pairwise(loops):
        body = find_loop(nest, outer).body
        find_loop(nest, inner)
        if not (isinstance(body, Loop) and body.var == inner):
            raise ScheduleError(
                f"{what}: {inner} is not directly inside {outer}; reorder them to be neighbours first"
            )
    for v in loops:
        require_serial(find_loop(nest, v), what)
    result = "_".join(loops)
    require_extent(prod(extent_of(find_loop(nest, v)) or 1 for v in loops), f"{what} {result}")
    require_new(nest, (result,), what)
