"""Sums that others than scales read stay floats, where their activations are rounded."""

from __future__ import annotations

from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate

from schedules import te
from schedules.graph.constant_products import KnownTensors
from schedules.graph.optimize import optimize
from schedules.graph.round_activations import code_sums, round_activations

K, N = 16, 12


def product(b: cases.Builder, x: Any, n: int, name: str) -> Any:
    """x times integers, less a zero, without scales."""
    k = x.shape[1]
    w, t = te.placeholder((n, k), "uint8", f"{name}_w"), te.reduce_axis(k, "t")
    b.constants[w.name] = w, b.rng.integers(0, 16, w.shape).astype("uint8")

    def value(i: Any, j: Any) -> Any:
        return te.sum(x[i, t] * te.cast(te.cast(w[j, t], "int32") - 8, "float32"), axis=t)

    return te.compute((x.shape[0], n), value, name)


@pytest.mark.parametrize("read", ("returned", "rounded", "both"))
def test_a_sum_that_is_returned_or_rounded_itself_is_one_of_floats(read: str) -> None:
    b = cases.Builder()
    x = b.input("x", 3, K)
    y = product(b, x, N, "y")
    z = product(b, y, 5, "z")
    graph = b.graph(*{"returned": (y,), "rounded": (z,), "both": (y, z)}[read])
    assert len(code_sums(graph, KnownTensors(graph))) == (1 if read == "returned" else 2)
    after = round_activations(graph, lambda c: "")
    arrays = cases.inputs_of(graph)
    exact = evaluate(graph, arrays)
    for made in (after, optimize(after)):
        for a, e in zip(evaluate(made, arrays), exact, strict=True):
            assert a.dtype == np.float32 and np.abs(a - e).max() < 0.05 * np.abs(e).max()
