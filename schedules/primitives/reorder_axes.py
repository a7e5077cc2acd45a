"""reorder_axes: the spatial axes of a block in another order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from schedules.ir import Loop, Nest, blocks
from schedules.ir.nest import find_loop, only_block, replace_stmt, whole_axis
from schedules.model import Target
from schedules.primitives.base import OfLoops, listed, require_serial


@dataclass(frozen=True)
class ReorderAxes(OfLoops[None]):
    """Put directly nested loops, and the axes of the block that they are, into the given order.

    Before: ``for i: for h: for c: y[i, h, c] = x[h, i, c]``. After ``reorder_axes("h", "i")``::

        for h: for i: for c: y[i, h, c] = x[h, i, c]

    `Reorder` leaves the axes of the block in their order, by which rules tell what the stages behind it have
    in common with it. Legal if the loops are nested in one another with nothing beside them, and each is a
    spatial axis of the only block inside, from beginning to end. Cost: locality only.

    >>> s.reorder_axes("z_j", "z_i")
    >>> s.loops("z")
    ['z_j', 'z_i']
    """

    name: ClassVar[str] = "reorder_axes"

    def _chain(self, nest: Nest) -> list[Loop]:
        """The loops as they stand, outermost first. Raises ScheduleError if others stand between them."""
        every = {v: find_loop(nest, v) for v in self.loops}

        def down(s: Loop) -> Iterator[Loop]:
            yield s
            if isinstance(s.body, Loop) and s.body.var in every:
                yield from down(s.body)

        found = max((list(down(s)) for s in every.values()), key=len)
        if len(found) < len(self.loops):
            missing = ", ".join(v for v in self.loops if v not in {s.var for s in found})
            raise self.refused(
                f"{missing} is not directly nested with the other loops; name the loops between them too"
            )
        return found

    def sentence(self) -> str:
        return f"Put loops {listed(self.loops, 'then')} into this order, with the axes that they are."

    def check(self, nest: Nest, target: Target | None = None) -> None:
        if len(self.loops) < 2 or len(set(self.loops)) != len(self.loops):
            raise self.refused(f"needs two different loops or more, got {list(self.loops)}; name each once")
        chain = self._chain(nest)
        for loop in chain:
            require_serial(loop, "reorder_axes")
        b = blocks(chain[0].body)[0]
        only_block(chain[0], b.name, "reorder_axes")
        for loop in chain:
            axis = whole_axis(b, loop)
            if axis is None or b.iters[axis].kind != "spatial":
                raise self.refused(
                    f"loop {loop.var} is not a whole spatial axis of block {b.name}; reorder axes before "
                    "other steps"
                )

    def apply(self, nest: Nest) -> Nest:
        chain = self._chain(nest)
        b = blocks(chain[0].body)[0]
        ordered = sorted(chain, key=lambda s: self.loops.index(s.var))
        places = sorted(whole_axis(b, s) or 0 for s in chain)
        iters, binds = list(b.iters), list(b.binds)
        for place, s in zip(places, ordered, strict=True):
            own = whole_axis(b, s) or 0
            iters[place], binds[place] = b.iters[own], b.binds[own]
        body = chain[-1].body
        for s in reversed(ordered):
            body = replace(s, body=body)
        new = replace(b, iters=tuple(iters), binds=tuple(binds))
        return replace_stmt(replace_stmt(nest, chain[0], body), b, new)
