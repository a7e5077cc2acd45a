"""The part of a report about a model: its rewrites, what runs, and the times of steps."""

import json

import joined_models
import pytest
from model_cases import layers, model_of
from report_cases import MACHINE, traces_of
from test_report_page import _Text

from autotune import report
from autotune.models.in_place import KEY, context_of
from autotune.models.onnxruntime_profile import WARM, _summed
from autotune.models.outline import outline
from autotune.models.preparation import prepared
from autotune.models.tasks import tasks_of
from autotune.models.tuned_model import ModelTuneResult
from autotune.report import model_data
from autotune.report.graph_drawing import Drawing
from autotune.report.model_data import ModelData, ModelStep, read_model
from autotune.report.sections import model as section
from autotune.report.sections.model import of_model
from autotune.targets import detect
from kernels_db.records import NewRecord
from kernels_db.store import Log
from schedules.graph import joins
from schedules.graph.optimize import REWRITES, optimize
from schedules.graph.partition import partition

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def made(tmp_path):
    """(model, target, a log with a kernel of each task, and a time in place of the first that runs)"""
    model = model_of(layers(3)[0])
    target = detect(1)
    ready = prepared(model)
    with Log(tmp_path / "t.db") as log:
        for n, task in enumerate(tasks_of(ready.parts)):
            run = log.start_run(task.workload, target, MACHINE, seed=0)
            for k, trace in enumerate(traces_of(task.workload, 2)):
                log.add(NewRecord(run.uid, k, HOSTILE, trace, "ok", times_s=(1e-5 * (n + 1) * (k + 1),)))
            log.finish_run(run)
        outline = ready.outline(lambda w: 1e-5)
        first = outline.tasks[outline.calls[0].task]
        best = log.best(first, target)
        options = {
            KEY: {
                "model": context_of(outline),
                "times_s": {best.trace_digest: 7e-5},
                "chosen": best.trace_digest,
            }
        }
        log.finish_run(log.start_run(first, target, MACHINE, seed=0, options=options))
    return model, target, tmp_path / "t.db"


def test_rewrites_are_told_as_they_are(made):
    model, target, db = made
    data = read_model(model, target, db)
    assert [s.name for s in data.rewrites] == ["imported", *(r.__name__ for r in REWRITES)]
    graph = model.graph
    for stage, rewrite in zip(data.rewrites[1:], REWRITES):
        before, graph = graph, rewrite(graph)
        assert stage.stages == len(graph.dag.stages)
        assert stage.written_bytes == sum(t.nbytes for s in graph.dag.stages for t in s.outputs)
        assert stage.new - stage.gone == len(graph.dag.stages) - len(before.dag.stages)
        assert stage.does.endswith(".") and len(stage.does) > 10
    assert data.rewrites[-1].stages == len(optimize(model.graph).dag.stages)
    assert data.rewrites[0].drawing is not None
    for stage in data.rewrites:
        if stage.drawing is not None:
            outside = sum(n.kind == "outside" for n in stage.drawing.nodes)
            assert len(stage.drawing.nodes) == stage.stages + outside + stage.islands
            assert all(
                a < len(stage.drawing.nodes) and b < len(stage.drawing.nodes) for a, b in stage.drawing.edges
            )


def test_times_are_those_of_the_log(made):
    model, target, db = made
    data = read_model(model, target, db)
    assert all(s.tuned_s for s in data.steps)
    first = data.steps[0]
    assert first.in_place_s == 7e-5 and first.candidates == 1
    assert all(s.in_place_s is None for s in data.steps if s.task != first.task)
    assert sum(n.heat == 1.0 for n in data.drawing.nodes) == sum(s.task == first.task for s in data.steps)
    text = _Text(of_model(data).before).text
    assert "autotune" not in data.name and f"run as {len(data.steps)} steps" in text
    alike = sum(s.task == first.task for s in data.steps)
    assert f"of {alike} of {len(data.steps)} steps" in text


def test_the_page_of_a_model(made, tmp_path):
    model, target, db = made
    written = report.of_model(tmp_path / "r.html", model, db, target)
    html = written.path.read_text("utf-8")
    seen = _Text(html)
    assert written.tasks == len({*read_model(model, target, db).digests}) and "img" not in seen.tags
    assert "The graph, rewrite by rewrite" in seen.text and seen.tags.count("svg") >= 2
    assert not [a for a in seen.attributes if a[1].startswith("on")]


def test_a_profile_is_measured_where_it_is_asked_for(made, tmp_path):
    model, target, db = made
    data = read_model(model, target, db, profiled=True)
    assert data.measured and data.call_s > 0
    assert all(s.in_place_s is not None and s.in_place_s > 0 for s in data.steps)


def test_a_result_writes_the_report_of_its_model(made, tmp_path):
    from autotune.results.tuned import SuiteTask, TaskResult
    from autotune.tuning.frozen import frozen

    model, target, db = made
    with Log(db) as log:
        tasks = tuple(
            TaskResult(SuiteTask(t.workload), frozen(t.workload, target, log), 0.0)
            for t in tasks_of(prepared(model).parts)
        )
    result = ModelTuneResult(tasks, None, 0, 0.0, 0.0, 0, "tuned", name="net", model=model)
    written = result.report(tmp_path / "r.html")
    assert "The graph, drawn" in written.path.read_text("utf-8") and written.tasks == len(tasks)


def test_a_profile_of_onnxruntime_is_summed_by_operator():
    """Medians of each node's runs after the warm ones; nodes of an operator together."""

    def event(name, op, *micros):
        return [
            {"cat": "Node", "name": f"{name}_kernel_time", "args": {"op_name": op}, "dur": m} for m in micros
        ]

    warm = [9999] * WARM
    events = [
        *event("a", "Conv", *warm, 10, 30, 20),
        *event("b", "Conv", *warm, 5, 5, 5),
        *event("c", "Relu", *warm, 50, 70, 60),
        {"cat": "Session", "name": "model_run", "dur": 1},
        {"cat": "Node", "name": "a_fence_before", "args": {"op_name": "Conv"}, "dur": 7},
    ]
    found = [(o.op, o.count, round(o.seconds * 1e6)) for o in _summed(json.loads(json.dumps(events)))]
    assert found == [("Relu", 1, 60), ("Conv", 2, 25)]
    assert _summed({"not": "a list"}) == []


def step_of(n, in_place_s, tuned_s, nodes=None):
    return ModelStep(f"task {n}", (f"node {n}",) if nodes is None else nodes, n, tuned_s, in_place_s)


def test_the_longest_steps_have_bars_in_the_order_in_which_they_run(monkeypatch):
    monkeypatch.setattr(section, "BARS", 3)
    steps = [
        step_of(0, 5e-3, 9e-3),  # the time in place counts where there is one
        step_of(1, None, 8e-3),
        step_of(2, 7e-3, None, ()),
        step_of(3, None, None),
        step_of(4, 6e-3, 1e-3, ("first", "a name that is much longer than there is room for beside a bar")),
        step_of(5, 1e-3, 2e-3),
    ]
    figure = section._times(ModelData("m", detect(1), (), (), steps, Drawing((), ())))
    tuned, inside = figure.data
    # plots are drawn from the bottom to the top
    assert tuned["y"] == inside["y"] == ["4 a name that is much longer than t…", "2 task 2", "1 node 1"]
    assert tuned["x"] == pytest.approx([1.0, None, 8.0]) and inside["x"] == pytest.approx([6.0, 7.0, None])
    assert (tuned["name"], inside["name"]) == ("tuned, alone", "in place")
    assert figure.note == "The 3 longest of 6 steps have bars; the table below has all."
    monkeypatch.setattr(section, "BARS", 6)
    figure = section._times(ModelData("m", detect(1), (), (), steps, Drawing((), ())))
    assert [y.split()[0] for y in figure.data[0]["y"]] == ["5", "4", "2", "1", "0"]
    assert section._times(ModelData("m", detect(1), (), (), [steps[3]], Drawing((), ()))) is None


def test_what_is_joined_in_place_is_drawn_from_the_kernels_of_its_parts(monkeypatch):
    monkeypatch.setattr(joins, "CALL_BYTES", 0)
    graph = optimize(joined_models.steps())
    running = outline(graph, partition(graph))
    assert running.joins
    drawing = model_data._running(running, [step_of(n, None, None) for n, _ in enumerate(running.steps)])
    last = len(drawing.nodes) - len(running.outputs)
    writers = {at for at, to in drawing.edges if to == last}
    assert len(writers) == len(running.joins[running.outputs[0]])


def test_what_runs_is_labelled_by_the_models_nodes_and_warm_by_its_time(made):
    outline = prepared(made[0]).outline(lambda w: 1e-5)
    seconds = [4e-3, 1e-3, None, 2e-3]
    steps = [
        step_of(n, None if n % 2 else s, s, ("first", f"last {n}") if n != 1 else ())
        for n, s in zip(range(len(outline.steps)), [*seconds, *[None] * len(outline.steps)])
    ]
    drawing = model_data._running(outline, steps)
    inputs = drawing.nodes[: len(outline.inputs)]
    assert [n.label for n in inputs] == [f"input {outline.label(n)}" for n in outline.inputs]
    assert {n.kind for n in inputs} == {"outside"}
    run = drawing.nodes[len(inputs) : len(inputs) + len(steps)]
    labels = ["last 0", "task 1", "last 2", "last 3"][: len(run)]
    assert [n.label for n in run[:4]] == labels and [n.tip for n in run[:4]] == [s.what for s in steps[:4]]
    assert [n.under for n in run[:4]] == ["4 ms", "1 ms", "", "2 ms"][: len(run)]
    assert [n.heat for n in run[:4]] == pytest.approx([1.0, 0.25, 0.0, 0.5][: len(run)])
    assert len(run) >= 3
    outputs = drawing.nodes[len(inputs) + len(steps) :]
    names = [outline.label(n) for n in dict.fromkeys(outline.outputs)]
    assert [n.label for n in outputs] == [f"output {name}" for name in names]
