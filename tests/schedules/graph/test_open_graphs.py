"""Rewrites of graphs with open sizes: each keeps the meaning at every size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate
from graph_memory import run_in_memory
from hypothesis import given, settings
from hypothesis import strategies as st
from open_graphs import MODELS, inputs_at, size

from autotune.models.outline import outline
from schedules import te
from schedules.graph.graph import Graph
from schedules.graph.optimize import REWRITES, optimize
from schedules.graph.partition import partition
from schedules.te.extent import is_multiple, is_open, is_same
from schedules.te.marks import is_marked
from schedules.te.tensors import discover


def close(found: list[Any], right: list[Any], what: str, rtol: float = 1e-5) -> None:
    for y, x in zip(found, right, strict=True):
        assert y.shape == x.shape, what
        unit = float(np.sqrt(np.mean(np.square(x.astype("float64"))))) if x.dtype.kind == "f" else 0.0
        np.testing.assert_allclose(y, x, rtol=0, atol=rtol * unit, err_msg=what)


@pytest.mark.parametrize("name", MODELS)
def test_meaning_is_kept_by_every_rewrite_at_every_size(name: str) -> None:
    graph = MODELS[name].graph()
    given = {n: inputs_at(graph, {"n": n}) for n in MODELS[name].sizes}
    right = {n: evaluate(graph, arrays) for n, arrays in given.items()}
    for rewrite in REWRITES:
        graph = rewrite(graph)
        assert is_marked(graph.dag)
        for n, arrays in given.items():
            close(evaluate(graph, arrays), right[n], f"{rewrite.__name__} at {n}")


@pytest.mark.parametrize("name", MODELS)
def test_groups_compute_what_the_graph_does_in_one_memory(name: str) -> None:
    graph = MODELS[name].graph()
    after = optimize(graph)
    parts = partition(after)
    ol = outline(after, parts)
    assert [s.name for s in ol.sizes] == ["n"]
    assert not any(is_open(n) for w in ol.tasks for t in w.dag.tensors.values() for n in t.shape)
    for n in MODELS[name].sizes:
        arrays = inputs_at(graph, {"n": n})
        found = run_in_memory(ol, after.values, arrays, {"n": n})
        close(found, evaluate(graph, arrays), f"at {n}")


# -- random graphs ---------------------------------------------------------------------------------

LEAST, MOST = 2, 7
# A number that an open extent has at the largest size: what takes one for the other is wrong at others.
FIXED = MOST


def alike(x: Any, y: Any) -> bool:
    return x.ndim == y.ndim and all(map(is_same, x.shape, y.shape))


def rows(x: Any) -> Any:
    """The sum of rows, beside what the rows are: a reduction over an extent that may be open."""
    k = te.reduce_axis(x.shape[0], "k")
    total = te.compute((x.shape[1],), lambda j: te.sum(x[k, j], axis=k))
    return cases.stage(x.shape, lambda i, j: x[i, j] - total[j])


def counted(x: Any) -> Any:
    """What reads nothing but axes: how many rows and columns there are is in the sum alone."""
    k = te.reduce_axis(x.shape[0], "k")
    ones = te.compute((x.shape[0], x.shape[1]), lambda i, j: te.cast(i + j, "float32"))
    total = te.compute((x.shape[1],), lambda j: te.sum(ones[k, j], axis=k))
    return cases.stage(x.shape, lambda i, j: x[i, j] + total[j])


def shifted(x: Any) -> Any:
    """A row more, before the others."""
    row = cases.stage((x.shape[1],), lambda j: x[0, j] * 2.0)
    return cases.stage(
        (x.shape[0] + 1, x.shape[1]), lambda i, j: te.select(i < 1, row[j], x[te.maximum(i - 1, 0), j])
    )


def masked(x: Any) -> Any:
    return cases.stage(x.shape, lambda i, j: te.select(j <= i, x[i, j], te.const(0.0, "float32")))


def split_rows(x: Any) -> Any:
    """Columns as two digits, turned."""
    half = x.shape[1] // 2
    return cases.stage((half, x.shape[0], 2), lambda j, i, p: x[i, j * 2 + p])


STEPS: dict[str, Callable[[cases.Builder, Any, str], Any]] = {
    "relu": lambda b, x, name: cases.relu(x),
    "square": lambda b, x, name: cases.stage(x.shape, lambda i, j: x[i, j] * x[i, j]),
    "dense": lambda b, x, name: None if is_open(x.shape[1]) else cases.dense(b, x, 4, name),
    "norm": lambda b, x, name: None if is_open(x.shape[1]) else cases.layer_norm(b, x, name),
    "softmax": lambda b, x, name: cases.softmax(x),
    "turn": lambda b, x, name: cases.transpose(x, 1, 0),
    "gram": lambda b, x, name: cases.matmul(x, cases.transpose(x, 1, 0)),
    "rows": lambda b, x, name: rows(x),
    "counted": lambda b, x, name: counted(x),
    "shifted": lambda b, x, name: shifted(x) if x.shape[0] < 12 else None,
    "cut": lambda b, x, name: cases.stage((x.shape[0] - 1, x.shape[1]), lambda i, j: x[i + 1, j]),
    "masked": lambda b, x, name: masked(x),
    "table": lambda b, x, name: table(b, x, name),
    "digits": lambda b, x, name: digits(x),
}


def table(b: cases.Builder, x: Any, name: str) -> Any:
    """Rows of a constant that has as many as there can be."""
    t = b.constant(name, int(x.shape[0]), int(x.shape[1]))
    doubled = cases.stage(t.shape, lambda i, j: t[i, j] * 2.0)
    return cases.stage(x.shape, lambda i, j: x[i, j] + doubled[i, j])


def digits(x: Any) -> Any:
    if not is_multiple(x.shape[1], 2):
        return None
    apart = split_rows(x)
    k = te.reduce_axis(2, "p")
    return te.compute((x.shape[0], apart.shape[0]), lambda i, j: te.sum(apart[j, i, k], axis=k))


@st.composite
def open_graphs(draw: st.DrawFn) -> Graph:
    """A random graph on matrices of open and fixed extents, of which some have equal numbers."""
    b = cases.Builder(draw(st.integers(0, 9)))
    n = size(LEAST, MOST)
    values = [b.input("x", n, draw(st.sampled_from([3, 4, FIXED]))), b.input("y", FIXED, n)]
    values += [b.input("z", 2 * n, 4)] if draw(st.booleans()) else []
    for k, step in enumerate(draw(st.lists(st.sampled_from([*STEPS, "add"]), min_size=1, max_size=6))):
        x = values[draw(st.integers(0, len(values) - 1))]
        if step == "add":
            values.append(cases.add(x, draw(st.sampled_from([y for y in values if alike(x, y)]))))
        elif (made := STEPS[step](b, x, f"c{k}")) is not None:
            values.append(made)
    made = [v for v in values if v.op is not None] or [cases.relu(values[0])]
    outputs = [made[-1], *draw(st.lists(st.sampled_from(made), max_size=1))]
    used = {t for op in discover([t.op for t in outputs])[0] for t in op.reads()}
    b.inputs = [t for t in b.inputs if t in used]
    return b.graph(*dict.fromkeys(outputs))


def check_random(graph: Graph) -> None:
    if graph.dag.open is None:  # only what has no open extent was drawn
        return
    given_ = {k: inputs_at(graph, {"n": k}) for k in (LEAST, 3, MOST)}
    right = {k: evaluate(graph, arrays) for k, arrays in given_.items()}
    after = graph
    for rewrite in REWRITES:
        after = rewrite(after)
        for k, arrays in given_.items():
            for x, y in zip(right[k], evaluate(after, arrays), strict=True):
                assert x.shape == y.shape
                atol = 2e-4 * max(1.0, float(np.abs(x).max()))
                np.testing.assert_allclose(y, x, rtol=2e-4, atol=atol, err_msg=f"{rewrite.__name__} at {k}")
    ol = outline(after, partition(after))
    for k, arrays in given_.items():
        for x, y in zip(right[k], run_in_memory(ol, after.values, arrays, {"n": k}), strict=True):
            np.testing.assert_allclose(y, x, rtol=2e-4, atol=2e-4 * max(1.0, float(np.abs(x).max())))


@settings(max_examples=15, deadline=None)
@given(open_graphs())
def test_random_graphs_keep_their_meaning_at_every_size(graph: Graph) -> None:
    check_random(graph)


@pytest.mark.fuzz
@settings(max_examples=1500, deadline=None)
@given(open_graphs())
def test_many_random_graphs_keep_their_meaning_at_every_size(graph: Graph) -> None:
    check_random(graph)
