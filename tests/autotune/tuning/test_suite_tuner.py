"""Many tasks under one budget, with made-up measurers and a real log."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_clock import Clock, install
from log_cases import TARGETS
from made_up import tune_suite

from autotune.measure.inputs import Tolerance
from autotune.measure.memory import RESERVE, needed_bytes
from autotune.measure.results import Control, Measurement, Nominal
from autotune.results.tuned import SuiteProgress, SuiteResult, SuiteTask
from autotune.tuning.open_measurers import OpenMeasurers
from autotune.tuning.options import TuneOptions
from autotune.tuning.session import Session
from autotune.tuning.site import Here
from kernels_db import Log, LogError, NewRecord, Record
from schedules import ops
from schedules.errors import ScheduleError
from schedules.model import Target, Trace, Workload
from schedules.space import derive as derive_space

TARGET = TARGETS[0]
TASKS = tuple(
    SuiteTask(ops.workload("matmul", {"m": n, "n": n, "k": n}), weight, f"matmul {n}")
    for n, weight in ((64, 1.0), (96, 2.0), (128, 4.0))
)


class Made:
    """A measurer whose times depend on the trace alone; larger tasks take longer."""

    def __init__(self, workload: Workload, sleep_s: float = 0.1, stop_after: int | None = None) -> None:
        self.scale = workload.dag.params[0].shape[0] * 1e-6
        self.sleep_s, self.stop_after = sleep_s, stop_after
        self.measured: list[str] = []
        self.finals = self.moves = 0

    def time_s(self, trace: Trace) -> float:
        return self.scale * (1 + int(trace.digest[:4], 16) / 65536)

    def measure(
        self,
        traces: Sequence[Trace],
        best_s: float | None = None,
        deadline: float | None = None,
        latest: float | None = None,
    ) -> Iterator[Measurement]:
        for trace in traces:
            if deadline is not None and time.monotonic() >= deadline:
                return
            if self.stop_after is not None and len(self.measured) >= self.stop_after:
                raise KeyboardInterrupt
            time.sleep(self.sleep_s)
            self.measured.append(trace.digest)
            t = self.time_s(trace)
            yield Measurement("ok", "", (t, t), t, 0.0, 1.0, 0.001, 0.001, 0.001)

    def arrivals(self, *args: Any, **kwargs: Any) -> Iterator[tuple[int, Measurement]]:
        return enumerate(self.measure(*args, **kwargs))

    def object(self, trace: Trace) -> bytes | None:
        return b"" if trace.digest in self.measured else None

    def move(self) -> None:
        self.moves += 1

    def finalists(self, traces: Sequence[Trace], rounds: int = 3, repeats: int = 5) -> list[Measurement]:
        self.finals += 1
        return [Measurement("ok", "", (self.time_s(t),), self.time_s(t), reference_rate=1.0) for t in traces]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Budgets do not depend on how busy the machine is."""
    return install(monkeypatch)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path / "t.db") as opened:
        yield opened


@pytest.fixture(autouse=True)
def no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Here, "roofline", lambda self, workload, target: None)


def run(
    log: Log,
    made: dict[str, Made] | None = None,
    tasks: Sequence[SuiteTask] = TASKS,
    seen: list[SuiteProgress] | None = None,
    stop_after: int | None = None,
    **options: object,
) -> SuiteResult:
    usual = {"budget_s": 30.0, "trials": 12, "search": "random", "model": "analytic"}
    chosen = TuneOptions(**(usual | options))  # type: ignore[arg-type]
    measurers = {} if made is None else made

    def make(workload: Workload) -> Made:
        last = workload.digest == tasks[-1].workload.digest
        made = Made(workload, stop_after=stop_after if last else None)
        return measurers.setdefault(workload.digest, made)

    return tune_suite(tasks, TARGET, log, chosen, None if seen is None else seen.append, measurers=make)


@pytest.mark.slow
def test_every_task_is_tuned_and_logged(log: Log) -> None:
    made: dict[str, Made] = {}
    seen: list[SuiteProgress] = []
    result = run(log, made, seen=seen)
    assert result.stopped == "trials" and result.measured == 36
    for one, task in zip(result.tasks, TASKS, strict=True):
        assert one.task is task and one.error is None and one.result.measured == 12 and one.seconds > 0
        assert one.result.best is not None
        best = log.best(task.workload, TARGET)
        assert best is not None and best.uid == one.result.best.record_id and best.kind == "final"
        assert one.result.best.time_s == min(
            r.time_s for r in log.seen(task.workload, TARGET) if r.time_s is not None
        )
    assert [r.state for r in log.runs()] == ["done"] * 3
    assert result.weighted_s == pytest.approx(
        sum(t.task.weight * t.result.best.time_s for t in result.tasks if t.result.best)
    )
    assert seen[-1].ready == 3 and seen[-1].weighted_s is not None and seen[0].weighted_s is None
    assert {p.number for p in seen} == {0, 1, 2} and all(m.finals for m in made.values())


@pytest.mark.slow
def test_it_resumes(log: Log) -> None:
    first: dict[str, Made] = {}
    second: dict[str, Made] = {}
    one = run(log, first)
    two = run(log, second)
    for a, b in zip(one.tasks, two.tasks, strict=True):
        assert b.result.resumed == 12 and b.result.measured == 12
        assert a.result.best is not None and b.result.best is not None
        assert b.result.best.time_s <= a.result.best.time_s
    for digest, made in second.items():
        assert not set(made.measured) & set(first[digest].measured)


@pytest.mark.slow
def test_an_interrupt_keeps_everything(log: Log) -> None:
    result = run(log, stop_after=5)
    assert result.stopped == "interrupted"
    states = [r.state for r in log.runs()]
    assert states and set(states) == {"interrupted"}
    assert result.measured == sum(1 for _ in log.records()) >= 5
    assert all(t.result.best is not None for t in result.tasks if t.result.measured)
    again = run(log)
    assert again.stopped == "trials" and again.weighted_s is not None


@pytest.mark.slow
def test_the_budget_is_shared_and_kept(log: Log) -> None:
    result = run(log, trials=None, budget_s=4.0)
    assert 3.0 < result.elapsed_s < 6.0
    assert result.stopped in ("budget", "converged") and result.measured > 0


@pytest.mark.slow
def test_what_came_before_is_part_of_the_budget(log: Log) -> None:
    result = run(log, trials=None, budget_s=40.0, started=time.monotonic() - 37.0)
    assert result.measured and 37.0 < result.elapsed_s < 43.0


@pytest.mark.slow
def test_a_converged_task_has_further_turns_until_all_are_converged(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    heavy = TASKS[-1].workload.digest
    monkeypatch.setattr("autotune.tuning.suite.SHORTEST_S", 0.2)
    monkeypatch.setattr(Session, "converged", property(lambda self: self.run.workload.digest == heavy))
    turns: Counter[str] = Counter()
    search = Session.search

    def counted(self: Session, *args: Any, **options: Any) -> str | None:
        turns[self.run.workload.digest] += 1
        return search(self, *args, **options)

    monkeypatch.setattr(Session, "search", counted)
    result = run(log, trials=None, budget_s=10.0)
    assert result.stopped == "budget"
    assert result.tasks[-1].result.stopped == "converged" and result.tasks[0].result.stopped == "budget"
    assert turns[heavy] > 1, "more than a first turn"
    monkeypatch.setattr(Session, "converged", property(lambda self: True))
    again = run(log, trials=None, budget_s=30.0)
    assert again.stopped == "converged" and again.elapsed_s < 20
    assert all(t.result.measured > 0 for t in again.tasks)


@pytest.mark.slow
def test_a_task_that_cannot_be_tuned_costs_the_others_nothing(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = TASKS[1].workload.canonical

    def derive(dag: object, *more: object) -> object:
        if dag == broken:
            raise ScheduleError("a made-up failure")
        return derive_space(dag, *more)  # type: ignore[arg-type]

    monkeypatch.setattr("schedules.space.derive", derive)
    result = run(log)
    errors = [t.error for t in result.tasks]
    assert errors == [None, "a made-up failure", None]
    assert [t.result.measured for t in result.tasks] == [12, 0, 12]
    assert result.weighted_s is None and result.tasks[1].result.stopped == "failed"


def test_a_log_that_cannot_be_written_ends_all(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks would lose their trials too: it is no failure of one task."""
    add, added = log.add, []

    def full(record: NewRecord) -> Record:
        if len(added) == 20:
            raise LogError("a made-up full disk")
        added.append(record)
        return add(record)

    monkeypatch.setattr(log, "add", full)
    with pytest.raises(LogError, match="a made-up full disk"):
        run(log)
    assert len(added) == 20 and {r.state for r in log.runs()} == {"failed"}


def test_the_runs_of_a_suite_end_with_whatever_ends_it(log: Log) -> None:
    def make(workload: Workload) -> Made:
        if workload is TASKS[1].workload:
            raise RuntimeError("a made-up fault of ours")
        return Made(workload)

    options = TuneOptions(budget_s=30.0, trials=8, search="random", model="analytic")
    with pytest.raises(RuntimeError, match="a made-up fault of ours"):
        tune_suite(TASKS, TARGET, log, options, measurers=make)
    assert {r.state for r in log.runs()} == {"failed"}


@pytest.mark.slow
def test_few_measurers_are_open_at_a_time(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.tuning.open_measurers.OPEN", 1)
    made: list[str] = []
    tune_suite(
        TASKS,
        TARGET,
        log,
        TuneOptions(trials=30, search="random", model="analytic", batch=4),
        measurers=lambda w: made.append(w.digest) or Made(w),  # type: ignore[func-returns-value]
    )
    assert len(made) > 3  # closed and opened again, by need


def test_no_more_measurers_are_open_than_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    dags = [t.workload.dag for t in TASKS]
    two = needed_bytes(dags[0]) + needed_bytes(dags[2])
    monkeypatch.setattr("autotune.measure.memory.free_bytes", lambda: 1 + two / (1 - RESERVE))
    made: list[Workload] = []
    opened = OpenMeasurers(lambda w: made.append(w) or Made(w))  # type: ignore[func-returns-value]
    for number in (0, 1, 0, 2):  # two of the small ones, the largest beside the one that was used last
        opened.get(number, TASKS[number].workload)
    assert list(opened._open) == [0, 2] and len(made) == 3
    monkeypatch.setattr("autotune.measure.memory.free_bytes", lambda: 0)
    alone = OpenMeasurers(Made)
    for number in (0, 1):
        alone.get(number, TASKS[number].workload)
    assert list(alone._open) == [1]


@pytest.mark.slow
def test_times_of_a_task_are_by_the_first_normal_speed_and_beside_its_last_control(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Started(Made):
        workload: Workload
        nominal: Nominal | None = None
        control: Control | None = None

        def measure(self, *args: Any, **kwargs: Any) -> Iterator[Measurement]:
            self.nominal = self.nominal or Nominal(1e-3 * (1 + len(given)), 7)
            self.control = Control(self.workload.digest.encode(), 1e-3 * len(given))
            return super().measure(*args, **kwargs)

    given: list[Nominal | None] = []
    controls: dict[str, list[Control | None]] = {}

    def make(
        workload: Workload,
        target: Target,
        budget_s: float,
        nominal: Nominal | None = None,
        control: Control | None = None,
        tolerance: Tolerance | None = None,
        reference_s: float | None = None,
        waiting: Callable[[], None] | None = None,
    ) -> Started:
        given.append(nominal)
        controls.setdefault(workload.digest, []).append(control)
        made = Started(workload)
        made.workload, made.nominal = workload, nominal
        return made

    monkeypatch.setattr("autotune.tuning.open_measurers.OPEN", 1)
    monkeypatch.setattr("autotune.tuning.preparation.measurer", make)
    monkeypatch.setattr("autotune.backends.check_here", lambda target: None)
    tune_suite(TASKS, TARGET, log, TuneOptions(trials=30, search="random", model="analytic", batch=4))
    assert len(given) > 3  # closed and opened again
    assert given == [None] + [Nominal(2e-3, 7)] * (len(given) - 1)
    for digest, (first, *later) in controls.items():
        assert first is None
        assert {c and c.object for c in later} <= {digest.encode()}
        seconds = [c.seconds for c in later if c is not None]
        assert seconds == sorted(set(seconds))  # always the last one's
    assert sum(len(c) > 1 for c in controls.values()) >= 2
