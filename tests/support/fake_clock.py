"""A clock that goes on only where something sleeps: no test of budgets depends on how busy a machine is."""

from __future__ import annotations

import time

import pytest

LOOK_S = 1e-6  # it goes on a little at each look, so that nothing waits for ever


class Clock:
    """What takes time says so by `time.sleep`. What computes takes none."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        self.now += LOOK_S
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.0)


def install(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Have `time.monotonic` and `time.sleep` be those of a new clock, until the end of the test."""
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    monkeypatch.setattr(time, "sleep", clock.sleep)
    return clock
