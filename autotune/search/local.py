"""Local search: neighbours of the best candidates so far, and some random ones. It needs no model.

It is hill climbing from several points at once, and changes one decision of an elite at a time. It refines
what another search has found, and is a baseline for learned models.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.search.base import RandomTurns, Result, Unguided, candidates
from schedules.space.base import Candidate, Space

# Random trials before there is anything to refine.
FIRST = 16
# Best candidates whose neighbours are tried.
ELITES = 4
# Neighbours of an elite that are drawn to find a new one.
NEIGHBOURS = 16
# Share of random candidates among the later trials.
RANDOM_SHARE = 0.2


class LocalSearch(Unguided):
    """Neighbours of the `ELITES` best candidates, which take turns."""

    def __init__(self, space: Space, seed: int = 0) -> None:
        super().__init__(space)
        self._rng = np.random.default_rng(seed)
        self._told: list[Result] = []
        self._elites: list[Candidate] = []  # the best of these
        self._turns = RandomTurns(self._known, self._rng)

    def _next(self, place: int) -> Candidate | None:
        elites = self._elites
        refine = elites and len(self._told) + place >= FIRST and self._rng.random() > RANDOM_SHARE
        found = self._neighbour(elites[place % len(elites)]) if refine else None
        return found or self._turns.next()

    def tell(self, results: Sequence[Result]) -> None:
        super().tell(results)
        self._told += results
        ran = sorted((r for r in self._told if r.throughput > 0), key=lambda r: -r.throughput)
        self._elites = [r.candidate for r in ran[:ELITES]]

    def _neighbour(self, elite: Candidate) -> Candidate | None:
        rows = np.array([elite.row] * NEIGHBOURS, dtype=np.int64)
        mutants = self._space.mutate(elite.sketch, rows, self._rng)
        fresh = mutants[self._known.fresh(elite.sketch, mutants)]
        return next((c for c in candidates(elite.sketch, fresh) if self._known.admit(c)), None)
