"""Any policy, after a few candidates that are worth trying first: what was best on other machines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from autotune.search.base import Result, SearchPolicy
from schedules.space.base import Candidate, Space


class Seeded:
    """The first round proposes ``seeds``, as many as are asked for; then the policy goes on, which never
    proposes them again. A `SearchPolicy` too."""

    def __init__(self, policy: SearchPolicy, space: Space, seeds: Sequence[Candidate]) -> None:
        self._policy = policy
        self._seeds: dict[str, Candidate] = {}
        for s in seeds:
            self._seeds.setdefault(space.trace(s.sketch, np.array(s.row, dtype=np.int64)).digest, s)
        self._proposed: set[Candidate] = set()

    def ask(self, n: int) -> list[Candidate]:
        if not self._seeds:
            return self._policy.ask(n)
        digests = list(self._seeds)[:n]
        self._policy.exclude(digests)
        chosen = [self._seeds.pop(d) for d in digests]
        self._proposed.update(chosen)
        return chosen

    def tell(self, results: Sequence[Result]) -> None:
        self._policy.tell(results)

    def exclude(self, digests: Iterable[str]) -> None:
        known = list(digests)
        for d in known:
            self._seeds.pop(d, None)
        self._policy.exclude(known)

    def predicted(self, chosen: Sequence[Candidate]) -> Mapping[str, Sequence[float]]:
        """What the policy's models thought of a round; nothing of seeds, which no model chose."""
        model: Any = self._policy
        return {} if self._proposed.intersection(chosen) else model.predicted(chosen)
