"""Uniform random search: the baseline. Every sketch gets the same number of trials."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from autotune.search.base import Known, RandomTurns, Result
from schedules.space.base import Candidate, Space


class RandomSearch:
    """Sketches in a random order, round after round, one fresh random row each."""

    def __init__(self, space: Space, seed: int = 0) -> None:
        self._known = Known(space)
        self._turns = RandomTurns(self._known, np.random.default_rng(seed))

    def ask(self, n: int) -> list[Candidate]:
        chosen: list[Candidate] = []
        while len(chosen) < n and (found := self._turns.next()) is not None:
            chosen.append(found)
        return chosen

    def tell(self, results: Sequence[Result]) -> None:
        for result in results:
            self._known.add(result.candidate)

    def exclude(self, digests: Iterable[str]) -> None:
        self._known.exclude(digests)

    def predicted(self, chosen: Sequence[Candidate]) -> Mapping[str, Sequence[float]]:
        return {}
