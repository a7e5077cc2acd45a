"""annotate: attach a hint to a loop or block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from schedules.errors import instead
from schedules.ir import Nest, bound_to
from schedules.ir.nest import block_names, find_block, find_loop, mark
from schedules.ir.strides import SWIZZLES
from schedules.model import Target
from schedules.primitives.base import Factor, Primitive

HINTS = {  # {hint: "what it is of: what it says"}
    "chunk": "loop: iterations that a thread claims at once from a parallel loop, at most its share",
    "prefetch": "loop: on a CPU, arguments are asked for that many iterations before they are read; on "
    "a GPU, 1 loads what the next iteration copies to shared memory while this one computes",
    "prefetch_bytes": "loop: on a CPU, arguments are asked for so many bytes before they are read, in whole "
    "iterations",
    "prefetch_cache": "loop: on a CPU, 2 has what it asks for fetched into the second cache, not the first",
    "software_pipeline": "loop: on a CPU, 1 runs the last stage of an iteration with a stage of the next one",
    "slide": "innermost loop over vectors: on a CPU, 1 keeps vectors that the next iteration reads again, a "
    "few elements further on, in registers",
    "min_blocks": "loop over blockIdx: for NVIDIA GPUs, registers are kept few enough that so many blocks "
    "share a processor",
    "stages": "loop: on a GPU, so many iterations' copies to shared memory lie there at a time, and are "
    "begun so many iterations less one before they are read",
    "async": "block that copies to shared memory: on a GPU, 1 copies in the background, without registers, "
    "where at least 4 bytes lie side by side and nothing is computed on the way",
    "swizzle": "block: in rows of the shared buffer that it writes, chunks of 16 bytes change places within "
    "at most so many bytes, from row to row, against bank conflicts",
    "pad": "block: elements added to the rows of the shared buffer that it writes, against bank conflicts",
    "load_cache": "block: on an NVIDIA GPU, which caches hold the global arrays that it reads, wherever they "
    "are read (the last hint of an array counts): 1: all; 2: that of all processors; 3: that one, which it "
    "leaves first; 0: as the compiler chooses",
    "store_cache": "block: on an NVIDIA GPU, which caches hold what it writes to global memory, as of "
    "load_cache",
    "masked": "block whose terms go to places of their own: on a CPU, 1 computes a term that a condition "
    "leaves out as one that changes nothing, at place 0, in place of a branch that is hard to foretell",
    "nontemporal": "block: 1 writes its outputs around the caches, where nothing reads them; 2 also moves "
    "tiles to where the lines of memory begin",
}
# {hint: allowed values}. Traces may come from anyone, and code is generated from these values.
VALUES: dict[str, Sequence[int]] = {
    "chunk": range(1, 1 << 31),
    "prefetch": range(1 << 16),
    "prefetch_bytes": range(1 << 20),
    "prefetch_cache": range(3),
    "software_pipeline": range(2),
    "slide": range(2),
    "min_blocks": range(1, 33),
    "stages": range(1, 9),
    "async": range(2),
    "swizzle": (0, *SWIZZLES),
    "pad": range(1 << 10),
    "load_cache": range(4),
    "store_cache": range(4),
    "masked": range(2),
    "nontemporal": range(3),
}

# Hints that are refused where they would say nothing. Old traces may have others in wrong places.
HELD = frozenset({"stages", "async", "swizzle", "load_cache", "store_cache"})


def values(hint: str) -> str:
    """The values of a hint in words."""
    known = VALUES[hint]
    if isinstance(known, range):
        return f"{known.start} to {known.stop - 1}"
    return f"{', '.join(map(str, known[:-1]))} or {known[-1]}"


@dataclass(frozen=True)
class Annotate(Primitive[None]):
    """Attach ``key = value`` to a loop or a block. Hints never change the meaning. The table
    `HINTS` has those that lowering and code generators read. ``where`` is a loop or block name.

    >>> s.annotate("y_i", "chunk", 4)
    >>> print(s.trace)
    annotate(key='chunk', value=4, where='y_i')
    """

    name: ClassVar[str] = "annotate"
    where: str
    key: str
    value: Factor

    def sentence(self) -> str:
        meaning = HINTS.get(self.key, "").partition(": ")[2]
        return f"Give `{self.where}` the hint `{self.key}` = {self.value}" + (
            f": {meaning}." if meaning else "."
        )

    def check(self, nest: Nest, target: Target | None = None) -> None:
        if self.key not in HINTS:
            raise self.refused(f"unknown hint {self.key!r}{instead(self.key, HINTS, 'known:')}")
        if isinstance(self.value, int) and self.value not in VALUES[self.key]:
            raise self.refused(f"{self.key} is {values(self.key)}, not {self.value}")
        loop = None if self.where in block_names(nest) else find_loop(nest, self.where)
        of_loop = HINTS[self.key].startswith("loop")
        if self.key in HELD and of_loop != (loop is not None):
            right, wrong = ("loop", "block") if of_loop else ("block", "loop")
            raise self.refused(f"{self.key} is of a {right}, and {self.where} is a {wrong}; name a {right}")
        if self.key == "min_blocks" and (loop is None or not bound_to(loop, "blockIdx")):
            raise self.refused("min_blocks needs a loop that is bound to blockIdx")

    def apply(self, nest: Nest) -> Nest:
        find = find_block if self.where in block_names(nest) else find_loop
        return mark(nest, find(nest, self.where), self.key, self.value)
