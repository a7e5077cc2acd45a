"""How long a search has found nothing better, and when it may stop: nothing more is to be expected.

The best of n independent draws grows with log n, so the trials that the next gain takes grow with those that
the last one took. A search that found nothing better in twice the trials before, and in `LEAST` at least, has
little hope left; a budget that is not used up serves other tasks.
"""

from __future__ import annotations

LEAST = 512  # trials without a gain
SHARE = 2 / 3  # of all trials that must have gone without one
GAIN = 0.005  # of throughput, that counts as one


class Stopping:
    """Watches the throughput of trials, 0 for a failure. ``gain``: the part of it by which one must be better
    than the best, to count as a gain. What is spent may be counted in seconds as well as in trials."""

    def __init__(self, gain: float = GAIN) -> None:
        self._gain = gain
        self._spent, self._gained = 0.0, 0.0  # so far, and when the best last rose by a gain
        self._mark = 0.0

    def begin(self, best: float) -> None:
        """What was known before the first trial."""
        self._mark = best

    def add(self, throughput: float, spent: float = 1.0) -> None:
        self._spent += spent
        if throughput > self._mark * (1 + self._gain):
            self._mark, self._gained = throughput, self._spent

    @property
    def stalled(self) -> float:
        """What was spent since the last gain."""
        return self._spent - self._gained

    @property
    def gained_share(self) -> float:
        """The share of what was spent after which the last gain came; 0 while nothing was gained."""
        return self._gained / self._spent if self._spent else 0.0

    @property
    def met(self) -> bool:
        """Whether there is nothing more to expect; never while nothing ran."""
        return self._mark > 0 and self.stalled >= max(LEAST, SHARE * self._spent)
