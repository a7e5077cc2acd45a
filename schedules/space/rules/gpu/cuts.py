"""How axes of a product are cut into blocks, threads and a thread's own elements.

In lines: all threads of an axis lie side by side, and so do virtual threads. In warps: the threads of a warp
are a rectangle, so that what a warp reads of either operand is short, and a thread's elements lie a whole row
of lanes apart. Neighbouring lanes are squares of two by two: eight of them, whose vectors shared memory hands
out at a time, read two places of one operand and four of the other (CUTLASS, *Efficient GEMM in CUDA*).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from schedules.primitives.base import Factor
from schedules.space.sketch_builder import SketchBuilder

T = TypeVar("T")

# Virtual threads along an axis that are offered.
ACROSS = (1, 2, 4)
# Threads along an axis that are offered.
THREADS = (1, 2, 4, 8, 16, 32)
# Elements of a thread along an axis that are offered.
OWN = (1, 2, 4, 8)
# Warps along an axis that are offered.
WARPS = (1, 2, 4)
# Squares of a warp along an axis, of two by two squares of two by two lanes, that are offered.
SQUARES = (1, 2)
# Rows of lanes of a warp's tile that are offered, one of which a thread has an element or a vector of.
TURNS = (1, 2, 4, 8, 16)
# Shortest two axes that warps are offered for.
LEAST = 16


@dataclass(frozen=True, slots=True)
class AxisPart:
    """What a loop of an axis is within a block. ``kind``: "turn" (of a thread, apart), "thread", "own" (a
    thread's, side by side). ``level``: threads of lower levels are outer ones, whatever their axis."""

    kind: str
    size: Factor
    level: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """How an axis is cut within a block, outermost first. ``vector``: whether a thread's own elements are
    one vector in memory."""

    parts: tuple[AxisPart, ...]
    vector: bool = False

    @property
    def sizes(self) -> tuple[Factor, ...]:
        """The factors of a split of the axis, but for the blocks."""
        return tuple(p.size for p in self.parts)


def in_lines(d: SketchBuilder, producer: str, n: int, place: int, lanes: Sequence[int]) -> Cut:
    """Cut an axis of length ``n``. ``place``: 0 is contiguous in memory, in vectors of ``lanes``; a thread
    has elements along 0 and 1; behind 2 nothing is cut."""
    name = f"{producer}.{place}"
    if place > 2:
        return _line(1, 1, 1)
    across = d.choice(f"{name}.vthread", [k for k in ACROSS if k <= n]) if place < 2 else 1
    most = 32 if place == 0 else 16 if place == 1 else 8
    threads = d.choice(f"{name}.threads", _sizes(THREADS, n, min(2 * n, most)))
    vector = place == 0 and len(lanes) > 1
    own = d.choice(f"{name}.own", lanes if vector else _sizes(OWN, n, min(n, OWN[-1]))) if place < 2 else 1
    return _line(across, threads, own, vector)


def _line(across: Factor, threads: Factor, own: Factor, vector: bool = False) -> Cut:
    return Cut((AxisPart("turn", across), AxisPart("thread", threads), AxisPart("own", own)), vector)


def in_warps(d: SketchBuilder, producer: str, n: int, place: int, lanes: Sequence[int]) -> Cut:
    """As `in_lines`, for the threads of warps. Along axis 2 there are warps alone."""
    name = f"{producer}.{place}"
    if place > 2:
        return Cut(())
    warps = AxisPart("thread", d.choice(f"{name}.warps", [k for k in WARPS if k <= n]))
    if place == 2:
        return Cut((warps,))
    turns = d.choice(f"{name}.turns", [k for k in TURNS if k <= max(1, n // 2)])
    squares = d.choice(f"{name}.squares", SQUARES)
    vector = place == 0 and len(lanes) > 1
    own = d.choice(f"{name}.own", [k for k in (lanes if vector else OWN) if k <= OWN[2]])
    lanes_ = (AxisPart("thread", squares, 1), AxisPart("thread", 2, 2), AxisPart("thread", 2, 3))
    return Cut((warps, AxisPart("turn", turns), *lanes_, AxisPart("own", own)), vector)


def threads_in_order(found: Sequence[tuple[AxisPart, T]]) -> list[T]:
    """What belongs to parts of some axes that are threads, as these are numbered: the outermost first."""
    return [x for _, x in sorted(found, key=lambda part_x: part_x[0].level)]


def _sizes(usual: Sequence[int], n: int, most: int) -> list[int]:
    """The ``usual`` sizes and those that divide an axis such as 7 or 14, up to ``most``."""
    return [k for k in range(1, most + 1) if k in usual or n % k == 0]
