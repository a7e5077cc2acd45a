"""Scales and zero points of quantised models are constants: equal layers are one kernel."""

from __future__ import annotations

from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate
from test_integer_products import Net, conv, dequantised, dot, extreme, padded
from test_requantise import quantised

import autotune as at
from schedules import expr as E
from schedules.graph.graph import Graph, Group
from schedules.graph.literals import name_literals
from schedules.graph.optimize import REWRITES, optimize
from schedules.graph.partition import partition
from schedules.model import Workload

te = at.te


def layers(*parameters: tuple[float, int, float, int]) -> Graph:
    """Products of 16 by 16, one after the other. Each has a scale and a zero point of its input, a scale of
    its weights, and a zero point of its output."""
    net = Net()
    x = net.input("x", 16, 16, dtype="uint8")
    for n, (scale, zero, of_weights, out) in enumerate(parameters):
        w = net.known(f"w{n}", extreme("int8", 16, 16))
        y = dot(dequantised(x, scale, zero), dequantised(w, of_weights, None))
        y = cases.stage(y.shape, lambda i, j, y=y: te.maximum(y[i, j] * te.sigmoid(y[i, j]), -0.5))
        x = quantised(y, 0.171 + n / 100, out)
    return net.graph(x)


def tasks(graph: Graph) -> set[str]:
    return {Workload(g.dag).digest for g in partition(optimize(graph)) if isinstance(g, Group)}


def test_equal_layers_are_one_task() -> None:
    graph = layers((0.0213, 3, 0.0171, 100), (0.0372, 100, 0.0077, 7), (0.0119, 7, 0.0413, 99))
    assert len(tasks(graph)) == 1
    x = extreme("uint8", 16, 16)
    before = evaluate(graph, [x])[0].astype(int)
    far = np.abs(before - evaluate(optimize(graph), [x])[0].astype(int))
    assert far.max() <= 1 and np.mean(far > 0) <= 0.01


def test_a_file_that_is_calibrated_again_has_the_same_tasks() -> None:
    one, other = layers((0.0213, 3, 0.0171, 100)), layers((0.0777, 200, 0.0041, 33))
    assert tasks(one) == tasks(other)


def test_numbers_that_formulas_have_stay() -> None:
    graph = optimize(layers((0.0213, 3, 0.0171, 100)))
    kept = {e.value for s in graph.dag.stages for v in s.values for e in E.walk(v) if isinstance(e, E.Const)}
    assert {0.0, 255.0, -0.5} <= kept and not {0.0213, 0.171, 3, 100} & kept
    names = [n for n, v in graph.values.items() if v.shape == ()]
    assert sorted(float(graph.values[n]) for n in names)[-1] == 100.0


def test_what_pads_stays_a_number() -> None:
    """Padded copies are found by their number."""
    net = Net()
    x = net.input("x", 1, 8, 6, 6, dtype="uint8")
    w = net.known("w", extreme("int8", 8, 8, 3, 3))
    y = conv(padded(dequantised(x, 0.0213, 3), 1), dequantised(w, 0.0171, None))
    graph = optimize(net.graph(quantised(y, 0.3, 5)))
    fills = [v.b for s in graph.dag.stages for v in s.values if isinstance(v, E.Select)]
    assert fills == [E.Const(3, "uint8")]


@pytest.mark.parametrize("quantised_too", [False, True])
def test_models_of_floats_keep_their_numbers(quantised_too: bool) -> None:
    net = Net()
    x = net.input("x", 4, 5, dtype="uint8" if quantised_too else "float32")
    y = cases.stage(x.shape, lambda i, j: te.cast(x[i, j], "float32") * 0.0213)
    graph = net.graph(y)
    assert name_literals(graph) is graph


def test_what_is_used_twice_is_one_constant() -> None:
    net = Net()
    a = net.input("a", 8, 8, dtype="uint8")
    w = net.known("w", extreme("int8", 8, 8))
    y = dot(dequantised(a, 0.0213, 3), dequantised(w, 0.0171, None))

    def value(i: Any, j: Any) -> Any:
        v = y[i, j] * 0.377
        return te.exp(v) - v

    after = net.graph(cases.stage(y.shape, value))
    for rewrite in REWRITES:
        after = rewrite(after)
    scales = [n for n, v in after.values.items() if v.shape == () and np.isclose(v, 0.377)]
    assert len(scales) == 1
