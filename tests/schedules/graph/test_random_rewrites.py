"""Random models under many choices of rewrites compute what the evaluator says, as graphs and as the kernels
that are cut of them; the search over these graphs takes no seconds amiss."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate
from needs import imported
from random_rewrites import random_rewritable, tried_rewrites, ways, wrong

import autotune as at
from schedules.graph import reassociate
from schedules.graph.optimize import optimized
from schedules.graph.rewrite import Choices

te = cases.te
LOOKS = Choices(looks=True)


def check(seeds: Any) -> Counter[str]:
    total, wrong_ = Counter[str](), []
    for seed in seeds:
        found, said = tried_rewrites(seed)
        total += found
        wrong_ += said
    assert wrong_ == []
    return total


def test_random_models_compute_the_same_under_choices() -> None:
    assert check([5020, 5021])["graphs"] >= 8


@pytest.mark.slow
def test_more_random_models_compute_the_same_under_choices() -> None:
    total = check([5005, 5007, 5015, 5024, 5027, *range(20)])
    assert all(total[name] for name in ("reassociate", "stack_equal", "stack_unequal", "winograd_2"))


@pytest.mark.fuzz
@pytest.mark.parametrize("first", range(0, 2000, 100))
def test_many_random_models_compute_the_same_under_choices(first: int) -> None:
    assert check(range(first, first + 100))["with places"] >= 10


@pytest.mark.slow
def test_a_quantised_model_computes_the_same_under_choices(tmp_path: Path) -> None:
    imported("onnxruntime")
    import quantised_models as models

    path = tmp_path / "q.onnx"
    models.onnx.save(models.quantised(models.encoder(), "QOperator", "us", True, tmp_path), path)
    graph = at.import_onnx(path).graph
    asked = optimized(graph, LOOKS).asked
    assert asked
    for n, (what, choices) in enumerate(islice(ways(asked, Random(0)), 12)):
        assert wrong(graph, False, choices, 1, Random(n)) == "", what


def test_a_changed_rewrite_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a chain, another operand: the check must fail."""
    b = cases.Builder()
    x, v, w = b.input("x", 4, 3), b.input("v", 3, 3), b.input("w", 3, 1)
    graph = b.graph(cases.matmul(cases.matmul(x, v), w))
    asked = optimized(graph, LOOKS).asked
    assert wrong(graph, True, next(c for _, c in ways(asked, Random(0))), 1, Random(0)) == ""
    right = reassociate._Chain.in_last

    def mistaken(self: Any, load: Any) -> Any:
        made = right(self, load)
        turned = load is self.middle and len(load.indices) == 2
        return replace(made, indices=made.indices[::-1]) if turned else made

    monkeypatch.setattr(reassociate._Chain, "in_last", mistaken)
    said = [wrong(graph, True, c, 1, Random(0)) for _, c in ways(asked, Random(0))]
    assert any("away" in x for x in said)


def test_of_a_product_of_two_products_the_better_order_is_taken() -> None:
    """Both factors are products: it is the other order of the second that is less work."""
    b = cases.Builder()
    a, x, v, w = b.input("a", 1, 8), b.input("x", 8, 2), b.input("v", 2, 9), b.input("w", 9, 6)
    graph = b.graph(cases.matmul(cases.matmul(a, x), cases.matmul(v, w)))
    best = reassociate._best(graph)
    assert [chain.first.name for chain, _ in best.values()] == [graph.dag.stages[1].name]
    after = reassociate.reassociate.run(graph, lambda place: True)
    arrays = cases.inputs_of(graph)
    np.testing.assert_array_equal(evaluate(after, arrays)[0], evaluate(graph, arrays)[0])


def test_drawn_models_are_the_same_each_time() -> None:
    one, two = (random_rewritable(Random(5020))[0] for _ in range(2))
    assert one.dag == two.dag
