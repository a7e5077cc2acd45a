"""Chooses the next round while the last trials of this one are measured."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from autotune.platform.processes import thread_steps_back
from autotune.search.base import Result, SearchPolicy
from schedules.space.base import Candidate

# A round's candidates, and what models predict of them (`SearchPolicy.predicted`).
_Round = tuple[list[Candidate], Mapping[str, Sequence[float]]]
# Time to begin choosing before the round ends, in durations of the last choice: beside measuring it takes
# longer.
LEAD = 1.5
# Niceness of the thread that chooses: kernels that are timed go first.
NICE = 10


class AskAhead:
    """A policy that a thread may ask in advance. Use it as a context manager, from one thread. What it is
    told while the thread chooses reaches the policy with the next call of `ask` or `begin`.

    ``seconds``: duration of the last choice of a round. ``predicted``: what models predicted of the round
    that `ask` returned last.
    """

    def __init__(self, policy: SearchPolicy) -> None:
        self._policy = policy
        self._pool = ThreadPoolExecutor(1, "autotune-search", thread_steps_back, (NICE,))
        self._next: Future[_Round] | None = None
        self._untold: list[Result] = []
        self.seconds = 0.0
        self.predicted: Mapping[str, Sequence[float]] = {}

    def __enter__(self) -> AskAhead:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def tell(self, results: Sequence[Result]) -> None:
        """Tell the policy results: now, or before it is asked next if the thread is choosing."""
        self._untold += results
        if self._next is None:
            self._flush()

    def due(self, left_s: float) -> bool:
        """Whether to begin choosing when this round has ``left_s`` seconds of measuring left."""
        return self._next is None and left_s <= LEAD * self.seconds

    def begin(self, n: int) -> None:
        """Choose ``n`` candidates in the thread, for the next call of `ask`."""
        self._flush()
        self._next = self._pool.submit(self._choose, n)

    def ask(self, n: int) -> list[Candidate]:
        """The round that was begun, whatever its size; otherwise ``n`` candidates, chosen now."""
        if self._next is not None:
            chosen, predicted = self._next.result()
            self._next = None
            if chosen:
                self.predicted = predicted
                return chosen
        self._flush()
        chosen, self.predicted = self._choose(n)
        return chosen

    def _flush(self) -> None:
        told, self._untold = self._untold, []
        if told:
            self._policy.tell(told)

    def _choose(self, n: int) -> _Round:
        start = time.perf_counter()
        try:
            chosen = self._policy.ask(n)
            return chosen, self._policy.predicted(chosen) if chosen else {}
        finally:
            self.seconds = time.perf_counter() - start
