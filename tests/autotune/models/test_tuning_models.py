"""Tuning models: each task once, under one budget, and not again."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from graph_meaning import evaluate
from grid_cases import need_cxx
from made_up import MadeUp
from model_cases import Made, each_stage, layers, model_of

from autotune.backends import parse
from autotune.errors import KernelNotFound
from autotune.measure.results import Measurement
from autotune.models import preparation, tuned_model
from autotune.models.compiling import compile_model
from autotune.models.outline import Part
from autotune.models.tasks import tasks_of
from autotune.models.tuned_model import ModelTuneResult
from autotune.models.tuning import tune_model
from autotune.run import untuned
from autotune.run.kernels import default_kernel
from autotune.settings import SettingsError
from autotune.targets import detect
from autotune.tuning import plain_loops, request
from autotune.tuning.site import Here
from autotune.tuning.tuner import OneMachine
from kernels_db import Log, NewRecord
from schedules.graph.graph import Argument, Graph, Group
from schedules.graph.rewrite import Optimized
from schedules.model import Target, Trace, Workload

REAL = preparation.cut
HERE = detect(1)


@pytest.fixture(autouse=True)
def one_group_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "cut", each_stage)


@pytest.fixture
def nothing_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuning that measures nothing."""
    monkeypatch.setattr(Here, "roofline", lambda self, workload, target: None)
    here = partial(OneMachine, site=MadeUp(lambda workload: Made()))
    monkeypatch.setattr(request, "OneMachine", here)


def tuned(model, db: Path, **more) -> ModelTuneResult:
    return tune_model(model, threads=1, db=db, trials=2, **more)


@pytest.mark.slow
def test_a_model_is_measured_and_runs(tmp_path: Path) -> None:
    graph, x = layers(3)
    result = tuned(model_of(graph), tmp_path / "t.db")
    # one of the spaces has one schedule; whether plain loops are tried beside it is a matter of its time
    assert 3 <= result.measured <= 4 and all(t.error is None for t in result.tasks)
    net = compile_model(model_of(graph), threads=1, db=tmp_path / "t.db")
    np.testing.assert_array_equal(net(x), evaluate(graph, [x])[0])


@pytest.mark.usefixtures("nothing_measured")
def test_a_model_is_tuned_run_and_not_tuned_again(tmp_path: Path) -> None:
    graph, _ = layers(4)
    db = tmp_path / "t.db"
    first = tuned(model_of(graph), db)
    assert [t.task.weight for t in first.tasks] == [4, 4]
    assert first.tasks[0].task.group == "node/p0, node/p1, node/p2 +1"
    assert first.measured == 4 and first.skipped == 0
    assert first.weighted_s == pytest.approx(4 * sum(t.result.best.time_s for t in first.tasks))
    assert "2 of 2 tasks have a kernel" in str(first)

    again = tuned(model_of(graph), db)
    assert (again.measured, again.skipped, again.stopped) == (0, 2, "tuned")
    assert again.in_place == () or first.in_place == (), "inside the model is timed once"
    assert again.weighted_s == first.weighted_s

    deeper, y = layers(12)
    more = tuned(model_of(deeper), db)
    assert more.measured == 0, "twelve equal layers are tuned by what four are"
    assert more.weighted_s == pytest.approx(3 * first.weighted_s)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net = compile_model(model_of(deeper), threads=1, db=db)
    np.testing.assert_array_equal(net(y), evaluate(deeper, [y])[0])
    profile = net.profile(y, repeat=3)
    assert len(profile.rows) == 24 and {r.chosen_by for r in profile.rows} == {"log"}
    assert profile.rows[0].nodes == ("node/p0",) and profile.rows[0].task == profile.rows[2].task == 0
    assert sum(r.share for r in profile.rows) == pytest.approx(1)
    assert profile.in_place_over_tuned == pytest.approx(
        sum(r.in_place_s for r in profile.rows) / more.weighted_s
    )
    assert "in place ÷ tuned" in str(profile) and "node/y11" in str(profile)


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_measured")
def test_a_model_is_tuned_for_a_gpu(tmp_path: Path) -> None:
    need_cxx()
    graph, x = layers(2)
    db = tmp_path / "t.db"
    result = tune_model(model_of(graph), target="cuda-emulator", db=db, trials=2)
    assert {t.result.target for t in result.tasks} == {parse("cuda-emulator")}
    assert result.measured == 4 and result.in_place == (), "cold caches are what it is tuned with"
    again = tune_model(model_of(graph), target="cuda-emulator", db=db, trials=2)
    assert (again.measured, again.stopped) == (0, "tuned")
    net = compile_model(model_of(graph), target="cuda-emulator", db=db)
    assert {k.chosen_by for k in net.program.kernels} == {"log"}
    np.testing.assert_array_equal(net(x), evaluate(graph, [x])[0])
    with pytest.raises(KernelNotFound):
        compile_model(model_of(graph), threads=1, db=db)


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_measured")
def test_the_trials_that_are_left_are_taken(tmp_path: Path) -> None:
    graph, _ = layers(1, m=64, n=64)
    db = tmp_path / "t.db"
    tuned(model_of(graph), db)
    result = tune_model(model_of(graph), threads=1, db=db, trials=4)
    assert [t.result.measured for t in result.tasks] == [2, 1], "the second space has three schedules"


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_measured")
def test_a_share_of_the_budget_is_had_once(tmp_path: Path) -> None:
    graph, _ = layers(1, m=64, n=64)
    db = tmp_path / "t.db"
    goal = tuned(model_of(graph), db).tasks[0].result.target
    with Log(db) as log:
        for t in tune_model(model_of(graph), threads=1, db=db, trials=2).tasks:
            run = log.start_run(
                t.result.workload, goal, {"cpu": "x"}, seed=0, options={"share_s": 6.0, "trials": None}
            )
            log.finish_run(run)
            less = log.start_run(
                t.result.workload, goal, {"cpu": "x"}, seed=0, options={"share_s": 5.0, "trials": None}
            )
            log.finish_run(less)
            cut = log.start_run(t.result.workload, goal, {"cpu": "x"}, seed=0, options={"share_s": 60.0})
            log.finish_run(cut, "interrupted")
    assert tune_model(model_of(graph), threads=1, db=db, budget_s=12).stopped == "tuned"
    more = tune_model(model_of(graph), threads=1, db=db, budget_s=13.4, trials=3)
    assert (more.skipped, more.measured) == (0, 2)


@pytest.mark.usefixtures("nothing_measured")
def test_a_budget_that_is_too_short_says_what_is_needed(tmp_path: Path) -> None:
    graph, _ = layers(1)
    with pytest.warns(UserWarning, match=r"2 tasks, and 3 s .* give budget_s=4 for kernels of all"):
        tuned(model_of(graph), tmp_path / "t.db", budget_s=3)
    with pytest.raises(SettingsError, match="both given"):
        tuned(model_of(graph), tmp_path / "t.db", budget_s=3, budget="3s")


@pytest.mark.usefixtures("nothing_measured")
def test_a_task_without_a_kernel_has_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = layers(1)
    failed = Measurement("timeout", "too slow", (), None, None, 1.0, 0.1, 0.1, 0.1)
    monkeypatch.setattr(Made, "_measured", lambda self, trace: failed)
    result = tuned(model_of(graph), tmp_path / "t.db")
    assert all("2 timeout (too slow)" in t.error for t in result.tasks)
    assert result.weighted_s is None and result.in_place == () and "0 of 2 tasks have a kernel" in str(result)


@pytest.mark.slow
def test_what_is_not_tuned_is_named_all_at_once(tmp_path: Path) -> None:
    graph, x = layers(3)
    with pytest.raises(KernelNotFound) as caught:
        compile_model(model_of(graph), threads=1, db=tmp_path / "t.db")
    for text in (
        "2 of 2 tasks",
        "node/p0, node/p1, node/p2: ",
        "node/y0, node/y1, node/y2: ",
        "fallback=True",
    ):
        assert text in str(caught.value)
    with pytest.warns(UserWarning) as warned:
        net = compile_model(model_of(graph), threads=1, db=tmp_path / "t.db", fallback=True)
    assert len(warned) == 1 and "2 of 2 tasks run kernels that are not tuned" in str(warned[0].message)
    assert "node/y2" in str(warned[0].message) and warned[0].filename == __file__
    np.testing.assert_array_equal(net(x), evaluate(graph, [x])[0])
    profile = net.profile()
    assert profile.in_place_over_tuned is None and "no kernel was tuned" in str(profile)


def two_ways() -> tuple[Graph, tuple[Part, ...], np.ndarray]:
    """A product and what follows as one group, whose parts are the two stages."""
    graph, x = layers(1)
    _, parts = each_stage(graph)
    dag = graph.dag
    reads = tuple(Argument(t.name) for t in dag.inputs)
    return graph, (Group(dag, reads, ("y0",), ("node/y0",), parts),), x


@pytest.mark.parametrize(
    ("seconds", "kernels"), [((2.0, 0.5, 1.0), 2), ((1.0, 0.5, 1.0), 1), ((1.5, 0.5, 1.0), 1)]
)
def test_of_two_ways_the_faster_one_runs(seconds, kernels, monkeypatch, tmp_path: Path) -> None:
    graph, parts, _ = two_ways()
    monkeypatch.setattr(preparation, "cut", lambda graph, choices: (Optimized(graph, ()), parts))
    ready = preparation.prepared(model_of(graph))
    tasks = tasks_of(ready.parts)
    assert [t.nodes for t in tasks] == [("node/y0",), ("node/p0",), ("node/y0",)]
    times = dict(zip((t.workload.digest for t in tasks), seconds, strict=True))
    assert len(ready.outline(lambda w: times[w.digest]).steps) == kernels
    assert len(ready.outline(lambda w: None).steps) == 1
    less = dict(times, **{tasks[0].workload.digest: None})
    assert len(ready.outline(lambda w: less[w.digest]).steps) == 2, "what has no kernel is not faster"


@pytest.mark.usefixtures("nothing_measured")
def test_both_ways_are_tuned_and_the_faster_one_is_compiled(monkeypatch, tmp_path: Path) -> None:
    graph, parts, x = two_ways()
    monkeypatch.setattr(preparation, "cut", lambda graph, choices: (Optimized(graph, ()), parts))
    result = tuned(model_of(graph), tmp_path / "t.db")
    assert len(result.tasks) == 3
    whole_s, *each = [t.result.best.time_s for t in result.tasks]
    assert result.weighted_s == min(whole_s, sum(each))
    net = compile_model(model_of(graph), threads=1, db=tmp_path / "t.db")
    assert len(net.program.kernels) == (1 if whole_s <= sum(each) else 2)
    np.testing.assert_array_equal(net(x), evaluate(graph, [x])[0])


def left_with_plain_loops(db: Path, graph: Graph) -> None:
    """A log of runs that ended, with a share of a minute, before they came to more."""
    with Log(db) as log:
        for task in tasks_of(each_stage(graph)[1]):
            run = log.start_run(task.workload, HERE, {}, seed=0, options={"share_s": 60.0, "trials": None})
            log.add(NewRecord(run.uid, 0, "plain loops", Trace(), "ok", times_s=[0.04]))
            log.finish_run(run)


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_measured")
def test_tasks_that_have_their_plain_loops_alone_are_not_tuned_before(tmp_path: Path) -> None:
    graph, _ = layers(2)
    db = tmp_path / "t.db"
    left_with_plain_loops(db, graph)
    result = tune_model(model_of(graph), threads=1, db=db, budget_s=6)
    assert (result.skipped, result.stopped == "tuned") == (0, False)
    assert all(t.result.ready for t in result.tasks) and result.weighted_s is not None


@pytest.mark.usefixtures("nothing_measured")
def test_tasks_that_had_no_time_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = layers(2)
    left_with_plain_loops(tmp_path / "t.db", graph)
    job = tuned_model.ModelJobs.job

    def ends(self, target):
        made = job(self, target)
        return replace(made, options=replace(made.options, budget_s=1e-9))

    monkeypatch.setattr(tuned_model.ModelJobs, "job", ends)
    result = tune_model(model_of(graph), threads=1, db=tmp_path / "t.db", budget_s=6)
    assert len(result.late) == 2 and result.weighted_s is None and result.in_place == ()
    said = str(result)
    named = "node/p0, node/p1, node/y0, node/y1"
    assert f"0 of 2 tasks have a kernel, 2 their plain loops alone ({named}); " in said
    assert f"no time for {named}: give a budget of {result.needed_s:g} s" in said


@pytest.mark.slow
def test_plain_loops_of_a_log_do_not_shadow_first_picks_of_a_model(tmp_path: Path) -> None:
    graph, x = layers(1)
    db = tmp_path / "t.db"
    left_with_plain_loops(db, graph)
    with pytest.warns(UserWarning, match="2 of 2 tasks run as plain loops:\n  node/p0: "):
        slow = compile_model(model_of(graph), threads=1, db=db)
    assert {k.chosen_by for k in slow.program.kernels} == {"log"}
    with pytest.warns(UserWarning, match="node/p0: .*: the log has only its plain loops"):
        net = compile_model(model_of(graph), threads=1, db=db, fallback=True)
    assert net.program.kernels[0].chosen_by == "model", "what the model chose, not 40 ms"
    np.testing.assert_array_equal(net(x), evaluate(graph, [x])[0])


def test_what_runs_only_apart_is_picked_later(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, parts, _ = two_ways()
    monkeypatch.setattr(preparation, "cut", lambda graph, choices: (Optimized(graph, ()), parts))
    assert [t.later for t in tasks_of(preparation.prepared(model_of(graph)).parts)] == [False, True, True]


def test_tasks_that_run_as_plain_loops_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two tasks of three layers: a first pick that ended so, and one that did not."""
    graph, _ = layers(3)
    made: list[str] = []

    def pick(workload: Workload, target: Target, where: str) -> untuned.PickedKernel:
        made.append(workload.digest)
        alone = "no other schedule was right: 8 timeout" if len(made) == 1 else ""
        return untuned.PickedKernel(default_kernel(workload, target), "", alone=alone)

    monkeypatch.setattr(untuned, "untuned", pick)
    with pytest.warns(UserWarning) as warned:
        net = compile_model(model_of(graph), threads=1, db=tmp_path / "t.db", fallback=True)
    (said,) = [str(w.message) for w in warned]
    slow, other = [line for line in said.splitlines() if line.startswith("  ")]
    assert "runs as plain loops" in slow and "8 timeout" in slow and "node/" in slow
    assert "plain loops" not in other and said.splitlines()[-1].startswith("tune them: autotune.tune_model(")
    assert "in plain loops, which no schedule makes faster: tune node/" in str(net.profile())


def test_plain_loops_that_a_log_has_alone_are_named(tmp_path: Path) -> None:
    graph, _ = layers(1)
    db = tmp_path / "t.db"
    with Log(db) as log:
        for task in tasks_of(preparation.prepared(model_of(graph)).parts):
            run = log.start_run(task.workload, detect(1), {"cpu": "a test"}, seed=0)
            log.add(NewRecord(run.uid, 0, plain_loops.SKETCH, plain_loops.TRACE, "ok", times_s=[1e-3]))
            log.finish_run(run)
    with pytest.warns(UserWarning) as warned:
        compile_model(model_of(graph), threads=1, db=db)
    (said,) = [str(w.message) for w in warned]
    assert "2 of 2 tasks run as plain loops" in said and "as a run ended early" in said
    assert said.endswith("with more time") and "node/y0" in said


@pytest.mark.usefixtures("nothing_measured")
def test_a_model_ends_where_a_call_is_fast_enough(tmp_path: Path) -> None:
    """The time is that of all that a call runs, those among it that had their share before."""
    graph, _ = layers(4)
    model, db = model_of(graph), tmp_path / "t.db"
    first = tune_model(model, threads=1, db=db, until="10s", trials=40)
    assert first.stopped == "reached" and first.in_place == () and first.measured < 40
    assert first.aimed is not None and first.aimed.reached
    assert first.aimed.time_s == pytest.approx(first.weighted_s)
    # it had not its share: the next run goes on
    again = tune_model(model, threads=1, db=db, until="1ns", trials=12)
    assert again.skipped == 0 and again.measured > 0 and again.stopped == "trials"
    assert again.aimed is not None and not again.aimed.reached
    done = tune_model(model, threads=1, db=db, until="10s", trials=12)
    assert done.measured == 0 and done.aimed is not None and done.aimed.reached
