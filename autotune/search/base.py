"""The contract of a search policy, and the memory of candidates that every policy needs.

A policy is asked for candidates and told their results. It uses no clock, device or log. It is resumed by
telling it the results of earlier runs first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from schedules.space.base import Candidate, Rows, Space, row_keys

# Samples of a sketch without a new row after which it counts as exhausted.
DRAWS = 32


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a trial. ``throughput``: runs a second, 0 if the candidate failed. ``facts``: what a
    device's compiler reported, None without one."""

    candidate: Candidate
    throughput: float
    facts: Mapping[str, Any] | None = field(default=None, compare=False)


class SearchPolicy(Protocol):
    """Chooses trials. The same for the same seed and the same results told."""

    def ask(self, n: int) -> list[Candidate]:
        """Up to ``n`` valid candidates, best first, never proposed, told or excluded before; none if the
        space is exhausted."""

    def tell(self, results: Sequence[Result]) -> None:
        """Learn from results of trials, whether they were asked for or not."""

    def exclude(self, digests: Iterable[str]) -> None:
        """Never propose candidates whose concrete trace has one of these digests."""

    def predicted(self, chosen: Sequence[Candidate]) -> Mapping[str, Sequence[float]]:
        """{model: scores of ``chosen`` when they were chosen}, higher is better; the last model is the one
        that chose. Empty for a search without models."""


class KnownCandidates:
    """What was proposed, told or excluded: decision rows by sketch, and digests of concrete traces. Two rows,
    even of two sketches, can make the same schedule."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._rows: list[set[bytes]] = [set() for _ in space.sketches]
        self._digests: set[str] = set()
        self._exhausted: set[int] = set()

    def count(self, sketch: int) -> int:
        """How many rows of a sketch are known."""
        return len(self._rows[sketch])

    def exclude(self, digests: Iterable[str]) -> None:
        """Add digests of concrete traces."""
        self._digests.update(digests)

    def add(self, candidate: Candidate) -> None:
        """Add a candidate."""
        self._rows[candidate.sketch].add(_key(candidate))

    def admit(self, candidate: Candidate) -> bool:
        """Add a candidate. False if it or its trace was known."""
        key = _key(candidate)
        if key in self._rows[candidate.sketch]:
            return False
        self._rows[candidate.sketch].add(key)
        digest = self._space.trace(candidate.sketch, np.asarray(candidate.row, dtype=np.int64)).digest
        if digest in self._digests:
            return False
        self._digests.add(digest)
        return True

    def live(self) -> list[int]:
        """Sketches that may still have rows to propose."""
        return [s for s in range(len(self._space.sketches)) if s not in self._exhausted]

    def fresh(self, sketch: int, rows: Rows) -> npt.NDArray[np.bool_]:
        """Which rows are valid and not known, each once."""
        known, keep, seen = self._rows[sketch], np.zeros(len(rows), dtype=bool), set()
        keys = row_keys(rows)
        for i in np.flatnonzero(self._space.valid(sketch, rows)).tolist() if len(rows) else ():
            key = keys[i]
            if key not in known and key not in seen:
                seen.add(key)
                keep[i] = True
        return keep

    def draw(self, sketch: int, n: int, rng: np.random.Generator) -> Rows:
        """Up to ``n`` fresh random rows. A sketch that gives none in `DRAWS` samples is exhausted."""
        found = np.zeros((0, len(self._space.holes(sketch))), dtype=np.int64)
        if sketch in self._exhausted:
            return found
        for _ in range(DRAWS):
            more = self._space.sample(sketch, 2 * n + 64, rng)
            more = more[self.fresh(sketch, more)]
            before = len(found)
            if len(more):
                found = unique(np.concatenate([found, more]))
            if len(found) >= n or len(found) == before > 0:  # enough, or nothing new where little is left
                break
        if not len(found):
            self._exhausted.add(sketch)
        return found[:n]


class Unguided(ABC):
    """The part that policies without a model share: they only remember what was tried."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._known = KnownCandidates(space)

    @abstractmethod
    def _next(self, place: int) -> Candidate | None:
        """The next candidate, at a place of its round. None if none is left."""

    def ask(self, n: int) -> list[Candidate]:
        chosen: list[Candidate] = []
        while len(chosen) < n and (found := self._next(len(chosen))) is not None:
            chosen.append(found)
        return chosen

    def tell(self, results: Sequence[Result]) -> None:
        for result in results:
            self._known.add(result.candidate)

    def exclude(self, digests: Iterable[str]) -> None:
        self._known.exclude(digests)

    def predicted(self, chosen: Sequence[Candidate]) -> Mapping[str, Sequence[float]]:
        return {}


class RandomTurns:
    """Fresh random candidates. Sketches take turns in a random order."""

    def __init__(self, known: KnownCandidates, rng: np.random.Generator) -> None:
        self._known, self._rng = known, rng
        self._queue: list[int] = []

    def next(self) -> Candidate | None:
        """The next candidate, None if none is left."""
        while True:
            if not self._queue:
                self._queue = [int(s) for s in self._rng.permutation(self._known.live())]
                if not self._queue:
                    return None
            sketch = self._queue.pop(0)
            for candidate in candidates(sketch, self._known.draw(sketch, 4, self._rng)):
                if self._known.admit(candidate):
                    return candidate


def unique(rows: Rows) -> Rows:
    """Each row once, in the order of their first occurrence."""
    if len(rows) < 2 or not rows.shape[1]:
        return rows[:1]
    _, first = np.unique(rows, axis=0, return_index=True)
    return rows[np.sort(first)]


def candidates(sketch: int, rows: Rows) -> list[Candidate]:
    """One candidate a row."""
    return [Candidate(sketch, tuple(row)) for row in rows.tolist()]


def _key(candidate: Candidate) -> bytes:
    row: npt.NDArray[np.int64] = np.asarray(candidate.row, dtype=np.int64)
    return row.tobytes()
