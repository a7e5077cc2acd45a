"""The machine's limit, as a run measures it. And what records keep so that a report can draw rooflines
without measuring: that limit, and traffic.

The keys stand in the ``environment`` of records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from schedules.instructions.work import limiting
from schedules.units import disturbed

if TYPE_CHECKING:
    from schedules.model import Workload
    from schedules.space.base import Candidate, Space

# Keys in the environment of a record: of what the machine can do, where that was measured before it
# (``seconds`` that the workload needs at least, and the rates that this follows from); and of the bytes that
# a candidate moves from and to memory, by the estimate.
LIMIT, MEMORY_BYTES = "limit", "memory_bytes"
ESTIMATED_BYTES = "total.memory_bytes"  # the feature; spaces of GPUs have none

# Samples of the limit at a time.
SAMPLES = 5


class MachineLimit:
    """The least seconds that a machine needs for a workload, in a run. ``measure``: gives a sample, 0 if it
    is not known; None: nobody can. ``seconds``: the least sample, None before there is one: a disturbed one
    makes the limit look long."""

    def __init__(self, measure: Callable[[], float] | None = None) -> None:
        self.measure = measure
        self.seconds: float | None = None
        self.rates: dict[str, float] = {}  # it follows from these
        self._news: dict[str, float] = {}

    def sample(self) -> None:
        """Take some samples."""
        for _ in range(SAMPLES if self.measure is not None else 0):
            assert self.measure is not None
            self._take(self.measure())

    def check(self, time_s: float | None) -> None:
        """Measure again beside a kernel whose time is below the limit: the limit was disturbed."""
        if disturbed(self.share(time_s)):
            if self.measure is not None and (again := getattr(self.measure, "again", None)) is not None:
                self._take(again())
            self.sample()

    def _take(self, found: float) -> None:
        if found > 0 and (self.seconds is None or found < self.seconds):
            self.seconds = found
            # who measures elsewhere may know the seconds alone
            self.rates = dict(getattr(self.measure, "rates", {}))
            self._news = {**self.rates, "seconds": found}

    def news(self) -> dict[str, object]:
        """What was measured since the last call, as a part of an environment."""
        news, self._news = self._news, {}
        return {LIMIT: news} if news else {}

    def share(self, time_s: float | None) -> float | None:
        """The share of the limit that a time reaches."""
        return None if time_s is None or self.seconds is None else self.seconds / time_s

    def instruction(self, workload: Workload) -> str | None:
        """The instruction whose peak it is, None if it is that of something else."""
        if self.seconds is None:
            return None
        return limiting(workload.dag, workload.flops, self.seconds, self.rates)


def moved(space: Space, candidate: Candidate) -> dict[str, int]:
    """The estimate of what a candidate moves, as a part of an environment; empty where the space has none."""
    if ESTIMATED_BYTES not in space.feature_names:
        return {}
    row = np.array([candidate.row], dtype=np.int64)
    value = float(space.features(candidate.sketch, row)[0, space.feature_names.index(ESTIMATED_BYTES)])
    return {MEMORY_BYTES: int(value)} if np.isfinite(value) else {}
