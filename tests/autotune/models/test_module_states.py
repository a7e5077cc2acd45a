"""What calls of a module keep: whose it is, who waits for whom, what is refused, and its files."""

from __future__ import annotations

import copy
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate
from model_cases import model_of
from state_models import StateBuilder, cache, counter, new_states, put, untuned

import autotune as at
from autotune.errors import ArgumentError, ModelError
from autotune.models import program as programs
from autotune.models.module import Module
from schedules.graph.graph import Graph, GraphState

GRAPH = cache(1, how="equal")


@pytest.fixture(scope="module")
def net() -> Module:
    return untuned(model_of(GRAPH, "net"))


@pytest.fixture(scope="module")
def two() -> Module:
    """The same for two rows at once."""
    return untuned(model_of(cache(2), "two"))


@pytest.fixture(scope="module")
def other() -> Module:
    return untuned(model_of(counter(), "other"))


def row(n: int, rows: int = 1) -> np.ndarray:
    return np.random.default_rng(n).integers(-3, 4, (rows, 6)).astype(np.float32)


def at_(n: int) -> np.ndarray:
    return np.array([n])


def test_a_state_is_changed_where_it_lies(net: Module) -> None:
    state, want = net.new_state(), new_states(GRAPH)
    k, v = state["k"], state["v"]
    assert (list(state), len(state)) == (["k", "v"], 2)
    for n in range(3):
        (y,) = evaluate(GRAPH, [row(n), at_(n)], want)
        np.testing.assert_array_equal(net(row(n), at_(n), state=state), y)
    assert state["k"] is k and state["v"] is v
    np.testing.assert_array_equal(k, want["k"])
    assert not net.state["k"].any(), "the one that is taken without state= is another"
    state.reset()
    assert not k.any() and state["k"] is k
    assert repr(state) == "<ModelState k float32[1, 2, 8, 3], v float32[1, 2, 8, 3]: 0.0 MiB>"


def test_a_call_without_a_state_changes_that_of_the_module(net: Module) -> None:
    net.state.reset()
    assert net.state is net.state
    want = net(row(0), at_(0), state=net.new_state())
    np.testing.assert_array_equal(net(row(0), at_(0)), want)
    assert net.state["k"][:, :, 0].any() and not net.state["k"][:, :, 1:].any()
    assert net.state.nbytes == 2 * 4 * 2 * 8 * 3
    one = net.state.copy()
    net(row(1), at_(0))
    assert (one["k"] != net.state["k"]).any()


def test_modules_take_each_others_states(net: Module, two: Module) -> None:
    state, alone = two.new_state(), net.new_state()
    both = np.concatenate([row(0), row(1)])
    two(both, at_(0), state=state)
    for n in range(2):
        net(row(n), at_(n), state=alone)
    np.testing.assert_array_equal(state["k"], alone["k"])
    np.testing.assert_array_equal(net(row(2), at_(2), state=state), net(row(2), at_(2), state=alone))


def test_a_state_of_another_model_is_refused(net: Module, other: Module) -> None:
    with pytest.raises(
        ModelError, match=r"of another model: it has n int64\[1\], rows .*and net keeps k float32.*new_state"
    ):
        net(row(0), at_(0), state=other.new_state())
    with pytest.raises(ArgumentError, match=r"net: state= is a dict, .*: give net.new_state\(\)"):
        net(row(0), at_(0), state={"k": 1})
    plain = untuned(model_of(cases.transformer(1), "plain"))
    assert dict(plain.state) == {}
    with pytest.raises(ArgumentError, match="there is no input 'state'"):
        plain(np.zeros((1, 5, 8), np.float32), state=net.new_state())


@pytest.mark.parametrize("n", [8, -1, 1 << 40, -(1 << 63)])
def test_a_position_outside_is_refused_before_anything_is_written(net: Module, n: int) -> None:
    state = net.new_state()
    state["k"][...] = 5.0
    message = rf"state 'k': 1 row from position {n} on is not inside its 8: give a position from 0 to 7"
    with pytest.raises(ArgumentError, match=message):
        net(row(0), at_(n), state=state)
    assert (state["k"] == 5).all() and not state["v"].any()
    net(row(0), at_(7), state=state)


def test_a_prompt_that_passes_the_end_is_refused(two: Module) -> None:
    with pytest.raises(ArgumentError, match="2 rows from position 7 on are not inside its 8: .* 0 to 6"):
        two(row(0, 2), at_(7))


def test_a_counter_that_comes_to_the_end_is_told(other: Module) -> None:
    state = other.new_state()
    x = np.ones((2, 5), np.float32)
    for n in range(4):
        other(x, state=state)
        assert state["n"][0] == 2 * (n + 1)
    with pytest.raises(ArgumentError, match="state 'rows': 2 rows from position 8 on are not inside its 9"):
        other(x, state=state)
    assert state["n"][0] == 8
    state["n"][...] = 3
    other(x, state=state)
    assert state["n"][0] == 5


def test_calls_on_one_state_wait_for_each_other(net: Module) -> None:
    held, free = net.new_state(), net.new_state()
    done: list[str] = []

    def call(name: str, state: Any) -> None:
        net(row(0), at_(0), state=state)
        done.append(name)

    with held.turn:
        waiting = Thread(target=call, args=("held", held))
        waiting.start()
        going = Thread(target=call, args=("free", free))
        going.start()
        going.join(60)
        assert done == ["free"] and waiting.is_alive()
    waiting.join(60)
    assert done == ["free", "held"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_what_ends_a_call_leaves_the_state_free(
    net: Module, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    state = net.new_state()

    def ends(*args: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("autotune.models.host_memory.run_program", ends)
        with pytest.raises(error):
            net(row(0), at_(0), state=state)
    assert not state.turn.locked()
    np.testing.assert_array_equal(
        net(row(0), at_(0), state=state), net(row(0), at_(0), state=net.new_state())
    )


def test_a_profile_changes_no_state(net: Module) -> None:
    net.state.reset()
    net.profile(repeat=1)
    net.profile(row(0), at_(3), repeat=1)
    assert not net.state["k"].any()


def test_a_copy_of_a_module_has_a_state_of_its_own(net: Module) -> None:
    net.state.reset()
    net(row(0), at_(0))
    made = copy.deepcopy(net)
    np.testing.assert_array_equal(made.state["k"], net.state["k"])
    made(row(1), at_(1))
    assert made.state["k"][:, :, 1].any() and not net.state["k"][:, :, 1].any()


def test_a_device_refuses_states_by_name() -> None:
    ol = untuned(model_of(counter(), "c")).program.outline
    kernel: Any = SimpleNamespace(code=SimpleNamespace(device=object()), target=None)
    with pytest.raises(ModelError, match='keeps states \\(rows, n\\), .* target="cpu"'):
        programs._memory_of(ol, [kernel])
    for call in (at.tune_model, at.compile_model):
        with pytest.raises(ModelError, match="keeps states .rows, n.,"):
            call(model_of(counter(), "c"), target="cuda-emulator")


# -- files -----------------------------------------------------------------------------------------


def test_a_file_has_the_values_of_a_state(net: Module, two: Module, tmp_path: Path) -> None:
    state = net.new_state()
    for n in range(3):
        net(row(n), at_(n), state=state)
    state.save(tmp_path / "s")
    again = two.new_state()
    k = again["k"]
    again.load(tmp_path / "s")
    assert again["k"] is k
    for name in state:
        np.testing.assert_array_equal(again[name], state[name])
    with pytest.raises(TypeError, match=r"a state is no part of a pickle.*state.save\(path\)"):
        pickle.dumps(state)


def rewritten(path: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    """A file with other members."""
    with zipfile.ZipFile(path) as z:
        members = {n: z.read(n) for n in z.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as z:
        for name, data in members.items():
            z.writestr(name, data)


def changed(key: str, value: Any) -> Callable[[dict[str, bytes]], None]:
    def change(members: dict[str, bytes]) -> None:
        v = json.loads(members["state.json"])
        members["state.json"] = json.dumps({**v, key: value}).encode()

    return change


K = ["k", [1, 2, 8, 3], "float32"]
DAMAGED: dict[str, tuple[Callable[[dict[str, bytes]], Any], str]] = {
    "another document": (changed("format", "x"), "is no state of a model: state.json is another document"),
    "a later version": (changed("version", 2), "has version 2, and this autotune reads 1"),
    "another state": (
        changed("tensors", [K]), r"another model: it has k float32\[1, 2, 8, 3\], and this one k .*, v"
    ),
    "a negative shape": (changed("tensors", [["k", [-1], "float32"]]), "damaged: tensors.0..1..0.*got -1"),
    "no tensors": (changed("tensors", 5), "damaged: tensors: expected a list"),
    "a member is missing": (lambda m: m.pop("states/0.npy"), "'states/0.npy' is missing"),
    "a member more": (lambda m: m.update({"states/9.npy": b"x"}), "it holds 'states/9.npy'"),
    "a member is cut": (lambda m: m.update({"states/1.npy": m["states/1.npy"][:-4]}), "'v' ends early"),
    "a member is no array": (lambda m: m.update({"states/1.npy": b"cos"}), "state 'v'"),
    "a member is longer": (
        lambda m: m.update({"states/1.npy": m["states/1.npy"] + b"abcd"}), "'v' goes on after its end"
    ),
    "no document": (lambda m: m.pop("state.json"), "is no state of a model: it has no state.json"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_a_file_that_lies_changes_nothing(net: Module, tmp_path: Path, case: str) -> None:
    state = net.new_state()
    state["k"][...] = 3.0
    state.save(tmp_path / "s")
    change, message = DAMAGED[case]
    rewritten(tmp_path / "s", change)
    state["k"][...] = 4.0
    with pytest.raises(ModelError, match=message):
        state.load(tmp_path / "s")
    assert (state["k"] == 4).all()


def test_what_is_no_file_of_a_state_is_refused(net: Module, other: Module, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ModelError, match="is no state of a model, or damaged"):
        net.state.load(tmp_path / "text")
    with pytest.raises(ModelError, match="cannot be read"):
        net.state.load(tmp_path / "none")
    other.new_state().save(tmp_path / "o")
    with pytest.raises(ModelError, match=r"another model: it has n int64\[1\], .*, and this one k float32"):
        net.state.load(tmp_path / "o")
    net.save(tmp_path / "net.at")
    with pytest.raises(ModelError, match="it has no state.json"):
        net.state.load(tmp_path / "net.at")


def beginning() -> Graph:
    """A state that begins as other than zeros."""
    b = StateBuilder()
    x, pos, old = b.input("x", 1, 4), b.input("pos", 1, dtype="int64"), b.state("s", 5, 4)
    new = put(old, x, pos[0], 0)
    b.becomes("s", new)
    graph = b.model(cases.stage(old.shape, lambda i, j: new[i, j] * 2.0))
    start = np.arange(20, dtype=np.float32).reshape(5, 4)
    states = {"s": GraphState("s", graph.states["s"].new, start)}
    return Graph(graph.dag, {}, graph.inputs, graph.outputs, states=states)


def test_a_saved_model_keeps_and_begins_as_before(tmp_path: Path) -> None:
    net = untuned(model_of(beginning(), "b"))
    path = tmp_path / "b.at"
    net.save(path)
    for made in (at.load_model(path), pickle.loads(pickle.dumps(net))):
        np.testing.assert_array_equal(made.state["s"], np.arange(20).reshape(5, 4))
        x, n = np.full((1, 4), 9, np.float32), at_(2)
        np.testing.assert_array_equal(made(x, n), net(x, n, state=net.new_state()))
        made.state.reset()
        np.testing.assert_array_equal(made.state["s"], np.arange(20).reshape(5, 4))
        with pytest.raises(ArgumentError, match="position 5 on is not inside its 5"):
            made(x, at_(5))
    with zipfile.ZipFile(path) as z:
        v = json.loads(z.read("model.json"))
        assert z.namelist() == ["model.json", "states/0.npy"]
    assert v["states"] == [["s", "s", net.program.outline.states["s"].new, True]]


LIES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a place that is none": (lambda v: v["views"][0][3][0].__setitem__(1, 0), "a size of at least 1"),
    "rows beyond": (lambda v: v["views"][0][3][0].__setitem__(3, 9), "does not lie inside of 's'"),
    "an expression that is none": (lambda v: v["views"][0][3][0].__setitem__(0, ["x"]), "damaged"),
    "many moves": (lambda v: v["views"][0].__setitem__(3, v["views"][0][3] * 9), "0 to 8 parts"),
    "no state": (lambda v: v.pop("states"), "cannot lie in|is no tensor|is no part|before it is written"),
    "a flag": (lambda v: v["states"][0].__setitem__(3, 1), "true or false"),
    "two of one name": (lambda v: v["states"].append(v["states"][0]), "two states have one name"),
    "another start": (lambda v: v["states"][0].__setitem__(3, False), "holds 'states/0.npy'"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_saved_model_that_lies_about_states_is_refused(tmp_path: Path, lie: str) -> None:
    path = tmp_path / "b.at"
    untuned(model_of(beginning(), "b")).save(path)
    change, message = LIES[lie]

    def of_members(members: dict[str, bytes]) -> None:
        v = json.loads(members["model.json"])
        change(v)
        members["model.json"] = json.dumps(v).encode()

    rewritten(path, of_members)
    with pytest.raises(ModelError, match=message):
        at.load_model(path)
