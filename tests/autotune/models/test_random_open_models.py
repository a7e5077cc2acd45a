"""Random models with open sizes and with states give, at several sizes and in several calls, what the
evaluator says."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from graph_meaning import evaluate
from random_models import call_inputs, random_model, tried
from state_models import new_states
from test_open_models import module_of, results


def check(first: int, count: int) -> Counter[str]:
    total, wrong = Counter[str](), []
    for seed in range(first, first + count):
        found, said = tried(seed)
        total += found
        wrong += said
    assert wrong == []
    return total


def test_random_models_are_right_at_every_size_and_call() -> None:
    total = check(10, 9)
    assert total["with sizes"] and total["with states"]


@pytest.mark.slow
def test_more_random_models_are_right_at_every_size_and_call() -> None:
    total = check(100, 80)
    assert total["models"] >= 50 and total["with states"] >= 8


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 3, 10, 11, 17, 18, 54])
def test_random_modules_are_right_at_every_size_and_call(seed: int) -> None:
    """Compiled, in one native call each; with what they keep in their own state."""
    graph = random_model(Random(seed))
    net = module_of(graph)
    ranges = graph.dag.open.ranges if graph.dag.open is not None else {}
    want = new_states(graph) if graph.states else {}
    for n in range(4):
        sizes = {name: min(most, least + n * n) for name, (least, most) in ranges.items()}
        inputs = call_inputs(graph, sizes, seed + n)
        found = net(*inputs)
        for y, x in zip(results(found), evaluate(graph, inputs, want), strict=True):
            assert y.shape == x.shape and np.allclose(y, x, rtol=1e-4, atol=1e-3), (n, sizes)
        for name, a in want.items():
            assert np.allclose(net.state[name], a, rtol=1e-4, atol=1e-3), (n, name)


@pytest.mark.fuzz
@pytest.mark.parametrize("first", range(1000, 3000, 200))
def test_many_random_models_are_right_at_every_size_and_call(first: int) -> None:
    assert check(first, 200)["cases"] >= 400
