"""Long sums of few products are made in parts where that is chosen."""

from __future__ import annotations

from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate
from test_rewrites import run_groups

from schedules.graph import split_sums
from schedules.graph.graph import Graph, Group
from schedules.graph.optimize import optimized
from schedules.graph.partition import partition
from schedules.graph.rewrite import Choices

te = cases.te


def product(k: int, m: int = 3, n: int = 5, after: bool = True) -> Graph:
    b = cases.Builder()
    x, w = b.input("x", m, k), b.constant("w", k, n)
    c = te.reduce_axis(k, "c")
    y: Any = te.compute((m, n), lambda i, j: te.sum(x[i, c] * w[c, j], axis=c), "y")
    return b.graph(cases.relu(y) if after else y)


def places(graph: Graph, choices: Choices) -> list[str]:
    return [a.place.name for a in optimized(graph, choices).asked if a.rewrite == "split_sums"]


LOOKS = Choices(looks=True)


@pytest.mark.parametrize("after", [True, False])
def test_parts_have_a_kernel_of_their_own(after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_sums, "LONG", 64)
    graph = product(64, after=after)
    assert places(graph, LOOKS) == ["y"] and places(graph, Choices()) == []
    made = optimized(graph, Choices(other=frozenset({("split_sums", "y")}))).graph
    groups = [g for g in partition(made) if isinstance(g, Group)]
    (parts,), *_ = [g.dag.stages for g in groups]
    assert len(groups) == 2 and [int(a.extent) for a in parts.axes] == [split_sums.PARTS, 3, 5]
    assert [int(a.extent) for a in parts.reduce_axes] == [8]
    arrays = [np.rint(a * 3) for a in cases.inputs_of(graph)]
    for x, y in zip(evaluate(graph, arrays), run_groups(made, arrays), strict=True):
        np.testing.assert_array_equal(y, x)


def test_short_sums_and_many_results_and_unequal_parts_are_no_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_sums, "LONG", 64)
    monkeypatch.setattr(split_sums, "FEW", 32)
    assert places(product(split_sums.LONG), LOOKS) == ["y"]
    assert places(product(split_sums.LONG - 8), LOOKS) == []
    assert places(product(split_sums.LONG + 1), LOOKS) == []
    assert places(product(split_sums.LONG, 2, split_sums.FEW), LOOKS) == []
