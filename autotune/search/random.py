"""Uniform random search: the baseline. Every sketch gets the same number of trials."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from autotune.search.base import Known, Result, candidates
from schedules.space.base import Candidate, Space


class RandomSearch:
    """Sketches in a random order, round after round, one fresh random row each."""

    def __init__(self, space: Space, seed: int = 0) -> None:
        self._known = Known(space)
        self._rng = np.random.default_rng(seed)
        self._queue: list[int] = []

    def ask(self, n: int) -> list[Candidate]:
        chosen: list[Candidate] = []
        while len(chosen) < n:
            if not self._queue:
                self._queue = [int(s) for s in self._rng.permutation(self._known.live())]
                if not self._queue:
                    break
            sketch = self._queue.pop(0)
            for candidate in candidates(sketch, self._known.draw(sketch, 4, self._rng)):
                if self._known.admit(candidate):
                    chosen.append(candidate)
                    break
        return chosen

    def tell(self, results: Sequence[Result]) -> None:
        for result in results:
            self._known.add(result.candidate)

    def exclude(self, digests: Iterable[str]) -> None:
        self._known.exclude(digests)
