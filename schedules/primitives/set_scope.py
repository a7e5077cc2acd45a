"""set_scope: choose the memory of an intermediate buffer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from schedules.ir import SCOPES, Nest
from schedules.ir.nest import set_buffer
from schedules.model import Target
from schedules.primitives.base import Primitive, require_intermediate, scope_in_words


@dataclass(frozen=True)
class SetScope(Primitive[None]):
    """Put an intermediate buffer into ``scope``: "global", "shared" (by the threads of a block), "local"
    (registers of one thread) or "fragment" (registers of the threads of a warp together).

    Legal for any buffer that is no argument. Lowering finds out whether threads use only their own elements
    of a local buffer, and warps of a fragment. Cost: registers and shared memory limit how many blocks run at
    a time.

    >>> s.set_scope("y", "shared")
    """

    name: ClassVar[str] = "set_scope"
    buffer: str
    scope: str

    def sentence(self) -> str:
        return f"Keep `{self.buffer}` in {scope_in_words(self.scope)}."

    def check(self, nest: Nest, target: Target | None = None) -> None:
        if self.scope not in SCOPES:
            raise self.refused(f"scope {self.scope!r} is not one of {', '.join(SCOPES)}")
        require_intermediate(nest, self.buffer, self.name)

    def apply(self, nest: Nest) -> Nest:
        return set_buffer(nest, replace(nest.buffer(self.buffer), scope=self.scope))
