"""Matrices of short convolutions, in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from schedules.graph.toom_cook import POINTS, Rows, short_convolution

SIZES = [(m, r) for m in range(1, 7) for r in range(1, 7) if m + r - 1 <= len(POINTS) + 1]


def times(rows: Rows, x: list[Fraction]) -> list[Fraction]:
    return [sum((a * b for a, b in zip(row, x, strict=True)), Fraction(0)) for row in rows]


@pytest.mark.parametrize(("outputs", "taps"), SIZES)
def test_products_give_each_pair_of_data_and_weight(outputs: int, taps: int) -> None:
    """Both sides are linear in data and in weights, so unit vectors say all."""
    found = short_convolution(outputs, taps)
    n = found.products
    units = [[Fraction(a == b) for b in range(n)] for a in range(n)]
    for p in range(n):
        for q in range(taps):
            w = [Fraction(q == b) for b in range(taps)]
            both = zip(times(found.data, units[p]), times(found.weights, w), strict=True)
            want = [Fraction(p == i + q) for i in range(outputs)]
            assert times(found.inverse, [a * b for a, b in both]) == want


def test_known_matrices() -> None:
    """Those of Lavin and Gray, but for signs."""
    found = short_convolution(2, 3)
    assert [[abs(c) for c in row] for row in found.data] == [
        [1, 0, 1, 0],
        [0, 1, 1, 0],
        [0, 1, 1, 0],
        [0, 1, 0, 1],
    ]
    half = Fraction(1, 2)
    assert [[abs(c) for c in row] for row in found.weights] == [[1, 0, 0], [half] * 3, [half] * 3, [0, 0, 1]]
    assert [[abs(c) for c in row] for row in found.inverse] == [[1, 1, 1, 0], [0, 1, 1, 1]]


@pytest.mark.parametrize(("outputs", "taps"), SIZES)
def test_numbers_are_exact_in_float32(outputs: int, taps: int) -> None:
    """But for weights, which are transformed in float64."""
    found = short_convolution(outputs, taps)
    for row in (*found.data, *found.inverse):
        assert all(Fraction(float(np.float32(float(c)))) == c for c in row)


@pytest.mark.parametrize(("outputs", "taps"), [(8, 3), (0, 3), (2, 0)])
def test_too_many_outputs_are_refused(outputs: int, taps: int) -> None:
    with pytest.raises(ValueError, match=rf"F\({outputs}, {taps}\) needs .* take"):
        short_convolution(outputs, taps)
