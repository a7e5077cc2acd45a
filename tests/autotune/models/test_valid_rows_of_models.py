"""Steps of a model read the valid rows of its states, and no row behind them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate
from graph_memory import run_in_memory
from needs import imported
from saved_mutants import closed, opened
from state_models import StateBuilder, new_states, put, static_cache
from test_open_models import module_of

import autotune as at
from autotune.errors import ArgumentError, ModelError
from autotune.models.module import Module
from autotune.models.outline import Outline, outline
from autotune.models.row_counts import RowCount, counted
from autotune.models.saved import load_model
from schedules import expr as E
from schedules.expr import Const, Load
from schedules.graph.graph import Graph
from schedules.graph.optimize import optimize
from schedules.graph.partition import partition
from schedules.graph.valid_rows import read_whole
from schedules.ir.interp import run
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.te.compute_dag import Tensor
from schedules.te.open_sizes import at as at_sizes

te = at.te
LENGTH, HEADS, GROUP, DIM = 11, 2, 2, 3


def decoder(rows: int, layers: int = 2, outer: bool = False) -> Graph:
    """Layers of attention over caches of keys and values, fewer of these than of queries. ``outer``: a cache
    has its rows outermost."""
    b = StateBuilder()
    width = HEADS * GROUP * DIM
    x, pos = b.input("x", rows, width), b.input("pos", 1, dtype="int64")
    for n in range(layers):
        k, v = (cache(b, f"{name}{n}", x, pos, outer) for name in "kv")
        q = cases.dense(b, x, width, f"q{n}", bias=False)
        x = attend(q, k, v, pos)
    return b.model(x)


def cache(b: StateBuilder, name: str, x: Any, pos: Any, outer: bool) -> Any:
    """The new value of a state, as [heads, rows, dim]."""
    shape = (LENGTH, HEADS, DIM) if outer else (HEADS, LENGTH, DIM)
    old = b.state(name, *shape)
    made = cases.reshape(cases.dense(b, x, HEADS * DIM, f"make_{name}", bias=False), x.shape[0], HEADS, DIM)
    new = put(old, made if outer else cases.transpose(made, 1, 0, 2), pos[0], 0 if outer else 1, "latest")
    b.becomes(name, new)
    return cases.transpose(new, 1, 0, 2) if outer else new


def attend(q: Any, k: Any, v: Any, pos: Any) -> Any:
    rows, heads = q.shape[0], HEADS * GROUP
    d, r, s, n = te.reduce_axis(DIM), te.reduce_axis(LENGTH), te.reduce_axis(LENGTH), te.reduce_axis(LENGTH)
    dot = te.compute(
        (heads, rows, LENGTH), lambda h, i, t: te.sum(q[i, h * DIM + d] * k[h // GROUP, t, d], axis=d), "dot"
    )
    seen = te.compute(
        (rows, LENGTH), lambda i, t: te.cast(t, "int64") <= pos[0] + te.cast(i, "int64"), "seen"
    )
    scores = te.compute(dot.shape, lambda h, i, t: te.select(seen[i, t], dot[h, i, t], -math.inf), "scores")
    top = te.compute((heads, rows), lambda h, i: te.max(scores[h, i, r], axis=r), "top")
    e = te.compute(dot.shape, lambda h, i, t: te.exp(scores[h, i, t] - top[h, i]), "e")
    total = te.compute((heads, rows), lambda h, i: te.sum(e[h, i, s], axis=s), "total")
    p = te.compute(dot.shape, lambda h, i, t: e[h, i, t] / total[h, i], "p")
    return te.compute(
        (rows, heads * DIM),
        lambda i, j: te.sum(p[j // DIM, i, n] * v[j // DIM // GROUP, n, j % DIM], axis=n),
        "mixed",
    )


def outline_of(graph: Graph) -> tuple[Graph, Outline]:
    after = optimize(graph)
    return after, outline(after, partition(after))


def inputs_of(graph: Graph, pos: int) -> list[Any]:
    rng = np.random.default_rng(abs(pos))
    t = graph.dag.tensors["x"]
    return [rng.normal(size=t.shape).astype(t.dtype), np.array([pos])]


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("rows", [1, 3])
def test_rows_of_nan_behind_the_last_valid_one_change_nothing(rows: int, outer: bool) -> None:
    graph = decoder(rows, outer=outer)
    after, ol = outline_of(graph)
    assert [(c.least, c.most) for c in ol.counts] == [(rows, LENGTH)]
    want, got = new_states(graph), new_states(graph)
    for pos in range(0, LENGTH - rows + 1, rows):
        for a in got.values():
            (a if outer else a.swapaxes(0, 1))[pos:] = np.nan
        x = evaluate(graph, inputs_of(graph, pos), want)
        y = run_in_memory(ol, after.values, inputs_of(graph, pos), states=got)
        np.testing.assert_allclose(y[0], x[0], rtol=1e-5, atol=1e-6)
    # going on from an earlier row gives what a fresh state gives
    again = run_in_memory(ol, after.values, inputs_of(graph, 0), states=got)
    fresh = evaluate(graph, inputs_of(graph, 0), new_states(graph))
    np.testing.assert_allclose(again[0], fresh[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 3])
def test_no_step_reads_more_of_a_state_than_its_valid_rows(rows: int) -> None:
    """Counted by the interpreter, which traps what is read outside of an argument."""
    _, ol = outline_of(decoder(rows))
    for end in (rows, 5, LENGTH):
        read = {}
        for call in ol.calls:
            dag = ol.tasks[call.task].dag
            states = [
                t.name
                for t, a in zip(dag.inputs, call.reads, strict=True)
                if ol.root(a.tensor) in states_of(ol)
            ]
            if not states:
                continue
            assert dag.open is not None and call.sizes == (ol.counts[0].name,)
            sizes = {s.name: end for s in dag.open.sizes}
            counts: dict[str, int] = {}
            run(lower(Schedule(dag).nest), arrays_of(dag, sizes), counts=counts, sizes=sizes)
            read |= {f"{call.writes[0]} {name}": counts[f"load {name}"] for name in states}
        assert len(read) == 4, "keys and values of two layers"
        assert set(read.values()) == {HEADS * GROUP * rows * end * DIM}, (
            "each row by each head and query, once"
        )


def states_of(ol: Outline) -> set[str]:
    return {s.tensor for s in ol.states.values()}


def arrays_of(dag: Any, sizes: dict[str, int]) -> dict[str, Any]:
    """Arguments at sizes: inputs of zeros, which lie as the kernel wants them."""
    one = at_sizes(dag, sizes)
    made = {}
    for t in one.params:
        whole = np.zeros(dag.tensors[t.name].shape, t.dtype)
        made[t.name] = whole[tuple(slice(n) for n in t.shape)] if t.strides else np.zeros(t.shape, t.dtype)
    return made


def test_a_call_beyond_the_end_is_refused() -> None:
    graph = decoder(3)
    after, ol = outline_of(graph)
    states = new_states(graph)
    for pos in (LENGTH - 2, -1, 2**62):
        with pytest.raises(ArgumentError, match=f"from position {pos} on are not inside its {LENGTH}"):
            run_in_memory(ol, after.values, inputs_of(graph, pos), states=states)
        assert not any(a.any() for a in states.values())


# -- compiled --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def net() -> Module:
    """One layer for one token, as plain loops."""
    return module_of(decoder(1, 1))


def test_a_compiled_step_reads_no_row_behind_the_last_valid_one(net: Module) -> None:
    graph = decoder(1, 1)
    want, state = new_states(graph), net.new_state()
    for pos in (*range(LENGTH), 4):  # then it goes back
        for a in state.values():
            a[:, pos:] = np.nan
        (x,) = evaluate(graph, inputs_of(graph, pos), want)
        y = net(*inputs_of(graph, pos), state=state)
        np.testing.assert_allclose(y, x, rtol=1e-4, atol=1e-4)
    for pos in (LENGTH, -1, 2**62):
        with pytest.raises(ArgumentError, match=f"position {pos} on is not inside its {LENGTH}"):
            net(*inputs_of(graph, pos), state=state)


def test_a_file_has_the_numbers_of_rows(net: Module, tmp_path: Path) -> None:
    net.save(tmp_path / "net.at")
    back = load_model(tmp_path / "net.at")
    assert back.program.outline == net.program.outline and back.program.outline.counts
    graph = decoder(1, 1)
    for pos in (0, 1):
        arrays = inputs_of(graph, pos)
        np.testing.assert_array_equal(back(*arrays), net(*arrays))


LIES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "of nothing": (lambda v: v["counts"].clear(), "a step gives the size 'rows0' to task"),
    "too many rows": (lambda v: v["counts"][0].__setitem__(2, LENGTH + 1), "a step gives the size 'rows0'"),
    "none at all": (lambda v: v["counts"][0].__setitem__(1, 0), "the size rows0 is 0 to 11"),
    "of a weight": (
        lambda v: v["counts"][0].__setitem__(3, ["load", v["weights"][0], "float32"]), "no integer"
    ),
    "of elsewhere": (
        lambda v: v["counts"][0].__setitem__(3, ["load", "pos", "int64", 1]), "no element of 'pos'"
    ),
    "of two names": (lambda v: v["counts"].append(v["counts"][0]), "'rows0' of a size is no identifier"),
    "of text": (lambda v: v["counts"][0].__setitem__(3, "import os"), "malformed expression"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_file_that_lies_about_rows_is_refused(net: Module, tmp_path: Path, lie: str) -> None:
    net.save(tmp_path / "net.at")
    v, members = opened(tmp_path / "net.at")
    change, said = LIES[lie]
    change(v)
    closed(v, members, tmp_path / "lie.at")
    with pytest.raises(ModelError, match=said):
        load_model(tmp_path / "lie.at")


def test_integers_for_which_nothing_was_proved_are_refused() -> None:
    """Where a position is a remainder, a number far away has a place too, but proofs do not cover it."""
    at_ = E.binary("%", Load("pos", (Const(0),), "int64"), 8)
    rows = RowCount("rows", 1, 8, E.binary("+", at_, 1))
    count = counted(rows, {"pos": 0}, {"pos": Tensor("pos", (1,), "int64")})
    assert count([np.array([13])]) == 6
    with pytest.raises(ArgumentError, match="the call has 1 rows of its states.* it may have 1 to 8"):
        count([np.array([2**41])])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:While compiling, we found certain side effects")
def test_a_static_cache_of_transformers_is_read_by_valid_rows() -> None:
    torch = imported("torch")
    module, how = static_cache()
    with torch.no_grad():
        program = torch.export.export(module, (), how, strict=True)
    graph = optimize(at.import_torch(program).graph)
    assert read_whole(graph) == {}
    assert [(s.least, s.most) for s in graph.short] == [(1, 32)]
