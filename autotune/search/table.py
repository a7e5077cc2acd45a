"""Recorded tables: spaces whose candidates have all been measured, for tests of searches.

Such a space has the methods of any space (`schedules.space.base.Space`). Sampling, mutation and crossover
stay within the rows of the table.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from schedules.errors import AutotuneError
from schedules.model import Step, Trace
from schedules.space.base import Candidate, Rows, row_keys
from schedules.space.holes import STEP, size

# Rows that differ from another one in one hole only: the hole, its values there, ascending, and where the
# table has them.
_Line = tuple[int, list[int], list[int]]
# Message for a file without a table.
NO_TABLE = "{} is neither a log, nor an export, nor a table of Kernel Tuner or T4"


class ReplayError(AutotuneError):
    """A file that holds no table, or a table that cannot be searched."""


@dataclass(frozen=True)
class Sheet:
    """The candidates of one sketch. ``rows``: distinct decisions [candidates, holes]; ``times_s``: seconds
    [candidates], NaN if failed; ``features``: [candidates, features]."""

    name: str
    holes: tuple[str, ...]
    rows: Rows
    times_s: npt.NDArray[np.float64]
    features: npt.NDArray[np.float32]


class TableSpace:
    """A `Space` of recorded candidates."""

    def __init__(self, sheets: Sequence[Sheet], feature_names: Sequence[str]) -> None:
        self._sheets = tuple(sheets)
        self._names = tuple(feature_names)
        self._neighbours: list[dict[bytes, list[_Line]]] = [{} for _ in self._sheets]
        self._at = [{key: i for i, key in enumerate(row_keys(s.rows))} for s in self._sheets]

    @property
    def sketches(self) -> tuple[str, ...]:
        return tuple(s.name for s in self._sheets)

    @property
    def feature_names(self) -> tuple[str, ...]:
        return self._names

    def holes(self, sketch: int) -> tuple[str, ...]:
        return self._sheets[sketch].holes

    def describe(self, sketch: int) -> str:
        return ""  # a table tells names of parameters only

    def sample(self, sketch: int, n: int, rng: np.random.Generator) -> Rows:
        rows = self._sheets[sketch].rows
        return rows[rng.integers(len(rows), size=n)]

    def mutate(self, sketch: int, rows: Rows, rng: np.random.Generator) -> Rows:
        """Each row with one decision changed, of those that the table has with other values there: `STEP` of
        the time to the next value above or below, else to any other. Any row of the table where no decision
        can change."""
        table = self._sheets[sketch].rows
        places = rng.integers(len(table), size=len(rows))
        draws = zip(*rng.random((4, len(rows))).tolist(), strict=True)
        for i, (key, (direction, place, step, up)) in enumerate(zip(row_keys(rows), draws, strict=True)):
            near = self._near(sketch, key)
            if near:
                hole, values, at = near[int(direction * len(near))]
                k = int(place * len(at))
                if step < STEP:
                    above = bisect(values, rows[i, hole])
                    k = above if above < len(at) and (up < 0.5 or not above) else above - 1
                places[i] = at[k]
        return table[places]

    def _near(self, sketch: int, key: bytes) -> list[_Line]:
        """What the table has in each direction from a row, without directions in which it has nothing. Cached
        by row."""
        cached = self._neighbours[sketch]
        if key not in cached:
            table = self._sheets[sketch].rows
            differs = table != np.frombuffer(key, dtype=np.int64)
            one = np.flatnonzero(differs.sum(axis=1) == 1)
            cached[key] = []
            for hole in range(table.shape[1]):
                at = one[differs[one, hole]]
                if len(at):
                    at = at[np.argsort(table[at, hole], kind="stable")]
                    cached[key].append((hole, table[at, hole].tolist(), at.tolist()))
        return cached[key]

    def crossover(self, sketch: int, a: Rows, b: Rows, rng: np.random.Generator) -> Rows:
        """Uniform crossover. A child that the table lacks becomes its first parent."""
        mixed = np.where(rng.random(a.shape) < 0.5, a, b)
        return np.where(self.valid(sketch, mixed)[:, None], mixed, a)

    def nearest(self, sketch: int, rows: Rows) -> Rows:
        """The row of the table that is nearest to each row: the least sum of ratios."""
        table = self._sheets[sketch].rows
        if not len(rows):
            return rows.copy()
        return table[[int(np.abs(size(table) - size(row)).sum(axis=1).argmin()) for row in rows]]

    def every(self, sketch: int, most: int, values: int | None = None) -> Rows | None:
        """All rows of the table, whatever ``values`` asks for."""
        rows = self._sheets[sketch].rows
        return rows[np.lexsort(rows.T[::-1])] if len(rows) <= most or values is not None else None

    def valid(self, sketch: int, rows: Rows) -> npt.NDArray[np.bool_]:
        at = self._at[sketch]
        return np.array([key in at for key in row_keys(rows)], dtype=bool)

    def features(self, sketch: int, rows: Rows) -> npt.NDArray[np.float32]:
        at = self._at[sketch]
        return self._sheets[sketch].features[[at[key] for key in row_keys(rows)]]

    def trace(self, sketch: int, row: Rows) -> Trace:
        sheet = self._sheets[sketch]
        decisions = zip(sheet.holes, (int(x) for x in row), strict=True)
        return Trace((Step(f"table {sketch}", tuple(sorted(decisions))),))

    def time_s(self, candidate: Candidate) -> float | None:
        """Seconds of a candidate; None if it failed."""
        row = np.asarray(candidate.row, dtype=np.int64)
        t = float(self._sheets[candidate.sketch].times_s[self._at[candidate.sketch][row.tobytes()]])
        return t if np.isfinite(t) else None

    @property
    def times_s(self) -> npt.NDArray[np.float64]:
        """Seconds of all candidates that ran."""
        every = np.concatenate([s.times_s for s in self._sheets])
        return every[np.isfinite(every)]

    @property
    def configurations(self) -> int:
        """Number of candidates."""
        return sum(len(s.rows) for s in self._sheets)


@dataclass(frozen=True)
class Table:
    """A space of recorded candidates and its name. ``task``: number of the task in its log, from 1;
    ``tasks``: names of all tasks of the log. ``notes``: what was not read of the file."""

    name: str
    space: TableSpace
    task: int | None = None
    tasks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
