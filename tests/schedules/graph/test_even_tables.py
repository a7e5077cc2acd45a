"""Tables of integers that go on evenly are index arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedules import expr as E
from schedules.expr import Var
from schedules.graph.call_indices import progression

STEP = st.integers(-3, 3)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
@given(st.tuples(st.integers(1, 4), st.integers(1, 4)), STEP, STEP)
def test_an_element_is_arithmetic_of_its_indices(dtype: str, shape: tuple[int, int], a: int, b: int) -> None:
    i, j = np.indices(shape)
    values = (100 + a * i + b * j).astype(dtype)
    found = progression(values, [Var("i"), Var("j")])
    assert found is not None
    for place in np.ndindex(shape):
        assert E.evaluate(found, dict(zip("ij", place, strict=True))) == values[place]


def test_what_is_not_even_is_no_arithmetic() -> None:
    at = [Var("i"), Var("j")]
    assert progression(np.array([[0, 1, 3]]), at) is None
    assert progression(np.array([[0, 1], [2, 4]]), at) is None
    assert progression(np.array([[0.0, 1.0]]), at) is None
