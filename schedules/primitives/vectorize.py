"""vectorize: run a loop's iterations as the lanes of one vector operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from schedules import expr as E
from schedules.ir import Block, Loop, Nest, walk
from schedules.ir.deps import disjoint
from schedules.ir.nest import apart, bound, find_loop, is_scatter, set_kind, vars_bound
from schedules.model import Target
from schedules.primitives.base import Primitive, extent_of, require_serial

# Most lanes: above, LLVM's legalisation takes seconds.
MAX_LANES = 256


@dataclass(frozen=True)
class Vectorize(Primitive[None]):
    """Mark an innermost loop: its iterations become vector lanes.

    Before: ``for i in range(8): C[i] = A[i] + B[i]``. After: ``C[0:8] = A[0:8] + B[0:8]``. Any extent up to
    256 is legal, also one that no register holds. Lanes of a tail are masked. A loop over a reduction becomes
    a horizontal reduction, which reassociates it. Cost: unit-stride accesses are one load a register, others
    are gathered element by element.

    >>> s.vectorize(s.split("z_j", 16)[1])
    """

    name: ClassVar[str] = "vectorize"
    loop: str

    def sentence(self) -> str:
        return f"Run the iterations of loop `{self.loop}` as the lanes of vectors."

    def check(self, nest: Nest, target: Target | None = None) -> None:
        loop = find_loop(nest, self.loop)
        require_serial(loop, "vectorize")
        for s in walk(loop.body):
            if isinstance(s, Loop):
                raise self.refused(f"loop {s.var} is inside it; reorder so that {self.loop} is innermost")
            if isinstance(s, Block) and is_scatter(s):
                self._check_places(s, loop)
            if isinstance(s, Block) and not apart(s):
                if self.loop in vars_bound(s, "reduce"):
                    raise self.refused(
                        f"block {s.name} reduces a tuple over it; rfactor the loop first, then vectorize the "
                        "new spatial axis"
                    )
        n = extent_of(loop)
        if n is not None and n > MAX_LANES:
            raise self.refused(f"{n} lanes are more than {MAX_LANES}; split the loop first")

    def _check_places(self, b: Block, loop: Loop) -> None:
        """Check that lanes whose terms go to places of their own never meet."""
        for w in b.writes:
            at = frozenset().union(*(E.variables(bound(b, i)) for i in w.indices))
            if loop.var in at and not disjoint(b, w.indices, loop):
                raise self.refused(
                    f"lanes of block {b.name} may meet in an element of {w.buffer}; vectorize a loop over a "
                    "dimension that is not scattered, or leave it as it is"
                )

    def apply(self, nest: Nest) -> Nest:
        return set_kind(nest, self.loop, "vectorize")
