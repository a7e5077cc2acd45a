"""The contract between a search and its space.

A space is a list of sketches. A sketch fixes the structure of a schedule and leaves numeric holes. A row of
integers, one a hole, decides them. Every operation takes a matrix of rows, because a search asks about
thousands of candidates at a time and measures few.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from schedules.model import Trace

# Decisions: int64 [candidates, holes].
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """One point of a space: the index of its sketch and the decision of each of its holes."""

    sketch: int
    row: tuple[int, ...]


def trace_of(space: Space, candidate: Candidate) -> Trace:
    """The schedule of a candidate."""
    return space.trace(candidate.sketch, np.array(candidate.row, dtype=np.int64))


def row_keys(rows: Rows) -> list[bytes]:
    """Of each row what tells it from others in a set or a dict.

    >>> row_keys(np.array([[1, 2], [3, 4]]))[1] == np.array([3, 4]).tobytes()
    True
    """
    width, data = 8 * rows.shape[1], np.ascontiguousarray(rows, dtype=np.int64).tobytes()
    return [data[i * width : (i + 1) * width] for i in range(len(rows))]


class Space(Protocol):
    """Sketches and their decision rows. All randomness comes from the generator that is passed."""

    @property
    def sketches(self) -> tuple[str, ...]:
        """Names of the sketches; a sketch is referred to by its index."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns of `features`, the same for every sketch."""

    def holes(self, sketch: int) -> tuple[str, ...]:
        """Names of the holes of a sketch, the columns of its rows."""

    def describe(self, sketch: int) -> str:
        """What the holes of a sketch decide, for readers: what each of them allows, and the loops that they
        stand in. Empty where only names are known."""

    def sample(self, sketch: int, n: int, rng: np.random.Generator) -> Rows:
        """``n`` random rows, not necessarily distinct or valid."""

    def mutate(self, sketch: int, rows: Rows, rng: np.random.Generator) -> Rows:
        """Each row with a decision or two changed."""

    def crossover(self, sketch: int, a: Rows, b: Rows, rng: np.random.Generator) -> Rows:
        """Row i takes each of its decisions from row i of ``a`` or of ``b``."""

    def nearest(self, sketch: int, rows: Rows) -> Rows:
        """Each decision replaced by the nearest that the space allows after the earlier ones. Rows of a task
        of other sizes become rows of this one, not necessarily valid."""

    def every(self, sketch: int, most: int, values: int | None = None) -> Rows | None:
        """All rows of a sketch, valid or not, in lexicographic order, with at most ``values`` values a hole,
        evenly distributed; None if they are more than ``most``."""

    def valid(self, sketch: int, rows: Rows) -> npt.NDArray[np.bool_]:
        """Which rows keep the static limits of the target, [rows]. The others must not be compiled."""

    def features(self, sketch: int, rows: Rows) -> npt.NDArray[np.float32]:
        """Features of each row, float32 [rows, len(feature_names)]."""

    def trace(self, sketch: int, row: Rows) -> Trace:
        """The concrete schedule of one row (a vector of decisions)."""
