"""Sizes of a model with programs of their own, beside the one of all sizes."""

from __future__ import annotations

import copy
import json
import pickle
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from default_kernels import default_kernels
from graph_meaning import evaluate
from open_graphs import MODELS, inputs_at, size
from state_models import StateBuilder
from test_open_models import attention, both, close
from test_tuned_open_models import model_of, perceptron

import autotune as at
from autotune.errors import ArgumentError, KernelNotFound, ModelError
from autotune.models import compiling
from autotune.models.model import MOST_OWN, Model
from autotune.models.module import Module
from autotune.models.own_programs import check_own, joint_tasks
from autotune.models.preparation import prepared_programs
from autotune.models.saved import load_model
from autotune.models.saving import VERSION
from autotune.models.tasks import tasks_of_programs
from autotune.models.weights import KeptOnce
from schedules import te
from schedules.graph.graph import Graph


@pytest.fixture(autouse=True, scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A log of the tests' own, and default kernels in the place of first picks."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNE_DB", str(tmp_path_factory.mktemp("log") / "log.db"))
        patch.setattr(compiling, "untuned_kernels", default_kernels)
        yield


def compiled(model: Model) -> Module:
    return at.compile_model(model, threads=1, fallback=True, progress=None)


def ran(net: Module, *arrays: Any) -> tuple[Any, list[int]]:
    """(what a call returns, the numbers of the programs that it ran)."""
    for p in net.programs:
        p._idle.clear()
    found = net(*arrays)
    return found, [i for i, p in enumerate(net.programs) if p._idle]


def keeping(n: Any) -> Graph:
    """Rows are written to a state, and weighed with all of it; a counter is replaced whole."""
    b = StateBuilder()
    x, pos = b.input("x", n, 4), b.input("pos", 1, dtype="int64")
    old, count = b.state("s", 12, 4), b.state("count", 1, dtype="int64")

    def value(t: Any, d: Any) -> Any:
        own = te.cast(t, "int64") - pos[0]
        inside = te.all(0 <= own, own < te.cast(n, "int64"))
        return te.select(inside, x[own, d], old[t, d])

    new = cases.stage((12, 4), value, "put")
    more = cases.stage((1,), lambda i: count[i] + te.cast(n, "int64"), "more")
    b.becomes("s", new)
    b.becomes("count", more)
    k = te.reduce_axis(12, "k")
    made = te.compute((n, 12), lambda i, t: new[t, 0] * x[i, 1] + te.cast(more[0], "float32"), "made")
    return b.model(te.compute((n,), lambda i: te.sum(made[i, k], axis=k), "total"))


# -- a model at one size ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_model_at_one_size_computes_what_it_does_there(name: str) -> None:
    graph = MODELS[name].graph()
    model = model_of(graph)
    for n in MODELS[name].sizes[:2]:
        there = model.at(n=n)
        assert there.sizes == {} and there.own_sizes == () and there.graph.dag.open is None
        arrays = inputs_at(graph, {"n": n})
        assert [p.shape for p in there.inputs] == [x.shape for x in arrays]
        for a, b in zip(evaluate(there.graph, arrays), evaluate(graph, arrays), strict=True):
            np.testing.assert_array_equal(a, b)


def test_sizes_that_are_not_given_stay_open() -> None:
    graph = attention(size(1, 9), size(1, 4, "b"))
    there = model_of(graph).at(n=3)
    assert there.sizes == {"b": (1, 4)} and there.inputs[0].shape == (4, 3, 6)
    for batch in (1, 4):
        arrays = both(graph, batch, 3)
        for a, b in zip(evaluate(there.graph, arrays), evaluate(graph, arrays), strict=True):
            np.testing.assert_array_equal(a, b)
    assert there.at(b=2).sizes == {}


def test_states_of_a_model_at_one_size_stay() -> None:
    graph = keeping(size(1, 5))
    there = model_of(graph).at(n=2).graph
    assert there.states == graph.states
    x, pos = np.ones((2, 4), "float32"), np.array([3])
    have, want = ({"s": np.zeros((12, 4), "float32"), "count": np.array([5])} for _ in range(2))
    np.testing.assert_array_equal(evaluate(there, [x, pos], have)[0], evaluate(graph, [x, pos], want)[0])
    assert all((have[n] == want[n]).all() for n in have) and have["count"] == 7


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"rows": 1}, r"net: there is no size 'rows'; the open sizes are n"),
        ({"m": 1}, r"net: there is no size 'm'; the open sizes are n"),
        ({"n": 0}, "net: the size n is 0; give a number from 1 to 50"),
        ({"n": 51}, "net: the size n is 51; give a number from 1 to 50"),
        ({"n": True}, "net: the size n is True; give a number"),
        ({"n": 2.0}, "net: the size n is 2.0; give a number"),
    ],
)
def test_a_size_that_a_model_has_not_is_refused(sizes: Any, message: str) -> None:
    model = model_of(perceptron(size(1, 50)))
    for use in (model.at, model.with_own_sizes):
        with pytest.raises(ModelError, match=message):
            use(**sizes)


def test_a_size_is_suggested_and_a_model_without_any_says_so() -> None:
    with pytest.raises(ModelError, match=r"no size 'row'; the open sizes are rows \(did you mean 'rows'\?\)"):
        model_of(perceptron(size(1, 50, "rows"))).at(row=1)
    with pytest.raises(ModelError, match="there is no size 'n'; it has no open size"):
        model_of(perceptron(50)).with_own_sizes(n=1)


def test_own_sizes_are_kept_once_and_combined() -> None:
    model = model_of(attention(size(1, 9), size(1, 4, "b")))
    more: Any = [1, np.int64(2)]
    one = model.with_own_sizes(n=1).with_own_sizes(n=more)
    assert one.own_sizes == ({"n": 1}, {"n": 2}) and model.own_sizes == ()
    assert model.with_own_sizes(n=(1, 2), b=3).own_sizes == ({"n": 1, "b": 3}, {"n": 2, "b": 3})
    assert "with b=1..4, n=1..9, n=1 on its own, n=2 on its own" in repr(one)
    assert one.at(n=1).own_sizes == () and model.with_own_sizes() == model
    wide = model_of(perceptron(size(1, 500)))
    with pytest.raises(ModelError, match=f"65 sizes have programs of their own; give {MOST_OWN} at most"):
        wide.with_own_sizes(n=range(1, 66))


# -- modules ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*MODELS])
def test_a_call_takes_the_program_of_its_size(name: str) -> None:
    graph = MODELS[name].graph()
    least, *_, most = MODELS[name].sizes
    net = compiled(model_of(graph).with_own_sizes(n=(least, most)))
    assert net.own_sizes == ({"n": least}, {"n": most}) and net.sizes == {"n": (least, most)}
    for n in (*MODELS[name].sizes, least):
        arrays = inputs_at(graph, {"n": n})
        found, used = ran(net, *arrays)
        close(found, evaluate(graph, arrays))
        assert used == [{least: 1, most: 2}.get(n, 0)]
    assert f"at n={least}" in repr(net) and f"at n={most}" in repr(net)


def test_the_program_of_more_sizes_goes_first() -> None:
    graph = attention(size(1, 9), size(1, 4, "b"))
    net = compiled(model_of(graph).with_own_sizes(n=2).with_own_sizes(n=2, b=3))
    for batch, n, program in ((1, 2, 1), (3, 2, 2), (3, 3, 0), (4, 9, 0)):
        arrays = both(graph, batch, n)
        found, used = ran(net, *arrays)
        close(found, evaluate(graph, arrays))
        assert used == [program]


def test_a_wrong_shape_at_an_own_size_is_explained() -> None:
    b = cases.Builder()
    n = size(1, 9)
    x, y = b.input("x", n, 4), b.input("y", n, 4)
    net = compiled(model_of(b.graph(cases.add(x, y))).with_own_sizes(n=1))
    one, two = np.ones((1, 4), "float32"), np.ones((2, 4), "float32")
    with pytest.raises(ArgumentError, match=r"input 'y' has shape \(2, 4\); at n = 1, which the inputs tell"):
        net(one, two)
    with pytest.raises(ArgumentError, match="the model takes 1 to 9"):
        net(np.ones((10, 4), "float32"), two)


def test_programs_share_a_state() -> None:
    graph = keeping(size(1, 5))
    net = compiled(model_of(graph).with_own_sizes(n=1))
    want = {"s": np.zeros((12, 4), "float32"), "count": np.zeros(1, "int64")}
    other = net.new_state()
    rng, pos = np.random.default_rng(0), 0
    for n in (3, 1, 1, 5, 1):
        x = rng.integers(-3, 4, (n, 4)).astype("float32")
        found, used = ran(net, x, np.array([pos]))
        assert used == [int(n == 1)]
        close(found, evaluate(graph, [x, np.array([pos])], want))
        assert all((net.state[name] == want[name]).all() for name in want)
        pos += n
    assert not any(a.any() for a in other.values())
    fixed = compiled(model_of(graph).at(n=1))
    fixed(np.ones((1, 4), "float32"), np.array([0]), state=other)
    net(np.ones((1, 4), "float32"), np.array([1]), state=other)
    assert other["count"] == 2 and (other["s"][:2] == 1).all() and not other["s"][2:].any()
    with pytest.raises(ArgumentError, match="not inside its 12"):
        net(np.ones((1, 4), "float32"), np.array([12]))


def test_weights_of_equal_bytes_are_held_once() -> None:
    net = compiled(model_of(perceptron(size(1, 50))).with_own_sizes(n=(1, 7)))
    each = [p.weights_bytes for p in net.programs]
    assert net.weights_bytes == each[0] == each[1] == each[2], "plain loops read weights as they are"
    a, b = ({u.weight: x for u, x in p.weights.items()} for p in net.programs[:2])
    assert all(a[name] is b[name] for name in a)
    other = perceptron(size(1, 50), seed=5)
    net.load_weights(other.values)
    assert net.weights_bytes == each[0]
    for n in (1, 7, 50):
        arrays = inputs_at(other, {"n": n})
        close(net(*arrays), evaluate(other, arrays))


def test_only_equal_bytes_are_one_array() -> None:
    kept = KeptOnce()
    a = np.arange(300_000.0)
    assert kept.of(a) is a and kept.of(a.copy()) is a
    late, nan = a.copy(), a.copy()
    late[-2] = -1.0
    nan[0] = np.nan
    assert kept.of(late) is late
    assert kept.of(a.astype("float32")) is not a and kept.of(a.reshape(2, -1)) is not a
    assert kept.of(nan) is nan and kept.of(nan.copy()) is nan
    assert kept.of(zero := np.zeros(())) is zero and kept.of(np.zeros(())) is zero
    negative = np.array(-0.0)
    assert kept.of(negative) is negative, "-0 has other bytes than 0"


def test_copies_have_their_weights_and_programs() -> None:
    graph = perceptron(size(1, 50))
    net = compiled(model_of(graph).with_own_sizes(n=1))
    again = copy.deepcopy(net)
    other = perceptron(size(1, 50), seed=5)
    again.load_weights(other.values)
    for n in (1, 3):
        arrays = inputs_at(graph, {"n": n})
        close(net(*arrays), evaluate(graph, arrays))
        found, used = ran(again, *arrays)
        close(found, evaluate(other, arrays))
        assert used == [int(n == 1)]


def test_a_profile_is_of_the_program_of_its_size() -> None:
    graph = perceptron(size(1, 50))
    net = compiled(model_of(graph).with_own_sizes(n=1))
    whole, one = net.profile(repeat=1), net.profile(*inputs_at(graph, {"n": 1}), repeat=1)
    assert "with n=1..50" in whole.rows[0].what and "with n" not in one.rows[0].what


def test_programs_that_take_or_keep_something_else_are_refused() -> None:
    whole = compiled(model_of(keeping(size(1, 5)))).program.outline
    one = compiled(model_of(keeping(size(1, 5))).at(n=1)).program.outline
    check_own(whole, one, {"n": 1})
    wrong: list[tuple[Any, Any, str]] = [
        (one, {}, "for the sizes '', which the model has not"),
        (one, {"m": 1}, "for the sizes 'm=1', which the model has not"),
        (one, {"n": 6}, r"for n=6, outside 1\.\.5"),
        (one, {"n": 2}, "for n=2 takes or returns something else"),
        (whole, {"n": 5}, "for n=5 has other open sizes"),
    ]
    b = cases.Builder()
    x, pos = b.input("x", 1, 4), b.input("pos", 1, dtype="int64")
    total = te.compute((1,), lambda i: x[i, 0] * te.cast(pos[0], "float32"), "total")
    stateless = compiled(model_of(b.graph(total))).program.outline
    names = (*whole.inputs, *whole.outputs)
    labels = dict(zip((*stateless.inputs, *stateless.outputs), map(whole.label, names), strict=True))
    wrong.append((replace(stateless, labels=labels), {"n": 1}, "for n=1 keeps other states than the model"))
    for own, sizes, message in wrong:
        with pytest.raises(ValueError, match=message):
            check_own(whole, own, sizes)


# -- files -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "net.at"
    compiled(model_of(perceptron(size(1, 50))).with_own_sizes(n=(1, 7))).save(path)
    return path


def test_a_file_has_all_programs_and_each_weight_once(file: Path, tmp_path: Path) -> None:
    net = load_model(file)
    graph = perceptron(size(1, 50))
    assert net.own_sizes == ({"n": 1}, {"n": 7})
    assert net.weights_bytes == net.program.weights_bytes
    for back in (net, pickle.loads(pickle.dumps(net))):
        for n, program in ((1, 1), (7, 2), (50, 0)):
            arrays = inputs_at(graph, {"n": n})
            found, used = ran(back, *arrays)
            close(found, evaluate(graph, arrays))
            assert used == [program]
    net.save(tmp_path / "again.at")
    assert (tmp_path / "again.at").read_bytes() == file.read_bytes()
    with zipfile.ZipFile(file) as z:
        names = z.namelist()
        assert json.loads(z.read("model.json"))["version"] == VERSION
    assert sorted(names) == ["model.json", *(f"weights/{i}.npy" for i in range(4))]


def test_a_file_has_the_first_values_of_states_once(tmp_path: Path) -> None:
    graph = keeping(size(1, 5))
    first = np.arange(48, dtype="float32").reshape(12, 4)
    states = {**graph.states, "s": replace(graph.states["s"], initial=first)}
    net = compiled(model_of(replace(graph, states=states)).with_own_sizes(n=1))
    net.save(tmp_path / "net.at")
    back = load_model(tmp_path / "net.at")
    assert (back.state["s"] == first).all() and back.own_sizes == ({"n": 1},)
    back(np.ones((1, 4), "float32"), np.array([3]))
    back(np.ones((2, 4), "float32"), np.array([4]))
    assert (back.state["s"][3:6] == 1).all() and back.state["count"] == 3


LIES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another size": (
        lambda v: v["own"][0]["sizes"][0].__setitem__(1, 2),
        "for n=2 takes or returns something",
    ),
    "out of range": (lambda v: v["own"][0]["sizes"][0].__setitem__(1, 51), r"for n=51, outside 1\.\.50"),
    "no such size": (lambda v: v["own"][0]["sizes"][0].__setitem__(0, "m"), "'m=1', which the model has not"),
    "no size": (lambda v: v["own"][0]["sizes"].clear(), "'', which the model has not"),
    "no member": (lambda v: v["own"][0]["members"].__setitem__(0, 9), "'weights/9.npy' is missing"),
    "another weight": (lambda v: v["own"][0]["members"].reverse(), "weight '.*' is float32"),
    "too few members": (lambda v: v["own"][0]["members"].pop(), "shorter|longer"),
    "the whole model": (lambda v: v["own"][0].update(program=v["own"][1]["program"]), "takes or returns"),
    "too many": (lambda v: v["own"].extend(v["own"] * 40), "a list of 0 to 64 parts"),
    "own of own": (lambda v: v["own"][0]["program"].update(own=[]), "own"),
    "no members of all sizes": (lambda v: v["members"].clear(), "shorter|longer"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_file_that_lies_about_its_programs_is_refused(file: Path, tmp_path: Path, lie: str) -> None:
    change, message = LIES[lie]
    with zipfile.ZipFile(file) as z, zipfile.ZipFile(tmp_path / "net.at", "w") as out:
        v = json.loads(z.read("model.json"))
        change(v)
        for name in z.namelist():
            out.writestr(name, json.dumps(v) if name == "model.json" else z.read(name))
    with pytest.raises(ModelError, match=message):
        load_model(tmp_path / "net.at")


# -- tasks -----------------------------------------------------------------------------------------


def sharing(n: Any) -> Graph:
    """A product of rows of which the first one goes on alone, so that a task is in each program."""
    b = cases.Builder()
    y = cases.relu(cases.dense(b, b.input("x", n, 8), 16, "up"))
    one = cases.stage((1, 16), lambda i, j: y[i, j])
    return b.graph(y, cases.dense(b, cases.softmax(one), 4, "head"))


def test_equal_tasks_of_programs_are_one_and_weigh_both() -> None:
    model = model_of(sharing(size(1, 8))).with_own_sizes(n=(1, 4))
    programs = prepared_programs(model)
    tasks = tasks_of_programs(programs)
    assert len({t.workload.digest for t in tasks}) == len(tasks)
    by_name = {t.group: t.weight for t in tasks}
    assert {w for name, w in by_name.items() if name.startswith("n=1: ")} == {8.0}
    assert {w for name, w in by_name.items() if name.startswith("n=4: ")} == {2.0}
    shared = [w for name, w in by_name.items() if not name.startswith("n=") and w > 1]
    assert shared and set(shared) <= {1.0 + 8.0 + 2.0}
    outlines = [p.outline(lambda w: None) for p in programs]
    joint, numbers = joint_tasks(outlines, [p.sizes for p in programs])
    for ol, own in zip(outlines, numbers, strict=True):
        assert [joint[i].workload.digest for i in own] == [w.digest for w in ol.tasks]
    assert {t.where for t in joint} == {"", "n=1", "n=4"}


def test_tasks_without_a_kernel_tell_their_size() -> None:
    model = model_of(perceptron(size(1, 8))).with_own_sizes(n=1)
    with pytest.raises(KernelNotFound, match=r"4 of 4 tasks have no tuned kernel.*(\n.*)+ at n=1: "):
        at.compile_model(model, threads=1)


@pytest.mark.slow
def test_a_model_is_tuned_at_all_sizes_and_at_one(tmp_path: Path) -> None:
    graph, db = perceptron(size(1, 50)), tmp_path / "t.db"
    model = model_of(graph).with_own_sizes(n=1)
    result = at.tune_model(model, threads=1, budget_s=60, trials=2, db=db, progress=None)
    assert len(result.tasks) == 4 and all(t.result.ready for t in result.tasks)
    assert result.weighted_s is not None and [*result.own_s] == ["n=1"]
    assert 0 < (result.own_s["n=1"] or 0) < result.weighted_s
    assert " at n=1" in str(result)
    again = at.tune_model(model, threads=1, budget_s=60, trials=2, db=db, progress=None)
    assert again.skipped == 4 and again.own_s == result.own_s
    net = at.compile_model(model, threads=1, db=db)
    assert {k.chosen_by for p in net.programs for k in p.kernels} == {"log"}
    for n in (1, 2, 50):
        arrays = inputs_at(graph, {"n": n})
        close(net(*arrays), evaluate(graph, arrays))
    said = str(at.explain(model, threads=1, db=db))
    assert "Model at n=1\n" in said and "\nModel\n" in said
    assert result.report(tmp_path / "page.html").tasks == 4
