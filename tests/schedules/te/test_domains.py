"""Reductions over domains that are no boxes: what can be written, what it means, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from helpers import interpret
from hypothesis import given, settings
from hypothesis import strategies as st
from random_domains import random_domain, whole_numbers

import autotune as at
from schedules import expr as E
from schedules import te
from schedules.errors import WorkloadError
from schedules.expr import Const, Var
from schedules.ir.nest import initial
from schedules.passes.lower import lower
from schedules.te import evaluator, rounding
from schedules.te.compute_dag import ComputeDAG
from schedules.te.domains import masked, narrowed, points
from schedules.te.flops import count_flops
from schedules.te.rounding import evaluate_with_bounds
from schedules.te.rounding_expr import ComputedTensors, wide
from schedules.te.scan_steps import step_of
from schedules.te.smaller import lengths, with_length
from schedules.te.structure import structure

N = 7
A, B = (te.placeholder((N, N), "float64", n) for n in "AB")
DATA = np.arange(N * N, dtype="float64").reshape(N, N) % 11 - 5


def rows(ends: Callable[..., Any], how: str = "sum", where: Any = None) -> ComputeDAG:
    """The sums of parts of the rows of A."""

    def value(i: Any) -> Any:
        k = te.reduce_axis(ends(i), "k", where=where(i) if where else None)
        return getattr(te, how)(A[i, k], axis=k)

    return te.dag([A, te.compute((N,), value, "y")])


# Ends of row i, as te and as Python have them, and the extent of the box.
RANGES: list[tuple[Callable[[Any], Any], Callable[[int], range], int]] = [
    (lambda i: (0, i + 1), lambda i: range(i + 1), N),
    (lambda i: (0, i), lambda i: range(i), N - 1),
    (lambda i: (i, N), lambda i: range(i, N), N),
    (lambda i: (i + 1, N), lambda i: range(i + 1, N), N),
    (lambda i: (i, i + 1), lambda i: range(i, i + 1), 1),
    (
        lambda i: (te.maximum(i - 1, 0), te.minimum(i + 2, N)),
        lambda i: range(max(i - 1, 0), min(i + 2, N)),
        3,
    ),
    (lambda i: (0, te.minimum(2 * i, N)), lambda i: range(min(2 * i, N)), N),
    (lambda i: (3, 6), lambda i: range(3, 6), 3),
    (lambda i: (N - 1 - i, N), lambda i: range(N - 1 - i, N), N),
    (lambda i: (0, i - 3), lambda i: range(max(i - 3, 0)), N - 4),
    (lambda i: i, lambda i: range(i), N - 1),
]


@pytest.mark.parametrize(("ends", "right", "extent"), RANGES)
def test_ranges_of_a_row(ends: Callable[..., Any], right: Callable[[int], range], extent: int) -> None:
    dag = rows(ends)
    (stage,) = dag.stages
    assert [a.extent for a in stage.reduce_axes] == [extent]
    want = np.array([sum(DATA[i, k] for k in right(i)) for i in range(N)])
    assert np.array_equal(te.evaluate(dag, [DATA])[0], want)
    assert np.array_equal(interpret(lower(initial(dag)), dag, [DATA])[0], want)
    assert points(stage) == sum(len(right(i)) for i in range(N))
    assert count_flops(dag) == points(stage)
    assert ComputeDAG.from_json(dag.to_json()) == dag


def test_a_range_without_points_gives_the_identity() -> None:
    (got,) = te.evaluate(rows(lambda i: (0, i), "max"), [DATA])
    assert got[0] == -np.inf and np.array_equal(got[1:], [DATA[i, :i].max() for i in range(1, N)])
    one = te.placeholder((1, 1), "float64", "one")
    never = te.compute((1,), lambda i: te.sum(one[i, k := te.reduce_axis((0, i), "k")], axis=k), "y")
    assert te.evaluate(te.dag([one, never]), [np.ones((1, 1))])[0] == 0


def test_conditions_of_an_axis() -> None:
    dag = rows(lambda i: N, where=lambda i: lambda k: te.all(k <= i, i <= k + 2))
    want = [DATA[i, max(0, i - 2) : i + 1].sum() for i in range(N)]
    assert np.array_equal(te.evaluate(dag, [DATA])[0], want)
    empty = rows(lambda i: N, where=lambda i: i < 3)  # of the row alone: nothing is computed in others
    assert np.array_equal(te.evaluate(empty, [DATA])[0], [*DATA[:3].sum(1), 0, 0, 0, 0])
    assert points(empty.stages[0]) == 3 * N


def test_axes_bounded_by_axes_that_are_bounded() -> None:
    def value(i: Any) -> Any:
        k = te.reduce_axis((0, i + 1), "k")
        m = te.reduce_axis((k, i + 1), "m")
        return te.sum(A[k, m] * B[m, k], axis=(k, m))

    dag = te.dag([A, B, te.compute((N,), value, "y")])
    want = [sum(DATA[k, m] * DATA[m, k] for k in range(i + 1) for m in range(k, i + 1)) for i in range(N)]
    assert np.array_equal(te.evaluate(dag, [DATA, DATA])[0], want)
    assert points(dag.stages[0]) == sum((i + 1) * (i + 2) // 2 for i in range(N))


def test_loads_are_proved_inside_by_the_conditions() -> None:
    short = te.placeholder((N, 3), "float64", "short")

    def value(i: Any, ends: Any) -> Any:
        k = te.reduce_axis(ends, "k")
        return te.sum(short[i, k], axis=k)

    te.compute((N,), lambda i: value(i, (te.maximum(i - 4, 0), te.minimum(i, 3))))
    with pytest.raises(WorkloadError, match=r"index 1 of short\[i, k\] is 5 at k=5, outside 0..2 of short"):
        te.compute((N,), lambda i: value(i, (0, i)))


def test_points_of_large_domains_are_counted_by_their_ends() -> None:
    n = 100_000
    x = te.placeholder((n, n), "float32", "x")
    dag = te.dag([x, te.compute((n,), lambda i: te.sum(x[i, k := te.reduce_axis((0, i + 1), "k")], axis=k))])
    assert points(dag.stages[0]) == n * (n + 1) // 2


def test_an_open_size_bounds_an_axis() -> None:
    m = at.dim(1, 9, "m", open=True)
    x = te.placeholder((m, 9), "float64", "x")
    y = te.compute((m,), lambda i: te.sum(x[i, k := te.reduce_axis((0, m - i), "k")], axis=k), "y")
    dag = te.dag([x, y])
    for n in (1, 2, 5, 9):
        data = np.arange(n * 9.0).reshape(n, 9)
        assert np.array_equal(te.evaluate(dag, [data])[0], [data[i, : n - i].sum() for i in range(n)])
    assert ComputeDAG.from_json(dag.to_json()) == dag


def test_bounds_of_error_are_those_of_the_masked_stage() -> None:
    dag = rows(lambda i: (0, i + 1))
    data = [np.random.default_rng(0).standard_normal((N, N))]
    plain = replace(dag, stages=tuple(map(masked, dag.stages)))
    one, other = evaluate_with_bounds(dag, data), evaluate_with_bounds(plain, data)
    assert np.array_equal(one.values[0], other.values[0]) and one.bounds[0].max() > 0
    assert np.array_equal(one.bounds[0], other.bounds[0])


def test_structures_tell_domains_apart() -> None:
    keys = {structure(rows(e)).key for e in (lambda i: (0, i + 1), lambda i: (i, N), lambda i: N)}
    assert len(keys) == 3
    assert structure(rows(lambda i: (0, i))).key == structure(rows(lambda i: (0, i + 1))).key


def test_smaller_triangles_are_triangles() -> None:
    dag = rows(lambda i: (0, i + 1))
    (length,) = [x for x in lengths(dag) if x.places]
    less = with_length(dag, length, 4)
    assert less is not None and points(less.stages[0]) == 10


X = te.placeholder((N,), "int64", "X")
REFUSED: list[tuple[Callable[[Any], Any], str]] = [
    (lambda i: te.reduce_axis((0, X[i]), "k"), r"reduce_axis k: the end X\[i\] depends on data"),
    (
        lambda i: te.reduce_axis((0, i * i), "k"),
        r"reduce_axis k: the end .* is not affine: axes may be added",
    ),
    (lambda i: te.reduce_axis((0, i // 2), "k"), "reduce_axis k: the end .* is not affine"),
    (lambda i: te.reduce_axis((0, te.maximum(i, 2)), "k"), "not affine: .* joined by te.minimum"),
    (lambda i: te.reduce_axis((0, 2.5), "k"), "reduce_axis k: the end 2.5 is no integer"),
    (lambda i: te.reduce_axis((0, te.cast(i, "int32")), "k"), "is int32, no index"),
    (lambda i: te.reduce_axis(4, "k", where=X[i] > 0), "compares values, not axes; use te.select"),
    (lambda i: te.reduce_axis(4, "k", where=lambda k: k % 2 < 1), "is not affine"),
    (lambda i: te.reduce_axis(4, "k", where=lambda k: te.any(k < i, i < 2)), "it is none of a < b"),
    (lambda i: te.reduce_axis(4, "k", where=lambda k: te.not_equal(k, i)), "leaves out a part in the middle"),
    (lambda i: te.reduce_axis(4, "k", where=3), "reduce_axis k: where 3 is no condition"),
    (
        lambda i: te.reduce_axis(4, "k", where=lambda k: k == i),
        r"where False is no condition.*te.equal\(i, j\)",
    ),
    (lambda i: te.reduce_axis(4, "k", where=lambda k: k != i), "where True is no condition"),
    (lambda i: te.reduce_axis((0, i * 2**62), "k"), "outside 1.."),
]


@pytest.mark.parametrize(("axis", "said"), REFUSED)
def test_refused_axes(axis: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        te.compute((N,), lambda i: te.sum(A[i, i], axis=axis(i)), "y")


def test_an_axis_bounded_by_a_later_one() -> None:
    def value(i: Any) -> Any:
        k = te.reduce_axis(3, "k")
        m = te.reduce_axis((0, k + 1), "m")
        return te.sum(A[k, m], axis=(m, k))

    with pytest.raises(WorkloadError, match="te.sum: the ends of axis m depend on k, .* put k first"):
        te.compute((N,), value)


def test_an_axis_bounded_by_one_that_is_not_reduced() -> None:
    with pytest.raises(WorkloadError, match="'k' is a reduction axis and has no meaning here"):
        k = te.reduce_axis(3, "k")
        te.compute((N,), lambda i: te.sum(A[i, i], axis=te.reduce_axis((0, k + 1), "m")))


BAD: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (lambda s: s.update(where=[["const", 1, "index"]]), "malformed|no condition"),
    (lambda s: s.update(reducer=None, reduce_axes=[]), "reduces nothing|malformed|not an axis"),
    (lambda s: s.update(where=s["where"] * 65), "more than 64 conditions"),
]


@pytest.mark.parametrize(("change", "said"), BAD)
def test_documents_are_checked(change: Callable[[dict[str, Any]], None], said: str) -> None:
    document = rows(lambda i: (0, i + 1)).to_json()
    change(document["stages"][0])
    with pytest.raises(ValueError, match=said):
        ComputeDAG.from_json(document)


def where(dag: ComputeDAG, *conditions: E.Expr) -> ComputeDAG:
    return replace(dag, stages=(replace(dag.stages[0], where=conditions),))


def test_conditions_of_documents_are_affine_and_of_axes() -> None:
    dag, i, k = rows(lambda i: (0, i + 1)), Var("i"), Var("k")
    load = E.Load("A", (i, i), "float64")
    for cond, said in (
        (E.compare("<", k * i, Const(3)), "not affine"),
        (E.compare("<", load, Const(0.0, "float64")), "compares values"),
        (E.compare("<", Var("q"), i), "axis 'q' is not an axis"),
        (E.compare("<", k * 2**62, i * 2**62), "64 bits"),
        (k + i, "no condition"),
    ):
        with pytest.raises(ValueError, match=said):
            where(dag, cond)


# -- points that are fixed, as in a step of a scan ------------------------------------------------


@given(st.integers(0, 10**9), st.data())
@settings(max_examples=100, deadline=None)
def test_axes_of_a_step_end_where_its_domain_does(seed: int, data: st.DataObject) -> None:
    dag = random_domain(Random(seed))
    s, arrays = dag.stages[0], dict(zip((t.name for t in dag.inputs), whole_numbers(dag, seed), strict=True))
    point = [data.draw(st.integers(0, a.extent - 1)) for a in s.axes]
    step = step_of(replace(s, scan=tuple((a.var, 1) for a in s.axes)), point)
    left = narrowed(step)
    assert left is None or all(len(E.variables(c)) > 1 for c in left.where)
    want = [x[tuple(point)] for x in evaluator._stage(s, arrays)]
    assert np.array_equal(evaluator._stage(step, arrays), want)
    known = ComputedTensors({n: wide(x) for n, x in arrays.items()}, {})
    assert np.array_equal([v for v, _ in rounding._stage(step, known)], want)


# -- gradients -------------------------------------------------------------------------------


def test_a_gradient_sums_over_the_transposed_domain() -> None:
    def below(i: Any, j: Any) -> Any:
        k = te.reduce_axis((0, i + 1), "k")
        return te.sum(A[i, k] * B[k, j], axis=k)

    c = te.compute((N, N), below, "c")
    dc = te.placeholder((N, N), "float64", "dc")
    da, db = te.gradient(c, [A, B], dc)
    dag = te.dag([*te.inputs([da, db]), da, db])
    sums = [s for s in dag.stages if s.reducer is not None]
    assert [points(s) for s in sums if s.where] and all(s.where for s in sums)
    rng = np.random.default_rng(3)
    a, b, d = (rng.integers(-3, 4, (N, N)).astype("float64") for _ in range(3))
    given_ = {"A": a, "B": b, "dc": d}
    got = te.evaluate(dag, [given_[t.name] for t in dag.inputs])
    assert np.array_equal(got[0], np.tril(d @ b.T)) and np.array_equal(got[1], np.tril(a).T @ d)


def test_a_gradient_of_maxima_over_a_triangle() -> None:
    m = te.compute((N,), lambda i: te.max(A[i, k := te.reduce_axis((0, i + 1), "k")], axis=k), "m")
    (da,) = te.gradient(m, [A])
    dag = te.dag([*te.inputs(da), da])
    data = np.random.default_rng(0).permutation(N * N).reshape(N, N).astype("float64")
    want = np.zeros((N, N))
    for i in range(N):
        want[i, data[i, : i + 1].argmax()] = 1
    assert np.array_equal(te.evaluate(dag, [data])[0], want)


# -- schedules -------------------------------------------------------------------------------


@given(st.integers(0, 10**9))
@settings(max_examples=25, deadline=None)
def test_the_evaluator_and_the_plain_loops_agree(seed: int) -> None:
    dag = random_domain(Random(seed))
    data = whole_numbers(dag, seed)
    for want, got in zip(te.evaluate(dag, data), interpret(lower(initial(dag)), dag, data), strict=True):
        assert np.array_equal(want, got)


@given(st.integers(0, 10**9))
@settings(max_examples=50, deadline=None)
def test_points_are_those_that_the_conditions_let_through(seed: int) -> None:
    s = random_domain(Random(seed)).stages[0]
    axes = (*s.axes, *s.reduce_axes)
    every = itertools.product(*(range(a.extent) for a in axes))
    names = [a.var for a in axes]
    if np.prod([a.extent for a in axes]) <= 20_000:
        inside = sum(all(E.evaluate(c, dict(zip(names, p, strict=True))) for c in s.where) for p in every)
        assert points(s) == inside
