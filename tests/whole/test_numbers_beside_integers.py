"""Integers are compared with numbers of any kind and size as mathematics has it, on every backend."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from backends import results
from hypothesis import given, settings
from hypothesis import strategies as st

from schedules import te
from schedules.errors import WorkloadError
from schedules.expr import show

DTYPES = ["uint8", "int8", "int32", "int64", "bool"]
COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "==": te.equal, "!=": te.not_equal,
}  # fmt: skip
BY_PYTHON = COMPARED | {"==": operator.eq, "!=": operator.ne}
EDGES = [2**n + k for n in (7, 8, 31, 32, 53, 63, 64, 70) for k in (-1, 0, 1)]
EDGES += [-v for v in EDGES]
FRACTIONS = [
    0.5,
    -0.5,
    1.5,
    -(2.0**31) - 0.5,
    2.0**31,
    2.0**63,
    -(2.0**63),
    1e30,
    -1e30,
    math.inf,
    -math.inf,
    math.nan,
]


def ends(dtype: str) -> np.ndarray:
    if dtype == "bool":
        return np.array([False, True])
    info = np.iinfo(dtype)
    inside = [v for v in (*EDGES, 0, 1, -1, 5) if info.min <= v <= info.max]
    return np.array([info.min, *inside, info.max], dtype)


def checked(data: np.ndarray, cases: list[tuple[str, Any]], everywhere: bool) -> None:
    x = te.placeholder(data.shape, data.dtype.name, "x")
    sides = [(op, v, left) for op, v in cases for left in (True, False)]

    def value(i: Any) -> tuple[Any, ...]:
        return tuple(COMPARED[op](x[i], v) if left else COMPARED[op](v, x[i]) for op, v, left in sides)

    made = te.compute(data.shape, value, [f"y{n}" for n in range(len(sides))])
    dag = te.dag([x, *made])
    numbers = [int(v) for v in data.tolist()]
    want = [[BY_PYTHON[op](*((n, v) if left else (v, n))) for n in numbers] for op, v, left in sides]
    for what, got in results(dag, [data]) if everywhere else [("the reference", te.evaluate(dag, [data]))]:
        for side, a, b in zip(sides, got, want, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=f"{side} by {what}")


@pytest.mark.fast("bool")
@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_beyond_the_dtype_and_between_integers(dtype: str) -> None:
    numbers = [-1, 200, 256, 2**31, -(2**31) - 1, 2**63, 2**64, *FRACTIONS]
    ops = list(COMPARED)
    checked(ends(dtype), [(ops[n % 6], v) for n, v in enumerate(numbers)], True)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@settings(deadline=None)
@given(data=st.data())
def test_any_number(dtype: str, data: st.DataObject) -> None:
    numbers = st.one_of(
        st.sampled_from(EDGES + FRACTIONS), st.integers(), st.floats(), st.fractions(-300, 300),
        st.integers(-(2**63), 2**63 - 1).map(np.int64), st.floats(width=32).map(np.float32),
    )  # fmt: skip
    cases = data.draw(st.lists(st.tuples(st.sampled_from(list(COMPARED)), numbers), min_size=1, max_size=9))
    checked(ends(dtype), cases, False)


def test_places_are_compared_with_any_number() -> None:
    x = te.placeholder((6,), "int32", "x")

    def value(i: Any) -> tuple[Any, ...]:
        conds = (
            i < 2.5,
            i >= 2.5,
            te.equal(i, 0.5),
            te.not_equal(i, math.nan),
            i < 2**70,
            i > -math.inf,
            1e30 <= i,
        )
        return tuple(te.select(c, x[i], 0) for c in conds)

    dag = te.dag([x, *te.compute((6,), value, [f"y{n}" for n in range(7)])])
    data = np.arange(1, 7, dtype="int32")
    want = [data * (data <= 3), data * (data > 3), 0 * data, data, data, data, 0 * data]
    for what, got in results(dag, [data], devices=False):
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=what)


def test_a_number_that_the_dtype_has_is_compared_as_written() -> None:
    x = te.placeholder((6,), "int32", "x")
    for f, text in (
        (lambda v: v < 2.0, "x[i] < 2"), (lambda v: v < Fraction(5, 2), "x[i] <= 2"),
        (lambda v: v > 7, "7 < x[i]"), (lambda v: v >= -0.5, "0 <= x[i]"),
        (lambda v: v < 2**31, "-2147483648 <= x[i]"),
    ):  # fmt: skip
        assert show(te.compute((6,), lambda i, f=f: f(x[i]), "y").op.values[0]) == text


def test_arithmetic_with_such_numbers_is_refused() -> None:
    x, u = te.placeholder((6,), "int32", "x"), te.placeholder((6,), "uint8", "u")
    for f in (
        lambda i: x[i] + 2**31,
        lambda i: te.maximum(x[i], -(2**31) - 1),
        lambda i: te.select(i < 2, u[i], 256),
    ):
        with pytest.raises(WorkloadError, match="is out of the range of .*, the dtype that it meets; cast"):
            te.compute((6,), f)
    for g in (lambda i: x[i] * 0.5, lambda i: u[i] // 1.5, lambda i: te.minimum(x[i], 1e-3)):
        with pytest.raises(WorkloadError, match="is not a whole number but meets a value of dtype int32"):
            te.compute((6,), g)
    for h in (lambda i: x[i] // 0, lambda i: x[i] % 0):
        with pytest.raises(WorkloadError, match="by zero"):
            te.compute((6,), h)
