"""Sums of dequantised products become sums of integers, where that is right."""

from __future__ import annotations

from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate
from hypothesis import given, settings
from hypothesis import strategies as st

import autotune as at
from schedules.dtypes import DTYPES
from schedules.graph.edit import factors, is_product
from schedules.graph.graph import Graph
from schedules.graph.integers import integer_products, with_integer_products
from schedules.graph.optimize import optimize
from schedules.graph.partition import partition

te = at.te
STORED = ("uint8", "int8")
RNG = np.random.default_rng(0)


class Net(cases.Builder):
    """Collects inputs and constants of any dtype."""

    def __init__(self) -> None:
        super().__init__()

    def known(self, name: str, value: Any) -> Any:
        array = np.asarray(value)
        t = te.placeholder(array.shape, array.dtype.name, name)
        self.constants[name] = (t, array)
        return t


def extreme(dtype: str, *shape: int) -> np.ndarray:
    """Integers of the whole range, with many of its ends."""
    ends = DTYPES[dtype].range[0], DTYPES[dtype].range[-1]
    every = RNG.integers(ends[0], ends[1] + 1, shape)
    return np.where(RNG.random(shape) < 0.4, RNG.choice(ends, shape), every).astype(dtype)


def dequantised(x: Any, scale: Any, zero: Any, axis: int = 0) -> Any:
    """A stage of float32. ``scale``, ``zero``: a number, a tensor of one or of one a slice, or None."""

    def of(p: Any, at: tuple[Any, ...], dtype: str) -> Any:
        if isinstance(p, (int, float)):
            return te.const(p, dtype)
        return te.cast(p[at[axis]] if p.shape else p[()], dtype)

    def value(*at: Any) -> Any:
        v = te.cast(x[at], "int32")
        v = v if zero is None else v - of(zero, at, "int32")
        v = te.cast(v, "float32")
        return v if scale is None else v * of(scale, at, "float32")

    return cases.stage(x.shape, value)


def dot(a: Any, b: Any) -> Any:
    k = te.reduce_axis(a.shape[1], "k")
    return te.compute((a.shape[0], b.shape[1]), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c")


def products(graph: Graph) -> list[Any]:
    return [s for s in graph.dag.stages if is_product(s)]


def is_integer(graph: Graph) -> bool:
    """Whether all products are of 8-bit integers and nothing else."""
    every = products(graph)
    loads = [x.dtype for s in every for x in factors(s.values[0])]
    return bool(every) and all(s.outputs[0].dtype == "int32" for s in every) and set(loads) <= set(STORED)


def arrays_of(graph: Graph) -> list[np.ndarray]:
    return [extreme(t.dtype, *t.shape) for t in graph.dag.inputs if t.name in graph.inputs]


def alike(graph: Graph, after: Graph, *more: np.ndarray) -> np.ndarray:
    """Both compute the same, exactly: scales are powers of two. Returns it."""
    given_ = [*arrays_of(graph), *more]
    for x, y in zip(evaluate(graph, given_), evaluate(after, given_), strict=True):
        np.testing.assert_array_equal(x, y)
    return evaluate(after, given_)[0]


zeros = st.sampled_from(["none", "number", "tensor", "slice"])


def parameters(net: Net, data: st.DataObject, name: str, dtype: str, n: int) -> tuple[Any, Any]:
    """(a scale that is a power of two, a zero point), as data has them."""
    kind, least = data.draw(zeros), DTYPES[dtype].range[0]
    points = data.draw(st.lists(st.integers(least, least + 255), min_size=n, max_size=n))
    zero: Any = None
    if kind == "number":
        zero = points[0]
    elif kind == "tensor":
        zero = net.known(f"{name}_zero", np.array(points[0], dtype))
    elif kind == "slice":
        zero = net.known(f"{name}_zero", np.array(points, dtype))
    scales = np.exp2(np.array(points) % 3 - 2).astype(np.float32)
    every: list[Any] = [0.5, net.known(f"{name}_one", scales[0]), net.known(f"{name}_scale", scales), None]
    return every[data.draw(st.integers(0, 3))], zero


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_product_of_dequantised_matrices_is_one_of_integers(data: st.DataObject) -> None:
    net = Net()
    m, n, k = (data.draw(st.integers(3, 9)) for _ in "mnk")
    of_a, of_b = data.draw(st.sampled_from(STORED)), data.draw(st.sampled_from(STORED))
    a = net.input("a", m, k, dtype=of_a)
    b = net.known("b", extreme(of_b, k, n)) if data.draw(st.booleans()) else net.input("b", k, n, dtype=of_b)
    left = dequantised(a, *parameters(net, data, "a", of_a, m), 0)
    right = dequantised(b, *parameters(net, data, "b", of_b, n), 1)
    graph = net.graph(dot(left, right))
    after = integer_products(graph)
    paid = "b" in graph.values or len(after.dag.stages) != len(graph.dag.stages)
    assert is_integer(after) if paid and m >= 5 and n >= 5 else True
    alike(graph, after)
    alike(graph, optimize(graph))


@pytest.mark.parametrize("of_a", STORED)
@pytest.mark.parametrize("of_b", STORED)
def test_extremes_do_not_overflow_below_the_longest_sum(of_a: str, of_b: str) -> None:
    net = Net()
    a, b = net.input("a", 3, 1030, dtype=of_a), net.known("b", np.zeros((1030, 5), of_b))
    low, high = (DTYPES[of_b].range[0], DTYPES[of_b].range[-1])
    net.constants["b"] = (b, np.full((1030, 5), low, of_b))
    zero = DTYPES[of_a].range[-1]
    graph = net.graph(dot(dequantised(a, 1.0, zero), dequantised(b, 1.0, high, 1)))
    after = optimize(graph)
    assert is_integer(after)
    got = evaluate(after, [np.full((3, 1030), DTYPES[of_a].range[0], of_a)])[0]
    np.testing.assert_array_equal(got, np.full((3, 5), np.float32(1030 * 255 * 255)))


@pytest.mark.parametrize(("k", "fits"), [(33025, True), (33026, False)])
def test_a_sum_that_may_leave_int32_stays(k: int, fits: bool) -> None:
    """255 * 255 * 33025 is below 2**31, and a term more is not."""
    net = Net()
    a, b = net.input("a", 8, k, dtype="uint8"), net.input("b", k, 8, dtype="uint8")
    zero = [te.placeholder((), "uint8", f"z{i}") for i in "ab"]
    net.inputs += zero
    graph = net.graph(dot(dequantised(a, 0.5, zero[0]), dequantised(b, 0.5, zero[1], 1)))
    assert is_integer(integer_products(graph)) == fits


def test_a_known_zero_point_allows_a_longer_sum() -> None:
    net = Net()
    a, b = net.input("a", 8, 60000, dtype="uint8"), net.input("b", 60000, 8, dtype="int8")
    graph = net.graph(dot(dequantised(a, 0.5, 128), dequantised(b, 0.5, None, 1)))
    assert is_integer(integer_products(graph))
    other = Net()
    c = other.input("c", 60000, 8, dtype="int8")
    a = other.input("a", 8, 60000, dtype="uint8")
    graph = other.graph(dot(dequantised(a, 0.5, 0), dequantised(c, 0.5, 127, 1)))
    assert not is_integer(integer_products(graph))


def test_a_zero_point_of_unknown_range_stays() -> None:
    """It may be any int32."""
    net = Net()
    a, b = net.input("a", 8, 9, dtype="uint8"), net.known("b", extreme("int8", 9, 8))
    zero = te.placeholder((), "int32", "zero")
    net.inputs.append(zero)
    graph = net.graph(dot(dequantised(a, 0.5, zero), dequantised(b, 0.5, None, 1)))
    assert integer_products(graph) is graph


@pytest.mark.parametrize("what", ["scale", "zero", "groups"])
def test_what_changes_along_the_sum_stays_in_it(what: str) -> None:
    net = Net()
    k = 12
    a, b = net.input("a", 7, k, dtype="uint8"), net.known("b", extreme("int8", k, 6))
    scale: Any = net.known("s", np.exp2(np.arange(k) % 3).astype(np.float32)) if what == "scale" else 0.5
    zero: Any = net.known("z", np.arange(k, dtype=np.int8)) if what == "zero" else None
    right = dequantised(b, scale, zero, 0)
    if what == "groups":
        s = net.known("g", np.array([0.5, 2, 4], np.float32))
        right = cases.stage(b.shape, lambda r, j: te.cast(te.cast(b[r, j], "int32"), "float32") * s[r // 4])
    graph = net.graph(dot(dequantised(a, 0.5, 3), right))
    assert integer_products(graph) is graph
    alike(graph, optimize(graph))


def test_floats_times_dequantised_weights_stay_floats() -> None:
    net = Net()
    x, b = net.input("x", 5, 8), net.known("b", extreme("int8", 8, 6))
    graph = net.graph(dot(x, dequantised(b, 0.5, 3, 1)))
    assert integer_products(graph) is graph


def test_a_correction_that_costs_as_much_as_the_product_is_not_made() -> None:
    """The sums of a's rows are as long as the product with one column."""
    net = Net()
    a, b = net.input("a", 7, 9, dtype="uint8"), net.input("b", 9, 1, dtype="int8")
    graph = net.graph(dot(dequantised(a, 0.5, None), dequantised(b, 0.5, 5, 1)))
    assert integer_products(graph) is graph
    assert is_integer(
        integer_products(net.graph(dot(dequantised(a, 0.5, None), dequantised(b, 0.5, None, 1))))
    )


# --- convolutions -----------------------------------------------------------------------------


def padded(x: Any, by: int) -> Any:
    n, c, h, w = x.shape

    def value(a: Any, ch: Any, i: Any, j: Any) -> Any:
        inside = te.all(i >= by, i < h + by, j >= by, j < w + by)
        return te.select(inside, x[a, ch, i - by, j - by], te.const(0, x.dtype))

    return te.compute((n, c, h + 2 * by, w + 2 * by), value, "pad")


def conv(x: Any, w: Any, stride: int = 1, name: str = "y") -> Any:
    o, c, kh, kw = w.shape
    r, s, ci = te.reduce_axis(kh, "r"), te.reduce_axis(kw, "s"), te.reduce_axis(c, "c")
    shape = (x.shape[0], o, (x.shape[2] - kh) // stride + 1, (x.shape[3] - kw) // stride + 1)
    return te.compute(
        shape,
        lambda n, f, i, j: te.sum(x[n, ci, i * stride + r, j * stride + s] * w[f, ci, r, s], axis=(ci, r, s)),
        name,
    )


def quantised_conv(
    x_zero: int, w_zero: Any, dtype: str = "uint8", w_dtype: str = "int8", wide: str = "float32"
) -> Graph:
    net = Net()
    x, w = net.input("x", 1, 3, 6, 5, dtype=dtype), net.known("w", extreme(w_dtype, 4, 3, 3, 3))
    zero = w_zero if w_zero is None else net.known("w_zero", np.asarray(w_zero, w_dtype))
    scale = net.known("w_scale", np.exp2(-np.arange(4)).astype(np.float32)) if wide == "float32" else None
    left, right = dequantised(x, 0.25, x_zero), dequantised(w, scale, zero)
    if wide == "int32":
        left = cases.stage(x.shape, lambda *at: te.cast(x[at], "int32") - x_zero)
        right = cases.stage(w.shape, lambda *at: te.cast(w[at], "int32") - te.cast(zero[at[0]], "int32"))
    return net.graph(conv(padded(left, 1), right))


@pytest.mark.parametrize("wide", ["float32", "int32"])
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("uint8", 131), ("uint8", 255), ("int8", -128)])
def test_borders_are_padded_with_the_zero_point(dtype: str, zero: int, wide: str) -> None:
    """What equals the zero point is 0 everywhere, at the borders too."""
    w_zero = np.array([3, -7, 0, 127])
    graph = quantised_conv(zero, w_zero, dtype, wide=wide)
    for after in (integer_products(graph), optimize(graph)):
        assert is_integer(after)
        (got,) = evaluate(after, [np.full((1, 3, 6, 5), zero, dtype)])
        np.testing.assert_array_equal(got, np.zeros((1, 4, 6, 5), got.dtype))
        alike(graph, after)


def test_sums_of_known_weights_are_known() -> None:
    after = optimize(quantised_conv(7, None))
    (group,) = partition(after)
    assert not [s for s in group.dag.stages if s.reducer and not is_product(s)]  # type: ignore[union-attr]
    assert group.dag.constants == ("w",)  # type: ignore[union-attr]


@pytest.mark.parametrize("zeros", [[128] * 4, [120, 128, 135, 0]])
def test_known_weights_of_uint8_become_int8(zeros: list[int]) -> None:
    """Where every zero point is 128 nothing is left to correct."""
    graph = quantised_conv(9, zeros, w_dtype="uint8")
    after = optimize(graph)
    (product,) = products(after)
    assert [x.dtype for x in factors(product.values[0])] == ["uint8", "int8"]
    sums = [s for s in after.dag.stages if s.reducer and not is_product(s)]
    assert len(sums) == (set(zeros) != {128})
    alike(graph, after)


def test_zero_points_that_are_all_0_cost_nothing() -> None:
    after = integer_products(quantised_conv(0, np.zeros(4)))
    assert [s.name for s in after.dag.stages if s.reducer] == ["y_sum"]


def test_a_grouped_convolution_with_a_zero_point_of_weights_keeps_its_form() -> None:
    """Each channel sums as much as its product: of one channel in, one channel out."""
    net = Net()
    x, w = net.input("x", 1, 4, 5, 5, dtype="uint8"), net.known("w", extreme("int8", 4, 3, 3))
    r, s = te.reduce_axis(3, "r"), te.reduce_axis(3, "s")

    def depthwise(zero: int | None) -> Graph:
        a, b = dequantised(x, 0.5, 3), dequantised(w, 0.5, zero)
        return net.graph(
            te.compute(
                (1, 4, 3, 3),
                lambda n, c, i, j: te.sum(a[n, c, i + r, j + s] * b[c, r, s], axis=(r, s)),
                "y",
            )
        )

    assert integer_products(depthwise(5)).dag == depthwise(5).dag
    after = integer_products(depthwise(None))
    assert is_integer(after)
    alike(depthwise(None), after)


# --- a user's own expression ------------------------------------------------------------------


def test_scales_written_into_the_product_are_taken_out_too() -> None:
    a, b = te.placeholder((6, 9), "uint8", "a"), te.placeholder((9, 7), "int8", "b")
    sb, zb = te.placeholder((7,), "float32", "sb"), te.placeholder((7,), "int8", "zb")
    k = te.reduce_axis(9, "k")

    def value(i: Any, j: Any) -> Any:
        x = te.cast(te.cast(a[i, k], "int32") - 200, "float32") * 0.5
        y = te.cast(te.cast(b[k, j], "int32") - te.cast(zb[j], "int32"), "float32") * sb[j]
        return te.sum(x * y, axis=k)

    dag = te.dag([a, b, sb, zb, te.compute((6, 7), value, "c")])
    after = with_integer_products(dag)
    assert [s.outputs[0].dtype for s in after.stages if is_product(s)] == ["int32"]
    assert (after.inputs, after.outputs) == (dag.inputs, dag.outputs)
    arrays = [extreme("uint8", 6, 9), extreme("int8", 9, 7), np.exp2(-np.arange(7.0, dtype="float32"))]
    arrays.append(extreme("int8", 7))
    np.testing.assert_array_equal(te.evaluate(after, arrays)[0], te.evaluate(dag, arrays)[0])
    assert with_integer_products(after) is after


def test_integers_wrap_as_they_did() -> None:
    """A sum of int32 less zero points of any size is the same number, wrapped."""
    a, b = te.placeholder((6, 9), "int8", "a"), te.placeholder((9, 7), "int8", "b")
    z = te.placeholder((), "int32", "z")
    k = te.reduce_axis(9, "k")

    def value(i: Any, j: Any) -> Any:
        return te.sum((te.cast(a[i, k], "int32") - z[()]) * te.cast(b[k, j], "int32"), axis=k)

    dag = te.dag([a, b, z, te.compute((6, 7), value, "c")])
    after = with_integer_products(dag)
    assert len(after.stages) == 3
    arrays = [extreme("int8", 6, 9), extreme("int8", 9, 7), np.array(2**30 + 12345, np.int32)]
    np.testing.assert_array_equal(te.evaluate(after, arrays)[0], te.evaluate(dag, arrays)[0])


def test_what_is_a_product_of_integers_already_is_left_alone() -> None:
    a, b = te.placeholder((6, 9), "uint8", "a"), te.placeholder((9, 7), "int8", "b")
    k = te.reduce_axis(9, "k")
    c = te.compute((6, 7), lambda i, j: te.sum(te.cast(a[i, k], "int32") * b[k, j], axis=k), "c")
    dag = te.dag([a, b, c])
    assert with_integer_products(dag) is dag


def test_a_product_of_scales_that_is_no_normal_number_is_not_formed() -> None:
    """1e-30 * 1e-30 is 0 in float32, and so would every output be. Times the sum one after the other they are
    as in the floats."""
    net = Net()
    a, b = net.input("a", 4, 5, dtype="uint8"), net.known("b", extreme("int8", 5, 6))
    big, small = net.known("big", np.float32(1e30)), net.known("small", np.float32(1e30))
    graph = net.graph(dot(dequantised(a, big, None), dequantised(b, small, None, 1)))
    after = integer_products(graph)
    assert is_integer(after)
    got = evaluate(after, [np.zeros((4, 5), np.uint8)])[0]
    np.testing.assert_array_equal(got, np.zeros((4, 6), np.float32))  # not infinity times 0


def dequantised_product(m: int, n: int, k: int) -> list[Any]:
    """Inputs and output of a product of dequantised matrices, as a user writes it."""
    a, b = te.placeholder((m, k), "uint8", "a"), te.placeholder((k, n), "int8", "b")
    sb = te.placeholder((n,), "float32", "sb")
    r = te.reduce_axis(k, "k")

    def value(i: Any, j: Any) -> Any:
        x = (te.cast(a[i, r], "float32") - 131.0) * 0.25
        return te.sum(x * (te.cast(b[r, j], "float32") * sb[j]), axis=r)

    return [a, b, sb, te.compute((m, n), value, "c")]


def test_what_a_user_tunes_is_a_product_of_integers() -> None:
    from autotune.run.workloads import as_workload

    program = dequantised_product(6, 5, 9)
    workload = as_workload(program, {}, constant_weights=["b"])
    product, *_ = [s for s in workload.dag.stages if is_product(s)]
    assert product.outputs[0].dtype == "int32" and workload.dag.constants == ("b",)
    assert workload.dag.outputs == ("c",)
    few = as_workload(dequantised_product(1, 5, 9), {}, constant_weights=["b"])
    assert few.dag.stages[0].outputs[0].dtype == "int32"  # sums of what is known cost nothing
    assert as_workload(few, {}) is few


@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_stored_weights_take_no_factor(dtype: str) -> None:
    """They would be rounded again, or wrap."""
    net = Net()
    x, w = net.input("x", 4, 8, dtype=dtype), net.known("w", np.ones((8, 6), dtype))
    y, s = dot(x, w), net.known("s", np.arange(6).astype("int32" if dtype == "int8" else "float32"))
    graph = net.graph(cases.stage(y.shape, lambda i, j: y[i, j] * s[j]))
    x_ = [np.arange(32).reshape(4, 8).astype(dtype)]
    np.testing.assert_array_equal(evaluate(optimize(graph), x_)[0], evaluate(graph, x_)[0])
