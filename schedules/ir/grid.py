"""What a GPU runs: a program of kernels, each a grid of blocks of threads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from schedules.ir.nodes import Buffer, Loop, Stmt
from schedules.ir.strides import nbytes, swizzle_period

Extents = tuple[int, int, int]
# Which caches hold what is read or written: all; the second, which processors share; that, and it leaves
# first. Hints are places in this list; 0: as the compiler chooses. Source: PTX ISA, "Cache Operators".
CACHES = ("", "ca", "cg", "cs")


@dataclass(frozen=True)
class GridKernel:
    """One launch. ``params``: global arrays that it uses; those in ``written`` it writes. ``blocks`` are the
    loops over ``blockIdx``, outermost first; ``body`` is what a block does. ``reads`` and ``writes``:
    {global array: one of `CACHES`}, of those that a schedule tells."""

    name: str
    params: tuple[Buffer, ...]
    written: frozenset[str]
    grid: Extents
    block: Extents
    blocks: tuple[Loop, ...]
    body: Stmt
    reads: Mapping[str, str] = field(default_factory=dict)
    writes: Mapping[str, str] = field(default_factory=dict)

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]


@dataclass(frozen=True)
class GridProgram:
    """Kernels in the order of their launches; ``scratch`` are arrays that only they use."""

    params: tuple[Buffer, ...]
    outputs: tuple[str, ...]
    scratch: tuple[Buffer, ...]
    kernels: tuple[GridKernel, ...]


# Bytes at multiples of which shared arrays begin: of the widest access. Most arrays fill them.
WIDEST = 16


def shared_places(buffers: Iterable[Buffer]) -> tuple[dict[str, int], int]:
    """({shared buffer: its first byte}, bytes of all) where they lie one after another. What is swizzled
    begins where that is as at first; the larger multiples come first."""
    steps = {b: max(WIDEST, swizzle_period(b)) for b in buffers}
    places, end = dict[str, int](), 0
    for b in sorted(steps, key=lambda b: -steps[b]):
        places[b.name] = -(-end // steps[b]) * steps[b]
        end = places[b.name] + nbytes(b)
    return places, end
