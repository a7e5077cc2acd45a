"""tile: split several nested loops and bring the inner parts inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from schedules import expr as E
from schedules.ir import Nest
from schedules.model import Target
from schedules.primitives.base import Factor, Primitive, as_tuple
from schedules.primitives.reorder import Reorder
from schedules.primitives.split import Split


@dataclass(frozen=True)
class Tile(Primitive[list[str]]):
    """Split each loop by its factor and put all outer parts before all inner parts.

    Before: ``for i: for j: S``. After ``tile([i, j], [4, 8])``::

        for i_0: for j_0: for i_1 in range(4): for j_1 in range(8): S

    Legal where `Split` and `Reorder` are. Cost: as theirs.

    >>> s.tile(["y_i", "y_j"], [4, 16])
    ['y_i_0', 'y_j_0', 'y_i_1', 'y_j_1']
    """

    name: ClassVar[str] = "tile"
    loops: tuple[str, ...]
    factors: tuple[int | E.Hole, ...]

    @classmethod
    def of(cls, loops: Sequence[str], factors: Sequence[Factor]) -> Tile:
        """As `Schedule` has it."""
        return cls(as_tuple(loops), as_tuple(factors))

    def result(self) -> list[str]:
        return [f"{v}_0" for v in self.loops] + [f"{v}_1" for v in self.loops]

    def sentence(self) -> str:
        parts = ", ".join(f"`{v}` by {f}" for v, f in zip(self.loops, self.factors))
        return f"Tile loops {parts}: all outer parts come before all inner parts."

    def check(self, nest: Nest, target: Target | None = None) -> None:
        if len(self.loops) != len(self.factors) or not self.loops:
            raise self.refused(
                f"{len(self.loops)} loops but {len(self.factors)} factors; give one factor a loop"
            )
        for v, f in zip(self.loops, self.factors, strict=True):
            s = Split(v, (None, f))
            s.check(nest, target)
            nest = s.apply(nest)
        if len(self.loops) > 1:
            Reorder(tuple(self.result())).check(nest, target)

    def apply(self, nest: Nest) -> Nest:
        for v, f in zip(self.loops, self.factors, strict=True):
            nest = Split(v, (None, f)).apply(nest)
        return Reorder(tuple(self.result())).apply(nest) if len(self.loops) > 1 else nest
