"""Ctrl-C acts once, and not where it would do harm."""

from __future__ import annotations

import signal
import time

import pytest

from autotune.tuning.interrupts import ENDING, Interrupts

RAISING = "import signal\nsignal.raise_signal(signal.SIGINT)\nreached.append('the end')"


pytestmark = pytest.mark.usefixtures("terminal_signals")


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


@pytest.mark.parametrize("number", ENDING)
def test_each_signal_that_ends_a_command_is_an_interrupt(number: int) -> None:
    others = [n for n in ENDING if n != number]
    interrupts = Interrupts(signals=ENDING)
    with interrupts:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        for n in others:  # must not cut off the report of the first
            signal.raise_signal(n)
    assert interrupts.number == number
    assert all(signal.getsignal(n) is signal.SIG_DFL for n in ENDING if n != signal.SIGINT)


def test_a_library_takes_no_signal_but_ctrl_c_from_its_program() -> None:
    with Interrupts():
        assert all(signal.getsignal(n) is signal.SIG_DFL for n in ENDING if n != signal.SIGINT)


@pytest.mark.parametrize("number", ENDING)
def test_what_is_ignored_or_handled_by_others_stays_so(number: int) -> None:
    """After nohup SIGHUP is ignored; a program may have a handler of its own."""
    seen: list[int] = []
    for handler in (signal.SIG_IGN, lambda n, frame: seen.append(n)):
        signal.signal(number, handler)
        with Interrupts(signals=ENDING):
            assert signal.getsignal(number) is handler
            signal.raise_signal(number)
        assert signal.getsignal(number) is handler
    assert seen == [number]


def test_after_one_came_a_process_that_ends_ignores_the_others() -> None:
    with Interrupts(to_the_end=True, signals=ENDING), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    assert all(signal.getsignal(n) is signal.SIG_IGN for n in ENDING)


def test_of_blocks_within_blocks_the_outermost_ends_the_wait() -> None:
    reached: list[str] = []
    interrupts = Interrupts()
    with interrupts, pytest.raises(KeyboardInterrupt), interrupts.hold():
        with interrupts.hold():
            run("a program", reached)
        run("a program", reached)
    assert reached == ["the end"] * 2
