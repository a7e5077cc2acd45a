"""partition: peel the iterations that need a guard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from schedules.ir import Nest
from schedules.ir.nest import find_loop, mark
from schedules.model import Target
from schedules.primitives.base import Primitive


@dataclass(frozen=True)
class Partition(Primitive[None]):
    """Lower a loop as up to three: a prologue, the middle where every guard on it is known, and an epilogue.

    Before: ``for i_0 in range(ceildiv(n, 4)): for i_1 in range(4): if i_0 * 4 + i_1 < n: S``. After::

        for i_0 in range(n // 4): for i_1 in range(4): S
        for i_1 in range(n % 4): S        # i_0 = n // 4

    If a guard also depends on outer serial loops, as for tiles of a padded plane, so do the lengths of the
    pieces.

    Legal for any serial or parallel loop. The pieces of a parallel loop run in sequence. Cost: code size,
    once a piece.

    >>> s.partition(s.split("y_i", 48)[0])
    """

    name: ClassVar[str] = "partition"
    loop: str

    def sentence(self) -> str:
        return f"Peel the iterations of loop `{self.loop}` that need a guard, so that the others have none."

    def check(self, nest: Nest, target: Target | None = None) -> None:
        loop = find_loop(nest, self.loop)
        if loop.kind not in ("serial", "parallel"):
            raise self.refused(f"the loop is {loop.kind}; partition the serial loop around it")

    def apply(self, nest: Nest) -> Nest:
        return mark(nest, find_loop(nest, self.loop), "partition", 1)
