"""Loops end with the last valid row of a state where that is proved, and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from graph_meaning import evaluate
from hypothesis import given, settings
from hypothesis import strategies as st
from state_models import STATE_MODELS

import autotune as at
from schedules import expr as E
from schedules.expr import Const, Expr, Load
from schedules.graph.graph import Graph, Group, ShortLoops
from schedules.graph.optimize import optimize
from schedules.graph.partition import partition
from schedules.graph.short_group import ended
from schedules.graph.valid_rows import ValidRows, read_whole, valid_rows
from schedules.strides import strides_of
from schedules.te.open_sizes import at as at_sizes

te = at.te
T, D, HEADS, GROUP = 13, 4, 2, 2
INF, LEAST = math.inf, float(np.finfo(np.float32).min)
Element = Callable[..., Any]


@dataclass
class Case:
    """An attention of ``count`` new rows, masked in some way. ``tables``: constants by name."""

    count: int
    pos: Any
    tables: dict[Any, np.ndarray]

    def place(self, s: Any) -> Any:
        """The row that is the s-th new one."""
        return self.pos[0] + te.cast(s, "int64")

    def table(self, value: np.ndarray, name: str) -> Any:
        t = te.placeholder(value.shape, str(value.dtype), name)
        self.tables[t] = value
        return t

    def looked_up(self, value: np.ndarray, name: str) -> Element:
        t = self.table(value, name)

        def of(s: Any, i: Any) -> Any:
            row = te.minimum(te.maximum(self.place(s), 0), T - 1)
            return t[row, i]

        return of


def stored(c: Case, mask: Element, dtype: str = "bool") -> Element:
    """A mask that a stage of its own makes."""
    t = te.compute((c.count, T), lambda s, i: te.cast(mask(s, i), dtype), "mask")
    return lambda s, i: t[s, i]


def by_table(c: Case) -> Element:
    rows = c.table(np.arange(T, dtype=np.int64), "rows")
    return lambda s, i: rows[i] <= c.place(s)


def by_difference(c: Case) -> Element:
    return lambda s, i: 0 <= c.pos[0] + te.cast(s - i, "int64")


# {name: which rows a new row sees}: none of these sees a stale one.
MASKS: dict[str, Callable[[Case], Element]] = {
    "compared": lambda c: lambda s, i: te.cast(i, "int64") <= c.place(s),
    "below": lambda c: lambda s, i: te.cast(i, "int64") < c.place(s) + 1,
    "table": by_table,
    "difference": by_difference,
    "stage": lambda c: stored(c, by_table(c)),
    "negated": lambda c: (lambda hidden: lambda s, i: te.logical_not(hidden(s, i)))(
        stored(c, lambda s, i: c.place(s) < te.cast(i, "int64"))
    ),
    "as bytes": lambda c: (lambda t: lambda s, i: te.not_equal(t(s, i), 0))(
        lambda s, i: te.cast(by_difference(c)(s, i), "int32")
    ),
    "triangle": lambda c: c.looked_up(np.tril(np.ones((T, T), bool)), "triangle"),
    "window": lambda c: (
        lambda s, i: te.all(te.cast(i, "int64") <= c.place(s), c.place(s) - 3 < te.cast(i, "int64"))
    ),
    "strictly older": lambda c: lambda s, i: te.cast(i, "int64") < c.place(s),
    "valid": lambda c: lambda s, i: te.cast(i, "int64") < c.pos[0] + c.count,
}
# Each of these sees a stale row at some place.
LEAKS: dict[str, Callable[[Case], Element]] = {
    "one more": lambda c: lambda s, i: te.cast(i, "int64") <= c.place(s) + 1,
    "one more of all": lambda c: lambda s, i: te.cast(i, "int64") < c.pos[0] + c.count + 1,
    "all": lambda c: lambda s, i: te.cast(i, "int64") < c.place(s) + T,
    "younger": lambda c: lambda s, i: c.place(s) <= te.cast(i, "int64"),
    "all but one": lambda c: lambda s, i: te.not_equal(te.cast(i, "int64"), c.place(s) + 1),
    "table of one more": lambda c: c.looked_up(np.tril(np.ones((T, T), bool), 1), "triangle"),
    "table of all rows": lambda c: (lambda t: lambda s, i: t[i] <= c.place(s))(
        c.table(np.maximum(np.arange(T, dtype=np.int64) - 1, 0), "rows")
    ),
    "table with one low": lambda c: (lambda t: lambda s, i: t[i] <= c.place(s))(
        c.table(np.where(np.arange(T) < T - 1, np.arange(T), 0).astype(np.int64), "rows")
    ),
    "either": lambda c: lambda s, i: te.any(te.cast(i, "int64") <= c.place(s), c.pos[0] < 3),
}
# {name: the score of a row that is seen where the condition holds}.
HIDES: dict[str, Callable[[Case, Element, Any, Any, Any], Any]] = {
    "select": lambda c, m, x, s, i: te.select(m(s, i), x, -INF),
    "filled": lambda c, m, x, s, i: te.select(te.logical_not(m(s, i)), -INF, x),
    "added": lambda c, m, x, s, i: x + te.select(m(s, i), 0.0, -INF),
    "lesser": lambda c, m, x, s, i: te.minimum(x, te.select(m(s, i), INF, -INF)),
}
# The same, where in each row some score is seen that is an ordinary number.
HIDES_BY_LEAST: dict[str, Callable[[Case, Element, Any, Any, Any], Any]] = {
    "by the least number": lambda c, m, x, s, i: te.select(m(s, i), x, LEAST),
    "least number added": lambda c, m, x, s, i: x + te.select(m(s, i), 0.0, LEAST),
    "least number added twice": lambda c, m, x, s, i: (
        x + te.select(m(s, i), 0.0, LEAST) + te.select(m(s, i), 0.0, LEAST)
    ),
    "least number of bfloat16": lambda c, m, x, s, i: x + te.cast(
        te.select(m(s, i), te.const(0.0, "bfloat16"), te.const(-3.3895314e38, "bfloat16")), "float32"
    ),
}
# Each of these leaves a stale row some weight, or may.
SHOWS: dict[str, Callable[[Case, Element, Any, Any, Any], Any]] = {
    "by 0": lambda c, m, x, s, i: te.select(m(s, i), x, 0.0),
    "by a large number": lambda c, m, x, s, i: te.select(m(s, i), x, -1e9),
    "by the least number, all": lambda c, m, x, s, i: te.select(m(s, i), x + LEAST, LEAST),
    "by the least number, some rows": lambda c, m, x, s, i: (
        te.select(m(s, i), x, LEAST) + te.select(te.cast(s, "int64") < c.pos[0], LEAST, 0.0)
    ),
    "by the least number beside a large one": lambda c, m, x, s, i: te.select(m(s, i), x, LEAST) + 3e38,
    "a part of the least number": lambda c, m, x, s, i: te.select(m(s, i), x, LEAST) * 1e-30,
    "least number of float16": lambda c, m, x, s, i: x + te.cast(
        te.select(m(s, i), te.const(0.0, "float16"), te.const(-65504.0, "float16")), "float32"
    ),
    "multiplied by 0": lambda c, m, x, s, i: x * te.select(m(s, i), 1.0, 0.0),
    "to infinity": lambda c, m, x, s, i: te.select(m(s, i), x, INF),
    "not": lambda c, m, x, s, i: x + te.select(m(s, i), 0.0, 0.0),
}


def softmax(scores: Any, heads: int, rows: int, safe: bool) -> tuple[Any, Any]:
    """(exponentials, their sums): as torch's softmax is; or, ``safe``, as its attention is, which gives 0
    where all is hidden."""
    r = te.reduce_axis(T, "r")
    top = te.compute((heads, rows), lambda h, s: te.max(scores(h, s, r), axis=r), "top")
    if safe:
        largest = top
        top = te.compute(
            (heads, rows), lambda h, s: te.select(te.equal(largest[h, s], -INF), 0.0, largest[h, s])
        )
    e = te.compute((heads, rows, T), lambda h, s, i: te.exp(scores(h, s, i) - top[h, s]), "e")
    q = te.reduce_axis(T, "q")
    return e, te.compute((heads, rows), lambda h, s: te.sum(e[h, s, q], axis=q), "total")


def attention(
    count: int,
    mask: str | Callable[[Case], Element],
    hide: str = "select",
    safe: bool = False,
    whole: bool = True,
) -> tuple[Graph, tuple[ValidRows, ...]]:
    """A graph with states K and V of ``T`` rows, of which ``pos`` and ``count`` tell how many are valid."""
    pos = te.placeholder((1,), "int64", "pos")
    q = te.placeholder((HEADS * GROUP, count, D), "float32", "q")
    k, v = (te.placeholder((HEADS, T, D), "float32", n) for n in "kv")
    c = Case(count, pos, {})
    seen = (MASKS | LEAKS)[mask](c) if isinstance(mask, str) else mask(c)
    d = te.reduce_axis(D, "d")
    heads = HEADS * GROUP
    dot = te.compute(
        (heads, count, T), lambda h, s, i: te.sum(q[h, s, d] * k[h // GROUP, i, d], axis=d), "dot"
    )

    def score(h: Any, s: Any, i: Any) -> Any:
        return (HIDES | HIDES_BY_LEAST | SHOWS)[hide](c, seen, dot[h, s, i] * 0.5, s, i)

    if whole:
        t = te.compute((heads, count, T), score, "scores")
        e, total = softmax(lambda h, s, i: t[h, s, i], heads, count, safe)
    else:
        e, total = softmax(score, heads, count, safe)
    p = te.compute((heads, count, T), lambda h, s, i: e[h, s, i] / total[h, s], "p")
    n = te.reduce_axis(T, "n")
    out = te.compute(
        (heads, count, D), lambda h, s, j: te.sum(p[h, s, n] * v[h // GROUP, n, j], axis=n), "out"
    )
    return graph_of([pos, q, k, v], c.tables, out), rows_of(count)


def graph_of(inputs: list[Any], tables: dict[Any, np.ndarray], *outputs: Any) -> Graph:
    dag = te.dag([*inputs, *tables, *outputs])
    values = {t.name: x for t, x in tables.items()}
    dag = replace(dag, constants=tuple(t.name for t in dag.inputs if t.name in values))
    return Graph(dag, values, tuple(t.name for t in inputs), dag.outputs)


def rows_of(count: int, start: Expr | None = None) -> tuple[ValidRows, ...]:
    at_ = Load("pos", (Const(0),), "int64") if start is None else start
    return tuple(ValidRows(n, 1, at_, count) for n in "kv")


def cut_at(graph: Graph, cuts: tuple[ShortLoops, ...], pos: int) -> Graph:
    """The graph of a call at a position, whose loops end with the last valid row."""
    stages = graph.dag.stages
    for c in cuts:
        end = int(
            E.evaluate(E.rewrite(c.end, lambda x: Const(pos, "int64") if isinstance(x, Load) else None), {})
        )
        stages = ended(stages, c.axes, end)
    return replace(graph, dag=replace(graph.dag, stages=stages))


def arrays(count: int, pos: int, stale: float | None, seed: int = 0) -> list[np.ndarray]:
    """Inputs of `attention`, with rows from the last valid one on of small numbers, or of ``stale``."""
    rng = np.random.default_rng(seed)
    q = rng.integers(-2, 3, (HEADS * GROUP, count, D)).astype("float32")
    k, v = (rng.integers(-3, 4, (HEADS, T, D)).astype("float32") for _ in "kv")
    if stale is not None:
        k[:, pos + count :] = v[:, pos + count :] = stale
    else:
        for x in (k, v):
            x[:, pos + count :] = rng.normal(0, 1e3, x[:, pos + count :].shape)
    return [np.array([pos]), q, k, v]


def same_at_all_starts(graph: Graph, cuts: tuple[ShortLoops, ...], count: int) -> None:
    for pos in sorted({0, 1, 5, T - count - 1, T - count}):
        short = cut_at(graph, cuts, pos)
        before = evaluate(graph, arrays(count, pos, None))
        with np.errstate(all="ignore"):
            for x, y in zip(before, evaluate(short, arrays(count, pos, None)), strict=True):
                np.testing.assert_allclose(y, x, rtol=1e-6, atol=1e-6)
            zeros, nans = (evaluate(short, arrays(count, pos, z)) for z in (0.0, np.nan))
        for x, y in zip(zeros, nans, strict=True):
            np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("hide", HIDES_BY_LEAST)
@pytest.mark.parametrize("mask", MASKS)
def test_masks_may_have_the_least_number_where_something_is_seen(mask: str, hide: str) -> None:
    graph, rows = attention(3, mask, hide)
    for g in (graph, optimize(graph)):
        cuts, why = valid_rows(g, rows)
        if mask == "strictly older":  # the first row sees nothing, so that all its scores are alike
            assert cuts == () and set(why) == {"k", "v"}
        else:
            assert why == {}
            same_at_all_starts(g, cuts, 3)


@pytest.mark.parametrize("hide", HIDES)
@pytest.mark.parametrize("mask", MASKS)
def test_loops_end_with_the_last_valid_row(mask: str, hide: str) -> None:
    graph, rows = attention(3, mask, hide)
    for g in (graph, optimize(graph)):
        cuts, why = valid_rows(g, rows)
        assert why == {}
        (cut,) = cuts
        walked = {(s.name, a.var) for s in g.dag.stages for a in (*s.axes, *s.reduce_axes) if a.extent == T}
        assert cut.axes == walked, "every loop over rows ends there, those of the mask too"
        assert (cut.least, cut.most) == (3, T)
        same_at_all_starts(g, cuts, 3)


@pytest.mark.parametrize("hide", [*HIDES, *HIDES_BY_LEAST])
@pytest.mark.parametrize("mask", LEAKS)
def test_a_mask_that_shows_a_stale_row_is_refused(mask: str, hide: str) -> None:
    graph, rows = attention(2, mask, hide)
    for g in (graph, optimize(graph)):
        cuts, why = valid_rows(g, rows)
        assert cuts == () and set(why) == {"k", "v"}


@pytest.mark.parametrize("hide", SHOWS)
def test_a_mask_that_leaves_a_stale_row_some_weight_is_refused(hide: str) -> None:
    graph, rows = attention(2, "table", hide)
    short, why = valid_rows(graph, rows)
    assert short == () and set(why) == {"k", "v"}
    assert "reduces over all rows" in why["k"]


def plain(
    make: Callable[..., Any], *, count: int = 2, start: Expr | None = None
) -> tuple[Any, dict[str, str], Graph]:
    """What is found for a graph of ``make(pos, k)``, of a state of `T` rows of 3."""
    pos, k = te.placeholder((1,), "int64", "pos"), te.placeholder((T, 3), "float32", "k")
    outs = make(pos, k)
    graph = graph_of([pos, k], {}, *(outs if isinstance(outs, list) else [outs]))
    first = Load("pos", (Const(0),), "int64") if start is None else start
    return *valid_rows(graph, (ValidRows("k", 0, first, count),)), graph


def total(of: Callable[[Any, Any], Any], extent: Any = T) -> Any:
    r = te.reduce_axis(extent, "r")
    return te.compute((3,), lambda j: te.sum(of(r, j), axis=r), "y")


def valid(pos: Any, r: Any) -> Any:
    return te.cast(r, "int64") < pos[0] + 2


def test_sums_products_least_and_largest_end_where_each_has_its_neutral_element() -> None:
    for reduce, neutral in ((te.sum, 0.0), (te.max, -INF), (te.min, INF), (te.prod, 1.0)):
        r = te.reduce_axis(T, "r")
        short, why, _ = plain(
            lambda pos, k, r=r, reduce=reduce, neutral=neutral: te.compute(
                (3,), lambda j: reduce(te.select(valid(pos, r), k[r, j], neutral), axis=r), "y"
            )
        )
        assert not why and short[0].axes == {("y", "r")}
        r = te.reduce_axis(T, "r")
        short, why, _ = plain(
            lambda pos, k, r=r, reduce=reduce: te.compute(
                (3,), lambda j: reduce(te.select(valid(pos, r), k[r, j], 7.0), axis=r), "y"
            )
        )
        assert not short and "the value is 7.0" in why["k"]


def test_a_value_relative_to_another_maximum_is_refused() -> None:
    """Where that is -inf and the value is none, a stale row is NaN and a valid one infinite."""

    def weights(pos: Any, k: Any, older: int) -> Any:
        r, q = te.reduce_axis(T, "r"), te.reduce_axis(T, "q")

        def seen(t: Any, fewer: int) -> Any:
            return te.select(te.cast(t, "int64") < pos[0] + 2 - fewer, k[t, 0], -INF)

        top = te.compute((1,), lambda i: te.max(seen(r, older), axis=r), "top")
        return te.compute((1,), lambda i: te.sum(te.exp(seen(q, 0) - top[i]), axis=q), "y")

    assert not plain(lambda pos, k: weights(pos, k, 0))[1]
    short, why, _ = plain(lambda pos, k: weights(pos, k, 2))
    assert not short and "nothing is known" in why["k"]


def test_a_sum_of_squares_of_differences_needs_its_own_mask() -> None:
    """A sum that is masked says nothing of another one."""

    def variance(pos: Any, k: Any, masked: bool) -> Any:
        mean = total(lambda r, j: te.select(valid(pos, r), k[r, j], 0.0))
        r = te.reduce_axis(T, "q")

        def term(j: Any) -> Any:
            x = (k[r, j] - mean[j]) * (k[r, j] - mean[j])
            return te.select(valid(pos, r), x, 0.0) if masked else x

        return te.compute((3,), lambda j: te.sum(term(j), axis=r), "v")

    short, why, _ = plain(lambda pos, k: variance(pos, k, True))
    assert not why and {v for _, v in short[0].axes} == {"r", "q"}
    short, why, _ = plain(lambda pos, k: variance(pos, k, False))
    assert not short and "stage v reduces over all rows" in why["k"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda pos, k: te.compute((T, 3), lambda i, j: te.select(valid(pos, i), k[i, j], 0.0), "y"),
            "y, which the model keeps or returns",
        ),
        (lambda pos, k: total(lambda r, j: te.select(valid(pos, r), k[T - 1 - r, j], 0.0)), "not row by row"),
        (lambda pos, k: total(lambda r, j: te.select(valid(pos, r), k[r, j], 0.0), T - 1), "not row by row"),
        (
            lambda pos, k: te.compute((3,), lambda j: k[te.minimum(te.maximum(pos[0], 0), T - 1), j], "y"),
            "not row by row",
        ),
        (
            lambda pos, k: total(lambda r, j: te.select(pos[0] < 4, k[r, j], 0.0)),
            "only 0.0 changes nothing in '\\+'",
        ),
    ],
)
def test_what_is_not_proved_is_told(make: Callable[..., Any], said: str) -> None:
    short, why, _ = plain(make)
    assert short == ()
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(why["k"])


def test_a_mask_by_other_data_than_the_position_is_refused() -> None:
    other = te.placeholder((1,), "int64", "other")

    def by_other(pos: Any, k: Any) -> Any:
        return total(lambda r, j: te.select(te.cast(r, "int64") <= other[0], k[r, j], 0.0))

    pos, k = te.placeholder((1,), "int64", "pos"), te.placeholder((T, 3), "float32", "k")
    graph = graph_of([pos, k, other], {}, by_other(pos, k), te.compute((1,), lambda i: pos[i] + 1, "next"))
    short, why = valid_rows(graph, (ValidRows("k", 0, Load("pos", (Const(0),), "int64"), 2),))
    assert short == () and "the value is finite, where only 0.0 changes nothing" in why["k"]


def test_a_position_that_may_wrap_is_none() -> None:
    """Nothing is known of int32 arithmetic beyond its range."""
    pos32 = te.placeholder((1,), "int32", "at")
    pos, k = te.placeholder((1,), "int64", "pos"), te.placeholder((T, 3), "float32", "k")

    def y(place: Any) -> Graph:
        return graph_of(
            [pos, k, pos32],
            {},
            total(lambda r, j: te.select(te.cast(r, "int32") < place(r), k[r, j], 0.0)),
            te.compute((1,), lambda i: pos[i] + te.cast(pos32[i], "int64"), "next"),
        )

    at32 = Load("at", (Const(0),), "int32")
    for place, proved in ((lambda r: pos32[0] + 2, True), (lambda r: pos32[0] * 2**30 // 2**30 + 2, False)):
        short, _ = valid_rows(y(place), (ValidRows("k", 0, E.Cast("int64", at32), 2),))
        assert bool(short) == proved


@settings(max_examples=25, deadline=None)
@given(
    count=st.integers(1, 4),
    mask=st.sampled_from([*MASKS, *LEAKS]),
    more=st.sampled_from([None, *MASKS, *LEAKS]),
    joined=st.booleans(),
    hide=st.sampled_from([*HIDES]),
    safe=st.booleans(),
    whole=st.booleans(),
)
def test_what_is_proved_holds(
    count: int, mask: str, more: str | None, joined: bool, hide: str, safe: bool, whole: bool
) -> None:
    """Masks of two conditions, of which both or one must hold."""
    every = MASKS | LEAKS

    def made(c: Case) -> Element:
        one = every[mask](c)
        if more is None or any(x in f"{mask} {more}" for x in ("table", "triangle")):  # names stand once
            return one
        two = every[more](c)
        return lambda s, i: (te.all if joined else te.any)(one(s, i), two(s, i))

    graph, rows = attention(count, made, hide, safe, whole)
    cuts, why = valid_rows(graph, rows)
    if mask in MASKS and (more is None or more in MASKS):
        assert not why
    if not why:
        same_at_all_starts(graph, cuts, count)


def run_groups(graph: Graph, given_: list[np.ndarray], end: int, parts: bool = False) -> list[np.ndarray]:
    """What the groups of a graph compute in a call in which all that is short ends at ``end``. Memory between
    them holds NaN where nothing was written."""
    known = dict(zip(graph.inputs, given_, strict=True)) | dict(graph.values)
    groups = [g for whole in partition(graph) for g in (whole.parts if parts and whole.parts else (whole,))]
    for g in groups:
        one = at_sizes(g.dag, {s.name: end for s in g.dag.open.sizes}) if g.dag.open else g.dag
        reads = []
        for t, a in zip(one.inputs, g.inputs, strict=True):
            flat = np.ascontiguousarray(known[a.tensor]).reshape(-1)[a.start :]
            steps = [x * flat.itemsize for x in strides_of(t)]
            reads.append(np.lib.stride_tricks.as_strided(flat, t.shape, steps))
        for name, y, o in zip(g.outputs, te.evaluate(one, reads), one.outputs, strict=True):
            known[name] = np.full(
                graph.dag.tensors[name].shape, np.nan if y.dtype.kind == "f" else 0, y.dtype
            )
            flat = known[name].reshape(-1)
            steps = [x * flat.itemsize for x in strides_of(one.tensors[o])]
            np.lib.stride_tricks.as_strided(flat, y.shape, steps)[...] = y
    return [known[name] for name in graph.outputs]


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("mask", ["table", "stage", "triangle", "window"])
def test_groups_have_the_size_as_arguments_of_so_many_rows(mask: str, parts: bool) -> None:
    graph, rows = attention(3, mask)
    graph = optimize(graph)
    short = replace(graph, short=valid_rows(graph, rows)[0])
    groups = [g for g in partition(short) if isinstance(g, Group)]
    opened = [g for g in groups if g.dag.open is not None]
    assert {"k", "v"} <= {a.tensor for g in opened for a in g.inputs}
    for g in opened:
        assert [(s.name, s.least, s.most) for s in g.dag.open.sizes] == [("rows0", 3, T)]
        for t, a in zip(g.dag.inputs, g.inputs, strict=True):
            if a.tensor in "kv":
                assert t.shape[1] == T and any(
                    (x.of, x.at) == (g.dag.inputs.index(t), 1) for x in g.dag.open.inputs
                )
    for pos in (0, 4, T - 3):
        before = evaluate(graph, arrays(3, pos, 0.0))
        after = run_groups(short, arrays(3, pos, np.nan), pos + 3, parts)
        for x, y in zip(before, after, strict=True):
            np.testing.assert_allclose(y, x, rtol=1e-6, atol=1e-6)


def test_what_a_state_is_read_whole_for_is_told_by_its_name() -> None:
    assert read_whole(optimize(STATE_MODELS["cache"]())) == {}
    told = read_whole(optimize(STATE_MODELS["twice"]()))
    assert set(told) == {"s"} and "reduces over all rows" in told["s"]
    assert "has an element for each row" in read_whole(optimize(STATE_MODELS["layers"]()))["all"]
