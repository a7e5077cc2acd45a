"""Tuning models: each task once, under one budget, and not again."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from model_cases import Made, biased, each_stage, graph_of, layers, model_of, product, whole

from autotune.errors import ArgumentError, KernelNotFound, ModelError
from autotune.measure.results import Measurement
from autotune.models import preparation, tuning
from autotune.models.compiling import compile_model
from autotune.models.module import Module
from autotune.models.outline import Part
from autotune.models.tasks import tasks_of
from autotune.models.tuning import ModelTuneResult, tune_model
from autotune.settings import SettingsError
from autotune.tuning.site import Here
from kernels_db import Log
from schedules import te
from schedules.graph.evaluate import evaluate
from schedules.graph.graph import Argument, Graph, Group

REAL = preparation.cut


@pytest.fixture(autouse=True)
def one_group_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "cut", each_stage)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuning that measures nothing."""
    monkeypatch.setattr(Here, "roofline", lambda self, workload, target: None)
    quick = partial(tuning.tune_suite, measurers=lambda workload: Made())
    monkeypatch.setattr(tuning, "tune_suite", quick)


def tuned(model, db: Path, **more) -> ModelTuneResult:
    return tune_model(model, threads=1, db=db, trials=2, **more)


def test_a_model_is_measured_and_runs(tmp_path: Path) -> None:
    graph, x = layers(3)
    result = tuned(model_of(graph), tmp_path / "t.db")
    assert result.measured == 4 and all(t.error is None for t in result.tasks)
    net = compile_model(model_of(graph), threads=1, db=tmp_path / "t.db")
    np.testing.assert_array_equal(net(x), evaluate(graph, [x])[0])


@pytest.mark.usefixtures("made_up")
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


@pytest.mark.usefixtures("made_up")
def test_the_trials_that_are_left_are_taken(tmp_path: Path) -> None:
    graph, _ = layers(1, m=64, n=64)
    db = tmp_path / "t.db"
    tuned(model_of(graph), db)
    result = tune_model(model_of(graph), threads=1, db=db, trials=4)
    assert [t.result.measured for t in result.tasks] == [2, 2]


@pytest.mark.usefixtures("made_up")
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
            cut = log.start_run(t.result.workload, goal, {"cpu": "x"}, seed=0, options={"share_s": 60.0})
            log.finish_run(cut, "interrupted")
    assert tune_model(model_of(graph), threads=1, db=db, budget_s=12).stopped == "tuned"
    more = tune_model(model_of(graph), threads=1, db=db, budget_s=13.4, trials=3)
    assert (more.skipped, more.measured) == (0, 2)


@pytest.mark.usefixtures("made_up")
def test_a_budget_that_is_too_short_says_what_is_needed(tmp_path: Path) -> None:
    graph, _ = layers(1)
    with pytest.warns(UserWarning, match=r"2 tasks, and 3 s .* give budget_s=4 for kernels of all"):
        tuned(model_of(graph), tmp_path / "t.db", budget_s=3)
    with pytest.raises(SettingsError, match="both given"):
        tuned(model_of(graph), tmp_path / "t.db", budget_s=3, budget="3s")


@pytest.mark.usefixtures("made_up")
def test_a_task_without_a_kernel_has_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = layers(1)
    failed = Measurement("timeout", "too slow", (), None, None, 1.0, 0.1, 0.1, 0.1)
    monkeypatch.setattr(Made, "_measured", lambda self, trace: failed)
    result = tuned(model_of(graph), tmp_path / "t.db")
    assert [t.error for t in result.tasks] == [
        "no kernel: no trial was right (timeout 2); give a larger budget"
    ] * 2
    assert result.weighted_s is None and result.in_place == () and "0 of 2 tasks have a kernel" in str(result)


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


@pytest.fixture(scope="module")
def net() -> Module:
    """Two inputs, two outputs, never tuned: y = x w + z and x w."""
    rng = np.random.default_rng(0)
    x, z = te.placeholder((4, 8), "float32", "x"), te.placeholder((4, 8), "float32", "z")
    w = te.placeholder((8, 8), "float32", "w")
    p = product(x, w, "p")
    y = te.compute((4, 8), lambda i, j: p[i, j] + z[i, j], "y")
    graph = graph_of([x, w, z, p, y], {"w": whole(rng, (8, 8))}, ("y", "p"))
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(preparation, "cut", each_stage)
        made = compile_model(model_of(graph), threads=1, fallback=True)
    made.graph = graph
    return made


X, Z = np.full((4, 8), 2, np.float32), np.arange(32, dtype=np.float32).reshape(4, 8)
WRONG = {
    "count": (lambda n: n(X), r"net takes 2 inputs \(in.x, in.z\), got 1"),
    "too many": (lambda n: n(X, Z, X), "got 3"),
    "shape": (lambda n: n(X, Z[:2]), r"input 'in.z' has shape \(2, 8\), but the model is.*\(4, 8\)"),
    "dtype": (lambda n: n(X.astype("float64"), Z), r"input 'in.x' is float64.*\.astype\('float32'\)"),
    "order": (lambda n: n(X.astype(">f4"), Z), "input 'in.x' has byte order '>f4'; the model takes"),
    "masked": (lambda n: n(np.ma.array(X), Z), "input 'in.x' is a masked array"),
    "no array": (lambda n: n(X, "text"), "input 'in.z' is a str"),
    "unknown": (lambda n: n(X, in_z=Z), r"there is no input 'in_z' \(did you mean 'in.z'\?\)"),
    "twice": (lambda n: n(X, Z, x=X), "input 'x' is given twice"),
    "missing": (lambda n: n(x=X), "in.z not given"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_arguments_that_do_not_fit_are_named(net: Module, case: str) -> None:
    call, message = WRONG[case]
    with pytest.raises(ArgumentError, match=message):
        call(net)


def test_inputs_are_taken_by_place_and_by_either_name(net: Module) -> None:
    y, p = net(X, Z)
    expected = evaluate(net.graph, [X, Z])
    for found in ((y, p), net(z=Z, x=X), net(X, **{"in.z": Z}), net(X, memoryview(Z))):
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)
    assert not np.shares_memory(net(X, Z)[0], y), "every call returns arrays of its own"


def test_inputs_that_are_not_row_major_are_copied_and_told(net: Module) -> None:
    turned = np.asfortranarray(X)
    odd = np.frombuffer(bytes(1) + Z.tobytes(), np.uint8)[1:].view(np.float32).reshape(4, 8)
    assert not odd.flags.aligned
    y, _ = net(turned, odd)
    np.testing.assert_array_equal(y, evaluate(net.graph, [X, Z])[0])
    assert net.profile(turned, Z).copies == ("in.x",)
    assert "copied, since they are not row-major: in.x" in str(net.profile(turned, Z))
    assert net.profile(X, Z).copies == ()


def test_torch_in_torch_out(net: Module) -> None:
    from needs import imported

    torch = imported("torch")
    x, z = torch.from_numpy(X), torch.from_numpy(Z)
    y, p = net(x, z.t().contiguous().t())
    assert type(y) is type(p) is torch.Tensor
    np.testing.assert_array_equal(y.numpy(), evaluate(net.graph, [X, Z])[0])
    with pytest.raises(ArgumentError, match="input 'in.z' requires a gradient"):
        net(x, z.clone().requires_grad_())
    with torch.no_grad():
        np.testing.assert_array_equal(net(x, torch.nn.Parameter(z))[0], y)
    with pytest.raises(ArgumentError, match=r"input 'in.z' is torch.float64|input 'in.z' is float64.*\.to\("):
        net(x, z.double())
    with pytest.raises(ArgumentError, match=r"input 'in.z' is on meta|'in.z'"):
        net(x, z.to("meta"))
    with pytest.raises(ArgumentError, match="input 'in.x' is a ndarray"):
        net(X, z)


def changed(graph: Graph, **values: np.ndarray) -> Graph:
    return replace(graph, values={**graph.values, **values})


def test_small_weights_may_be_changed_one_by_one(net: Module) -> None:
    other = np.eye(8, dtype=np.float32)
    before = dict(net.graph.values)
    try:
        net.load_weights({"w": other})
        other[:] = 0  # the module has its own
        np.testing.assert_array_equal(net(X, Z)[1], X)
        with pytest.raises(ArgumentError, match=r"input 'w' has shape \(3, 8\)"):
            net.load_weights({"w": other[:3]})
        with pytest.raises(ModelError, match=r"no weight 'W' \(did you mean 'w'\?\)"):
            net.load_weights({"W": other})
        np.testing.assert_array_equal(net(X, Z)[1], X)
    finally:
        net.load_weights(before)


def test_weights_go_through_the_rewrites_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A per-channel factor is multiplied into the weight of the product, and comes from another weight."""
    monkeypatch.setattr(preparation, "cut", REAL)
    rng = np.random.default_rng(0)
    x, w = te.placeholder((4, 160), "float32", "x"), te.placeholder((160, 160), "float32", "fc_weight")
    s, b = te.placeholder((160,), "float32", "s"), te.placeholder((160,), "float32", "b")
    p = product(x, w, "p")
    scaled = te.compute((4, 160), lambda i, j: p[i, j] * s[j], "q")
    y = biased(scaled, b, "y")
    values = {"fc_weight": whole(rng, (160, 160)), "s": whole(rng, (160,)), "b": whole(rng, (160,))}
    graph = graph_of([x, w, s, b, y], values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = compile_model(model_of(graph), threads=1, db=tmp_path / "t.db", fallback=True)
    given = whole(rng, (4, 160))
    np.testing.assert_array_equal(net(given), evaluate(graph, [given])[0])
    new = {"fc.weight": whole(rng, (160, 160)), "s": whole(rng, (160,))}
    net.load_weights(new)
    other = changed(graph, fc_weight=new["fc.weight"], s=new["s"])
    np.testing.assert_array_equal(net(given), evaluate(other, [given])[0])
    with pytest.raises(ModelError, match="large weights in packed form only: give all.*fc_weight not given"):
        net.load_weights({"s": values["s"]})
    np.testing.assert_array_equal(net(given), evaluate(other, [given])[0])


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
    monkeypatch.setattr(preparation, "cut", lambda graph: (graph, parts))
    ready = preparation.prepared(model_of(graph))
    tasks = tasks_of(ready.parts)
    assert [t.nodes for t in tasks] == [("node/y0",), ("node/p0",), ("node/y0",)]
    times = dict(zip((t.workload.digest for t in tasks), seconds, strict=True))
    assert len(ready.outline(lambda w: times[w.digest]).steps) == kernels
    assert len(ready.outline(lambda w: None).steps) == 1
    less = dict(times, **{tasks[0].workload.digest: None})
    assert len(ready.outline(lambda w: less[w.digest]).steps) == 2, "what has no kernel is not faster"


@pytest.mark.usefixtures("made_up")
def test_both_ways_are_tuned_and_the_faster_one_is_compiled(monkeypatch, tmp_path: Path) -> None:
    graph, parts, x = two_ways()
    monkeypatch.setattr(preparation, "cut", lambda graph: (graph, parts))
    result = tuned(model_of(graph), tmp_path / "t.db")
    assert len(result.tasks) == 3
    whole_s, *each = [t.result.best.time_s for t in result.tasks]
    assert result.weighted_s == min(whole_s, sum(each))
    net = compile_model(model_of(graph), threads=1, db=tmp_path / "t.db")
    assert len(net.program.kernels) == (1 if whole_s <= sum(each) else 2)
    np.testing.assert_array_equal(net(x), evaluate(graph, [x])[0])
