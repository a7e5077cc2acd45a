"""Tasks of a suite whose machines leave, cannot measure them, or do not know their own limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fleet_cases import PEAK_S, A, FakeSite
from made_up import tune_suite

import autotune as at
from autotune.measure.process import MeasureError
from autotune.models.tasks import had_share_s
from autotune.results.tuned import SuiteTask
from autotune.tuning.interrupts import Interrupts
from autotune.tuning.jobs import Job
from autotune.tuning.known_limits import LIMIT
from autotune.tuning.options import TuneOptions
from autotune.tuning.site import SiteLost
from autotune.tuning.suite import Suite
from schedules import ops
from schedules.model import Target, Trace, Workload

TASKS = [SuiteTask(ops.workload("add", {"n": n})) for n in (4096, 8192)]


def suite_of(log: at.Log, tasks: int = 1, **more: Any) -> Suite:
    options = TuneOptions(**{"trials": 12, "budget_s": 20.0, "search": "random"} | more)
    return Suite(Job(TASKS[:tasks], options), A, log, None, Interrupts(), time.monotonic())


def fails_at(number: int, error: Exception) -> Callable[[Trace], None]:
    """Fails at the candidate of that number, and at all later ones."""
    seen: list[Trace] = []

    def during(trace: Trace) -> None:
        seen.append(trace)
        if len(seen) >= number:
            raise error

    return during


class Left(FakeSite):
    """A machine that leaves while its limit is measured."""

    def roofline(self, workload: Workload, target: Target) -> Callable[[], float]:
        def gone() -> float:
            raise SiteLost("it left")

        return gone


def go_on(suite: Suite, site: FakeSite) -> str:
    lane = suite.lane(site, key="second")
    try:
        stopped = suite.search(lane)
        suite.finalists(lane)
    finally:
        lane.close()
    return stopped


def test_a_machine_that_leaves_while_its_limit_is_measured_is_not_asked_again(tmp_path: Path) -> None:
    with at.Log(tmp_path / "t.db") as log:
        suite = suite_of(log)
        lane = suite.lane(Left(), key="first")
        with pytest.raises(SiteLost):
            suite.search(lane)
        lane.close()
        assert go_on(suite, FakeSite()) == "trials"
        (task,) = suite.result("trials").tasks
        assert task.error is None and task.result.measured == 12
        assert task.result.best is not None
        assert task.result.best.share_of_peak == pytest.approx(PEAK_S / FakeSite().time_s)


def test_what_a_task_had_where_it_left_is_not_its_share(tmp_path: Path) -> None:
    with at.Log(tmp_path / "t.db") as log:
        suite = suite_of(log, trials=None)
        lane = suite.lane(FakeSite(during=fails_at(9, SiteLost("it left"))), key="first")
        with pytest.raises(SiteLost):
            suite.search(lane)
        lane.close()
        again = suite.lane(FakeSite(during=fails_at(3, SiteLost("it left too"))), key="second")
        with pytest.raises(SiteLost):
            suite.search(again)
        again.close()
        suite.result("interrupted")
        assert [r.state for r in log.runs()] == ["interrupted", "interrupted"]
        assert had_share_s(log, TASKS[0].workload, A) == 0.0


def test_no_trial_is_made_on_another_machine_once_all_are_done(tmp_path: Path) -> None:
    """The last trial is the last sign of the first machine."""

    class Last(FakeSite):
        def measurer(self, *_: Any, **__: Any) -> Any:
            made = super().measurer()
            arrivals = made.arrivals

            def until_the_last(*args: Any) -> Any:
                yield from arrivals(*args)
                if len(self.measured) == 12:
                    raise SiteLost("it left")

            made.arrivals = until_the_last
            return made

    with at.Log(tmp_path / "t.db") as log:
        suite = suite_of(log)
        lane = suite.lane(Last(), key="first")
        with pytest.raises(SiteLost):
            suite.search(lane)
        lane.close()
        go_on(suite, FakeSite())
        assert suite.result("trials").measured == 12
        assert len([r for r in log.records() if r.kind == "trial"]) == 12


def test_finalists_of_two_machines_are_not_mixed(tmp_path: Path) -> None:
    with at.Log(tmp_path / "t.db") as log:
        suite = suite_of(log, trials=None)
        lane = suite.lane(FakeSite(during=fails_at(9, SiteLost("it left"))), key="first")
        with pytest.raises(SiteLost):
            suite.search(lane)
        (session,) = suite.sessions.values()
        session.finals._passes["before"].append(object())  # type: ignore[arg-type]
        with suite.lane(FakeSite(), key="second").open.get(0, TASKS[0].workload) as measuring:
            session.relocate(FakeSite(), measuring)
        assert not session.finals._passes


def test_a_known_task_that_is_alone_waits_for_a_machine(tmp_path: Path) -> None:
    with at.Log(tmp_path / "t.db") as log:
        tune_suite(TASKS[:1], A, log, TuneOptions(trials=4, budget_s=20.0, search="random"), site=FakeSite())
        suite = suite_of(log)
        assert suite.waits("any")
        go_on(suite, FakeSite())
        assert not suite.waits("any") and suite.result("trials").measured == 12


def test_what_two_machines_measured_is_resumed_once(tmp_path: Path) -> None:
    """The best of a machine that left has a record of each of the two."""
    with at.Log(tmp_path / "t.db") as log:
        suite = suite_of(log)
        lane = suite.lane(FakeSite(during=fails_at(5, SiteLost("it left"))), key="first")
        with pytest.raises(SiteLost):
            suite.search(lane)
        lane.close()
        go_on(suite, FakeSite())
        suite.result("trials")
        trials = [r.trace_digest for r in log.records() if r.kind == "trial"]
        assert len(trials) == len(set(trials)) + 1 == 12
        (again,) = tune_suite(TASKS[:1], A, log, TuneOptions(trials=0, budget_s=20.0), site=FakeSite()).tasks
        assert again.result.resumed == len(set(trials))


def test_a_task_that_a_machine_cannot_measure_is_measured_by_another(tmp_path: Path) -> None:
    with at.Log(tmp_path / "t.db") as log:
        suite = suite_of(log, tasks=2)
        full = suite.lane(FakeSite(during=fails_at(5, MeasureError("its disk is full"))), key="full")
        other = suite.lane(FakeSite(), key="other")
        suite.search(full)
        assert {n: str(e) for n, e in suite.errors.items()} == {0: "its disk is full", 1: "its disk is full"}
        assert suite.free(full) == [] and not suite.waits("full") and suite.waits("another")
        full.close()
        assert not suite.waits("full")  # it does not come back to them
        assert suite.search(other) == "trials"
        suite.finalists(other)
        result = suite.result("trials")
        assert [t.error for t in result.tasks] == [None, None]
        assert [t.result.measured for t in result.tasks] == [12, 12]
        digests = [(r.workload, r.trace_digest) for r in log.records() if r.kind == "trial"]
        assert len(digests) == 24 and len(set(digests)) >= 23  # the best is measured again


def test_what_no_machine_can_measure_has_an_error_and_had_no_share(tmp_path: Path) -> None:
    with at.Log(tmp_path / "t.db") as log:
        site = FakeSite(during=fails_at(5, MeasureError("its disk is full")))
        result = tune_suite(TASKS, A, log, TuneOptions(budget_s=20.0, search="random"), site=site)
        assert [t.error for t in result.tasks] == ["its disk is full"] * 2
        assert {r.state for r in log.runs()} == {"failed"}
        assert had_share_s(log, TASKS[0].workload, A) == 0.0


@pytest.mark.parametrize("trials", [1, 2, 8])
def test_a_short_budget_has_no_more_trials_than_asked_for(tmp_path: Path, trials: int) -> None:
    """It begins with a first pick, and the plain loops are quick."""
    with at.Log(tmp_path / "t.db") as log:
        options = TuneOptions(trials=trials, budget_s=6.0, search="random")
        (task,) = tune_suite(TASKS[:1], A, log, options, site=FakeSite()).tasks
        assert options.begins_at_once and task.result.measured == trials and task.result.stopped == "trials"


def test_a_machine_that_does_not_know_its_limit_gives_no_share_of_it(tmp_path: Path) -> None:
    class Unknown(FakeSite):
        def roofline(self, workload: Workload, target: Target) -> Callable[[], float]:
            return lambda: 0.0

    with at.Log(tmp_path / "t.db") as log:
        (task,) = tune_suite(
            TASKS[:1], A, log, TuneOptions(trials=8, budget_s=20.0, search="random"), site=Unknown()
        ).tasks
        assert task.result.best is not None and task.result.best.share_of_peak is None
        assert not any(LIMIT in r.environment for r in log.records())
