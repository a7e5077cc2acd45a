"""The processor time that is a test's own, as it would be on the machine for which limits were chosen.

Whatever runs at the same time, and whoever ran before, should not decide whether a test is too long:

- A slower machine takes longer, and so does one whose other hyperthreads are busy. A loop that always does
  the same says how much (`slowness`).
- Who imports a library first pays for all others. This is taken off (`Imports`). So is the parsing of the
  product's files (`syntax`).
- A process counts when it is reaped, which may be in a later test than the one that began it. What all CPUs
  could not have done while a test ran is not of that test.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from syntax import parsing_s

# Processor seconds of `_work` on the machine for which the limits of `lengths` were chosen.
NOMINAL_S = 0.0075
# A machine may be so many times slower. More is taken for a fault of the loop.
SLOWEST = 5.0
# A part of a test that takes so long, and one of so many, has the machine's speed asked for anew.
LOOK_S, LOOK_EVERY = 1.0, 300
# Packages whose imports are a test's own.
OURS = ("autotune", "schedules", "cost_model", "kernels_db")


def _work() -> int:
    n = 0
    for i in range(200_000):
        n = (n * 31 + i) % 1_000_003
    return n


def slowness(tries: int = 3, clock: Callable[[], float] = time.thread_time) -> float:
    """How many times as long as on that machine a computation takes here and now; at least 1."""
    took = []
    for _ in range(tries):
        begin = clock()
        _work()
        took.append(clock() - begin)
    return min(max(min(took) / NOMINAL_S, 1.0), SLOWEST)


def used_s() -> tuple[float, float]:
    """Processor seconds of this process, and of its children that have been reaped."""
    each = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own, children = (u.ru_utime + u.ru_stime for u in each)
    return own, children


class Imports:
    """Adds up the processor seconds of this process in which others' modules are imported for the first
    time: ``seconds``."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = threading.local()
        # Every import of a module that is not there yet comes here, those of importlib.import_module too.
        self._machinery: Any = sys.modules["_frozen_importlib"]
        self._find = self._machinery._find_and_load

    def install(self) -> None:
        self._machinery._find_and_load = self._timed

    def remove(self) -> None:
        self._machinery._find_and_load = self._find

    def _timed(self, name: str, *more: Any) -> Any:
        ours = name.partition(".")[0] in OURS
        if ours or name in sys.modules or getattr(self._depth, "n", 0):
            return self._find(name, *more)
        self._depth.n = 1
        begin = time.thread_time()
        try:
            return self._find(name, *more)
        finally:
            self._depth.n = 0
            self.seconds += time.thread_time() - begin


class OwnTime:
    """Measures one part of a test after the other. ``used_s``, ``wall``, ``slowness``: as above."""

    def __init__(
        self,
        imports: Imports | None = None,
        used_s: Callable[[], tuple[float, float]] = used_s,
        wall: Callable[[], float] = time.monotonic,
        slowness: Callable[[], float] = slowness,
    ) -> None:
        self.imports = imports or Imports()
        self._used_s, self._wall, self._slowness = used_s, wall, slowness
        self._slow, self._since = 1.0, LOOK_EVERY  # looks when it begins
        self.begin()

    def begin(self) -> None:
        self._at, self._before, self._shared = self._wall(), self._used_s(), self._shared_s()

    def _shared_s(self) -> float:
        """Seconds so far of what a process does once for many tests."""
        return self.imports.seconds + parsing_s()

    def end(self) -> float:
        """Seconds since the last call."""
        took = self._wall() - self._at
        own, children = (b - a for a, b in zip(self._before, self._used_s(), strict=True))
        own = max(own - (self._shared_s() - self._shared), 0.0)
        spent = own + min(children, max(took * (os.cpu_count() or 1) - own, 0.0))
        self._since += 1
        if spent >= LOOK_S or self._since > LOOK_EVERY:
            self._slow, self._since = self._slowness(), 0
        self.begin()
        return spent / self._slow
