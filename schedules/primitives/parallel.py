"""parallel: share a loop's iterations among threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from schedules.ir import Loop, Nest, walk
from schedules.ir.deps import check_races
from schedules.ir.nest import find_loop, loop_path, set_kind
from schedules.model import Target
from schedules.primitives.base import Primitive, require_serial


@dataclass(frozen=True)
class Parallel(Primitive[None]):
    """Mark a loop: threads claim its iterations in chunks, each those of its own share first, in no order.

    Legal if no two iterations write the same element of a buffer that outlives the iteration. So it is not
    legal over a reduction (rfactor it first) nor inside another parallel loop. Cost: a wake-up of
    microseconds each time the loop is entered.

    >>> s.parallel("y_i")
    """

    name: ClassVar[str] = "parallel"
    loop: str

    def sentence(self) -> str:
        return f"Share the iterations of loop `{self.loop}` among the threads."

    def check(self, nest: Nest, target: Target | None = None) -> None:
        loop = find_loop(nest, self.loop)
        require_serial(loop, "parallel")
        nested = [
            s.var
            for s in (*loop_path(nest, self.loop), *walk(loop.body))
            if isinstance(s, Loop) and s.kind == "parallel"
        ]
        if nested:
            raise self.refused(f"{nested[0]} is parallel already; fuse the two loops instead of nesting them")
        check_races(nest, loop, "parallel")

    def apply(self, nest: Nest) -> Nest:
        return set_kind(nest, self.loop, "parallel")
