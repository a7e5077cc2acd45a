"""The next round is chosen while the last trials of this one are measured."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from autotune.search.base import Result, SearchPolicy
from schedules.space.base import Candidate

LEAD = 1.5  # times what choosing took last: beside other work it takes longer
NICE = 10


def _step_back() -> None:
    """Let kernels that are timed go first; on Linux a thread has a priority of its own."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


class AskAhead:
    """A policy that a thread may ask beforehand. Use it as a context manager, from one thread; what is told
    while the thread chooses reaches the policy with the next call of `ask` or `begin`.

    ``seconds``: what choosing a round took last, whoever waited for it.
    """

    def __init__(self, policy: SearchPolicy) -> None:
        self._policy = policy
        self._pool = ThreadPoolExecutor(1, "autotune-search", _step_back)
        self._next: Future[list[Candidate]] | None = None
        self._untold: list[Result] = []
        self.seconds = 0.0

    def __enter__(self) -> AskAhead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def tell(self, results: Sequence[Result]) -> None:
        """Tell the policy, at the latest when it is asked next."""
        self._untold += results
        if self._next is None:
            self._flush()

    def due(self, left_s: float) -> bool:
        """Whether to begin with ``left_s`` of measuring before this round ends."""
        return self._next is None and left_s <= LEAD * self.seconds

    def begin(self, n: int) -> None:
        """Choose ``n`` candidates in the thread, for the next call of `ask`."""
        self._flush()
        self._next = self._pool.submit(self._choose, n)

    def ask(self, n: int) -> list[Candidate]:
        """The round that was begun, whatever its size; otherwise ``n`` candidates, chosen now."""
        if self._next is not None:
            chosen = self._next.result()
            self._next = None
            if chosen:
                return chosen
        self._flush()
        return self._choose(n)

    def _flush(self) -> None:
        told, self._untold = self._untold, []
        if told:
            self._policy.tell(told)

    def _choose(self, n: int) -> list[Candidate]:
        start = time.perf_counter()
        try:
            return self._policy.ask(n)
        finally:
            self.seconds = time.perf_counter() - start
