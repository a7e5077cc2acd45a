"""Ctrl-C acts once, and not where it would do harm."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from autotune.tuning.interrupts import Interrupts

RAISING = "import signal\nsignal.raise_signal(signal.SIGINT)\nreached.append('the end')"


@pytest.fixture(autouse=True)
def handled() -> Iterator[None]:
    """SIGINT as a terminal has it: a shell has its background jobs ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def run(file: str, reached: list[str]) -> None:
    """A SIGINT in code of a file."""
    exec(compile(RAISING, file, "exec"), {"reached": reached})


def wait() -> None:
    end = time.monotonic() + 5.0
    while time.monotonic() < end:
        time.sleep(0.001)


def test_an_interrupt_acts_at_once_and_once() -> None:
    reached: list[str] = []
    with Interrupts():
        with pytest.raises(KeyboardInterrupt):
            run("a program", reached)
        run("a program", reached)
    assert reached == ["the end"]


def test_an_interrupt_waits_for_the_code_of_an_import() -> None:
    """An exception just after the lock of all imports was taken would leave it taken."""
    reached: list[str] = []
    with Interrupts(), pytest.raises(KeyboardInterrupt):
        run("<frozen importlib._bootstrap>", reached)
        wait()
    assert reached == ["the end"]


def test_an_interrupt_waits_for_the_end_of_a_block() -> None:
    reached: list[str] = []
    interrupts = Interrupts()
    with interrupts, pytest.raises(KeyboardInterrupt), interrupts.hold():
        run("a program", reached)
    assert reached == ["the end"]


def test_outside_everything_is_as_before() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
