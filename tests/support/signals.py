"""Signals for tests: an alarm for what would hang, and the handlers that a program begins with."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def alarm(seconds: int) -> Iterator[None]:
    """Raises TimeoutError in what hangs for so long."""

    def late(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@contextmanager
def usual(numbers: Sequence[int]) -> Iterator[None]:
    """Signals as a terminal has them: a shell has its background jobs ignore SIGINT."""
    before = {n: signal.getsignal(n) for n in numbers}
    for n in numbers:
        signal.signal(n, signal.default_int_handler if n == signal.SIGINT else signal.SIG_DFL)
    yield
    for n, handler in before.items():
        signal.signal(n, handler)
