"""Gradients of expressions with open sizes are those of each size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from schedules import te
from schedules.errors import WorkloadError
from schedules.te.compute_dag import ComputeDAG
from schedules.te.dims import dim
from schedules.te.open_sizes import at

Made = tuple[te.Tensor, list[te.Tensor]]


def product(m: Any, k: Any) -> Made:
    x, w, r = te.placeholder((m, k), name="x"), te.placeholder((k, 5), name="w"), te.reduce_axis(k, "r")
    return te.compute((m, 5), lambda i, j: te.sum(x[i, r] * w[r, j], axis=r), "y"), [x, w]


def softmax(n: Any, m: Any) -> Made:
    x, r, q = te.placeholder((n, m), name="x"), te.reduce_axis(m, "r"), te.reduce_axis(m, "q")
    top = te.compute((n,), lambda i: te.max(x[i, r], axis=r), "top")
    e = te.compute((n, m), lambda i, j: te.exp(x[i, j] - top[i]), "e")
    total = te.compute((n,), lambda i: te.sum(e[i, q], axis=q), "total")
    return te.compute((n, m), lambda i, j: e[i, j] / total[i], "y"), [x]


def less_the_mean(n: Any) -> Made:
    x, r = te.placeholder((n, 5), name="x"), te.reduce_axis(n, "r")
    total = te.compute((5,), lambda j: te.sum(x[r, j], axis=r), "total")
    number = te.cast(n, "float32")
    return te.compute((n, 5), lambda i, j: (x[i, j] - total[j] * (1.0 / number)) * x[i, j], "y"), [x]


def ends(n: Any) -> Made:
    x = te.placeholder((n, 5), name="x")
    return te.compute((5,), lambda j: x[n - 1, j] * x[0, j] * te.cast(n, "float32"), "y"), [x]


def turned(n: Any) -> Made:
    x = te.placeholder((n, 5), name="x")
    return te.compute((n, 5), lambda i, j: te.exp(x[n - 1 - i, j]), "y"), [x]


def masked(n: Any) -> Made:
    x = te.placeholder((n, 5), name="x")
    return te.compute((n, 5), lambda i, j: te.select(2 * i < n, x[i, j] * x[i, j], 0.0), "y"), [x]


def conv(n: Any, h: Any) -> Made:
    x, w = te.placeholder((n, h + 2, 3), name="x"), te.placeholder((3, 3, 4), name="w")
    p, c = te.reduce_axis(3, "p"), te.reduce_axis(3, "c")

    def value(b: te.Expr, i: te.Expr, f: te.Expr) -> te.Reduction:
        return te.sum(x[b, i + p, c] * w[p, c, f], axis=(p, c))

    return te.compute((n, h, 4), value, "y"), [x, w]


def pairs(n: Any) -> Made:
    x = te.placeholder((2 * n, 5), name="x")
    return te.compute((n, 5), lambda i, j: x[2 * i, j] * x[2 * i + 1, j], "y"), [x]


CASES: dict[str, Callable[[Any], Made]] = {
    "rows of a product": lambda n: product(n, 6),
    "depth of a product": lambda n: product(4, n),
    "rows of a softmax": lambda n: softmax(n, 5),
    "columns of a softmax": lambda n: softmax(5, n),
    "mean": less_the_mean,
    "ends": ends,
    "turned around": turned,
    "mask": masked,
    "batch of a convolution": lambda n: conv(n, 4),
    "height of a convolution": lambda n: conv(2, n),
    "pairs": pairs,
}


def gradients(made: Made, saved: tuple[te.Tensor, ...] = ()) -> ComputeDAG:
    y, ins = made
    found = te.gradient(y, ins, te.placeholder(y.shape, name="dy"), saved)
    return te.dag([*te.inputs(found), *found])


@pytest.mark.parametrize("least", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_that_of_each_size(name: str, least: int) -> None:
    dag = gradients(CASES[name](dim(least, 9, "n", open=True)))
    assert dag.open is not None
    for n in (1, 2, 3, 6, 9)[least - 1 :]:
        here, right = at(dag, {"n": n}), gradients(CASES[name](n))
        assert n == 1 or here == right, n
        arrays = [np.random.default_rng(n).standard_normal(t.shape).astype("float32") for t in here.inputs]
        by_name = {t.name: a for t, a in zip(here.inputs, arrays, strict=True)}
        wanted = te.evaluate(right, [by_name[t.name] for t in right.inputs])
        for a, b in zip(te.evaluate(here, arrays), wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_two_sizes_stay_open() -> None:
    dag = gradients(product(dim(1, 9, "m", open=True), dim(2, 7, "k", open=True)))
    assert dag.open is not None and dag.open.ranges == {"k": (2, 7), "m": (1, 9)}
    assert at(dag, {"m": 4, "k": 5}) == gradients(product(4, 5))


def weighted(n: Any, m: Any) -> Made:
    x, z = te.placeholder((n,), name="x"), te.placeholder((m,), name="z")
    weight = te.cast(n, "float32") + te.cast(m, "float32")
    both = te.cast(n + m, "float32")
    return te.compute((n,), lambda i: x[i] * x[i] * both * (z[m - 1] + weight), "y"), [x]


def test_a_value_may_speak_of_two_sizes_and_a_size_may_be_one_number() -> None:
    n = dim(1, 9, "n", open=True)
    dag = gradients(weighted(n, dim(2, 7, "m", open=True)))
    for sizes in ({"n": 1, "m": 7}, {"n": 5, "m": 3}):
        assert at(dag, sizes) == gradients(weighted(**sizes))
    assert gradients(weighted(n, dim(5, 5, "m", open=True))) == gradients(weighted(n, 5))


def test_stages_of_the_expression_stay_themselves_or_are_kept() -> None:
    def made(n: Any) -> tuple[list[str], list[str]]:
        y, (x,) = softmax(n, 5)
        dy = te.placeholder(y.shape, name="dy")
        (dx,) = te.gradient(y, x, dy)
        (less,) = te.gradient(y, x, dy, saved=[y])
        return [s.name for s in te.dag([x, dy, y, dx]).stages], [t.name for t in te.inputs(less)]

    stages, inputs = made(dim(1, 9, "n", open=True))
    assert (stages, inputs) == made(5) and stages.count("e") == 1 and "y" in inputs


def test_what_is_another_expression_at_some_size_is_refused() -> None:
    n = dim(3, 20, "n", open=True)
    x = te.placeholder((n,), name="x")
    halves = te.compute(((n - 3) // 2 + 1,), lambda i: x[2 * i] * x[2 * i + 2], "y")
    with pytest.raises(WorkloadError, match="not the same expression at all of them; differentiate it at"):
        gradients((halves, [x]))


def test_a_gradient_that_reads_nothing_has_the_size() -> None:
    n = dim(1, 9, "n", open=True)
    x = te.placeholder((n,), name="x")
    (dx,) = te.gradient(te.compute((n,), lambda i: x[i] * 2.0, "y"), x)
    assert te.inputs(dx) == [] and te.dag([dx], {n: 4}).tensors["dx"].shape == (4,)


def test_sizes_that_are_not_open_are_refused() -> None:
    with pytest.raises(WorkloadError, match="sizes that vary; differentiate it at each size"):
        gradients(product(dim(1, 9, open=False), 4))
