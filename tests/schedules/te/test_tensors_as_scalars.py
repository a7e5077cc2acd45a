"""A tensor where one element is wanted: the message says how to index it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from schedules import te
from schedules.errors import WorkloadError


def test_functions_ask_for_an_element() -> None:
    x = te.placeholder((4, 5), name="x")
    with pytest.raises(
        WorkloadError, match=r"te\.exp takes elements, and .* is a tensor; write te\.exp\(x\[i, j\]\)"
    ):
        te.exp(x)


def test_expressions_ask_for_an_element() -> None:
    x = te.placeholder((4, 5), name="x")
    with pytest.raises(WorkloadError, match=r"te\.maximum takes elements, .* write x\[i, j\] in"):
        te.maximum(x[0, 0], x)
    with pytest.raises(TypeError, match=r"cannot be part of an expression; index it, as in x\[i, j\]"):
        x[0, 0] + x


@pytest.mark.parametrize(
    "made",
    [
        lambda x, y: x + y, lambda x, y: x @ y, lambda x, y: 2.0 * x, lambda x, y: x - 1, lambda x, y: -x,
        lambda x, y: x / y, lambda x, y: np.ones((4, 5)) + x, lambda x, y: np.ones((4, 4)) @ x,
        lambda x, y: np.float32(2.0) * x,
    ],
)  # fmt: skip
def test_a_tensor_is_no_array(made: Callable[[Any, Any], object]) -> None:
    x, y = (te.placeholder((4, 5), "float32", name=n) for n in "xy")
    with pytest.raises(WorkloadError, match=r"tensor x\[4, 5\] float32 is no array .* te\.compute\(shape"):
        made(x, y)


@pytest.mark.parametrize("function", [np.exp, np.sqrt, math.exp, math.erf])
def test_functions_of_numbers_point_at_those_of_expressions(function: Callable[[Any], Any]) -> None:
    x = te.placeholder((4,), "float32", name="x")
    with pytest.raises(
        WorkloadError, match=r"^stage z: .*; numpy (and math )?computes? with numbers: take te\.(exp|sqrt)"
    ):
        te.compute((4,), lambda i: function(x[i]), name="z")
    with pytest.raises(WorkloadError, match=r"^stage z: (?!.*te\.exp)"):
        te.compute((4,), lambda i: len(x[i]), name="z")  # another mistake
    doubled = te.compute((4,), lambda i: np.float32(2.0) * x[i] + np.sqrt(4.0), name="z")
    assert doubled.dtype == "float32"
