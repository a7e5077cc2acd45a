"""DAGs of several sizes as one of open sizes: what it is, and what has no common form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedules import te
from schedules.te.compute_dag import ComputeDAG
from schedules.te.evaluator import evaluate
from schedules.te.generalise import NoCommonForm, Sample, generalised, sample_sizes
from schedules.te.open_sizes import OpenSize, at

N, B = OpenSize("n", 1, 64), OpenSize("b", 1, 8)
Make = Callable[[Mapping[str, int]], ComputeDAG]


def of_sizes(make: Make, *sizes: OpenSize) -> ComputeDAG:
    points = sample_sizes(sizes, lambda n: n in (4, 16))
    return generalised([Sample(p, make(p)) for p in points], sizes)


def why(make: Make, *sizes: OpenSize) -> str:
    with pytest.raises(NoCommonForm) as err:
        of_sizes(make, *sizes)
    return str(err.value)


def product(p: Mapping[str, int]) -> ComputeDAG:
    """Rows of a product, of which the last one is taken, and their mean."""
    n, b = p["n"], p.get("b", 2)
    x, w = te.placeholder((b, n, 16), name="x"), te.placeholder((16, 4), name="w")
    k, r = te.reduce_axis(16, "k"), te.reduce_axis(n, "r")
    y = te.compute((b, n, 4), lambda h, i, j: te.sum(x[h, i, k] * w[k, j], axis=k), "y")
    last = te.compute((b, 4), lambda h, j: y[h, n - 1, j], "last")
    total = te.compute((b, 4), lambda h, j: te.sum(y[h, r, j], axis=r), "total")
    mean = te.compute((b, 4), lambda h, j: total[h, j] / float(n), "mean")
    return te.dag([x, w, y, last, mean])


def test_it_is_what_was_made_for_each_size() -> None:
    dag = of_sizes(product, N, B)
    assert dag.inputs[0].shape == (8, 64, 16)
    rng = np.random.default_rng(0)
    for n, b in ((1, 1), (1, 8), (2, 3), (37, 5), (64, 8)):
        arrays = [rng.integers(-4, 5, s).astype(np.float32) for s in ((b, n, 16), (16, 4))]
        for got, want in zip(
            evaluate(at(dag, {"n": n, "b": b}), arrays),
            evaluate(product({"n": n, "b": b}), arrays),
            strict=True,
        ):
            assert np.array_equal(got, want)


@given(st.integers(1, 3), st.integers(-1, 2), st.integers(1, 64))
def test_extents_are_a_multiple_and_a_number(step: int, first: int, n: int) -> None:
    def make(p: Mapping[str, int]) -> ComputeDAG:
        x = te.placeholder((p["n"], 4), name="x")
        return te.dag([x, te.compute((step * p["n"] + first, 4), lambda i, j: x[i // (step + 2), j], "y")])

    if step + first < 1:
        assert f"an extent is {step + first} where n is 1: raise the least size to" in why(make, N)
        return
    dag = of_sizes(make, N)
    assert dag.stages[0].axes[0].extent == step * 64 + first
    assert at(dag, {"n": n}).stages[0].axes[0].extent == step * n + first


@given(st.integers(1, 64), st.integers(1, 8))
def test_a_number_of_a_value_may_be_a_sum_of_sizes(n: int, b: int) -> None:
    def make(p: Mapping[str, int]) -> ComputeDAG:
        number = float(2 * p["n"] + p["b"] - 1)
        x = te.placeholder((p["b"], p["n"]), name="x")
        return te.dag([x, te.compute((p["b"],), lambda i: x[i, 0] * number, "y")])

    assert at(of_sizes(make, N, B), {"n": n, "b": b}) == make({"n": n, "b": b})


def test_an_extent_is_of_one_size() -> None:
    def make(p: Mapping[str, int]) -> ComputeDAG:
        x, y = te.placeholder((p["n"],), name="x"), te.placeholder((p["b"],), name="y")
        return te.dag([x, y, te.compute((p["n"] + p["b"],), lambda i: x[i * 0] + y[i * 0], "z")])

    assert "z: the number" in why(make, N, B) and "depends on n and b together" in why(make, N, B)


def test_two_sizes_in_one_number_are_told_with_the_stage() -> None:
    def make(p: Mapping[str, int]) -> ComputeDAG:
        n, b = p["n"], p["b"]
        x = te.placeholder((b, n), name="x")
        return te.dag([x, te.compute((b * n,), lambda i: x[i // n, i % n], "flat")])

    assert "flat: the number" in why(make, N, B) and "depends on n and b together" in why(make, N, B)


def test_what_is_computed_in_another_way_is_told_with_the_stage() -> None:
    def steps(p: Mapping[str, int]) -> ComputeDAG:
        x = te.placeholder((p["n"],), name="x")
        y = te.compute((p["n"],), lambda i: x[i] + 1.0, "y")
        if p["n"] > 40:
            y = te.compute((p["n"],), lambda i: y[i] * 2.0, "z")
        return te.dag([x, y])

    def values(p: Mapping[str, int]) -> ComputeDAG:
        x = te.placeholder((p["n"],), name="x")
        return te.dag([x, te.compute((p["n"],), lambda i: x[i] + 1.0 if p["n"] % 12 else x[i] * 1.0, "y")])

    def squares(p: Mapping[str, int]) -> ComputeDAG:
        x = te.placeholder((p["n"],), name="x")
        return te.dag([x, te.compute((p["n"] ** 2,), lambda i: x[i // p["n"]], "y")])

    def roots(p: Mapping[str, int]) -> ComputeDAG:
        x = te.placeholder((p["n"],), name="x")
        return te.dag([x, te.compute((p["n"],), lambda i: x[i] / p["n"] ** 0.5, "y")])

    def fewer(p: Mapping[str, int]) -> ComputeDAG:
        x = te.placeholder((p["n"],), name="x")
        return te.dag([x, te.compute((100 - p["n"],), lambda i: x[i * 0], "y")])

    assert "z: it is computed in other steps at other sizes" in why(steps, N)
    assert "y: it computes" in why(values, N) and "something else at another size" in why(values, N)
    assert "y: the number" in why(squares, N) and "which is no multiple of n plus a number" in why(squares, N)
    assert "y: it computes with the number" in why(roots, N)
    assert "y: an extent is smaller where n is larger" in why(fewer, N)


def test_loads_are_proved_inside_at_every_size() -> None:
    """No sample is of one row, which has no second one."""

    def second(p: Mapping[str, int]) -> ComputeDAG:
        x = te.placeholder((p["n"], 4), name="x")
        return te.dag([x, te.compute((4,), lambda j: x[min(1, p["n"] - 1), j], "y")])

    assert "y: index 0 of x[1, j] cannot be proved below n" in why(second, N)
    assert of_sizes(second, replace(N, least=2)).open is not None


def test_samples_are_of_the_range_and_no_number_of_the_program() -> None:
    points = list(sample_sizes([N, B], lambda n: n in (2, 31)))
    assert all(1 < p["n"] <= 64 and 1 < p["b"] <= 8 for p in points)
    assert not {p["n"] for p in points} & {2, 31}
    first = points[0]
    assert len({p["n"] for p in points}) >= 3 and len({p["b"] for p in points}) >= 3
    alone = [[k for k in p if p[k] != first[k]] for p in points[1:]]
    assert alone == [["n"], ["n"], ["b"], ["b"], ["n", "b"]]
    assert all(p["s"] >= 5 for p in sample_sizes([OpenSize("s", 5, 6)], lambda n: False))
