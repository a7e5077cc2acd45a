"""Grid search: every candidate of a small space, or of a coarse grid over a large one.

Sketches take turns. Within a sketch the best by the analytic estimate come first, if the features carry one.
Else the order keeps those tried so far spread over the whole grid (van der Corput).
"""

from __future__ import annotations

import numpy as np

from autotune.search.base import Unguided
from cost_model.analytic import ESTIMATE, AnalyticModel
from schedules.space.base import Candidate, Rows, Space

# Most rows of all sketches together.
MOST = 1 << 16
# Values of a hole that are tried in turn, finest first, until the grid is small enough.
COARSE = (64, 32, 16, 12, 8, 6, 5, 4, 3, 2)


class GridSearch(Unguided):
    """Exhaustive. Ends when the grid ends. Needs no seed."""

    def __init__(self, space: Space) -> None:
        super().__init__(space)
        each = MOST // max(len(space.sketches), 1)
        self._queues = [self._ordered(s, grid(space, s, each)) for s in range(len(space.sketches))]
        self._at = [0] * len(self._queues)
        self._turn = 0

    def _next(self, place: int) -> Candidate | None:
        for _ in self._queues:
            found = self._following(self._turn % len(self._queues))
            self._turn += 1
            if found:
                return found
        return None

    def _following(self, sketch: int) -> Candidate | None:
        rows = self._queues[sketch]
        while self._at[sketch] < len(rows):
            candidate = Candidate(sketch, tuple(rows[self._at[sketch]].tolist()))
            self._at[sketch] += 1
            if self._known.admit(candidate):
                return candidate
        return None

    def _ordered(self, sketch: int, rows: Rows) -> Rows:
        rows = rows[self._space.valid(sketch, rows)] if len(rows) else rows
        names = self._space.feature_names
        if ESTIMATE in names and len(rows):
            scores = AnalyticModel(names).predict(self._space.features(sketch, rows))
            return rows[np.argsort(-scores, kind="stable")]
        return rows[np.argsort(_van_der_corput(len(rows)), kind="stable")]


def grid(space: Space, sketch: int, most: int) -> Rows:
    """All rows of a sketch, or the finest grid over it with at most ``most`` rows."""
    whole = space.every(sketch, most)
    for values in COARSE:
        if whole is not None:
            return whole
        whole = space.every(sketch, most, values)
    if whole is None:  # even two values for each hole are too many
        return space.sample(sketch, most, np.random.default_rng(0))
    return whole


def _van_der_corput(n: int) -> np.ndarray:
    """The first ``n`` numbers of the van der Corput sequence in base 2: the bits of 0, 1, 2, ... mirrored at
    the binary point."""
    i, out, unit = np.arange(n, dtype=np.int64), np.zeros(n), 0.5
    while i.any():
        out += unit * (i & 1)
        i, unit = i >> 1, unit / 2
    return out
