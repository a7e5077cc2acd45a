"""Runs in which nothing is right at first, or at all: what they still try, and what they say."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fake_clock
import pytest
from cli_runner import run as command
from fake_clock import Clock, install
from log_cases import TARGETS
from made_up import tune, tune_suite

from autotune.cli.results import document
from autotune.measure.results import Measurement
from autotune.results.tuned import SuiteResult, SuiteTask, TuneResult
from autotune.tuning import first_pick, plain_loops
from autotune.tuning.no_kernel import why
from autotune.tuning.options import TuneOptions
from autotune.tuning.similar import Seed
from autotune.tuning.site import Here
from kernels_db import Log
from schedules import ops
from schedules.errors import ScheduleError
from schedules.model import Target, Trace, Workload
from schedules.space.base import Space, trace_of

TARGET = TARGETS[0]
SLOW_BUILD = Measurement("timeout", "building took longer than 2.4 s")
WORKLOAD = ops.workload("matmul", {"m": 64, "n": 64, "k": 64})


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Budgets do not depend on how busy the machine is."""
    return install(monkeypatch)


class Failing:
    """A measurer with which only some traces are right."""

    def __init__(self, right: Callable[[Trace], bool], sleep_s: float = 0.002) -> None:
        self.right, self.sleep_s = right, sleep_s
        self.measured: list[str] = []

    def arrivals(
        self,
        traces: Sequence[Trace],
        best_s: float | None = None,
        deadline: float | None = None,
        latest: float | None = None,
    ) -> Iterator[tuple[int, Measurement]]:
        for n, trace in enumerate(traces):
            if deadline is not None and time.monotonic() >= deadline:
                return
            time.sleep(self.sleep_s)
            self.measured.append(trace.digest)
            ok = Measurement("ok", "", (1e-3,), 1e-3, 0.0, 1.0, 0.001, 0.001, 0.001)
            yield n, ok if self.right(trace) else SLOW_BUILD

    def object(self, trace: Trace) -> bytes | None:
        return b""

    def move(self) -> None:
        pass

    def finalists(self, traces: Sequence[Trace], rounds: int = 3, repeats: int = 5) -> list[Measurement]:
        return [Measurement("ok", "", (1e-3,), 1e-3, reference_rate=1.0) for _ in traces]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path / "t.db") as opened:
        yield opened


@pytest.fixture(autouse=True)
def no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Here, "roofline", lambda self, workload, target: None)


def options(**given: Any) -> TuneOptions:
    return TuneOptions(**({"budget_s": 10.0, "trials": 40, "search": "random", "model": "analytic"} | given))


def suite(log: Log, measurers: dict[str, Failing], **given: Any) -> SuiteResult:
    tasks = [SuiteTask(ops.workload("matmul", {"m": n, "n": n, "k": n})) for n in (64, 96)]
    of = dict(zip((t.workload.digest for t in tasks), measurers.values(), strict=True))

    def make(workload: Workload) -> Any:
        return of[workload.digest]

    return tune_suite(tasks, TARGET, log, options(**given), measurers=make)


@pytest.mark.slow
def test_a_run_without_a_kernel_says_why(log: Log) -> None:
    result = tune(WORKLOAD, TARGET, log, options(), measurer=Failing(lambda t: False))
    assert result.best is None and result.stopped == "trials"
    assert result.error == (f"none of 40 trials gave a kernel: 40 timeout ({SLOW_BUILD.reason})")
    assert f"no valid kernel found, as {result.error}" in str(result)
    with pytest.raises(ScheduleError, match="none of 40 trials gave a kernel: 40 timeout"):
        result.schedule()


@pytest.mark.slow
def test_a_run_with_a_kernel_has_no_error(log: Log) -> None:
    result = tune(WORKLOAD, TARGET, log, options(), measurer=Failing(lambda t: True))
    assert result.best is not None and result.error is None


@pytest.mark.fast("20.0")
@pytest.mark.parametrize("budget_s", [0.2, 5.0, 20.0])
def test_a_run_that_finds_nothing_ends_soon_after_its_budget(
    log: Log, monkeypatch: pytest.MonkeyPatch, budget_s: float
) -> None:
    """On a busy machine each candidate takes a second."""
    clock = fake_clock.install(monkeypatch)
    begin = clock.now
    measurer = Failing(lambda t: False, sleep_s=1.0)
    chosen = options(budget_s=budget_s, trials=None)
    result = tune(WORKLOAD, TARGET, log, chosen, measurer=measurer)
    assert result.best is None and measurer.measured
    assert clock.now - begin <= max(1.1 * budget_s, 5.0) + 1.1  # and the last candidate


@pytest.mark.slow
def test_a_fruitless_round_is_followed_by_a_first_pick(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no trial of the search is right, the candidates of a first pick are tried at once."""
    picks: set[str] = set()
    asked = first_pick.proposals

    def proposals(workload: Workload, target: Target, space: Space, *more: Any) -> list[Seed]:
        found = asked(workload, target, space, *more)
        picks.update(trace_of(space, s.candidate).digest for s in found)
        return found

    monkeypatch.setattr(first_pick, "proposals", proposals)
    measurer = Failing(lambda t: t.digest in picks)
    result = tune(WORKLOAD, TARGET, log, options(), measurer=measurer)
    assert result.best is not None and result.error is None
    first = next(n for n, digest in enumerate(measurer.measured) if digest in picks)
    assert first <= 17 and len(set(measurer.measured)) == len(measurer.measured) == 40  # nothing twice


def test_a_task_of_a_suite_ends_with_plain_loops_where_they_are_right(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if its turn is over before the search would have come to them."""
    monkeypatch.setattr(plain_loops, "QUICK_S", 0.0)
    made = {n: Failing(lambda t: t == plain_loops.TRACE, 0.2) for n in "ab"}
    result = suite(log, made, trials=None, budget_s=1.5)
    begun = [t for t in result.tasks if t.result.stopped != "not begun"]
    assert begun and all(t.result.best is not None and t.error is None for t in begun)


@pytest.mark.slow
def test_a_task_of_a_suite_without_a_kernel_has_an_error(log: Log) -> None:
    made = {"fails": Failing(lambda t: False), "works": Failing(lambda t: True)}
    result = suite(log, made, trials=8)
    first, second = result.tasks
    assert first.result.best is None and first.error is not None and first.error == first.result.error
    assert "timeout (building took longer than 2.4 s)" in first.error
    assert second.error is None and result.weighted_s is None
    shown = document(result, TARGET)["tasks"]
    assert shown[0]["error"] == first.error and shown[1]["error"] is None


def test_a_task_that_had_no_turn_says_so(log: Log) -> None:
    result = suite(log, {n: Failing(lambda t: True, 0.4) for n in "ab"}, budget_s=0.3)
    (late,) = (t for t in result.tasks if t.result.stopped == "not begun")
    assert late.error is not None
    assert late.error.startswith("the budget ended before its first turn; give a larger budget")


def test_a_task_whose_turn_an_interrupt_took_says_so(log: Log) -> None:
    def pressed(trace: Trace) -> bool:
        raise KeyboardInterrupt

    result = suite(log, {n: Failing(pressed) for n in "ab"})
    assert result.stopped == "interrupted"
    assert {t.error for t in result.tasks} == {
        "the run was interrupted before its first trial ended",
        "the run was interrupted before its first turn",
    }


def test_a_budget_that_preparing_used_up_is_told() -> None:
    told = why({}, {}, "budget", prepared_s=11.0, elapsed_s=12.2, budget_s=12.0)
    assert told == (
        "the budget ended before the first trial did, as deriving the space and the right outputs took 11.0 "
        "s of 12 s; give a larger budget"
    )
    assert "deriving" not in why({}, {}, "budget", prepared_s=0.3, elapsed_s=1.0, budget_s=1.0)


@pytest.mark.parametrize(
    ("failed", "stopped", "wanted"),
    [
        ({"wrong_result": 1}, "budget", "none of 1 trial gave a kernel: 1 wrong_result (off)"),
        (
            {"timeout": 4, "illegal": 7},
            "budget",
            "none of 11 trials gave a kernel: 7 illegal (gone), 4 timeout (late); give a larger budget",
        ),
        ({}, "interrupted", "the run was interrupted before its first trial ended"),
        ({}, "exhausted", "the space has no schedule that keeps the limits of the target"),
        ({}, "trials", "no trial was made in 2.0 s (trials)"),
    ],
)
def test_the_sentence_names_every_cause(failed: dict[str, int], stopped: str, wanted: str) -> None:
    reasons = {"wrong_result": "off", "timeout": "late", "illegal": "gone"}
    assert why(failed, reasons, stopped, prepared_s=0.1, elapsed_s=2.0, budget_s=2.0) == wanted


def test_trials_that_were_stopped_early_are_trials() -> None:
    told = why({}, {}, "trials", prepared_s=0.1, elapsed_s=2.0, budget_s=2.0, stopped_early=2)
    assert told.startswith("2 trials stopped early, as much slower than a record of the log that was then")


def test_a_frozen_run_and_the_command_line_say_why(tmp_path: Path) -> None:
    Log(tmp_path / "t.db").close()
    words = ["tune", "matmul", "--shape", "m=8,n=8,k=8", "--frozen", "--db", tmp_path / "t.db"]
    ran = command(*words)
    assert ran.status == 1
    assert "no valid kernel found: the log has no record that can be used" in " ".join(ran.out.split())
    found = command(*words, "--json").json
    assert found["best"] is None and found["error"].startswith("the log has no record that can be used")


def test_results_of_old_callers_have_no_error() -> None:
    assert TuneResult(WORKLOAD, TARGET, None, 0, {}, 0, 0.0, 0, "budget").error is None
