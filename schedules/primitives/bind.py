"""bind: map a loop to a GPU thread axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from schedules.ir import GPU_AXES, Block, Loop, Nest
from schedules.ir.deps import check_races
from schedules.ir.nest import find_loop, loop_path, set_kind, vars_bound
from schedules.model import Target
from schedules.primitives.base import Primitive, require_serial


@dataclass(frozen=True)
class Bind(Primitive[None]):
    """Bind a loop to ``blockIdx.x`` ... ``threadIdx.z`` or ``vthread``: its iterations are then
    blocks, threads or virtual threads of a grid.

    Legal if iterations are independent, as for `Parallel`. From the root to a block an axis is bound at most
    once, and no thread axis stands around a block axis. Threads of ``threadIdx.x`` may also reduce into one
    local element by sum, product, min or max; then all of them get the result. Terms that go to places of
    their own may meet there, as such updates are atomic on GPUs.

    >>> s.bind("z_i", "blockIdx.x")
    >>> s.bind("z_j", "threadIdx.x")
    >>> s.loops("z")
    ['z_i', 'z_j']
    """

    name: ClassVar[str] = "bind"
    loop: str
    axis: str

    def sentence(self) -> str:
        grid, _, _ = self.axis.partition(".")
        each = {"blockIdx": "a block of the grid", "threadIdx": "a thread", "vthread": "a virtual thread"}
        what = each.get(grid, "a part of the grid")
        return f"Make each iteration of loop `{self.loop}` {what} (`{self.axis}`)."

    def check(self, nest: Nest, target: Target | None = None) -> None:
        if self.axis not in GPU_AXES:
            raise self.refused(f"{self.axis!r} is not one of {', '.join(GPU_AXES)}")
        if target is not None and not target.grid:
            raise self.refused(f"target {target.kind} has no {self.axis}; use parallel")
        loop = find_loop(nest, self.loop)
        require_serial(loop, "bind")
        for s in loop_path(nest, self.loop)[:-1]:
            if isinstance(s, Loop) and s.kind == self.axis and self.axis != "vthread":
                raise self.refused(f"{s.var} around it is {self.axis} already; use another axis")
            if isinstance(s, Loop) and s.kind.startswith("thread") and self.axis.startswith("block"):
                raise self.refused(f"{s.var} around it is {s.kind}; bind blocks outside threads")
        if self.axis != "threadIdx.x" or not _reduces_across(nest, loop):
            check_races(nest, loop, "bind", atomic=True)

    def apply(self, nest: Nest) -> Nest:
        return set_kind(nest, self.loop, self.axis)


def _reduces_across(nest: Nest, loop: Loop) -> bool:
    """Whether the loop holds only a block that reduces over it, with the elements in the block's own
    loops."""
    b = loop.body
    return (
        isinstance(b, Block)
        and b.reducer is not None
        and not b.init
        and b.reducer.apart
        and all(nest.buffer(w.buffer).scope == "local" for w in b.writes)
        and loop.var in vars_bound(b, "reduce")
    )
