"""Maps that are read often are stored where their cost says so, and either way where a choice does."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate
from test_rewrites import run_groups

from schedules.graph.graph import Graph, Group
from schedules.graph.optimize import optimized
from schedules.graph.partition import partition
from schedules.graph.rewrite import Choices

te = cases.te


def before_convolution(value: Any, k: int = 3, channels: int = 16, side: int = 6) -> Graph:
    """A map, and a convolution of what it makes, which pads where the window is larger than one."""
    b = cases.Builder()
    x, scale = b.input("x", 1, channels, side, side), b.constant("scale", channels)
    made = cases.stage(x.shape, lambda n, c, i, j: value(x[n, c, i, j], scale[c]), "made")
    return b.graph(cases.conv(b, made, 16, k, pad=k // 2))


def scaled(x: Any, s: Any) -> Any:
    return te.maximum(x * s, 0.0)


def kernels(graph: Graph) -> list[list[str]]:
    return [[s.name for s in g.dag.stages] for g in partition(graph) if isinstance(g, Group)]


def asked(graph: Graph, choices: Choices = Choices()) -> dict[str, bool]:  # noqa: B008 - frozen
    places = optimized(graph, choices).asked
    return {a.place.name: a.taken for a in places if a.rewrite == "store_maps"}


@pytest.mark.parametrize(
    ("value", "k", "stored"),
    [
        (scaled, 3, True),
        (scaled, 1, True),
        (lambda x, s: te.maximum(x, 0.0), 3, True),  # the guard of the padding would be evaluated too
        (lambda x, s: te.maximum(x, 0.0), 1, False),  # one operation runs beside the products
        (lambda x, s: te.exp(x), 3, False),  # the kernel stores what is costly
        (lambda x, s: x / s, 3, False),
    ],
)
def test_the_cost_of_a_map_decides(value: Any, k: int, stored: bool) -> None:
    graph = before_convolution(value, k)
    assert asked(graph) == {"made": stored}
    found = kernels(optimized(graph).graph)
    assert (found[0] == ["made"]) == stored and len(found) == 1 + stored


def test_few_rows_and_few_readers_do_not_pay() -> None:
    b = cases.Builder()
    x, bias = b.input("x", 4, 64), b.constant("bias", 64)
    made = cases.stage(x.shape, lambda i, j: te.maximum(x[i, j] * 3.0 + bias[j], 0.0), "made")
    assert asked(b.graph(cases.dense(b, made, 32, "d"))) == {"made": False}
    b = cases.Builder()
    y, bias = b.input("y", 1, 4, 8, 8), b.constant("bias", 4)
    made = cases.stage(y.shape, lambda n, c, i, j: te.maximum(y[n, c, i, j] * 3.0 + bias[c], 0.0), "made")
    assert asked(b.graph(cases.conv(b, made, 8, 1))) == {"made": False}
    assert asked(b.graph(cases.max_pool(made, 3, 1))) == {"made": False}


def test_what_is_read_once_or_by_rows_or_known_is_no_place() -> None:
    b = cases.Builder()
    x, scale = b.input("x", 1, 4, 8, 8), b.constant("scale", 4)
    made = cases.stage(x.shape, lambda n, c, i, j: scaled(x[n, c, i, j], scale[c]), "made")
    assert asked(b.graph(cases.max_pool(made, 2, 2))) == {}
    b = cases.Builder()
    x, y = b.input("x", 6, 8), b.input("y", 6, 8)
    assert asked(b.graph(cases.layer_norm(b, cases.add(x, y), "norm"))) == {}
    b = cases.Builder()
    x, codes, scales = b.input("x", 32, 8), b.constant("codes", 8, 20), b.constant("scales", 20)
    weights = cases.stage((8, 20), lambda i, j: codes[i, j] * scales[j] + 1.0, "weights")
    assert asked(b.graph(cases.matmul(x, weights))) == {}
    assert asked(cases.transformer(1)) == {}


@pytest.mark.parametrize("stored", [True, False])
def test_both_ways_compute_the_same(stored: bool) -> None:
    graph = before_convolution(scaled)
    usual = Choices(other=frozenset() if stored else frozenset({("store_maps", "made")}))
    made = optimized(graph, usual).graph
    assert made.recut == (frozenset({"made"}) if stored else frozenset())
    assert len(kernels(made)) == 1 + stored
    arrays = [np.rint(a * 3) for a in cases.inputs_of(graph)]
    want = evaluate(graph, arrays)
    for x, y in zip(want, run_groups(made, arrays), strict=True):
        np.testing.assert_array_equal(y, x)


def test_no_rewrites_store_nothing() -> None:
    assert asked(before_convolution(scaled), Choices("none")) == {"made": False}


def test_a_map_of_a_stored_map_is_one_with_it() -> None:
    """Of two maps in front of a convolution the first goes with its reader."""
    b = cases.Builder()
    x, y = b.input("x", 1, 16, 6, 6), b.input("y", 16)
    gate = te.compute((16,), lambda c: y[c] * 2.0 + 1.0, "gate")
    made = cases.stage(x.shape, lambda n, c, i, j: scaled(x[n, c, i, j], gate[c]), "made")
    graph = b.graph(cases.conv(b, made, 16, 3, pad=1))
    assert kernels(optimized(graph).graph)[0] == ["gate", "made"]
    assert asked(graph) == {"made": True}


def test_copies_and_pickles_keep_what_is_stored() -> None:
    made = optimized(before_convolution(scaled)).graph
    assert pickle.loads(pickle.dumps(made)).recut == copy.copy(made).recut == {"made"}
    assert replace(made, recut=frozenset()) != made
