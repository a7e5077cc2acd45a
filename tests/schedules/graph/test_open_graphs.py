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
from schedules.graph import joins
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
        found = run_in_memory(ol, after.values, arrays, sizes={"n": n})
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


def cut(x: Any) -> Any:
    """Without the first row, where there is always another one."""
    n = x.shape[0]
    if (n.least if is_open(n) else n) < 2:
        return None
    return cases.stage((n - 1, x.shape[1]), lambda i, j: x[i + 1, j])


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
    "cut": lambda b, x, name: cut(x),
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
    """A random graph on matrices of open and fixed extents, of which some have equal numbers, and of one or
    two sizes."""
    b = cases.Builder(draw(st.integers(0, 9)))
    n, m = size(LEAST, MOST), size(LEAST, MOST, "m")
    columns, rows_ = draw(st.sampled_from([3, 4, FIXED])), draw(st.sampled_from([FIXED, m]))
    values = [b.input("x", n, columns), b.input("y", rows_, n)]
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
    sizes = {k: {"n": k, "m": other} for k, other in ((LEAST, MOST), (3, 4), (MOST, MOST), (5, LEAST))}
    given_ = {k: inputs_at(graph, here) for k, here in sizes.items()}
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
        for x, y in zip(right[k], run_in_memory(ol, after.values, arrays, sizes[k]), strict=True):
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


# -- numbers that are those of the largest size ----------------------------------------------------


def check_one(graph: Graph, sizes: tuple[int, ...]) -> Graph:
    """The graph after all rewrites, which say the same at each of ``sizes``."""
    after = optimize(graph)
    for k in sizes:
        arrays = inputs_at(graph, {"n": k})
        close(evaluate(after, arrays), evaluate(graph, arrays), f"at {k}")
    return after


def test_stages_of_equal_numbers_and_other_sizes_stay_two() -> None:
    """A sum over the open extent, and one over as many terms as that has at most."""
    n = size(2, 8)
    b = cases.Builder()
    x = b.input("x", n, 4)
    sums = []
    for extent in (n, 8):
        k = te.reduce_axis(extent, "k")
        sums.append(te.compute((4,), lambda j, k=k: te.sum(te.cast(k + j, "float32"), axis=k)))
    y = cases.stage((n, 4), lambda i, j: x[i, j] + sums[0][j] - 2.0 * sums[1][j])
    check_one(b.graph(y), (2, 3, 8))


def test_maps_of_equal_numbers_and_other_sizes_stay_two() -> None:
    n = size(2, 8)
    b = cases.Builder()
    x, z = b.input("x", n, 4), b.input("z", 8, 4)
    ones = [cases.stage((m, 4), lambda i, j: te.cast(i * j + 1, "float32")) for m in (n, 8)]
    outputs = [cases.matmul(cases.transpose(o, 1, 0), y) for o, y in zip(ones, (x, z), strict=True)]
    check_one(b.graph(*outputs), (2, 5, 8))


def test_a_sum_over_open_rows_of_a_constant_is_not_known_ahead() -> None:
    n = size(2, 8)
    b = cases.Builder()
    x, table = b.input("x", n, 4), b.constant("table", 8, 4)
    k = te.reduce_axis(n, "k")
    total = te.compute((4,), lambda j: te.sum(table[k, j], axis=k))
    after = check_one(b.graph(cases.stage((n, 4), lambda i, j: x[i, j] * total[j])), (2, 3, 8))
    assert "table" in after.values


def test_rows_of_a_constant_are_known_ahead() -> None:
    n = size(2, 8)
    b = cases.Builder()
    x, table = b.input("x", n, 4), b.constant("table", 8, 4)
    twice = cases.stage((n, 4), lambda i, j: table[i, j] * table[i, j])
    after = check_one(b.graph(cases.stage((n, 4), lambda i, j: x[i, j] + twice[i, j])), (2, 3, 8))
    assert len(after.dag.stages) == 1 and [v.shape for v in after.values.values()] == [(8, 4)]


def test_a_sum_of_pairs_is_split_where_all_sizes_are_even() -> None:
    for times, stages in ((1, 1), (2, 2)):  # reduction axes after
        n = size(2, 8) * times
        b = cases.Builder()
        x, k = b.input("x", (n + 1) // 2, 2, 4), te.reduce_axis(n, "k")
        y = te.compute((4,), lambda j, x=x, k=k: te.sum(x[k // 2, k % 2, j], axis=k))
        if times == 1:  # what tells the size
            z = b.input("z", n)
            y = cases.stage((n, 4), lambda i, j, y=y, z=z: y[j] + z[i])
        after = check_one(b.graph(y), (2, 3, 7, 8))
        assert [len(s.reduce_axes) for s in after.dag.stages if s.reducer] == [stages]


def test_what_is_joined_of_boxes_that_some_sizes_lack_stays_a_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first 8 rows are those of one product. Of 4 rows they are all, and no row is after them."""
    monkeypatch.setattr(joins, "CALL_BYTES", 0)

    def graph(least: int) -> Graph:
        n = size(least, 12)
        b = cases.Builder()
        x, y = b.input("x", n + 4, 16), b.input("y", 8, 16)
        one, other = cases.dense(b, y, 16, "one", False), cases.dense(b, x, 16, "other", False)
        both = cases.stage(
            (n, 16), lambda i, j: te.select(i < 8, one[te.minimum(i, 7), j], other[i, j])
        )
        return b.graph(cases.dense(b, both, 4, "fc"), cases.matmul(both, cases.transpose(both, 1, 0)))

    assert not check_one(graph(2), (2, 8, 9, 12)).joins
    assert check_one(graph(9), (9, 10, 12)).joins


def test_parts_of_what_is_joined_lie_in_place_at_every_size() -> None:
    after = check_one(MODELS["channels"].graph(), (1, 3, 5))
    assert set(after.joins) == {"concat"} and len(after.views) == 2
