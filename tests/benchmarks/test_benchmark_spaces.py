"""benchmarks/expressions.py: each expression is numpy's program, and a draw follows from its number."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import expressions
from spaces import shortest

from schedules import te


class Small(expressions.Draw):
    """The same draws with few elements."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(rng)
        self.elements = 300.0


@pytest.mark.parametrize("kind", expressions.KINDS, ids=lambda f: f.__name__)
def test_numpy_says_the_same(kind: Callable[[expressions.Draw], expressions.Drawn]) -> None:
    for seed in range(3):
        drawn = kind(Small(np.random.default_rng(seed)))
        dag = te.dag(drawn.tensors)
        rng = np.random.default_rng(seed)
        data = [rng.standard_normal(t.shape).astype(t.dtype) for t in dag.inputs]
        want = drawn.numpy(*data)
        for got, w in zip(te.evaluate(dag, data), want if isinstance(want, tuple) else (want,), strict=True):
            assert got.shape == np.shape(w), drawn.label
            np.testing.assert_allclose(got, w, rtol=2e-4, atol=2e-4, err_msg=drawn.label)
        if not isinstance(want, tuple):
            assert np.asarray(want).flags.c_contiguous, drawn.label  # as a kernel's result is


def test_a_draw_follows_from_its_number() -> None:
    assert expressions.drawn(3, 17).label == expressions.drawn(3, 17).label
    assert len({expressions.drawn(0, 11 * k).label for k in range(4)}) == 4


def test_the_longer_of_two_calls_takes_longer() -> None:
    a, b = np.ones(10), np.ones(100_000)
    found = shortest({"a": a.sum, "b": b.sum}, least=1e-4)
    assert 0 < found["a"] < found["b"]
