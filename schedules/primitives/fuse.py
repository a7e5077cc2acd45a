"""fuse: nested loops into one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from schedules.errors import ScheduleError
from schedules.expr import Const, Expr, Var
from schedules.ir import Loop, Nest
from schedules.model import Target
from schedules.nest import bind_loops, find_loop, replace_stmt
from schedules.primitives.base import Primitive, require_new, require_serial


@dataclass(frozen=True)
class Fuse(Primitive):
    """Fuse directly nested serial loops, outermost first, into one named ``i_j``.

    Before: ``for i in range(n): for j in range(m): S(i, j)``. After::

        for i_j in range(n * m):
          S(i_j // m, i_j % m)

    Legal when each loop holds the next and nothing else. Cost: a division where an index needs
    the parts; none once the fused loop is split at ``m`` again or ``m`` is a constant.
    """

    name: ClassVar[str] = "fuse"
    loops: tuple[str, ...]

    def result(self) -> str:
        return "_".join(self.loops)

    def check(self, nest: Nest, target: Target | None = None) -> None:
        if len(self.loops) < 2:
            raise ScheduleError(f"fuse: needs at least two loops, got {list(self.loops)}")
        for outer, inner in zip(self.loops, self.loops[1:], strict=False):
            body = find_loop(nest, outer).body
            find_loop(nest, inner)
            if not (isinstance(body, Loop) and body.var == inner):
                raise ScheduleError(
                    f"fuse: {inner} is not directly inside {outer}; reorder them to be neighbours first"
                )
        for v in self.loops:
            require_serial(find_loop(nest, v), "fuse")
        require_new(nest, (self.result(),), "fuse")

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
