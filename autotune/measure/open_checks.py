"""At which sizes a kernel with open sizes is checked, and at which finalists are timed, beside the largest
(ADR 79)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt

from autotune.measure.arena import Arena
from autotune.measure.check import Checker
from schedules.te.compute_dag import ComputeDAG
from schedules.te.open_sizes import OpenSize


@dataclass(frozen=True)
class SizeCheck:
    """Arrays of one size, which end at inaccessible pages, and their right outputs. ``told``: the sizes as a
    kernel takes them. ``words``: the same for people. ``ranks``: whether finalists are timed there."""

    told: tuple[int, ...]
    words: str
    arena: Arena
    checkers: tuple[Checker, ...]
    ranks: bool = False


def largest_of(dag: ComputeDAG) -> tuple[int, ...]:
    """The largest sizes as a kernel takes them; none where no size is open."""
    return () if dag.open is None else tuple(s.most for s in dag.open.sizes)


def sizes_to_check(dag: ComputeDAG) -> list[Mapping[str, int]]:
    """The least sizes, those after them, and two primes between, which no tile divides. Not the largest,
    which is checked as a fixed size is."""
    return _sizes(dag, _PICKS)


def sizes_to_rank(dag: ComputeDAG) -> list[Mapping[str, int]]:
    """The sizes at which finalists are timed beside the largest: the least, and the prime that follows the
    middle of the range on a logarithmic scale. All are among `sizes_to_check`."""
    return _sizes(dag, (_PICKS[0], _PICKS[2]))


def _sizes(dag: ComputeDAG, picks: Sequence[Callable[[int, int], int]]) -> list[Mapping[str, int]]:
    """What ``picks`` take of the ranges of the open sizes, without the largest sizes."""
    if dag.open is None:
        return []
    rows = [[_picked(s, pick) for s in dag.open.sizes] for pick in picks]
    names, most = [s.name for s in dag.open.sizes], [s.most for s in dag.open.sizes]
    distinct = list(dict.fromkeys(tuple(r) for r in rows if r != most))
    return [dict(zip(names, r, strict=True)) for r in distinct]


# From the least and the largest size, one that is checked.
_PICKS: tuple[Callable[[int, int], int], ...] = (
    lambda least, most: least,
    lambda least, most: least + 1,
    lambda least, most: _prime_from(isqrt(least * most) + 1),
    lambda least, most: _prime_from((least + most) // 2 + 1),
)


def _picked(s: OpenSize, pick: Callable[[int, int], int]) -> int:
    return min(pick(s.least, s.most), s.most)


def _prime_from(n: int) -> int:
    """The first prime that is not below ``n``."""
    while any(n % k == 0 for k in range(2, isqrt(n) + 1)):
        n += 1
    return n
