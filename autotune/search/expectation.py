"""How long a search has found nothing better, and when it may stop: nothing more is to be expected.

The best of n independent draws grows with log n, so the trials that the next gain takes grow with those that
the last one took. A search that found nothing better in twice the trials before, and in `LEAST` at least, has
little hope left; a budget that is not used up serves other tasks.
"""

from __future__ import annotations

LEAST = 512  # trials without a gain
SHARE = 2 / 3  # of all trials that must have gone without one
GAIN = 0.005  # of throughput, that counts as one


class Expectation:
    """Watches the throughput of trials, 0 for a failure. ``gain``: the part of it by which one must be better
    than the best, to count as a gain."""

    def __init__(self, gain: float = GAIN) -> None:
        self._gain = gain
        self._trials, self._gained = 0, 0  # so far, and when the best last rose by a gain
        self._mark = 0.0

    def begin(self, best: float) -> None:
        """What was known before the first trial."""
        self._mark = best

    def add(self, throughput: float) -> None:
        self._trials += 1
        if throughput > self._mark * (1 + self._gain):
            self._mark, self._gained = throughput, self._trials

    @property
    def stalled(self) -> int:
        """Trials since the last gain."""
        return self._trials - self._gained

    @property
    def met(self) -> bool:
        """Whether there is nothing more to expect; never while nothing ran."""
        return self._mark > 0 and self.stalled >= max(LEAST, SHARE * self._trials)
