"""Runs on a fleet: what is stored, and what happens as machines come, leave, hang and lie."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fleet_cases import PEAK_S, A, B, FakeSite, Rack, facts, fleet_of, tuned_on
from needs import imported
from waiting import wait_until

import autotune as at
from autotune.fleet import site as fleet_site
from autotune.fleet import tuning
from autotune.fleet.building import Builders
from autotune.fleet.client import Fleet
from autotune.fleet.errors import FleetError, MachineLost
from autotune.fleet.members import targets_of
from autotune.fleet.messages import Request
from autotune.measure.process import MeasureError
from autotune.results.tuned import SuiteResult, SuiteTask, as_one, merged_results
from autotune.targets import detect
from autotune.tuning import recheck
from autotune.tuning.jobs import Job
from autotune.tuning.options import TuneOptions
from cost_model.saved import GPU_FEATURES, SavedModel
from kernels_db.records import Record
from schedules import ops
from schedules.model import Step, Target, Trace

imported("distributed")
WORKLOADS = [ops.workload("add", {"n": n}) for n in (4096, 8192, 16384)]


def tuned(
    there: Rack,
    log: at.Log,
    *targets: Target,
    tasks: int = 1,
    during: Any = None,
    **options: Any,
) -> list[SuiteResult]:
    chosen = TuneOptions(**{"trials": 12, "budget_s": 120.0, "search": "random"} | options)
    with fleet_of(there) as fleet:
        job = Job([SuiteTask(w) for w in WORKLOADS[:tasks]], chosen)
        found = tuned_on(fleet, dict.fromkeys(targets or (A,), job), log, during)
        return [*found.values()]


def names(log: at.Log, kind: str = "trial") -> list[str]:
    """The machines of the records, in their order."""
    records: list[Record] = sorted((r for r in log.records() if r.kind == kind), key=lambda r: r.created)
    return [str(log.machine(r.machine).info["name"]) for r in records]


def test_records_are_of_the_machine_that_measured(there: Rack, tmp_path: Path) -> None:
    site = there.add("far")
    with at.Log(tmp_path / "t.db") as log:
        (result,) = tuned(there, log)
        assert (result.tasks[0].error, result.stopped, result.measured) == (None, "trials", 12)
        best = result.tasks[0].result.best
        assert best is not None and best.share_of_peak == pytest.approx(1 / 20)
        assert set(names(log)) == set(names(log, "final")) == {"far"}
        assert {r.state for r in log.runs()} == {"done"}
    assert len(set(site.measured)) == 12 and site.finals
    wait_until(lambda: site.open == 0)  # its processes end with the run


@pytest.mark.slow
def test_one_command_tunes_for_two_targets(there: Rack, tmp_path: Path) -> None:
    there.add("one", A)
    there.add("two", B)
    shown: list[str] = []
    with at.Log(tmp_path / "t.db") as log:
        results = tuned(there, log, A, B, tasks=2, during=lambda p: shown.append(p.machine))
        assert [r.measured for r in results] == [24, 24]
        assert sorted(set(names(log))) == ["one", "two"]
        for r, target in zip(results, (A, B), strict=True):
            assert {t.result.target for t in r.tasks} == {target}
    assert set(shown) == {"one (kind-a)", "two (kind-b)"}
    found = dict(zip((A, B), results, strict=True))
    whole = merged_results(found, 20.0)
    assert whole.measured == 48 and len(whole.tasks) == 4
    one = as_one({t: r.tasks[0].result for t, r in found.items()})
    assert isinstance(one, at.FleetResult)
    assert list(one.by_target) == ["kind-a", "kind-b"] and one.measured == 24


@pytest.mark.slow
def test_machines_of_a_target_share_its_tasks(there: Rack, tmp_path: Path) -> None:
    there.add("one", site=FakeSite(takes_s=0.03))
    there.add("two", site=FakeSite(takes_s=0.03))
    with at.Log(tmp_path / "t.db") as log:
        (result,) = tuned(there, log, tasks=3)
        assert result.measured == 36
        machines: dict[str, set[str]] = {}
        for r in log.records():
            machines.setdefault(r.workload, set()).add(str(log.machine(r.machine).info["name"]))
        assert all(len(x) == 1 for x in machines.values())  # a task stays with its machine
        assert set.union(*machines.values()) == {"one", "two"}


def after(count: int, do: Any) -> Any:
    """Something that is done, in a thread of its own, before the trial of that number."""
    seen: list[int] = []

    def during(trace: Trace) -> None:
        seen.append(1)
        if len(seen) == count:
            thread = threading.Thread(target=do)
            thread.start()
            time.sleep(0.3)

    return during


def test_a_task_goes_on_elsewhere_when_its_machine_leaves(
    there: Rack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_site, "AWAY_S", 1.0)
    first = there.add("first", site=FakeSite(takes_s=0.02))
    first.during = after(6, lambda: there.kill("first"))
    with at.Log(tmp_path / "t.db") as log:
        second: list[FakeSite] = []

        def during(progress: Any) -> None:
            if progress.measured == 5 and not second:
                second.append(there.add("second"))

        (result,) = tuned(there, log, during=during, trials=15)
        by = names(log)
        assert by.count("first") >= 5 and by.count("second") >= 8 and len(by) == 15
        assert by == sorted(by)
        runs = sorted(log.runs(), key=lambda r: r.started)
        assert [str(log.machine(r.machine).info["name"]) for r in runs] == ["first", "second"]
        moved = sorted((r for r in log.records() if r.kind == "trial"), key=lambda r: r.created)
        best = min(moved[: by.count("first")], key=lambda r: r.time_s or 1.0)
        assert moved[by.count("first")].time_s is not None
        assert moved[by.count("first")].trace_digest in {r.trace_digest for r in moved[: by.count("first")]}
        assert best.status == "ok" and result.tasks[0].result.best is not None


@pytest.mark.slow
def test_another_worker_of_the_machine_takes_over(there: Rack, tmp_path: Path) -> None:
    first = FakeSite(takes_s=0.02)
    there.add("w1", site=first, machine="box")
    second = there.add("w2", machine="box", site=FakeSite(takes_s=0.02))
    first.during = after(4, lambda: there.kill("w1"))
    second.during = after(4, lambda: there.kill("w2"))
    with at.Log(tmp_path / "t.db") as log:

        def during(progress: Any) -> None:
            if "w1" not in there.workers or "w2" not in there.workers:
                if "w3" not in there.workers:
                    there.add("w3", machine="box")

        (result,) = tuned(there, log, during=during)
        assert result.measured == 12 and len(names(log)) == 12
        digests = [r.trace_digest for r in log.records() if r.kind == "trial"]
        assert len(set(digests)) == 12  # none was stored twice
        assert len(log.runs()) == 1


@pytest.mark.slow
def test_a_candidate_that_takes_workers_with_it_is_a_crash(there: Rack, tmp_path: Path) -> None:
    killer: list[str] = []
    count = [0]

    def deadly(trace: Trace) -> None:
        if not killer and len(sites[0].measured) >= 3:
            killer.append(trace.digest)
        if killer and trace.digest == killer[0]:
            name = next(iter(there.workers))
            count[0] += 1
            there.add(f"again-{count[0]}", machine="box", site=FakeSite(during=deadly))
            there.kill(name)
            time.sleep(1.0)

    sites = [there.add("w0", machine="box", site=FakeSite(during=deadly))]
    with at.Log(tmp_path / "t.db") as log:
        (result,) = tuned(there, log, budget_s=240.0)
        crashed = [r for r in log.records() if r.status == "crash"]
        assert [r.trace_digest for r in crashed] == killer
        assert crashed[0].reason == "2 workers ended while it ran"
        assert result.measured == 12 and result.tasks[0].result.best is not None
    assert count[0] == 2  # in a round, then alone


def test_nothing_is_kept_of_a_worker_that_names_another_machine(there: Rack, tmp_path: Path) -> None:
    there.add("liar", told=facts("somebody else"))
    with at.Log(tmp_path / "t.db") as log:
        (result,) = tuned(there, log, budget_s=5.0)
        assert "came from another machine than was asked" in (result.tasks[0].error or "")
        assert not list(log.records())


@pytest.mark.slow
def test_a_machine_that_measures_nothing_takes_no_task_from_the_others(there: Rack, tmp_path: Path) -> None:
    def during(trace: Trace) -> None:
        raise MeasureError("its disk is full")

    there.add("sick", site=FakeSite(during=during))
    there.add("well", site=FakeSite(takes_s=0.01))
    with at.Log(tmp_path / "t.db") as log:
        (result,) = tuned(there, log, tasks=3)
        assert [t.error for t in result.tasks] == [None] * 3 and result.measured == 36
        assert set(names(log)) == {"well"}


def test_where_no_machine_can_measure_a_task_it_says_why(
    there: Rack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "ALONE_S", 0.5)

    def during(trace: Trace) -> None:
        raise MeasureError("its disk is full")

    for name in ("sick", "ill"):
        there.add(name, site=FakeSite(during=during))
    with at.Log(tmp_path / "t.db") as log:
        (result,) = tuned(there, log, tasks=2, budget_s=3600.0)
        assert all("its disk is full" in str(t.error) for t in result.tasks)
    assert result.elapsed_s < 600.0  # it does not wait for the end of the budget


def test_the_limit_of_a_busy_machine_is_asked_for_once(there: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer may take longer than the time for which it counts."""
    monkeypatch.setattr(fleet_site, "SAME_S", 0.2)
    there.add("far")
    asked: list[str] = []

    def answered(site: Any, request: Any, end: Any) -> list[dict[str, Any]]:
        asked.append(request.do)
        time.sleep(0.3)
        end.how = "done"
        return [{"limit_s": PEAK_S, "rates": {}}]

    monkeypatch.setattr(fleet_site.FleetSite, "asked", answered)
    with fleet_of(there) as fleet:
        (machine,) = fleet.machines(A).values()
        limit = fleet_site.FleetSite(fleet, machine).roofline(WORKLOADS[0], A)
        assert limit is not None and [limit() for _ in range(5)] == [PEAK_S] * 5
    assert asked == ["limit"]


def test_a_model_of_another_kind_of_target_is_refused_at_once(there: Rack, tmp_path: Path) -> None:
    there.add("far")
    model = SavedModel("xgb", GPU_FEATURES, (), origin="gpus.json")
    with at.Log(tmp_path / "t.db") as log, pytest.raises(at.SettingsError, match="gpus.json is for gpus"):
        tuned(there, log, search="evolutionary", model=model)


def test_stopping_leaves_no_task(there: Rack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ctrl-C does: `follow` raises KeyboardInterrupt in the main thread."""
    site = there.add("far", site=FakeSite(takes_s=0.05))

    def follow(self: Any) -> None:
        while len(site.measured) < 5:
            self._hire(self.suites[0])
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning.FleetCrew, "follow", follow)
    with at.Log(tmp_path / "t.db") as log:
        (result,) = tuned(there, log, trials=100)
        assert result.stopped == "interrupted" and result.measured == len(names(log)) >= 4
        assert {r.state for r in log.runs()} == {"interrupted"}
    wait_until(lambda: site.open == 0)
    assert not there.cluster.scheduler.tasks


@pytest.mark.slow
def test_a_target_that_nobody_offers_any_more(
    there: Rack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_site, "AWAY_S", 0.5)
    monkeypatch.setattr(tuning, "ALONE_S", 0.5)
    site = there.add("far", site=FakeSite(takes_s=0.02))
    site.during = after(5, lambda: there.kill("far"))
    with at.Log(tmp_path / "t.db") as log:
        (result,) = tuned(there, log, trials=100)
        assert "no worker of the fleet offers kind-a any more" in (result.tasks[0].error or "")
        assert result.tasks[0].result.best is not None and len(names(log)) >= 4


@pytest.mark.slow
def test_tasks_that_were_done_before_the_last_machine_left_are_no_failures(
    there: Rack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_site, "AWAY_S", 0.5)
    monkeypatch.setattr(tuning, "ALONE_S", 0.5)
    site = there.add("far", site=FakeSite(takes_s=0.02))
    site.during = after(9, lambda: there.kill("far"))
    with at.Log(tmp_path / "t.db") as log:
        (result,) = tuned(there, log, tasks=2, trials=6)
        cut, done = sorted((t.result for t in result.tasks), key=lambda r: r.measured)
        assert (done.measured, done.stopped, cut.stopped) == (6, "trials", "failed")
        errors = {t.result.measured: t.error for t in result.tasks}
        assert errors[6] is None and "no worker of the fleet" in str(errors[cut.measured])
        assert sorted(r.state for r in log.runs()) == ["done", "failed"]


def test_a_worker_that_gives_no_sign_of_life_is_left_out(
    there: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autotune.fleet import client

    monkeypatch.setattr(client, "SILENT_S", 0.5)
    there.add("far")
    with fleet_of(there) as fleet:
        assert len(fleet.members()) == 1
        monkeypatch.setattr(Fleet, "look", lambda self: None)  # no look in between
        same = {"w": {"last_seen": 7.0}}
        assert fleet._alive(same) == {"w"}
        time.sleep(0.6)
        assert fleet._alive(same) == set()
        assert fleet._alive({"w": {"last_seen": 8.0}})


@pytest.mark.slow
def test_a_worker_that_is_late_keeps_its_place(there: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have waited for others. Only one that says nothing for long counts as hung."""
    monkeypatch.setattr(fleet_site, "LATE_S", 0.1)
    there.add("slow", site=FakeSite(takes_s=1.0))
    with fleet_of(there) as fleet:
        (machine,) = fleet.machines(A).values()
        with fleet_site.FleetSite(fleet, machine).measurer(WORKLOADS[0], A, 10.0) as measuring:
            assert list(measuring.arrivals([Trace()], None, time.monotonic() + 0.2)) == []
        fleet.look()
        assert [m.problem for m in fleet.members()] == [""]


@pytest.mark.slow
def test_a_worker_that_is_busy_with_others_does_not_hang(
    there: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the request that it has gives signs of life."""
    monkeypatch.setattr(fleet_site, "HANGS_S", 0.5)
    there.add("busy", site=FakeSite(takes_s=0.1))
    with fleet_of(there) as fleet:
        (machine,) = fleet.machines(A).values()
        site = fleet_site.FleetSite(fleet, machine)
        long = Request("measure", "", site.measurer(WORKLOADS[0], A, 10.0).task, (Trace(),) * 15)
        first = fleet.send(long, machine)
        with site.measurer(WORKLOADS[1], A, 10.0) as measuring:
            assert [m.status for _, m in measuring.arrivals([Trace()])] == ["ok"]
        assert first.future is not None and first.future.done()
        fleet.end(first)
        monkeypatch.setattr(fleet_site, "QUEUED_S", 0.5)
        again = fleet.send(long, machine)
        monkeypatch.setattr(fleet_site, "AWAY_S", 0.2)
        while again.events.empty():  # of two that are sent at once Dask may take either first
            time.sleep(0.01)
        with site.measurer(WORKLOADS[1], A, 10.0) as measuring, pytest.raises(MachineLost, match="has left"):
            list(measuring.arrivals([Trace()]))
        fleet.end(again)


@pytest.mark.slow
def test_what_is_compiled_here_is_measured_there(there: Rack, tmp_path: Path) -> None:
    own = detect(1)

    class Runs(FakeSite):
        def check(self, target: Target) -> None:
            assert target == own

    site = there.add("board", own, site=Runs(), builds=False)
    with at.Log(tmp_path / "t.db") as log:
        (result,) = tuned(there, log, own, trials=4)
        assert result.measured == 4
        done = [r for r in log.records() if r.kind == "trial" and r.status == "ok"]
        assert len(site.given) == len(site.measured) >= len(done) >= 3  # those of finalists too
        assert all(x[:4] == b"\x7fELF" for x in site.given)


@pytest.mark.slow
def test_finalists_of_earlier_runs_are_compiled_here_for_a_machine_that_does_not(there: Rack) -> None:
    """Else the machine would say that they do not compile, and the best of the log would be lost."""
    own = detect(1)

    class Runs(FakeSite):
        def check(self, target: Target) -> None:
            assert target == own

    site = there.add("board", own, site=Runs(), builds=False)
    nowhere = Trace((Step("unroll", (("loop", "nowhere"),)),))
    with fleet_of(there) as fleet, Builders(1) as builders:
        (machine,) = fleet.machines(own).values()
        made = fleet_site.FleetSite(fleet, machine, builders).measurer(WORKLOADS[0], own, 10.0)
        with made as measuring:
            found = measuring.finalists([nowhere, Trace()])
            assert [m.status for m in found] == ["illegal", "ok"] and "nowhere" in found[0].reason
            assert [x[:4] for x in site.given] == [b"\x7fELF"] and site.measured == [Trace().digest]
            assert [m.status for m in measuring.finalists([nowhere])] == ["illegal"]


def test_stored_records_are_checked_where_their_target_is_offered(there: Rack, tmp_path: Path) -> None:
    site = there.add("far")
    with at.Log(tmp_path / "t.db") as log:
        tuned(there, log, trials=4)
        before = len(site.measured)
        with tuning.FleetPlace(there.address).reached() as crew:
            assert crew.site_of(B) is None
            (found,) = recheck.verify(log, 1, 1.5, crew.site_of)
        assert (found.status, found.time_s) == ("ok", site.time_s) and len(site.measured) == before + 1


def test_loggers_of_others_are_as_before(there: Rack) -> None:
    logger = logging.getLogger("tornado.application")
    before = logger.level
    logger.setLevel(logging.INFO)
    try:
        with fleet_of(there):
            assert logger.level == logging.CRITICAL
        assert logger.level == logging.INFO
    finally:
        logger.setLevel(before)


def test_targets_are_asked_for_by_the_names_of_workers(there: Rack) -> None:
    there.add("one", A, B)
    there.add("two", A)
    with fleet_of(there) as fleet:
        members = fleet.members()
        assert len(members) == 2
        assert {t.arch for t in targets_of(members, [])} == {"kind-a", "kind-b"}
        assert targets_of(members, ["kind-b"]) == [B]
        assert targets_of(members, [A]) == [A]
        with pytest.raises(FleetError, match="no worker of the fleet offers target kind-c.*mean.*kind-"):
            targets_of(members, ["kind-c"])
        with pytest.raises(FleetError, match="autotune worker ADDRESS --target kind-a --threads 3"):
            targets_of(members, ["kind-a"], 3)


def test_targets_are_given_in_many_ways() -> None:
    assert tuning.listed(None) == tuning.listed("") == []
    assert tuning.listed("kind-a, kind-b,") == ["kind-a", "kind-b"]
    assert tuning.listed(A) == tuning.listed((A,)) == [A]
    assert tuning.listed(["kind-b", A]) == ["kind-b", A]
