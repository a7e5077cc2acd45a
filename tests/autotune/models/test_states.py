"""States lie in place: rows are written where they belong, in order, and nothing else is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graph_meaning import evaluate
from graph_memory import run_in_memory
from hypothesis import event, given, settings
from hypothesis import strategies as st
from state_models import STATE_MODELS, new_states, random_states

from autotune.errors import ArgumentError
from autotune.models.outline import Outline, outline
from schedules.graph.graph import Graph
from schedules.graph.optimize import optimize
from schedules.graph.partition import partition


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
        "counter": {"rows": 2 * 5},
        "twice": {"s": 3 * 4},
        "layers": {"all": 3 * 2},
        "average": {"s": 4},
    }
    assert written == {name: 4 * n for name, n in rows[model].items()}


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_random_graphs_keep_what_the_evaluator_says(data: st.DataObject) -> None:
    graph = random_states(lambda lo, hi: data.draw(st.integers(lo, hi)))
    after, ol = outline_of(graph)
    want, got = new_states(graph), new_states(graph)
    done = 0
    for n in range(4):
        inputs = call_inputs(graph, n)
        inputs[0] = np.array([data.draw(st.integers(0, 3)) for _ in range(3)])
        before = {k: a.copy() for k, a in got.items()}
        try:
            z = run_in_memory(ol, after.values, inputs, None, got)
        except ArgumentError:
            assert all((got[k] == before[k]).all() for k in got), "nothing is written"
            continue
        done += 1
        for a, c in zip(evaluate(graph, inputs, want), z, strict=True):
            np.testing.assert_array_equal(c, a)
        for name in graph.states:
            np.testing.assert_array_equal(got[name], want[name])
    event(f"{sum(ol.root(s.new) == s.tensor for s in ol.states.values())} in place, {done} calls")
