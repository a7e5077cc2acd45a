"""Uniform random search: the baseline. Every sketch gets the same number of trials."""

from __future__ import annotations

import numpy as np

from autotune.search.base import RandomTurns, Unguided
from schedules.space.base import Candidate, Space


class RandomSearch(Unguided):
    """Sketches in a random order, round after round, one fresh random row each."""

    def __init__(self, space: Space, seed: int = 0) -> None:
        super().__init__(space)
        self._turns = RandomTurns(self._known, np.random.default_rng(seed))

    def _next(self, place: int) -> Candidate | None:
        return self._turns.next()
