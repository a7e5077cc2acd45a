"""Substitutions in graphs: their places, and graphs of the same meaning after each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate

from schedules.errors import WorkloadError
from schedules.graph.graph import Graph
from schedules.graph.optimize import optimize
from schedules.substitutions.matching import Substitute
from schedules.substitutions.rules import Substitution, general
from schedules.substitutions.stages import readings
from schedules.substitutions.terms import parsed
from schedules.substitutions.verify import verified

te = cases.te
KINDS = {
    **dict.fromkeys("abcd", "matrix"), **dict.fromkeys("xy", "image"), **dict.fromkeys("kl", "kernel"),
    "r": "row",
}  # fmt: skip


def rule(text: str) -> Substitution:
    source, target = map(parsed, text.split(" = "))
    return verified(general(source, target, KINDS))


def product(x: Any, w: Any) -> Any:
    k = te.reduce_axis(w.shape[0], "k")
    return te.compute((x.shape[0], w.shape[1]), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k))


def projections() -> Graph:
    """Queries, keys and values of other widths."""
    b = cases.Builder()
    x = b.input("x", 3, 5)
    return b.graph(*(product(x, b.constant(f"w{n}", 5, n)) for n in (8, 3, 2)))


def chain() -> Graph:
    b = cases.Builder()
    return b.graph(product(product(b.input("x", 3, 5), b.constant("v", 5, 4)), b.constant("w", 4, 2)))


def branches() -> Graph:
    """A convolution of 3 x 3, one of 1 x 1 and the image itself, added up."""
    b = cases.Builder()
    x = b.input("x", 1, 4, 5, 6)
    both = cases.add(cases.conv(b, x, 4, 3, 1, 1, "k3"), cases.conv(b, x, 4, 1, 1, 0, "k1"))
    return b.graph(cases.add(both, x))


def dots() -> Graph:
    """Four products of one vector, added to a row and cut off below 0."""
    b = cases.Builder()
    x = b.input("x", 1, 6)
    parts = [product(x, b.constant(f"w{n}", 6, 3)) for n in range(4)]
    return b.graph(*(cases.relu(p) for p in parts))


SIDE_BY_SIDE = "join1(product(a, b), product(a, c)) = product(a, join1(b, c))"
REGROUPED = "product(product(a, b), c) = product(a, product(b, c))"
MERGED = "add(conv(pad(x), k), conv(x, l)) = conv(pad(x), add(k, pad(l)))"
IDENTITY = "add(conv(pad(x), k), x) = conv(pad(x), add(k, pad(unit(x))))"


def same(a: Graph, b: Graph) -> bool:
    arrays = cases.inputs_of(a)
    return all(np.array_equal(x, y) for x, y in zip(evaluate(a, arrays), evaluate(b, arrays), strict=True))


def exhausted(graph: Graph, rules: Substitute) -> Graph:
    """The graph after every substitution forwards, one after the other."""
    start = graph
    while places := [p for p in rules.places(graph) if not p.backwards]:
        graph = rules.apply(graph, places[0])
        assert same(start, graph)
    return graph


@pytest.mark.parametrize(
    "graph, texts, stages",
    [
        (projections, [SIDE_BY_SIDE], 1),
        (chain, [REGROUPED], 1),
        (branches, [MERGED, IDENTITY], 1),
        (dots, [SIDE_BY_SIDE], 1),
    ],
)
def test_products_of_a_block_become_one(graph: Callable[[], Graph], texts: list[str], stages: int) -> None:
    before = graph()
    after = optimize(exhausted(before, Substitute(tuple(map(rule, texts)))))
    assert same(before, after)
    assert sum(s.reducer is not None for s in after.dag.stages) == stages


def test_places_are_named_by_stages_and_leaves() -> None:
    graph = projections()
    x = graph.inputs[0]
    t = [s.name for s in graph.dag.stages]
    found = Substitute((rule(SIDE_BY_SIDE),)).places(graph)
    assert {p.stages for p in found} == {(t[0], t[1]), (t[0], t[2]), (t[1], t[2])}
    assert found[0].leaves == (("a", x), ("b", "w8"), ("c", "w3"))
    assert not found[0].backwards and Substitute((rule(SIDE_BY_SIDE),)).exact
    assert not Substitute((rule(SIDE_BY_SIDE), rule(REGROUPED))).exact


def test_a_substitution_goes_back() -> None:
    graph = chain()
    rules = Substitute((rule(REGROUPED),))
    (there,) = rules.places(graph)
    after = rules.apply(graph, there)
    (back,) = rules.places(after)
    assert back.backwards and same(graph, rules.apply(after, back))
    assert rules.places(rules.apply(after, back)) != ()


@pytest.mark.parametrize(
    "change", [{"number": 1}, {"stages": ("x",)}, {"leaves": (("a", "x"),)}, {"backwards": True}]
)
def test_a_place_of_another_graph_is_refused(change: dict[str, Any]) -> None:
    graph = chain()
    rules = Substitute((rule(REGROUPED),))
    (place,) = rules.places(graph)
    other = replace(place, **change)
    with pytest.raises(WorkloadError, match="the graph is another one; ask `places` of this graph"):
        rules.apply(graph, other)


def test_stages_that_are_made_of_each_other_are_not_joined() -> None:
    """x w and (x w) w share w, but the second reads the first."""
    b = cases.Builder()
    w = b.constant("w", 4, 4)
    first = product(b.input("x", 3, 4), w)
    graph = b.graph(first, product(first, w))
    joined = Substitute((rule("join0(product(a, c), product(b, c)) = product(join0(a, b), c)"),))
    assert joined.places(graph) == ()


def test_sizes_are_asked_for() -> None:
    """Halves of a join are its parts where these have one size."""
    rules = Substitute((rule("first1(join1(a, b)) = a"),))

    def joined(n: int) -> Graph:
        b = cases.Builder()
        x, y = b.input("x", 3, 4), b.input("y", 3, n)
        both = te.compute((3, 4 + n), lambda i, j: te.select(j < 4, x[i, j], y[i, j - 4]))
        return b.graph(te.compute((3, (4 + n) // 2), lambda i, j: both[i, j]), cases.relu(both))

    (place,) = rules.places(joined(4))
    assert same(joined(4), rules.apply(joined(4), place))
    assert rules.places(joined(6)) == ()


@pytest.mark.parametrize("graph", [projections, chain, branches, dots])
def test_operators_are_read_off_stages(graph: Callable[[], Graph]) -> None:
    g = graph()
    assert all(readings(s, g.dag.tensors) for s in g.dag.stages)


def test_other_stages_are_no_operators() -> None:
    b = cases.Builder()
    x = b.input("x", 4, 4)
    strided = te.compute((2, 4), lambda i, j: x[i * 2, j])
    fused = te.compute((4, 4), lambda i, j: te.maximum(x[i, j] + x[j, i], 0.0))
    exp = te.compute((4, 4), lambda i, j: te.exp(x[i, j]))
    graph = b.graph(strided, fused, exp)
    assert [readings(s, graph.dag.tensors) for s in graph.dag.stages] == [(), (), ()]
