"""Sizes that vary: an expression at a size is the one that is stated with that number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedules import te
from schedules.errors import WorkloadError
from schedules.te.dims import dim
from schedules.te.tensors import dims


def product(m: Any) -> list[te.Tensor]:
    a, b = te.placeholder((m, 6), name="A"), te.placeholder((6, 5), name="B")
    k = te.reduce_axis(6, "k")
    return [a, b, te.compute((m, 5), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "C")]


def padded_mean(m: Any) -> list[te.Tensor]:
    a = te.placeholder((m, 4), name="A")
    inside = lambda i: te.all(i >= 1, i < m + 1)  # noqa: E731
    p = te.compute((m + 2, 4), lambda i, j: te.select(inside(i), a[i - 1, j], 0.0), "P")
    k, r = te.reduce_axis(3, "k"), te.reduce_axis(m, "r")
    s = te.compute((m, 4), lambda i, j: te.sum(p[i + k, j], axis=k), "S")
    return [a, te.compute((4,), lambda j: te.sum(s[r, j] / te.cast(m, "float32"), axis=r), "M")]


def reversed_pairs(m: Any) -> list[te.Tensor]:
    a = te.placeholder((2 * m,), name="A")
    return [a, te.compute((m,), lambda i: a[2 * m - 1 - i] + a[i * 1] * te.cast(m // 2, "float32"), "R")]


@pytest.mark.parametrize("make", [product, padded_mean, reversed_pairs])
@given(size=st.integers(1, 40))
def test_at_a_size_it_is_the_expression_of_that_number(
    make: Callable[[Any], list[te.Tensor]], size: int
) -> None:
    m = dim(1, 40, "m")
    tensors = make(m)
    assert dims(tensors) == [m]
    assert te.dag(tensors, {m: size}).to_json() == te.dag(make(size)).to_json()


def test_two_of_the_same_bounds_are_two_sizes() -> None:
    m, n = dim(1, 8), dim(1, 8)
    a = te.placeholder((m, n))
    t = te.compute((n, m), lambda j, i: a[i, j])
    assert dims([a, t]) == [m, n]
    assert te.dag([a, t], {m: 3, n: 5}).params[1].shape == (5, 3)


def test_without_numbers_there_is_no_dag_of_sizes_that_are_not_open() -> None:
    with pytest.raises(WorkloadError, match=r"sizes that vary \(m=1\.\.8\).*te\.dag\(tensors, \{m: 64\}\)"):
        te.dag(product(dim(1, 8, "m", open=False)))


def test_what_does_not_say_whether_it_is_open_is_where_no_number_is_given() -> None:
    left = te.dag(product(dim(1, 8, "m")))
    assert left.open is not None and left == te.dag(product(dim(1, 8, "m", open=True)))
    assert (dim(1, 8).open, dim(1, 8, open=True).open, dim(1, 8, open=False).open) == (None, True, False)


def test_a_load_outside_is_found_at_the_size() -> None:
    m = dim(1, 8, "m")
    a = te.placeholder((8,), name="A")
    b = te.compute((m,), lambda i: a[i + 2], "B")
    assert te.dag([a, b], {m: 6}).params[1].shape == (6,)
    with pytest.raises(WorkloadError, match="stage B: .*A"):
        te.dag([a, b], {m: 7})


def test_an_extent_below_one_is_named() -> None:
    m = dim(1, 8, "m")
    a = te.placeholder((m,), name="A")
    b = te.compute((m - 2,), lambda i: a[i], "B")
    with pytest.raises(WorkloadError, match="is 0 at m=1..8: 2.*raise the least size"):
        te.dag([a, b], {m: 2})


def test_an_extent_that_is_too_large_is_named() -> None:
    m = dim(1, 8, "m")
    a = te.placeholder((m * 2**39,), name="A")
    b = te.compute((4,), lambda i: a[i], "B")
    assert te.dag([a, b], {m: 2}).inputs[0].shape == (2**40,)
    with pytest.raises(WorkloadError, match=f"is {3 * 2**39}, outside 1..{2**40}"):
        te.dag([a, b], {m: 3})


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ((0, 4), "from 1 on"),
        ((5, 4), "not below it"),
        ((1.5, 4), "1.5 is not an integer"),
        ((True, 4), "True is not an integer"),
        ((1, 4, "a b"), "not an identifier"),
    ],
)
def test_bad_bounds_are_refused(bounds: tuple[Any, ...], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        dim(*bounds)


def test_a_size_is_no_number_of_python() -> None:
    m = dim(1, 8)
    with pytest.raises(TypeError, match="no truth value"):
        max(m, 3)
    with pytest.raises(WorkloadError, match="not an integer"):
        te.placeholder((te.cast(m, "float32"),))
    a = te.placeholder((m,))
    with pytest.raises(WorkloadError, match="not an integer"):
        te.compute((m,), lambda i: te.compute((i,), lambda j: a[j])[0])
