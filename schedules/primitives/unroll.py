"""unroll: write a loop's body out once for each iteration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from schedules.ir import Nest
from schedules.ir.nest import find_loop, set_kind
from schedules.model import Target
from schedules.primitives.base import Primitive, extent_of, require_serial

# Most iterations of an unrolled loop.
MAX_UNROLL = 1024


@dataclass(frozen=True)
class Unroll(Primitive[None]):
    """Mark a loop to be written out in full.

    Before: ``for i in range(2): S(i)``. After: ``S(0); S(1)``. Legal for any serial loop of at most 1024
    iterations. Cost: code size. A small local buffer can then live in registers.

    >>> s.unroll(s.split("y_k", 4)[1])
    """

    name: ClassVar[str] = "unroll"
    loop: str

    def sentence(self) -> str:
        return f"Write out the iterations of loop `{self.loop}` one after another (unroll)."

    def check(self, nest: Nest, target: Target | None = None) -> None:
        loop = find_loop(nest, self.loop)
        require_serial(loop, "unroll")
        n = extent_of(loop)
        if n is not None and n > MAX_UNROLL:
            raise self.refused(
                f"{n} copies are more than {MAX_UNROLL}; split the loop and unroll the inner part"
            )

    def apply(self, nest: Nest) -> Nest:
        return set_kind(nest, self.loop, "unroll")
