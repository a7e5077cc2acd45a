"""What is dequantised and quantised again, scales of results, and bytes between kernels."""

from __future__ import annotations

from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate
from hypothesis import given, settings
from hypothesis import strategies as st
from test_integer_products import Net, conv, dequantised, dot, extreme, padded, products

import autotune as at
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.graph.graph import Graph, Group
from schedules.graph.maps import inline_maps
from schedules.graph.optimize import optimize
from schedules.graph.partition import partition
from schedules.graph.requantise import drop_requantised, fold_result_scales

te = at.te


def quantised(x: Any, scale: Any, zero: int, dtype: str = "uint8") -> Any:
    """clip(round(x / scale) + zero) as bytes."""
    low, high = float(DTYPES[dtype].range[0]), float(DTYPES[dtype].range[-1])

    def value(*at: Any) -> Any:
        q = te.round(x[at] / scale)
        q = q + float(zero) if zero else q
        return te.cast(te.cast(te.clip(q, low, high), "int32"), dtype)

    return cases.stage(x.shape, value)


def divisions(graph: Graph) -> int:
    every = (e for s in graph.dag.stages for v in s.values for e in E.walk(v))
    return sum(isinstance(e, E.Binary) and e.op == "/" for e in every)


@settings(deadline=None, max_examples=40)
@given(
    st.floats(2.0**-60, 2.0**60, width=32),
    st.integers(0, 255),
    st.sampled_from(["uint8", "int8"]),
    st.booleans(),
)
def test_every_byte_is_itself_when_quantised_again(by: float, zero: int, dtype: str, turned: bool) -> None:
    net = Net()
    x, shift = net.input("x", 16, 16, dtype=dtype), DTYPES[dtype].range[0] + zero
    wide = dequantised(x, by, shift)
    graph = net.graph(quantised(cases.transpose(wide, 1, 0) if turned else wide, by, shift, dtype))
    after = drop_requantised(graph)
    assert divisions(after) == 0
    every = (np.arange(256) + DTYPES[dtype].range[0]).astype(dtype).reshape(16, 16)
    for which in (graph, after):
        np.testing.assert_array_equal(evaluate(which, [every])[0], every.T if turned else every)


@pytest.mark.parametrize("other", ["scale", "zero", "dtype", "huge"])
def test_other_parameters_are_not_the_same(other: str) -> None:
    net = Net()
    x = net.input("x", 16, 16, dtype="uint8")
    by = 1e37 if other == "huge" else 0.5  # the largest numbers are infinite
    wide = dequantised(x, by, 3)
    scale, zero = 0.25 if other == "scale" else by, 4 if other == "zero" else 3
    graph = net.graph(quantised(wide, scale, zero, "int8" if other == "dtype" else "uint8"))
    assert drop_requantised(graph) is graph


def pooled(fold: Any, fill: float, by: float = 0.5, zero: int = 7) -> Graph:
    """The largest or least of windows, some of which are padding alone."""
    net = Net()
    x = dequantised(net.input("x", 5, 6, dtype="uint8"), by, zero)

    def value(i: Any, j: Any) -> Any:
        return te.select(te.all(i >= 2, i < 7, j >= 2, j < 8), x[i - 2, j - 2], fill)

    z = te.compute((9, 10), value, "pad")
    r, s = te.reduce_axis(2, "r"), te.reduce_axis(2, "s")
    top = te.compute((8, 9), lambda i, j: fold(z[i + r, j + s], axis=(r, s)), "top")
    return net.graph(quantised(top, by, zero))


@pytest.mark.parametrize(("fold", "fill"), [(te.max, -te.inf), (te.min, te.inf)])
def test_the_largest_of_dequantised_numbers_is_the_largest_integer(fold: Any, fill: float) -> None:
    graph = pooled(fold, fill)
    after = optimize(graph)
    assert not any(t.dtype == "float32" for t in after.dag.tensors.values())
    x = [extreme("uint8", 5, 6)]
    np.testing.assert_array_equal(evaluate(after, x)[0], evaluate(graph, x)[0])


def test_the_largest_with_a_scale_below_0_is_the_least_integer() -> None:
    graph = pooled(te.max, -te.inf, by=-0.5)
    assert any(t.dtype == "float32" for t in optimize(graph).dag.tensors.values())


def layer(relu: bool, residual: bool) -> Graph:
    """A convolution with a bias, perhaps what ResNet adds, quantised again."""
    net = Net()
    x, w = net.input("x", 1, 4, 6, 5, dtype="uint8"), net.known("w", extreme("int8", 6, 4, 3, 3))
    scales = net.known("s", np.linspace(0.001, 0.02, 6, dtype=np.float32))
    bias = net.known("bias", np.linspace(-2, 2, 6, dtype=np.float32))
    y = conv(padded(dequantised(x, 0.0137, 131), 1), dequantised(w, scales, None), name="y")
    y = cases.stage(y.shape, lambda n, o, i, j: y_of(y, n, o, i, j) + bias[o])
    if residual:
        y = dequantised(quantised(y, 0.0431, 119), 0.0431, 119)
        more = dequantised(net.input("r", *y.shape, dtype="uint8"), 0.0213, 77)
        y = cases.add(y, more)
    return net.graph(quantised(cases.relu(y) if relu else y, 0.0377, 0 if relu else 113))


def y_of(y: Any, *at: Any) -> Any:
    return y[at]


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_scales_of_results_are_folded(relu: bool, residual: bool) -> None:
    """Nothing is divided in a call, and no more than single steps change."""
    graph = layer(relu, residual)
    after = optimize(graph)
    assert divisions(after) == 0 and len(products(after)) == 1
    steps = []
    for _ in range(20):
        x = [extreme("uint8", *t.shape) for t in graph.dag.inputs if t.name in graph.inputs]
        a, b = (evaluate(g, x)[0].astype(int) for g in (graph, after))
        steps.append(np.abs(a - b))
    assert np.max(steps) <= 1 and np.mean(steps) < 0.005


@pytest.mark.parametrize("by", [-0.5, 0.0])
def test_a_scale_that_is_not_above_0_divides(by: float) -> None:
    """max(x, 0) / by is not max(x / by, 0)."""
    net = Net()
    x = net.input("x", 4, 5, dtype="int8")
    graph = inline_maps(net.graph(quantised(cases.relu(dequantised(x, 0.25, 3)), by, 3)))
    assert len(graph.dag.stages) == 1
    assert fold_result_scales(graph) is graph


def test_what_is_divided_and_not_known_stays() -> None:
    net = Net()
    x, y = net.input("x", 4, 5, dtype="int8"), net.input("y", 4, 5)
    graph = inline_maps(net.graph(quantised(cases.add(dequantised(x, 0.25, 3), y), 0.5, 3)))
    assert len(graph.dag.stages) == 1 and fold_result_scales(graph) is graph


def test_kernels_hand_on_bytes() -> None:
    """A quantised product, a reduction of its numbers, and a map of them after that."""
    net = Net()
    x, w = net.input("x", 6, 8, dtype="uint8"), net.known("w", extreme("int8", 8, 7))
    y = dequantised(quantised(dot(dequantised(x, 0.5, 3), dequantised(w, 0.01, None)), 0.4, 9), 0.4, 9)
    graph = net.graph(cases.softmax(y))
    after = optimize(graph)
    groups = [g for g in partition(after) if isinstance(g, Group)]
    between = {a.tensor for g in groups for a in g.inputs} & {n for g in groups for n in g.outputs}
    assert between and {after.dag.tensors[n].dtype for n in between} == {"uint8"}
    x_ = [extreme("uint8", 6, 8)]
    np.testing.assert_allclose(evaluate(after, x_)[0], evaluate(graph, x_)[0], rtol=1e-5)


def test_rows_of_a_quantised_table_are_dequantised_where_they_are_read() -> None:
    net = Net()
    table, ids = net.known("table", extreme("int8", 4096, 24)), net.input("ids", 5, dtype="int32")
    wide = dequantised(table, 0.5, 3)
    graph = net.graph(te.compute((5, 24), lambda i, j: wide[ids[i], j] * 2.0, "rows"))
    after = optimize(graph)
    assert len(after.dag.stages) == 1 and after.dag.tensors["table"].dtype == "int8"
    given_ = [np.array([0, 4095, 7, 7, 12], np.int32)]
    np.testing.assert_array_equal(evaluate(after, given_)[0], evaluate(graph, given_)[0])


def test_padding_with_a_computed_zero_point_is_part_of_the_product() -> None:
    net = Net()
    x, zero = net.input("x", 1, 3, 6, 5, dtype="uint8"), net.input("zero", dtype="uint8")
    wide = cases.stage(x.shape, lambda *at: te.cast(x[at], "int32") - te.cast(zero[()], "int32"))
    w = net.known("w", extreme("int8", 4, 3, 3, 3))
    w_ = cases.stage(w.shape, lambda *at: te.cast(w[at], "int32"))
    graph = net.graph(conv(padded(wide, 1), w_))
    after = optimize(graph)
    (group,) = partition(after)
    assert isinstance(group, Group) and len(products(after)) == 1
    given_ = [extreme("uint8", 1, 3, 6, 5), np.array(77, np.uint8)]
    np.testing.assert_array_equal(evaluate(after, given_)[0], evaluate(graph, given_)[0])


def test_what_is_quantised_for_a_product_alone_is_a_kernel_of_its_own() -> None:
    """So an instruction may have its bytes copied: those of a first convolution, which has 3 channels."""
    net = Net()
    x = net.input("x", 1, 3, 8, 8)
    w = net.known("w", extreme("int8", 16, 3, 3, 3))
    y = conv(padded(dequantised(quantised(x, 0.0213, 7), 0.0213, 7), 1), dequantised(w, 0.0171, None))
    groups = [g for g in partition(optimize(net.graph(quantised(y, 0.3, 5)))) if isinstance(g, Group)]
    assert [g.dag.inputs[0].dtype for g in groups] == ["float32", "uint8"]
    assert [g.dag.tensors[g.dag.outputs[0]].dtype for g in groups] == ["uint8", "uint8"]
