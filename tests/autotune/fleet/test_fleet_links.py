"""Slow, broken and one-way links between the machines of a fleet: nothing is lost, doubled or blamed."""

from __future__ import annotations

import logging
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fleet_cases import PEAK_S, A, FakeSite, Rack, fleet_of, tuned_on
from needs import imported
from waiting import LIMIT_S, wait_until

import autotune as at
from autotune.fleet import client, messages, tuning
from autotune.fleet import site as fleet_site
from autotune.fleet.client import Fleet
from autotune.fleet.errors import FleetError
from autotune.fleet.site import KILLS, SILENCES, FleetSite, _End, _Suspects
from autotune.measure.process import MeasureError
from autotune.measure.results import Measurement
from autotune.results.tuned import SuiteResult, SuiteTask
from autotune.tuning.jobs import Job
from autotune.tuning.options import TuneOptions
from autotune.tuning.site import HERE
from schedules import ops
from schedules.model import Trace

imported("distributed")
ADD = ops.workload("add", {"n": 4096})


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients look often who is there."""
    monkeypatch.setattr(client, "LOOK_S", 0.05)


def tuned(fleet: Fleet, log: at.Log, said: list[str] | None = None, **options: Any) -> SuiteResult:
    chosen = TuneOptions(**{"trials": 8, "budget_s": 120.0, "search": "random"} | options)
    say = (said if said is not None else []).append
    (found,) = tuned_on(fleet, {A: Job([SuiteTask(ADD)], chosen)}, log, say=say).values()
    return found


def once(log: at.Log) -> bool:
    """Whether every trial is in the log once, and none is a crash."""
    trials = [r for r in log.records() if r.kind == "trial"]
    return len({r.trace_digest for r in trials}) == len(trials) and {r.status for r in trials} == {"ok"}


# -- what reaches whom ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_nobody_needs_to_reach_a_worker(there: Rack, tmp_path: Path) -> None:
    """A firewall, or a router between two networks, lets in no connection."""
    site = there.add("far", walled=True)
    with fleet_of(there) as fleet, at.Log(tmp_path / "t.db") as log:
        result = tuned(fleet, log)
        assert result.tasks[0].error is None and result.measured == 8 and once(log)
        assert site.finals and [r for r in log.records() if r.kind == "final"]


def test_an_answer_that_never_comes_is_not_asked_for_for_ever(
    there: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Fleet._heard

    def deaf(self: Fleet, event: Any) -> None:
        if "answer" not in messages.opened(event[1]):
            heard(self, event)

    monkeypatch.setattr(Fleet, "_heard", deaf)
    site = there.add("far")
    with fleet_of(there) as fleet:
        (machine,) = fleet.machines(A).values()
        with FleetSite(fleet, machine).measurer(ADD, A, 10.0) as measuring:
            with pytest.raises(MeasureError, match="far was asked 4 times, and no answer came; see what"):
                measuring.finalists([Trace()])
    assert site.finals == 4


@pytest.mark.slow
def test_a_client_whose_connection_breaks_goes_on(there: Rack, tmp_path: Path) -> None:
    """Also where the scheduler began anew, and knows nothing of what it was asked to tell."""
    site = there.add("far", site=FakeSite(takes_s=0.02))
    with fleet_of(there) as fleet, at.Log(tmp_path / "t.db") as log:
        told: list[bool] = []

        def during(trace: Trace) -> None:
            if len(site.measured) == 4 and not told:
                told.append(True)
                there.cluster.scheduler.unsubscribe_topic(fleet._topic, fleet.client.id)
                fleet.client.loop.add_callback(fleet.client.scheduler_comm.comm.abort)
                time.sleep(0.3)

        site.during = during
        result = tuned(fleet, log)
        assert told and result.tasks[0].error is None and result.measured == 8 and once(log)
        topic = there.cluster.scheduler._broker._topics[fleet._topic]
        assert topic.subscribers == {fleet.client.id}


def test_a_scheduler_forgets_what_it_passed_on(there: Rack, tmp_path: Path) -> None:
    """It keeps the events of a topic. Those of a client it drops some time after the client left."""
    import dask

    there.add("far")
    with dask.config.set({"distributed.scheduler.events-cleanup-delay": "0s"}):
        with fleet_of(there) as fleet, at.Log(tmp_path / "t.db") as log:
            tuned(fleet, log)
            topic = fleet._topic
            assert len(there.cluster.scheduler.get_events(topic)) > 8
        wait_until(lambda: not there.cluster.scheduler.get_events(topic))


def test_a_scheduler_tells_nothing_to_a_client_that_left(
    there: Rack, caplog: pytest.LogCaptureFixture
) -> None:
    """It would be told of its own leaving, and the scheduler complains that it cannot."""
    scheduler = logging.getLogger("distributed.scheduler")
    scheduler.addHandler(caplog.handler)
    try:
        with fleet_of(there) as fleet:
            name, topic = fleet.client.id, there.cluster.scheduler._broker._topics[fleet._topic]
            wait_until(lambda: topic.subscribers == {name})
        wait_until(lambda: name not in there.cluster.scheduler.clients)
        assert not topic.subscribers
    finally:
        scheduler.removeHandler(caplog.handler)
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []


# -- breaks ---------------------------------------------------------------------------------------------


def test_a_break_of_ten_seconds_is_no_loss() -> None:
    """TCP may wait as long again. Dask gives a connection up after its own time."""
    import dask
    from dask.utils import parse_timedelta

    dropped_s = parse_timedelta(dask.config.get("distributed.comm.timeouts.tcp"))
    assert 20 < client.SILENT_S < dropped_s and 20 < client.AWAY_S < dropped_s
    assert 2 * (client.ANSWER_S + client.LOOKS_S) > client.AWAY_S > client.ANSWER_S + client.LOOKS_S


def test_a_scheduler_that_does_not_answer_is_told_of_and_waited_for(
    there: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "AWAY_S", 600.0)
    monkeypatch.setattr(client, "NOTICE_S", 0.1)
    look, dead = Fleet.look, threading.Event()

    def lame(self: Fleet) -> None:
        if dead.is_set():
            raise FleetError("the scheduler does not answer: TimeoutError")
        look(self)

    monkeypatch.setattr(Fleet, "look", lame)
    with fleet_of(there) as fleet:
        dead.set()
        said = fleet.notices.get(timeout=LIMIT_S)
        assert re.search(r"has not answered for \d+ s; waiting for up to 600 s", said)
        dead.clear()
        assert "answers again" in fleet.notices.get(timeout=LIMIT_S)
        assert fleet.lost is None
        monkeypatch.setattr(client, "AWAY_S", 0.2)
        dead.set()
        wait_until(lambda: fleet.lost is not None)
        assert "does not answer" in str(fleet.lost) and "is kept" in str(fleet.lost)
        fleet._watch.join(LIMIT_S)
        assert not fleet._watch.is_alive()


def test_a_connection_that_was_given_up_is_told_in_words(there: Rack) -> None:
    with fleet_of(there) as fleet:
        fleet.client.close()
        with pytest.raises(FleetError, match=r"does not answer \(the connection is closed\)"):
            fleet.look()
        fleet._watch.join(LIMIT_S)
        assert "see whether it runs and the network is up" in str(fleet.lost)


class Silence:
    """Hides workers: the scheduler has them, and hears nothing of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hidden = False
        alive = Fleet._alive

        def some(fleet: Fleet, workers: Any) -> Any:
            return {} if self.hidden else alive(fleet, workers)

        monkeypatch.setattr(Fleet, "_alive", some)

    def for_(self, seconds: float) -> None:
        """Begin one, and end it in another thread."""
        self.hidden = True
        threading.Timer(seconds, lambda: setattr(self, "hidden", False)).start()


@pytest.mark.slow
def test_no_candidate_is_blamed_for_a_silence(
    there: Rack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence, hit, said = Silence(monkeypatch), list[str](), list[str]()
    site = there.add("far")

    def during(trace: Trace) -> None:
        if len(site.measured) >= 3 and (not hit or trace.digest == hit[0]) and len(hit) < KILLS + 1:
            hit.append(trace.digest)
            silence.for_(0.3)
            time.sleep(0.5)

    site.during = during
    with fleet_of(there) as fleet, at.Log(tmp_path / "t.db") as log:
        result = tuned(fleet, log, said)
        assert len(hit) > KILLS and len(set(hit)) == 1
        assert result.tasks[0].error is None and result.measured == 8 and once(log)
    assert (
        said.count("far gives no sign of life; waiting for it for up to 5 s") == said.count("far is back") > 0
    )


@pytest.mark.slow
def test_a_worker_that_connects_again_did_not_end(there: Rack, tmp_path: Path) -> None:
    """Its connection broke. The same process is back, at another address."""
    hit: list[str] = []

    def during(trace: Trace) -> None:
        if sum(len(s.measured) for s in sites) >= 3 and (not hit or trace.digest == hit[0]):
            if len(hit) < KILLS + 1:
                hit.append(trace.digest)
                time.sleep(0.1)  # until it is heard what runs
                there.kill(next(iter(there.workers)))
                time.sleep(0.3)
                sites.append(add(f"again-{len(hit)}"))

    def add(name: str) -> FakeSite:
        return there.add(name, machine="box", process="same", site=FakeSite(during=during))

    sites: list[FakeSite] = []
    sites.append(add("w0"))
    with fleet_of(there) as fleet, at.Log(tmp_path / "t.db") as log:
        result = tuned(fleet, log)
        assert len(hit) > KILLS and len(set(hit)) == 1
        assert result.tasks[0].error is None and result.measured == 8 and once(log)


def test_what_happened_before_a_candidate_began_is_not_its_doing() -> None:
    suspects = _Suspects()
    for _ in range(KILLS):
        assert suspects.add(0, _End("died", begun=False)) is None
    assert suspects.add(1, _End("died", begun=True)) is None
    suspects.clear(1, _End("died", begun=True))
    assert suspects.add(1, _End("died", begun=True)) is None
    crash = Measurement("crash", f"{KILLS} workers ended while it ran")
    assert suspects.add(1, _End("hung", begun=True)) == crash
    suspects.clear(1, _End("hung", begun=True))
    assert suspects.ended[1] == KILLS  # its process is there, and hangs
    found = [suspects.add(2, _End("silent", begun=True)) for _ in range(SILENCES)]
    unknown = Measurement("error", f"its worker fell silent, or lost its connection, {SILENCES} times")
    assert found == [*[None] * (SILENCES - 1), unknown]


@pytest.mark.slow
def test_a_machine_that_stays_silent_is_told_of(
    there: Rack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_site, "SILENT_AWAY_S", 0.3)
    monkeypatch.setattr(tuning, "ALONE_S", 0.3)
    silence, said = Silence(monkeypatch), list[str]()
    site = there.add("far", site=FakeSite(takes_s=0.02))

    def during(trace: Trace) -> None:
        if len(site.measured) == 4:
            silence.for_(60.0)
            time.sleep(1.0)  # until it is seen that nothing is heard

    site.during = during
    with fleet_of(there) as fleet, at.Log(tmp_path / "t.db") as log:
        result = tuned(fleet, log, said)
        assert "no worker of the fleet offers kind-a any more" in (result.tasks[0].error or "")
    assert any(x.startswith("far gives no sign of life; its task goes on at another machine") for x in said)


# -- delay ----------------------------------------------------------------------------------------------


def test_a_long_way_costs_one_question_for_the_limit(there: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_site, "SAME_S", 0.2)
    asked: list[int] = []

    class Slow(FakeSite):
        def roofline(self, *_: Any) -> Any:
            asked.append(1)
            time.sleep(0.3)
            return lambda: PEAK_S

    there.add("far", site=Slow())
    with fleet_of(there) as fleet:
        (machine,) = fleet.machines(A).values()
        limit = FleetSite(fleet, machine).roofline(ADD, A)
        assert limit is not None and [limit() for _ in range(5)] == [PEAK_S] * 5
    assert len(asked) == 1


@pytest.mark.slow
def test_the_way_is_a_part_of_what_finalists_cost(there: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Fleet._heard

    def late(self: Fleet, event: Any) -> None:
        time.sleep(0.2)
        heard(self, event)

    monkeypatch.setattr(Fleet, "_heard", late)
    there.add("far")
    with fleet_of(there) as fleet:
        (machine,) = fleet.machines(A).values()
        site = FleetSite(fleet, machine)
        here_s = HERE.cost_s(PEAK_S, 4, 3, 5, 1)
        assert site.cost_s(PEAK_S, 4, 3, 5, 1) - here_s == pytest.approx(fleet_site.WAY_S)
        with site.measurer(ADD, A, 10.0) as measuring:
            assert len(list(measuring.arrivals([Trace()], None, time.monotonic() + 10))) == 1
        assert site.cost_s(PEAK_S, 4, 3, 5, 1) - here_s >= 0.2


@pytest.mark.slow
def test_looks_at_a_fleet_take_a_small_part_of_a_slow_link(
    there: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, began = Fleet.look, list[float]()

    def slow(self: Fleet) -> None:
        began.append(time.monotonic())
        look(self)
        self._took_s = 0.1

    monkeypatch.setattr(Fleet, "look", slow)
    with fleet_of(there):
        time.sleep(1.2)
    assert 2 <= len(began) <= 4  # it is 20 a second where a look takes no time
