"""Sums of products of any factors against the general path, point by point."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.measure.sampled import whole_s
from schedules import te
from schedules.expr import Select
from schedules.ir import interp
from schedules.ir.nest import initial
from schedules.te import evaluator, factored, rounding
from schedules.te.compute_dag import ComputeDAG

Make = Callable[..., ComputeDAG]
small = st.integers(1, 4)


def data_gradient(n: int, h: int, ci: int, co: int, k: int, s: int, p: int, dtype: str) -> ComputeDAG:
    """Of a convolution with steps, by its data: a tap counts where a step hits it."""
    oh = max((h + 2 * p - k) // s + 1, 1)
    w, g = te.placeholder((k, k, ci, co), dtype, "w"), te.placeholder((n, oh, oh, co), dtype, "g")
    r, t, o = te.reduce_axis(k, "r"), te.reduce_axis(k, "t"), te.reduce_axis(co, "o")

    def body(m: te.Expr, i: te.Expr, j: te.Expr, c: te.Expr) -> te.Expr:
        a, b = i + p - r, j + p - t
        hit = te.all(te.equal(a % s, 0), te.equal(b % s, 0), a >= 0, b >= 0, a // s < oh, b // s < oh)
        zero = te.const(0, dtype)
        return te.sum(te.select(hit, g[m, a // s, b // s, o] * w[r, t, c, o], zero), axis=(r, t, o))

    return te.dag([w, g, te.compute((n, h, h, ci), body, "y")])


def weight_gradient(n: int, h: int, ci: int, co: int, k: int, s: int, p: int, dtype: str) -> ComputeDAG:
    """The same by its weights."""
    oh = max((h + 2 * p - k) // s + 1, 1)
    x, g = te.placeholder((n, h, h, ci), dtype, "x"), te.placeholder((n, oh, oh, co), dtype, "g")
    a, i, j = te.reduce_axis(n, "a"), te.reduce_axis(oh, "i"), te.reduce_axis(oh, "j")

    def body(r: te.Expr, t: te.Expr, c: te.Expr, o: te.Expr) -> te.Expr:
        y, z = i * s + r - p, j * s + t - p
        inside = te.all(y >= 0, y < h, z >= 0, z < h)
        return te.sum(te.select(inside, x[a, y, z, c] * g[a, i, j, o], te.const(0, dtype)), axis=(a, i, j))

    return te.dag([x, g, te.compute((k, k, ci, co), body, "y")])


def rows_by_number(n: int, h: int, ci: int, co: int, k: int, s: int, p: int, dtype: str) -> ComputeDAG:
    """Rows of a table by their numbers, as a sum over all rows: the guard is the other factor."""
    ids, table = te.placeholder((n,), "int64", "ids"), te.placeholder((h, ci), dtype, "table")
    v = te.reduce_axis(h, "v")

    def body(i: te.Expr, j: te.Expr) -> te.Expr:
        here = te.equal(te.cast(v, "int64"), ids[i])
        return te.sum(te.select(here, table[v, j], te.const(0, dtype)), axis=v)

    return te.dag([ids, table, te.compute((n, ci), body, "y")])


def centred(n: int, h: int, ci: int, co: int, k: int, s: int, p: int, dtype: str) -> ComputeDAG:
    """A difference times weights, twice a scale; the triangle of it that a guard leaves."""
    x, mean = te.placeholder((h, ci), dtype, "x"), te.placeholder((h,), dtype, "mean")
    w, scale = te.placeholder((ci, co), dtype, "w"), te.placeholder((h,), dtype, "scale")
    r = te.reduce_axis(ci, "r")

    def body(i: te.Expr, j: te.Expr) -> te.Expr:
        product = scale[i] * (x[i, r] - mean[i]) * w[r, j] * te.const(2, dtype)
        return te.sum(te.select(r <= i, product, te.const(0, dtype)), axis=r)

    return te.dag([x, mean, w, scale, te.compute((h, co), body, "y")])


MAKES: list[Make] = [data_gradient, weight_gradient, rows_by_number, centred]


def drawn(dag: ComputeDAG, rng: np.random.Generator, whole: bool) -> list[np.ndarray]:
    out = []
    for t in dag.inputs:
        if whole or t.dtype.startswith("int"):
            out.append(rng.integers(-3, 4, t.shape).astype(t.dtype))
        else:
            out.append(rng.standard_normal(t.shape).astype(t.dtype))
    return out


def always(most: int) -> Any:
    """Take the path by factors wherever it can be, in small blocks."""
    return mock.patch.multiple(factored, GAIN=0, MAX_POINTS=most)


def never() -> Any:
    return mock.patch.object(factored, "split_sum", lambda stage: None)


SIZES = st.tuples(*[small] * 4)
CASE = (st.sampled_from(MAKES), SIZES, st.integers(1, 3), st.integers(1, 3), st.integers(0, 2))
DTYPES = st.sampled_from(["float32", "float64", "int32"])


@settings(max_examples=40, deadline=None)
@given(*CASE, DTYPES, st.sampled_from([3, 40, 2**19]), st.integers(0, 9))
def test_whole_numbers_are_the_same(
    make: Make, sizes: tuple[int, ...], k: int, s: int, p: int, dtype: str, most: int, seed: int
) -> None:
    dag = make(*sizes, k, s, p, dtype)
    inputs = drawn(dag, np.random.default_rng(seed), True)
    with never():
        (want,) = evaluator.evaluate(dag, inputs)
        slow = rounding.evaluate_with_bounds(dag, inputs)
    with always(most):
        arrays = dict(zip((t.name for t in dag.inputs), inputs, strict=True))
        assert evaluator.by_factors(dag.stages[0], arrays) is not None
        (got,) = evaluator.evaluate(dag, inputs)
        fast = rounding.evaluate_with_bounds(dag, inputs)
    assert got.dtype == want.dtype and np.array_equal(got, want)
    assert np.array_equal(fast.values[0], slow.values[0])
    assert not fast.bounds[0].any() and not slow.bounds[0].any()


@settings(max_examples=12, deadline=None)
@given(*CASE, st.booleans(), st.sampled_from([7, 2**19]), st.integers(0, 9))
def test_bounds_hold_and_are_as_tight(
    make: Make, sizes: tuple[int, ...], k: int, s: int, p: int, signs: bool, most: int, seed: int
) -> None:
    dag = make(*sizes, k, s, p, "float32")
    inputs = drawn(dag, np.random.default_rng(seed), False)
    with never():
        slow = rounding.evaluate_with_bounds(dag, inputs)
    with always(most):
        fast = rounding.evaluate_with_bounds(dag, inputs, signs=signs)
    value, bound = fast.values[0].astype(np.float64), fast.bounds[0].astype(np.float64)
    # The same sums in another order of float64, stored in float32.
    assert (np.abs(value - slow.values[0]) <= 1e-6 * np.abs(value) + 1e-30).all()
    # The size of a sum is bounded by that of its factors, which is larger where most points are guarded.
    loose = np.abs(value).max(initial=0.0) + 10.0
    assert (bound <= 400 * loose * 2.0**-24 + slow.bounds[0]).all()
    # Sums in float32, one term after another, are inside.
    out = np.full(value.shape, np.nan, np.float32)
    data = dict(zip((t.name for t in dag.params), [*inputs, out], strict=True))
    interp.run(initial(dag), data)
    assert (np.abs(out.astype(np.float64) - value) <= bound).all()


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan, 3e38])
@pytest.mark.parametrize("make", MAKES)
def test_what_is_not_finite_takes_the_general_path(make: Make, special: float) -> None:
    dag = make(2, 4, 3, 2, 3, 2, 1, "float32")
    inputs = drawn(dag, np.random.default_rng(3), False)
    for x in inputs:
        if x.dtype.kind == "f":
            x.reshape(-1)[:: max(1, x.size // 3)] = special
    with never():
        (want,) = evaluator.evaluate(dag, inputs)
        slow = rounding.evaluate_with_bounds(dag, inputs)
    with always(2**19):
        (got,) = evaluator.evaluate(dag, inputs)
        fast = rounding.evaluate_with_bounds(dag, inputs)
    assert np.isclose(got, want, rtol=1e-6, atol=0, equal_nan=True).all()
    # A term may be too large for float32, and the sum not: then anything is right.
    equal = np.isclose(fast.values[0], slow.values[0], rtol=1e-6, atol=0, equal_nan=True)
    assert (equal | np.isinf(fast.bounds[0])).all()
    if not np.isfinite(special):
        assert equal.all() and np.array_equal(np.isinf(fast.bounds[0]), np.isinf(slow.bounds[0]))


def test_reads_out_of_bounds_take_the_general_path() -> None:
    x, w, r = te.placeholder((4, 6), name="x"), te.placeholder((6, 4), name="w"), te.reduce_axis(6, "r")
    y = te.compute((4, 4), lambda i, j: te.sum(te.select(r < 5, x[i, r + 1] * w[r, j], 0.0), axis=r), "y")
    dag = te.dag([x, w, y])
    inputs = drawn(dag, np.random.default_rng(0), True)
    (stage,) = dag.stages
    (value,) = stage.values
    assert isinstance(value, Select)
    arrays = {t.name: x for t, x in zip(dag.inputs, inputs, strict=True)}
    with always(2**19):
        assert np.array_equal(evaluator.evaluate(dag, inputs)[0], inputs[0][:, 1:] @ inputs[1][:5])
        # The general path says where.
        assert evaluator.by_factors(replace(stage, values=(value.a,)), arrays) is None


def test_a_gradient_with_steps_is_fast() -> None:
    dag = data_gradient(4, 28, 32, 64, 3, 2, 1, "float32")
    inputs = drawn(dag, np.random.default_rng(0), False)
    points = 4 * 28 * 28 * 32 * 9 * 64
    assert whole_s(dag) < points * 3e-9  # a point of the general path takes 3e-8 s
    begin = time.process_time()
    rounding.evaluate_with_bounds(dag, inputs)
    assert time.process_time() - begin < points * 2e-8


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("points", [2**19, 40])
def test_an_axis_of_the_output_that_no_factor_reads_repeats_the_sum(
    dtype: str, place: int, points: int
) -> None:
    m, n, k, z = 5, 6, 7, 3
    a, b, r = te.placeholder((m, k), dtype, "a"), te.placeholder((k, n), dtype, "b"), te.reduce_axis(k, "r")
    shape = [m, n]
    shape.insert(place, z)

    def body(*i: te.Expr) -> te.Expr:
        x, y = (v for at, v in enumerate(i) if at != place)
        return te.sum((a[x, r] + te.const(1, dtype)) * b[r, y], axis=r)

    dag = te.dag([a, b, te.compute(tuple(shape), body, "c")])
    (stage,) = dag.stages
    rng = np.random.default_rng(0)
    x, y = rng.integers(-4, 5, (m, k)).astype(dtype), rng.integers(-4, 5, (k, n)).astype(dtype)
    right = np.broadcast_to(np.expand_dims((x + 1) @ y, place), shape)
    with mock.patch.object(factored, "MAX_POINTS", points), mock.patch.object(factored, "GAIN", 0):
        parts = factored.split_sum(stage)
        assert parts is not None
        assert factored.free_labels(stage, parts) == [v.var for n, v in enumerate(stage.axes) if n != place]
        found = evaluator.by_factors(stage, {"a": x, "b": y})
        assert found is not None and found.shape == tuple(shape) and np.array_equal(found, right)
        bounded = rounding.evaluate_with_bounds(dag, [x, y])
    assert np.array_equal(bounded.values[0], right)
