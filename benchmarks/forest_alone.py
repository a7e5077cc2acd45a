"""A forest with expected improvement and nothing else, one trial at a time, for `replay.py`: what sequential
model-based optimisation (SMAC and its like) does, with the forest and the pool of our own search."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.search.base import RandomTurns, Result, Unguided, candidates, unique
from autotune.search.evolutionary import model_features, model_matrix
from autotune.search.improvement import ExpectedImprovement, ImprovementOptions
from schedules.space.base import Candidate, Space

FIRST = 12  # random trials before the forest chooses
TOP, MUTATIONS = 8, 32  # best measured rows whose mutations are scored, and how many of each


class ForestAlone(Unguided):
    """A `SearchPolicy` over a space of one sketch."""

    def __init__(self, space: Space, seed: int = 0) -> None:
        super().__init__(space)
        self._rng = np.random.default_rng(seed)
        self._turns = RandomTurns(self._known, self._rng)
        self._forest = ExpectedImprovement(model_features(space), seed, ImprovementOptions(after=FIRST))
        self._told: list[Result] = []

    def tell(self, results: Sequence[Result]) -> None:
        super().tell(results)
        self._told += results

    def _next(self, place: int) -> Candidate | None:
        throughput = np.array([r.throughput for r in self._told])
        rows = np.array([r.candidate.row for r in self._told], dtype=np.int64)
        if len(rows):
            self._forest.fit(model_matrix(self._space, 0, rows), throughput)
        if not self._forest.ready:
            return self._turns.next()
        top = rows[np.argsort(-throughput, kind="stable")[:TOP]]
        near = self._space.mutate(0, np.repeat(top, MUTATIONS, axis=0), self._rng)
        drawn = self._known.draw(0, self._forest.options.pool, self._rng)
        pool = unique(np.concatenate([drawn, near[self._known.fresh(0, near)]]))
        best = np.argsort(-self._forest.score(model_matrix(self._space, 0, pool)), kind="stable")
        return next((c for c in candidates(0, pool[best]) if self._known.admit(c)), None)
