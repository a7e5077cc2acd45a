"""A tensor where one element is wanted: the message says how to index it."""

from __future__ import annotations

import pytest

from schedules import te
from schedules.errors import WorkloadError


def test_functions_ask_for_an_element() -> None:
    x = te.placeholder((4, 5), name="x")
    with pytest.raises(
        WorkloadError, match=r"te\.exp takes one element, and .* is a tensor; write te\.exp\(x\[i, j\]\)"
    ):
        te.exp(x)


def test_expressions_ask_for_an_element() -> None:
    x = te.placeholder((4, 5), name="x")
    with pytest.raises(
        (TypeError, WorkloadError), match=r"cannot be part of an expression; index it, as in x\[i, j\]"
    ):
        te.maximum(x[0, 0], x)
