"""A signal at any moment of a run: the run is closed in the log."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import signals
from made_up import tune, tune_suite
from search_table import FormulaSpace
from test_suite_tuner import TARGET, TASKS, Made
from test_tuner import WORKLOAD, FakeMeasurer

from autotune.tuning.interrupts import ENDING, Interrupts
from autotune.tuning.options import TuneOptions
from autotune.tuning.site import Here
from kernels_db import Log

OPTIONS = TuneOptions(trials=4, budget_s=60.0, search="random", model="analytic")


def one(log: Log, interrupts: Interrupts) -> object:
    space = FormulaSpace()
    made: Any = FakeMeasurer(space)
    return tune(
        *(WORKLOAD, TARGET, log, OPTIONS),
        space=space,
        measurer=made,
        peak=lambda: 1e-4,
        interrupts=interrupts,
    )


def many(log: Log, interrupts: Interrupts) -> object:
    return tune_suite(TASKS[:2], TARGET, log, OPTIONS, interrupts=interrupts, measurers=Made)


class After:
    """Counts calls of the tuning loop, and sends a signal at one of them."""

    def __init__(self, number: int | None) -> None:
        self.number, self.calls = number, 0

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and "/autotune/tuning/" in frame.f_code.co_filename:
            self.calls += 1
            if self.calls == self.number:
                signal.raise_signal(signal.SIGTERM)


@pytest.fixture(autouse=True)
def usual(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Signals as a program has them that does nothing about them; and no measured limits."""
    monkeypatch.setattr(Here, "roofline", lambda self, workload, target: None)
    with signals.usual(ENDING):
        yield


def interrupted(
    path: Path, work: Callable[[Log, Interrupts], object], number: int | None, may: bool = False
) -> tuple[int, set[str]]:
    after = After(number)
    with Log(path) as log:
        with Interrupts(signals=ENDING) as interrupts:
            sys.setprofile(after)
            try:
                work(log, interrupts)
            except KeyboardInterrupt:
                assert may or number is not None
            finally:
                sys.setprofile(None)
        return after.calls, {r.state for r in log.runs()}


@pytest.mark.fast("one")
@pytest.mark.parametrize("work", [one, many])
def test_no_run_is_left_open_by_a_signal_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Callable[[Log, Interrupts], object]
) -> None:
    """While the first of the runs is closed."""
    finish, signals = Log.finish_run, [signal.SIGTERM]

    def finish_run(self: Log, *args: Any) -> Any:
        if signals:
            signal.raise_signal(signals.pop())
        return finish(self, *args)

    monkeypatch.setattr(Log, "finish_run", finish_run)
    assert interrupted(tmp_path / "t.db", work, None, may=True)[1] == {"done"} and not signals


@pytest.mark.soak
@pytest.mark.parametrize("work", [one, many])
def test_no_run_is_left_open(tmp_path: Path, work: Callable[[Log, Interrupts], object]) -> None:
    calls, states = interrupted(tmp_path / "whole.db", work, None)
    assert states == {"done"} and calls > 100
    for n in (*range(1, calls, calls // 10), *range(calls - 40, calls)):
        _, states = interrupted(tmp_path / f"{n}.db", work, n)
        assert states <= {"interrupted", "done"}, f"at call {n} of {calls}"
