"""Functions of a byte that make a byte are loads from a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate
from test_integer_products import Net, dequantised, dot, extreme
from test_requantise import quantised

import autotune as at
from schedules.dtypes import DTYPES
from schedules.graph.edit import is_product
from schedules.graph.graph import Graph, Group
from schedules.graph.optimize import optimize
from schedules.graph.partition import partition
from schedules.graph.tables import tabulate

te = at.te


def mapped(x: Any, fn: Callable[[Any], Any]) -> Any:
    return cases.stage(x.shape, lambda *at: fn(x[at]))


def gelu(v: Any) -> Any:
    return v * 0.5 * (1.0 + te.erf(v * 0.7071))


def tables(graph: Graph) -> list[str]:
    return [n for n in graph.values if n.startswith("table")]


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("out", ["uint8", "int8"])
def test_a_quantised_function_is_a_table(dtype: str, out: str) -> None:
    net = Net()
    least = DTYPES[dtype].range[0]
    x = net.input("x", 16, 16, dtype=dtype)
    y = quantised(mapped(dequantised(x, 0.03, least + 99), gelu), 0.017, 11, out)
    graph = net.graph(y)
    after = optimize(graph)
    (name,) = tables(after)
    assert len(after.dag.stages) == 1 and after.values[name].shape == (256,)
    every = (np.arange(256) + least).astype(dtype).reshape(16, 16)
    np.testing.assert_array_equal(evaluate(after, [every])[0], evaluate(graph, [every])[0])


def test_what_dequantises_may_be_a_stage_that_several_read() -> None:
    net = Net()
    x = dequantised(net.input("x", 5, 6, dtype="uint8"), 0.03, 99)
    graph = net.graph(quantised(mapped(x, te.tanh), 0.01, 128), x)
    after = tabulate(graph)
    assert len(tables(after)) == 0  # the function is a stage of its own yet
    after = optimize(graph)
    assert len(tables(after)) == 1
    given_ = [extreme("uint8", 5, 6)]
    for a, b in zip(evaluate(after, given_), evaluate(graph, given_), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("what", ["two bytes", "an axis", "floats", "no function"])
def test_other_maps_are_not(what: str) -> None:
    net = Net()
    x = wide = dequantised(net.input("x", 5, 6, dtype="uint8"), 0.03, 99)
    if what == "two bytes":
        x = cases.add(x, dequantised(net.input("y", 5, 6, dtype="uint8"), 0.05, 3))
    elif what == "an axis":
        x = cases.stage((5, 6), lambda i, j: wide[i, j] + te.cast(te.cast(j, "int32"), "float32"))
    elif what == "floats":
        x = cases.add(x, net.input("z", 5, 6))
    v = x if what == "no function" else mapped(x, te.tanh)
    graph = net.graph(quantised(v, 0.01, 128))
    assert not tables(optimize(graph))


def test_a_table_is_read_between_products() -> None:
    """Each product is a kernel without it."""
    net = Net()
    x, w = net.input("x", 6, 8, dtype="uint8"), net.known("w", extreme("int8", 8, 7))
    v = net.known("v", extreme("int8", 7, 5))
    y = dequantised(quantised(dot(dequantised(x, 0.5, 3), dequantised(w, 0.01, None)), 0.4, 9), 0.4, 9)
    y = dequantised(quantised(mapped(y, gelu), 0.2, 5), 0.2, 5)
    graph = net.graph(quantised(dot(y, dequantised(v, 0.01, None)), 0.3, 7))
    after = optimize(graph)
    groups = [g for g in partition(after) if isinstance(g, Group)]
    assert [sum(map(is_product, g.dag.stages)) for g in groups] == [1, 0, 1]
    assert {after.dag.tensors[n].dtype for g in groups for n in g.outputs} == {"uint8"}
    x_ = [extreme("uint8", 6, 8)]
    steps = np.abs(evaluate(after, x_)[0].astype(int) - evaluate(graph, x_)[0].astype(int))
    assert steps.max() <= 1
