"""Tells when a search may stop because no further gain is to be expected.

The best of n independent draws grows with log n, so each gain takes a constant factor more trials than the
last. A search stops when two thirds of all its trials, and at least `LEAST`, have passed since the last
gain. The unused budget serves other tasks.
"""

from __future__ import annotations

# Least trials without a gain.
LEAST = 512
# Least share of all trials without a gain.
SHARE = 2 / 3
# Share of throughput that counts as a gain.
GAIN = 0.005


class Stopping:
    """Watches the throughput of trials (runs a second, 0 for a failure). ``gain``: the share by which one
    must exceed the best to count as a gain. Effort may be counted in seconds as well as in trials."""

    def __init__(self, gain: float = GAIN) -> None:
        self._gain = gain
        self._spent, self._gained = 0.0, 0.0  # effort so far, effort at the last gain
        self._mark = 0.0

    def begin(self, best: float) -> None:
        """Set the best throughput known before the first trial."""
        self._mark = best

    def add(self, throughput: float, spent: float = 1.0) -> None:
        """Add a trial, or a turn that spent ``spent``."""
        self._spent += spent
        if throughput > self._mark * (1 + self._gain):
            self._mark, self._gained = throughput, self._spent

    @property
    def stalled(self) -> float:
        """Effort since the last gain."""
        return self._spent - self._gained

    @property
    def gained_share(self) -> float:
        """Share of the effort after which the last gain came; 0 if there was none."""
        return self._gained / self._spent if self._spent else 0.0

    @property
    def met(self) -> bool:
        """Whether the search may stop. Never true while nothing ran."""
        return self._mark > 0 and self.stalled >= max(LEAST, SHARE * self._spent)
