"""States lie in place: rows are written where they belong, in order, and nothing else is."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate
from graph_memory import run_in_memory
from state_models import STATE_MODELS, StateBuilder, cache, new_states, put, random_states, twice

from autotune.errors import ArgumentError
from autotune.models.call_numbers import number
from autotune.models.outline import Outline, outline
from schedules import expr as E
from schedules import te
from schedules.expr import Binary, Cast, Const, Load, Var
from schedules.graph.graph import Argument, Graph, GraphState
from schedules.graph.optimize import optimize
from schedules.graph.partition import partition
from schedules.te.compute_dag import Tensor


def outline_of(graph: Graph) -> tuple[Graph, Outline]:
    after = optimize(graph)
    return after, outline(after, partition(after))


def call_inputs(graph: Graph, n: int) -> list[Any]:
    """Inputs of call number ``n``: places go on, all else is random."""
    rng = np.random.default_rng(n)
    made = []
    for name in graph.inputs:
        t = graph.dag.tensors[name]
        value = rng.integers(-3, 4, t.shape).astype(t.dtype)
        if t.dtype == "int64":
            value = np.array([(2 * n + 3 * k) % 3 for k in range(t.shape[0])])
        made.append(value)
    return made


@pytest.mark.parametrize("model", STATE_MODELS)
def test_states_are_after_each_call_what_the_expression_says(model: str) -> None:
    graph = STATE_MODELS[model]()
    after, ol = outline_of(graph)
    want, pure, got = new_states(graph), new_states(graph), new_states(graph)
    arrays = dict(got)
    for n in range(4):
        inputs = call_inputs(graph, n)
        x = evaluate(graph, inputs, want)
        y = evaluate(after, inputs, pure)
        z = run_in_memory(ol, after.values, inputs, states=got)
        for a, b, c in zip(x, y, z, strict=True):
            np.testing.assert_array_equal(b, a)
            np.testing.assert_array_equal(c, a)
        for name in graph.states:
            np.testing.assert_array_equal(pure[name], want[name])
            np.testing.assert_array_equal(got[name], want[name])
    assert all(got[n] is arrays[n] for n in got)
    assert all(a.any() for a in got.values())


@pytest.mark.parametrize("model", STATE_MODELS)
def test_steps_write_the_new_rows_alone(model: str) -> None:
    graph = STATE_MODELS[model]()
    after, ol = outline_of(graph)
    written: dict[str, int] = {}
    run_in_memory(ol, after.values, call_inputs(graph, 1), None, new_states(graph), written)
    rows = {
        "cache": {"k": 2 * 2 * 3, "v": 2 * 2 * 3},
        "one": {"k": 2 * 3, "v": 2 * 3},
        "range": {"k": 3 * 2 * 3, "v": 3 * 2 * 3},
        "closed": {"k": 3 * 2 * 3, "v": 3 * 2 * 3},
        "counter": {"rows": 2 * 5},
        "twice": {"s": 3 * 4},
        "layers": {"all": 3 * 2},
        "average": {"s": 4},
        "decayed": {"s": 4},
    }
    assert written == {name: 4 * n for name, n in rows[model].items()}


FEW = [range(n, n + 3) for n in range(0, 24, 3)]
MANY = [pytest.param(range(n, n + 50), marks=pytest.mark.slow) for n in range(100, 500, 50)]


@pytest.mark.parametrize("seeds", [*FEW, *MANY])
def test_random_graphs_keep_what_the_evaluator_says(seeds: range) -> None:
    found = Counter[str]()
    for seed in seeds:
        rng = np.random.default_rng(seed)
        graph = random_states(lambda lo, hi, rng=rng: int(rng.integers(lo, hi + 1)))
        found += run_beside_the_evaluator(graph, rng)
    assert found["calls"] >= len(seeds)
    assert len(seeds) < 9 or min(found["in place"], found["whole"]) >= len(seeds) // 2


def run_beside_the_evaluator(graph: Graph, rng: np.random.Generator) -> Counter[str]:
    """Several calls, each compared: of a call that is refused nothing may be written."""
    after, ol = outline_of(graph)
    want, got = new_states(graph), new_states(graph)
    found = Counter({"in place": 0, "whole": 0})
    for n in range(4):
        inputs = call_inputs(graph, n)
        inputs[0] = rng.integers(0, 4, 3)
        before = {k: a.copy() for k, a in got.items()}
        try:
            z = run_in_memory(ol, after.values, inputs, None, got)
        except ArgumentError:
            assert all((got[k] == before[k]).all() for k in got), "nothing is written"
            continue
        found["calls"] += 1
        for a, c in zip(evaluate(graph, inputs, want), z, strict=True):
            np.testing.assert_array_equal(c, a)
        for name in graph.states:
            np.testing.assert_array_equal(got[name], want[name])
    found.update("in place" if ol.root(s.new) == s.tensor else "whole" for s in ol.states.values())
    return found


# -- what is refused -------------------------------------------------------------------------------


def parts_of(graph: Graph, change: Any) -> Outline:
    """The outline of a graph with one thing changed."""
    after = optimize(graph)
    return change(outline(after, partition(after)))


def moved(ol: Outline, **how: Any) -> Outline:
    """An outline whose first rows move otherwise."""
    name = next(n for n, a in ol.views.items() if a.moves)
    at = ol.views[name]
    move = replace(at.moves[0], **how)
    return replace(ol, views={**ol.views, name: replace(at, moves=(move, *at.moves[1:]))})


def last_first(ol: Outline) -> Outline:
    return replace(ol, steps=(*ol.steps[1:], ol.steps[0]))


X, POS = Load("x", (Const(0), Const(0)), "float32"), Load("pos", (Const(0),), "int64")
LIES: dict[str, tuple[Any, Any, str]] = {
    "an input": (
        cache,
        lambda ol: replace(ol, states={"k": GraphState("x", ol.states["k"].new)}),
        "no tensor of its own",
    ),
    "another shape": (
        cache, lambda ol: replace(ol, states={"k": GraphState("k", ol.outputs[0])}), "no tensor of its own"
    ),
    "one new value for two": (
        cache,
        lambda ol: replace(ol, states={**ol.states, "v": GraphState("v", ol.states["k"].new)}),
        "two states share a tensor",
    ),
    "no new value": (
        cache, lambda ol: replace(ol, states={**ol.states, "v": GraphState("v", "k")}), "two states share"
    ),
    "rows beyond the end": (cache, lambda ol: moved(ol, extent=9), "does not lie inside of 'k'"),
    "a longer step": (cache, lambda ol: moved(ol, stride=5), "does not lie inside of 'k'"),
    "no step": (cache, lambda ol: moved(ol, stride=0), "are no place in a state"),
    "more rows than there are": (cache, lambda ol: moved(ol, rows=9), "9 rows of 8"),
    "a float": (cache, lambda ol: moved(ol, index=X), "is no integer"),
    "an element outside": (
        cache, lambda ol: moved(ol, index=Load("pos", (Const(1),), "int64")), "no element of 'pos'"
    ),
    "an output": (
        cache, lambda ol: moved(ol, index=Load("k_weight", (Const(0),), "int64")), "no element of an input"
    ),
    "an axis": (cache, lambda ol: moved(ol, index=Var("i")), "no number that a call tells"),
    "a huge number": (
        cache, lambda ol: moved(ol, index=_chain(5000)), "too large an expression"
    ),
    "read after it was written over": (twice, last_first, "is read after it was written over"),
    "written out of turn": (
        twice, lambda ol: replace(ol, steps=tuple(reversed(ol.steps))), "out of its turn|read before it"
    ),
    "a place in an input": (
        cache,
        lambda ol: replace(ol, views={**ol.views, next(iter(ol.views)): Argument("x")}),
        "cannot lie in 'x'|is no part of",
    ),
}  # fmt: skip


def _chain(n: int) -> Any:
    e: Any = POS
    for _ in range(n):
        e = Binary("+", e, POS)
    return e


@pytest.mark.parametrize("lie", LIES)
def test_an_outline_that_lies_about_states_is_refused(lie: str) -> None:
    make, change, message = LIES[lie]
    with pytest.raises(ValueError, match=message):
        parts_of(make(), change)
    parts_of(make(), lambda ol: replace(ol))


def test_a_graph_refuses_states_that_are_none() -> None:
    graph = cache()
    k = graph.states["k"]
    wrong = {
        "is no input of the graph that calls keep": GraphState("x", k.new),
        "is no output of its own": GraphState("k", "nothing"),
    }
    for message, state in wrong.items():
        with pytest.raises(ValueError, match=message):
            replace(graph, states={**graph.states, "more": state})
    with pytest.raises(ValueError, match="two states share a tensor"):
        replace(graph, states={**graph.states, "again": k})
    with pytest.raises(ValueError, match=r"state 'k' is float32\[1, 2, 8, 3\], and its new value float32\[2"):
        replace(graph, outputs=(), states={"k": GraphState("k", graph.outputs[0]), "v": graph.states["v"]})
    with pytest.raises(ValueError, match="nothing gives the graph's k"):
        replace(graph, states={"v": graph.states["v"]})


LARGE = 1 << 14


def replaced_whole() -> Graph:
    b = StateBuilder()
    x, old = b.input("x", 1), b.state("s", 3 * LARGE)
    b.becomes("s", cases.stage(old.shape, lambda i: old[i] + x[0], "shifted"))
    return b.model(cases.stage((1,), lambda i: x[i] * 2.0))


def read_too_late() -> Graph:
    """A map of what was there and of what is new, element by element."""
    b = StateBuilder()
    x, pos, old = b.input("x", 1, 4), b.input("pos", 1, dtype="int64"), b.state("s", 2 * LARGE, 4)
    new = put(old, x, pos[0], 0)
    b.becomes("s", new)
    return b.model(cases.stage(old.shape, lambda i, j: old[i, j] + new[i, j]))


def by_each_row() -> Graph:
    """Each column has a position of its own."""
    b = StateBuilder()
    x, pos, old = b.input("x", 1, 4), b.input("pos", 4, dtype="int64"), b.state("s", 2 * LARGE, 4)
    new = cases.stage(
        old.shape,
        lambda i, j: te.select(te.equal(te.cast(i, "int64"), pos[j]), x[0, j], old[i, j]),
        "columns",
    )
    b.becomes("s", new)
    return b.model(cases.stage((1,), lambda i: x[i, 0] * 2.0))


REFUSED = {
    "whole": (replaced_whole, "state 's' of 196608 bytes is replaced by shifted.*write rows"),
    "late": (read_too_late, "state 's' is written by put, and what it was before is read together"),
    "columns": (by_each_row, "state 's' of 524288 bytes is replaced by columns"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_kept_is_refused_by_name(case: str) -> None:
    make, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        optimize(make())


# -- numbers of a call -----------------------------------------------------------------------------


@pytest.mark.parametrize("case", range(6))
def test_numbers_of_a_call_wrap_and_round_as_kernels_have_them(case: int) -> None:
    pos = Load("pos", (Const(0),), "int64")
    small = Load("small", (), "uint8")
    most = (1 << 63) - 1
    e, value = [
        (pos + 1, -(1 << 63)),
        (E.minimum(E.maximum(pos, 0), Const(5, "int64")), 5),
        (Cast("int64", Binary("+", small, Const(10, "uint8"))), 4),
        (E.select(E.compare("<", pos, Const(0, "int64")), pos + 3, pos), most),
        (Binary("//", Const(-7, "int64"), Const(2, "int64")), -4),
        (Cast("int32", pos), -1),
    ][case]
    places = {"pos": 0, "small": 1}
    tensors = {"pos": Tensor("pos", (1,), "int64"), "small": Tensor("small", (), "uint8")}
    assert number(e, places, tensors)([np.array([most]), np.array(250, np.uint8)]) == value
