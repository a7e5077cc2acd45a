"""Runs that end once their kernels reach what ``until`` asks for."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from cli_runner import run as command
from fake_clock import Clock, install
from log_cases import TARGETS
from made_up import MadeUp, tune, tune_suite

import autotune as at
from autotune.measure.results import Measurement
from autotune.models.tasks import had_share_s
from autotune.results.aim import Aim, Aimed
from autotune.results.tuned import Progress, SuiteTask
from autotune.run.dynamic_workload import as_dynamic
from autotune.settings import SettingsError
from autotune.tuning.dynamic_tuner import tune_range
from autotune.tuning.interrupts import Interrupts
from autotune.tuning.jobs import Job
from autotune.tuning.options import TuneOptions
from autotune.tuning.request import TuneRequest
from autotune.tuning.suite import Suite
from autotune.tuning.tuner import OneMachine
from kernels_db import Log
from schedules import ops
from schedules.model import Trace

TARGET = TARGETS[0]
WORK = ops.workload("matmul", {"m": 64, "n": 64, "k": 64})
TASKS = [
    SuiteTask(ops.workload("matmul", {"m": n, "n": n, "k": n}), weight, f"matmul {n}")
    for n, weight in ((64, 3.0), (96, 2.0))
]
# Seconds of a kernel, and the share of it that a lucky trial seems to take.
TRUE_S, LUCK = 1e-3, 0.1


class Lucky:
    """A measurer each of whose candidates takes a little less than the one before, down to ``TRUE_S``. Every
    ``lucky``-th trial seems to take a tenth; timed again it does not."""

    def __init__(self, lucky: int = 0) -> None:
        self.lucky, self.true_s = lucky, dict[str, float]()
        self.finals = 0

    def arrivals(
        self, traces: Sequence[Trace], best_s: Any = None, deadline: Any = None, **_: Any
    ) -> Iterator[tuple[int, Measurement]]:
        for n, trace in enumerate(traces):
            if deadline is not None and time.monotonic() >= deadline:
                return
            time.sleep(0.1)
            taken = len(self.true_s) + 1
            t = self.true_s.setdefault(trace.digest, TRUE_S * (1 + 4 / taken))
            t *= LUCK if self.lucky and taken % self.lucky == 0 else 1.0
            yield n, Measurement("ok", "", (t, t), t, 0.0, 1.0, 0.001, 0.001, 0.001)

    def object(self, trace: Trace) -> bytes | None:
        return b"" if trace.digest in self.true_s else None

    def move(self) -> None:
        pass

    def finalists(self, traces: Sequence[Trace], rounds: int = 3, repeats: int = 5) -> list[Measurement]:
        self.finals += 1
        time.sleep(0.05)
        times = [self.true_s[t.digest] for t in traces]
        return [Measurement("ok", "", (t,), t, reference_rate=1.0) for t in times]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return install(monkeypatch)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path / "t.db") as opened:
        yield opened


def options(until: str | float | None, **more: Any) -> TuneOptions:
    usual = {"budget_s": 60.0, "search": "random", "model": "analytic", "until": until}
    return TuneOptions(**(usual | more))


def run(log: Log, until: str | float | None, made: Lucky, peak_s: float = TRUE_S, **more: Any) -> Any:
    return tune(WORK, TARGET, log, options(until, **more), measurer=made, peak=lambda: peak_s)


def test_what_is_given_is_a_time_or_a_share() -> None:
    assert Aim.read("200us") == Aim(time_s=pytest.approx(2e-4))
    assert Aim.read(" 1.5 MS") == Aim(time_s=pytest.approx(1.5e-3))
    assert Aim.read("0.9") == Aim.read(0.9) == Aim(share=0.9) and Aim.read(1) == Aim(share=1.0)
    for wrong, words in (
        ("1.5", "a share is above 0 and at most 1"),
        (0, "a share is above 0"),
        (float("nan"), "a share is above 0"),
        ("soon", "write a time of a call with its unit, as 200us"),
        ("5 hours", "write a time"),
        ("0us", "a time is above zero"),
        (True, "until is True"),
        ([1], "until is"),
    ):
        with pytest.raises(SettingsError, match=words):
            TuneOptions(until=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("until", ["1.5ms", 0.6])
def test_a_run_ends_early_at_a_time_or_a_share(log: Log, until: str | float) -> None:
    seen: list[Progress] = []
    tell = lambda p: seen.append(p.task)  # noqa: E731
    made = Lucky()
    result = tune(WORK, TARGET, log, options(until), tell, measurer=made, peak=lambda: TRUE_S)
    assert result.stopped == "reached" and result.elapsed_s < 30
    assert result.aimed is not None and result.aimed.reached
    assert result.best is not None and result.best.time_s <= TRUE_S / 0.6
    assert "target reached" in str(result) and "reached: " in str(result)
    assert seen[0].aimed is not None and not seen[0].aimed.reached
    assert seen[-1].aimed is not None and seen[-1].aimed.reached
    (best,) = log.top_k(WORK, TARGET, 1)
    assert best.kind == "final"


def test_without_it_the_same_run_goes_on(log: Log) -> None:
    result = run(log, None, Lucky())
    assert result.stopped != "reached" and result.measured > 40 and result.aimed is None


def test_one_lucky_time_ends_no_run(log: Log) -> None:
    """Kernels seem to take a tenth now and then. Timed again they do not, and that alone counts."""
    made, seen = Lucky(lucky=7), list[Progress]()
    tell = lambda p: seen.append(p.task)  # noqa: E731
    limit = lambda: TRUE_S  # noqa: E731
    result = tune(WORK, TARGET, log, options("0.5ms", trials=120), tell, measurer=made, peak=limit)
    assert any(p.aimed is not None and p.aimed.near for p in seen)
    assert not any(p.aimed is not None and p.aimed.reached for p in seen)
    assert result.stopped == "trials" and result.measured == 120
    assert result.aimed is not None and not result.aimed.reached and not result.aimed.near
    assert "times as long" in str(result) and "target reached" not in str(result)
    assert made.finals > 1


def test_a_lucky_time_puts_off_no_true_end(log: Log) -> None:
    result = run(log, "1.2ms", Lucky(lucky=5))
    assert result.stopped == "reached"
    assert result.best is not None and TRUE_S <= result.best.time_s <= 1.2e-3


def test_what_the_log_has_ends_a_run_before_its_first_trial(log: Log) -> None:
    assert run(log, "1.5ms", Lucky()).stopped == "reached"
    again = run(log, "2ms", Lucky())
    assert again.stopped == "reached" and again.measured == 0


def test_a_run_that_was_ended_had_not_its_share(log: Log) -> None:
    assert run(log, "1.5ms", Lucky()).stopped == "reached"
    assert had_share_s(log, WORK, TARGET) == 0.0
    assert [r.options["until"] for r in log.runs()] == ["1.5 ms"]


def test_a_limit_that_was_disturbed_ends_no_run(log: Log) -> None:
    result = run(log, 0.9, Lucky(), peak_s=100 * TRUE_S, trials=20)
    assert result.stopped == "trials" and "disturbed" in str(result.aimed)


def test_a_limit_that_nobody_knows_is_said(log: Log) -> None:
    made = Lucky()
    site = MadeUp(lambda _: made)
    site.roofline = lambda workload, target: None  # type: ignore[method-assign]
    result = tune(WORK, TARGET, log, options(0.9, trials=6), site=site)
    assert (
        result.aimed is not None and str(result.aimed) == "target 90.0 % of the limit: the limit is not known"
    )


def test_of_a_suite_the_weighted_sum_counts(log: Log) -> None:
    """Five calls together: 6.5 ms are not reached while one has no kernel."""
    made: dict[str, Lucky] = {}
    find = lambda w: made.setdefault(w.digest, Lucky())  # noqa: E731
    result = tune_suite(TASKS, TARGET, log, options("6.5ms"), measurers=find)
    assert result.stopped == "reached" and result.weighted_s is not None and result.weighted_s <= 6.5e-3
    assert result.aimed == Aimed(Aim(time_s=6.5e-3), pytest.approx(result.weighted_s), result.aimed.share)
    assert all(t.result.best is not None for t in result.tasks)
    assert {r.state for r in log.runs()} == {"interrupted"}
    again = tune_suite(TASKS, TARGET, log, options("6.5ms"), measurers=find)
    assert again.stopped == "reached" and again.measured == 0 and again.elapsed_s < 1.0


def test_another_machine_gets_no_task_once_it_is_reached(log: Log) -> None:
    made = MadeUp(lambda _: Lucky())
    suite = Suite(Job(TASKS, options("6.5ms")), TARGET, log, None, Interrupts(), time.monotonic())
    lane = suite.lane(made, key="one")
    assert suite.waits("two")
    assert suite.search(lane) == "reached" and not suite.waits("two")
    assert suite.search(suite.lane(made, key="two")) == "reached"
    lane.close()


@pytest.mark.slow
def test_the_command_says_how_far_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # a true clock
    add = ["tune", "add", "--shape", "n=64", "--trials", 0, "--threads", 1, "--db", tmp_path / "t.db"]
    done = command(*add, "--until", "10s", "--json")
    assert done.status == 0 and done.json["stopped"] == "reached"
    assert done.json["until"]["reached"] and done.json["until"]["time_s"] == 10.0
    far = command(*add, "--until", "1ns")
    assert "target 1 ns: " in far.out and "times as long" in far.out


def test_a_command_refuses_what_it_cannot_reach(tmp_path: Path) -> None:
    add = ["tune", "add", "--shape", "n=64", "--db", tmp_path / "t.db"]
    wrong = command(*add, "--until", "soon")
    assert wrong.status == 2 and "--until" in wrong.err and "200us" in wrong.err
    frozen = command(*add, "--until", "1s", "--frozen")
    assert frozen.status == 2 and "measures nothing" in frozen.err


def test_of_a_range_the_largest_size_counts_once_each_has_a_kernel(log: Log) -> None:
    m = at.dim(1, 64, "m", open=False)
    dynamic = as_dynamic("matmul", {"m": m, "n": 8, "k": 8})
    assert dynamic is not None
    made: dict[str, Lucky] = {}
    place = OneMachine(TARGET, MadeUp(lambda w: made.setdefault(w.digest, Lucky())))
    asked = TuneRequest(options("1.5ms", budget_s=80.0), place, TARGET, "unused")
    result = tune_range(dynamic, asked, log)[TARGET]
    assert result.stopped == "reached" and result.aimed is not None and result.aimed.reached
    assert result.best is not None and result.aimed.time_s == result.best.time_s <= 1.5e-3
    assert len(result.by_size) > 2 and all(r.best is not None for r in result.by_size.values())
