"""Tuning leaves nothing slower than no tuning: first picks come first, and plain loops shadow nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_clock import Clock, install
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_up import tune, tune_suite
from test_suite_tuner import TARGET, TASKS, Made

import autotune as at
from autotune.cli.results import document
from autotune.measure.results import Measurement
from autotune.models.tasks import had_share_s
from autotune.results import text
from autotune.results.tuned import SuiteProgress, SuiteResult, SuiteTask
from autotune.run.asked import Asked
from autotune.run.stored import FEW, unsearched
from autotune.search.decisions import DECISIONS
from autotune.targets import detect
from autotune.tuning import first_pick, plain_loops
from autotune.tuning.first_pick import Pick
from autotune.tuning.options import TuneOptions
from autotune.tuning.run_records import searched
from autotune.tuning.similar import Seed
from autotune.tuning.site import Here
from autotune.tuning.task_scheduler import GradientScheduler, ScheduledTask
from kernels_db import Log, NewRecord
from schedules import ops
from schedules.model import Target, Trace, Workload
from schedules.space import derive
from schedules.space.base import Candidate, Space, trace_of

PICKED = 4  # candidates of a made-up first pick


def drawn(space: Space, seed: int, count: int) -> list[Candidate]:
    """Valid candidates of a space."""
    rng = np.random.default_rng(seed)
    sketch = seed % len(space.sketches)
    rows = space.sample(sketch, 256, rng)
    good = rows[space.valid(sketch, rows)][:count]
    return [Candidate(sketch, tuple(map(int, row))) for row in good]


@pytest.fixture(autouse=True)
def no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def proposals(workload: Workload, target: Target, space: Space, *more: Any) -> list[Seed]:
        return [Seed(c, "model") for c in drawn(space, 0, PICKED)]

    monkeypatch.setattr(Here, "roofline", lambda self, workload, target: None)
    monkeypatch.setattr(first_pick, "proposals", proposals)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Budgets do not depend on how busy the machine is."""
    return install(monkeypatch)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path / "t.db") as opened:
        yield opened


def run(log: Log, tasks: Sequence[SuiteTask] = TASKS, sleep_s: float = 0.1, **options: Any) -> SuiteResult:
    chosen = TuneOptions(**({"search": "random", "model": "analytic"} | options))
    seen: list[SuiteProgress] = options.pop("seen", [])
    return tune_suite(tasks, TARGET, log, chosen, seen.append, measurers=lambda w: Made(w, sleep_s))


def plain_record(log: Log, workload: Workload, target: Target, time_s: float = 0.04) -> None:
    """What a run had when it ended before its first round, with a share of 100 s."""
    made = log.start_run(workload, target, {}, seed=0, options={"share_s": 100.0, "trials": None})
    log.add(NewRecord(made.uid, 0, plain_loops.SKETCH, Trace(), "ok", times_s=[time_s]))
    log.finish_run(made)


def other_records(log: Log, workload: Workload, target: Target, count: int, time_s: float) -> None:
    space = derive(workload.canonical, target)
    made = log.start_run(workload, target, {}, seed=0)
    found = {trace_of(space, c).digest: c for seed in range(8) for c in drawn(space, seed, count)}
    for n, c in enumerate([*found.values()][:count]):
        facts = {DECISIONS: list(c.row)}
        trace, name = trace_of(space, c), space.sketches[c.sketch]
        log.add(NewRecord(made.uid, n, name, trace, "ok", times_s=[time_s + n * 1e-3], environment=facts))
    log.finish_run(made)


# -- the order of trials -----------------------------------------------------------------------------


@pytest.mark.soak
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.sampled_from([16, 24, 32, 48, 64, 96]), min_size=1, max_size=4, unique=True),
    weights=st.lists(st.sampled_from([1.0, 3.0, 40.0]), min_size=4, max_size=4),
    each_s=st.sampled_from([0.3, 1.0, 4.0]),
    sleep_s=st.sampled_from([0.3, 1.0]),
    old=st.sets(st.integers(0, 3)),
)
def test_a_first_pick_of_each_task_comes_before_plain_loops_and_before_any_search(
    clock: Clock, tmp_path_factory: Any, sizes: Any, weights: Any, each_s: float, sleep_s: float, old: Any
) -> None:
    """Whatever the budget is and trials take; also where an old log has the plain loops of some tasks."""
    tasks = [
        SuiteTask(ops.workload("matmul", {"m": n, "n": n, "k": n}), w, f"matmul {n}")
        for n, w in zip(sizes, weights, strict=False)
    ]
    with Log(tmp_path_factory.mktemp("logs") / "t.db") as log:
        for n in old & set(range(len(tasks))):
            plain_record(log, tasks[n].workload, TARGET)
        result = run(log, tasks, sleep_s, budget_s=each_s * len(tasks))
        own = {r.uid for r in log.runs() if r.options.get("share_s") != 100.0}
        trials = [r for r in log.records(kind="trial") if r.run in own]
        digests = [t.workload.digest for t in tasks]
        firsts = {d: [r for r in trials if r.workload == d] for d in digests}
        begun = [of for of in firsts.values() if of]
        assert begun and all(of[0].environment.get("chosen_by") == "model" for of in begun)
        searched_at = next((i for i, r in enumerate(trials) if "round" in r.environment), None)
        if searched_at is not None:
            assert {r.workload for r in trials[:searched_at]} == set(firsts), "all have a kernel before"
        for task, of in zip(result.tasks, firsts.values(), strict=True):
            assert task.result.ready == bool(of)
            assert bool(of) or task in result.late
        assert (result.needed_s is None) == all(firsts.values())


@pytest.mark.fast("0.5")
@pytest.mark.parametrize("budget_s", [0.5, 8.0, 60.0])
def test_a_task_alone_begins_with_a_first_pick(clock: Clock, log: Log, budget_s: float) -> None:
    """At any budget, though its plain loops are quick."""
    workload = TASKS[0].workload
    options = TuneOptions(budget_s=budget_s, search="random", model="analytic")
    found = tune(workload, TARGET, log, options, measurer=Made(workload, 0.02 * budget_s))
    first = min(log.records(kind="trial"), key=lambda r: r.trial)
    assert first.environment["chosen_by"] == "model" and found.ready and not found.only_plain


def test_tasks_without_a_kernel_come_first_then_those_that_take_longest() -> None:
    tasks = [
        ScheduledTask(1.0, 1e9, known_s=1e-3),
        ScheduledTask(5.0, 1e6, known_s=1e-2),
        ScheduledTask(1.0, 1e6),
        ScheduledTask(9.0, 1e9, later=True),
        ScheduledTask(2.0, 1e6),
    ]
    scheduler = GradientScheduler(tasks)
    order = []
    while len(order) < len(tasks):
        number = scheduler.next()
        assert number is not None
        order.append(number)
        scheduler.add(number, 1.0, 1e-3)
        scheduler.end(number)
    assert order == [4, 2, 3, 1, 0]


# -- what there was no time for -----------------------------------------------------------------------


@pytest.mark.slow
def test_tasks_without_time_are_named_with_the_budget_that_they_need(clock: Clock, log: Log) -> None:
    plain_record(log, TASKS[1].workload, TARGET)
    result = run(log, sleep_s=0.5, budget_s=0.6)
    late = [t.task.group for t in result.late]
    assert late == ["matmul 64", "matmul 96"] and result.needed_s is not None and result.needed_s > 6
    assert result.weighted_s is None, "what plain loops take is no success"
    said = str(result)
    assert "1 of 3 tasks have a kernel, 1 their plain loops alone (matmul 96); " in said
    assert f"no time for matmul 64, matmul 96: give a budget of {result.needed_s:g} s" in said
    shown = document(result, TARGET)
    assert shown["no_time"] == late and shown["needed_budget_s"] == result.needed_s
    assert shown["only_plain_loops"] == ["matmul 96"] and shown["tasks"][1]["only_plain_loops"] is True
    assert f"larger budget: {result.needed_s:g} s" in (result.tasks[0].error or "")
    enough = run(log, sleep_s=0.5, budget_s=result.needed_s)
    assert enough.late == () and enough.needed_s is None and "no time" not in str(enough)
    assert all(t.result.ready for t in enough.tasks)


@pytest.mark.slow
def test_progress_counts_no_plain_loops_as_ready(clock: Clock, log: Log) -> None:
    plain_record(log, TASKS[0].workload, TARGET)
    seen: list[SuiteProgress] = []
    options = TuneOptions(budget_s=8.0, search="random", model="analytic")
    tune_suite(TASKS, TARGET, log, options, seen.append, measurers=lambda w: Made(w, 0.2))
    assert seen[0].ready == 0 and seen[0].weighted_s is None
    assert "0 of 3 tasks" in text.standing({"": seen[0]})
    assert seen[-1].ready == 3


@pytest.mark.slow
def test_a_task_that_had_a_first_pick_alone_has_not_had_its_share(clock: Clock, log: Log) -> None:
    run(log, sleep_s=0.5, budget_s=7.0)
    assert all(searched(t.workload, TARGET, log) for t in TASKS)
    assert all(had_share_s(log, t.workload, TARGET) == 0.0 for t in TASKS)
    run(log, sleep_s=1.0, budget_s=60.0)
    assert all(had_share_s(log, t.workload, TARGET) > 18.0 for t in TASKS)


# -- what a busy machine spoils ------------------------------------------------------------------------


class Spoilt(Made):
    """The fastest of the first pick seems slower than it is; timed in turns it does not."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload, 0.5)
        space = derive(workload.canonical, TARGET)
        self.best = trace_of(space, drawn(space, 0, PICKED)[0]).digest
        self.in_turns = False

    def time_s(self, trace: Trace) -> float:
        usual = super().time_s(trace)
        if trace.digest != self.best:
            return usual * (1.0 if self.in_turns or self.picking else 0.9)
        return 0.8 * self.scale * (1.0 if self.in_turns else 1.9)

    @property
    def picking(self) -> bool:
        return len(self.measured) <= PICKED

    def finalists(self, traces: Sequence[Trace], rounds: int = 3, repeats: int = 5) -> list[Measurement]:
        self.in_turns = True
        found = super().finalists(traces, rounds, repeats)
        self.in_turns = False
        return found


@pytest.mark.slow
def test_the_first_pick_is_timed_beside_the_finalists(
    clock: Clock, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = TASKS[0].workload
    measurer = Spoilt(workload)
    space = derive(workload.canonical, TARGET)
    only = Seed(drawn(space, 0, PICKED)[0], "model")
    monkeypatch.setattr(first_pick, "proposals", lambda *args: [only])
    options = TuneOptions(budget_s=30.0, search="random", model="analytic", seed=1)
    found = tune(workload, TARGET, log, options, measurer=measurer)
    trials = sorted(log.records(kind="trial"), key=lambda r: r.time_s or 1.0)
    assert measurer.best not in [r.trace_digest for r in trials[:8]], "it seems to be no finalist"
    best = log.best(workload, TARGET)
    assert found.best is not None and best is not None and best.trace_digest == measurer.best


@pytest.mark.slow
def test_what_led_before_is_timed_beside_the_finalists(clock: Clock, log: Log) -> None:
    """A record of a busy machine looks slower than what a quiet one tries now."""
    workload = TASKS[0].workload
    measurer = Spoilt(workload)
    space = derive(workload.canonical, TARGET)
    known = drawn(space, 0, PICKED)[0]
    made = log.start_run(workload, TARGET, {}, seed=0)
    facts = {DECISIONS: list(known.row)}
    before_s = 1.9 * measurer.scale
    log.add(NewRecord(made.uid, 0, "s", trace_of(space, known), "ok", times_s=[before_s], environment=facts))
    log.finish_run(made)
    options = TuneOptions(budget_s=30.0, search="random", model="analytic", seed=1)
    tune(workload, TARGET, log, options, measurer=measurer)
    best = log.best(workload, TARGET)
    assert best is not None and best.trace_digest == measurer.best


def test_plain_loops_alone_are_no_finalists(clock: Clock, log: Log) -> None:
    workload = TASKS[0].workload

    class PlainOnly(Made):
        def measure(self, traces: Sequence[Trace], *limits: Any, **more: Any) -> Iterator[Measurement]:
            for trace, m in zip(traces, super().measure(traces, *limits, **more), strict=False):
                yield m if trace == Trace() else Measurement("timeout", "too slow")

    measurer = PlainOnly(workload, 0.1)
    options = TuneOptions(budget_s=20.0, search="random", model="analytic", trials=40)
    found = tune(workload, TARGET, log, options, measurer=measurer)
    assert found.best is not None and found.only_plain and not found.ready
    assert measurer.finals == 0 and "plain loops alone" in str(found)


# -- loading -----------------------------------------------------------------------------------------


HERE = detect(1)
SHAPE = {"m": 40, "n": 48, "k": 24}


@pytest.fixture
def picks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """First picks that measure nothing: a schedule of the space, or the plain loops if so chosen."""
    made = ["model"]

    def pick(workload: Workload, target: Target, where: Any, **more: Any) -> Pick:
        made.append(workload.op)
        space = derive(workload.canonical, target)
        trace = Trace() if made[0] == "default" else trace_of(space, drawn(space, 0, 1)[0])
        return Pick(trace, made[0], 1e-6)

    monkeypatch.setattr(first_pick, "first_pick", pick)
    return made


@pytest.mark.fast("3", "2")
@pytest.mark.parametrize("others", range(FEW + 1))
def test_plain_loops_of_an_old_log_do_not_shadow_a_first_pick(
    tmp_path: Path, picks: list[str], others: int
) -> None:
    db, workload = tmp_path / "t.db", ops.workload("matmul", SHAPE)
    with Log(db) as log:
        plain_record(log, workload, HERE)
        other_records(log, workload, HERE, others, 0.05)
    assert at.load("matmul", **SHAPE, threads=1, db=db).trace == Trace()
    few = others < FEW
    assert unsearched(workload, Asked.of(HERE, None, db)) == few
    if few:
        said = "the log has only the plain loops of .*\n.*first pick of the model"
        with pytest.warns(UserWarning, match=said):
            kernel = at.load("matmul", **SHAPE, threads=1, db=db, fallback=True)
        assert kernel.chosen_by == "model" and kernel.trace != Trace()
    else:
        kernel = at.load("matmul", **SHAPE, threads=1, db=db, fallback=True)
        assert kernel.chosen_by == "log" and kernel.trace == Trace()
    a, b = np.ones((40, 24), "float32"), np.full((24, 48), 2, "float32")
    assert (kernel(a, b) == 48).all()


def test_plain_loops_that_are_the_faster_ones_or_pinned_stay(tmp_path: Path, picks: list[str]) -> None:
    db, workload = tmp_path / "t.db", ops.workload("matmul", SHAPE)
    with Log(db) as log:
        plain_record(log, workload, HERE)
    picks[0] = "default"
    assert at.load("matmul", **SHAPE, threads=1, db=db, fallback=True).chosen_by == "log"
    with Log(db) as log:
        best = log.best(workload, HERE)
        assert best is not None
        log.pin()
    picks[:] = ["model"]
    assert at.load("matmul", **SHAPE, threads=1, db=db, fallback=True).trace == Trace()
    assert picks == ["model"], "nothing was picked"


def test_a_size_that_varies_is_not_shadowed_either(tmp_path: Path, picks: list[str]) -> None:
    db = tmp_path / "t.db"
    with Log(db) as log:
        plain_record(log, ops.workload("matmul", SHAPE), HERE)
    sized = {"m": at.dim(1, 40, open=False), "n": 48, "k": 24}
    kernel = at.load("matmul", **sized, threads=1, db=db, fallback=True)
    a, b = np.ones((40, 24), "float32"), np.full((24, 48), 2, "float32")
    assert (kernel(a, b) == 48).all() and picks[1:], "a first pick was made for the size of the log"
