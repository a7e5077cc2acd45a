"""Wraps a policy so that a few given candidates come first, such as the best of other machines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autotune.search.base import Result, SearchPolicy
from schedules.space.base import Candidate, Space, trace_of


class Seeded:
    """A `SearchPolicy` whose first round proposes ``seeds``, up to the number asked for. The wrapped policy
    then goes on, and never proposes them again."""

    def __init__(self, policy: SearchPolicy, space: Space, seeds: Sequence[Candidate]) -> None:
        self._policy = policy
        self._seeds: dict[str, Candidate] = {}
        for s in seeds:
            self._seeds.setdefault(trace_of(space, s).digest, s)
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
        """What the policy's models predicted of a round. Empty for seeds, which no model chose."""
        model: Any = self._policy
        return {} if self._proposed.intersection(chosen) else model.predicted(chosen)
