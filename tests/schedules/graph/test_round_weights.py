"""Products with a known matrix are found by what they compute, and keep their value if rounding is exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate
from hypothesis import given, settings
from hypothesis import strategies as st

from schedules import te
from schedules.graph.graph import Graph
from schedules.graph.optimize import optimize
from schedules.graph.round_activations import round_activations
from schedules.graph.round_weights import Rounding, Treated, round_weights

GROUP = 4
FORMATS = ["int4_halves", "int4", "int8", "bfloat16", "float16"]
stage = cases.stage


def exact(b: cases.Builder, name: str, *shape: int, dtype: str = "float32", along: int = -1) -> Any:
    """Weights of which groups along an axis have a scale of 1: integers of 4 bits, with a -8 in each group
    where ``b.most`` is 8, and of 8 bits, with a 127."""
    most = getattr(b, "most", 8)
    value = b.rng.integers(-most + 1, most, shape)
    turned = np.moveaxis(value, along, -1)
    turned[..., ::GROUP] = -8 if most == 8 else 127
    t = te.placeholder(shape, dtype, name)
    b.constants[name] = (t, value.astype(dtype))
    return t


def dot(shape: tuple[int, ...], k: int, value: Callable[..., Any], name: str = "y") -> Any:
    r = te.reduce_axis(k, "r")
    return stage(shape, lambda *at: te.sum(value(*at, r), axis=r), name)


def linear(b: cases.Builder) -> Any:
    x, w = b.input("x", 3, 8), exact(b, "w", 5, 8)
    return dot((3, 5), 8, lambda i, j, k: x[i, k] * w[j, k])


def transposed(b: cases.Builder) -> Any:
    x, w = b.input("x", 3, 8), exact(b, "w", 8, 5, along=0)
    return dot((3, 5), 8, lambda i, j, k: w[k, j] * x[i, k])


def by_a_map(b: cases.Builder) -> Any:
    """Of weights that are turned before, and are of float16."""
    x, w = b.input("x", 3, 8), exact(b, "w", 8, 5, along=0, dtype="float16")
    turned = stage((5, 8), lambda j, k: te.cast(w[k, j], "float32"), "turned")
    return dot((3, 5), 8, lambda i, j, k: x[i, k] * turned[j, k])


def turned_rows(b: cases.Builder) -> Any:
    x, w = b.input("x", 8, 3), exact(b, "w", 5, 8)
    return dot((3, 5), 8, lambda i, j, k: x[k, i] * w[j, k])


def columns(b: cases.Builder) -> Any:
    x, w = b.input("x", 3, 8), exact(b, "w", 5, 8)
    return dot((5, 3), 8, lambda j, i, k: w[j, k] * x[i, k])


def vector(b: cases.Builder) -> Any:
    x, w = b.input("x", 8), exact(b, "w", 5, 8)
    return dot((5,), 8, lambda j, k: x[k] * w[j, k])


def one_of_several(b: cases.Builder) -> Any:
    """The second matrix of two, of one row with an axis of its own."""
    x, w = b.input("x", 1, 8), exact(b, "w", 2, 5, 8)
    return dot((1, 5), 8, lambda i, j, k: x[0, k] * w[1, j, k])


def batch(b: cases.Builder) -> Any:
    x, w = b.input("x", 2, 3, 8), exact(b, "w", 2, 5, 8)
    return dot((2, 3, 5), 8, lambda n, i, j, k: x[n, i, k] * w[n, j, k])


def heads(b: cases.Builder) -> Any:
    """Two axes of outputs, and rows of two axes."""
    x, w = b.input("x", 2, 3, 8), exact(b, "w", 2, 5, 8)
    return dot((2, 2, 3, 5), 8, lambda h, n, i, j, k: x[n, i, k] * w[h, j, k])


def stored_rows(b: cases.Builder) -> Any:
    x, w = b.input("x", 3, 8, dtype="float16"), exact(b, "w", 5, 8, dtype="float16")
    return dot((3, 5), 8, lambda i, j, k: x[i, k] * w[j, k])


def one_group(b: cases.Builder) -> Any:
    x, w = b.input("x", 3, 4), exact(b, "w", 5, 4)
    return dot((3, 5), 4, lambda i, j, k: x[i, k] * w[j, k])


FORMS = [
    linear, transposed, by_a_map, turned_rows, columns, vector, one_of_several, batch, heads, stored_rows,
    one_group,
]  # fmt: skip


def graph_of(form: Callable[[cases.Builder], Any], most: int, seed: int = 0) -> Graph:
    b = cases.Builder(seed)
    b.most = most  # type: ignore[attr-defined]
    y = form(b)
    return b.graph(stage(y.shape, lambda *i: y[i] * 2.0, "end"))


def integers(graph: Graph, seed: int = 1) -> list[np.ndarray]:
    """Inputs of which each group has a scale of 1 when it is rounded, along any axis."""
    rng = np.random.default_rng(seed)
    return [
        np.where(rng.random(t.shape) < 0.7, 127, rng.integers(-126, 127, t.shape)).astype(t.dtype)
        for t in graph.dag.inputs
        if t.name in graph.inputs
    ]


def rounded(graph: Graph, form: str, group: int = GROUP) -> tuple[Graph, tuple[Treated, ...]]:
    return round_weights(graph, Rounding(form, group, "float32"), lambda p: "")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("of", FORMS)
def test_a_product_that_is_rounded_exactly_is_what_it_was(of: Callable[..., Any], form: str) -> None:
    graph = graph_of(of, 127 if form == "int8" else 8)
    made, treated = rounded(graph, form)
    assert [t.why for t in treated] == [""] and treated[0].constants == ("w",)
    assert "w" not in made.values, "floats are kept beside codes"
    assert treated[0].nbytes[1] < treated[0].nbytes[0] or of in (by_a_map, stored_rows)
    xs = integers(graph)
    want = evaluate(graph, xs)[0]
    for one in (made, optimize(made)):
        np.testing.assert_array_equal(evaluate(one, xs)[0], want)
    if form.startswith("int"):
        both = round_activations(made, lambda c: "")
        sums = [s for s in both.dag.stages if s.outputs[0].dtype == "int32"]
        assert sums and any(s.outputs[0].dtype == "int8" for s in both.dag.stages)
        for one in (both, optimize(both)):  # all are integers below 2^24; scales are 1, or rows are near
            np.testing.assert_allclose(evaluate(one, xs)[0], want, rtol=0.05, atol=0.02 * np.abs(want).max())


def test_activations_with_scales_of_one_are_exact() -> None:
    graph = graph_of(heads, 127)
    made = round_activations(rounded(graph, "int8")[0], lambda c: "")
    x = integers(graph)
    x[0][..., ::GROUP] = 127
    np.testing.assert_array_equal(evaluate(made, x)[0], evaluate(graph, x)[0])
    np.testing.assert_array_equal(evaluate(optimize(made), x)[0], evaluate(graph, x)[0])


def test_products_of_one_tensor_round_it_once() -> None:
    b = cases.Builder()
    x = b.input("x", 3, 8)
    ws = [exact(b, f"w{n}", 5, 8) for n in range(2)]
    both = [dot((3, 5), 8, lambda i, j, k, w=w: x[i, k] * w[j, k], f"y{n}") for n, w in enumerate(ws)]
    graph = b.graph(*(stage(y.shape, lambda *i, y=y: y[i] + 1.0) for y in both))
    made = round_activations(rounded(graph, "int8")[0], lambda c: "")
    assert sum(s.outputs[0].dtype == "int8" for s in made.dag.stages) == 1


def test_one_matrix_of_two_products_is_rounded_once() -> None:
    b = cases.Builder()
    x, z, w = b.input("x", 3, 8), b.input("z", 2, 8), exact(b, "w", 5, 8)
    y = dot((3, 5), 8, lambda i, j, k: x[i, k] * w[j, k], "y")
    u = dot((5, 2), 8, lambda a, c, k: w[a, k] * z[c, k], "u")
    made, treated = rounded(b.graph(y, u), "int8")
    assert [t.why for t in treated] == ["", ""]
    assert sorted(made.values) == ["w_codes", "w_scales"]


def test_one_matrix_that_is_read_in_two_orders_has_two_sets_of_codes() -> None:
    b = cases.Builder()
    x, w = b.input("x", 3, 8), exact(b, "w", 8, 8)
    b.constants["w"][1][::GROUP] = -8  # groups along either axis have one
    y = dot((3, 8), 8, lambda i, j, k: x[i, k] * w[j, k], "y")
    u = dot((3, 8), 8, lambda i, j, k: x[i, k] * w[k, j], "u")
    graph = b.graph(y, u)
    made, treated = rounded(graph, "int4_halves")
    assert [t.why for t in treated] == ["", ""]
    assert sorted(made.values) == ["w_codes", "w_codes_1", "w_scales", "w_scales_1"]
    xs = integers(graph)
    for have, want in zip(evaluate(made, xs), evaluate(graph, xs), strict=True):
        np.testing.assert_array_equal(have, want)


def test_what_is_read_otherwise_stays_beside_its_codes() -> None:
    """An embedding that is the last layer too."""
    b = cases.Builder()
    ids, w = b.input("ids", 3, dtype="int64"), exact(b, "w", 5, 8)
    x = stage((3, 8), lambda i, k: w[ids[i], k], "x")
    y = dot((3, 5), 8, lambda i, j, k: x[i, k] * w[j, k])
    made, treated = rounded(b.graph(y), "int8")
    assert treated[0].why == "" and sorted(made.values) == ["w", "w_codes", "w_scales"]


def other_forms() -> list[tuple[str, Callable[[cases.Builder], Any]]]:
    def conv(b: cases.Builder) -> Any:
        return cases.conv(b, b.input("x", 1, 3, 6, 6), 4, 3)

    def integer(b: cases.Builder) -> Any:
        x, w = b.input("x", 3, 8, dtype="int32"), exact(b, "w", 5, 8, dtype="int32")
        return dot((3, 5), 8, lambda i, j, k: x[i, k] * w[j, k])

    def double(b: cases.Builder) -> Any:
        x, w = b.input("x", 3, 8, dtype="float64"), exact(b, "w", 5, 8, dtype="float64")
        return dot((3, 5), 8, lambda i, j, k: x[i, k] * w[j, k])

    def odd(b: cases.Builder) -> Any:
        x, w = b.input("x", 3, 7), b.constant("w", 5, 7)
        return dot((3, 5), 7, lambda i, j, k: x[i, k] * w[j, k])

    def infinite(b: cases.Builder) -> Any:
        y = linear(b)
        b.constants["w"][1][2, 3] = np.nan
        return y

    def large(b: cases.Builder) -> Any:
        y = linear(b)
        b.constants["w"][1][2, 3] = 1e30
        return y

    return [
        ("it sums over 3 axes, as convolutions do", conv),
        ("its weights are int32 already", integer),
        ("it is a product of float64 and float64", double),
        ("groups of 4 do not divide the 7 numbers of its sum", odd),
        ("its weights are not all finite", infinite),
        ("its weights are beyond what float16 has", large),
    ]


@pytest.mark.parametrize(("why", "of"), other_forms())
def test_what_is_no_such_product_says_why(why: str, of: Callable[..., Any]) -> None:
    b = cases.Builder()
    graph = b.graph(of(b))
    made, treated = round_weights(graph, Rounding("int8", GROUP), lambda p: "")
    assert [t.why for t in treated] == [why] and made is graph


def test_products_of_two_tensors_are_none() -> None:
    b = cases.Builder()
    x, y = b.input("x", 3, 8), b.input("y", 5, 8)
    graph = b.graph(dot((3, 5), 8, lambda i, j, k: x[i, k] * y[j, k]))
    assert round_weights(graph, Rounding("int8", GROUP), lambda p: "") == (graph, ())


def test_a_product_that_is_refused_stays() -> None:
    graph = graph_of(linear, 8)
    made, treated = round_weights(graph, Rounding("int8", GROUP), lambda p: f"{p.weights} are few")
    assert made is graph and [t.why for t in treated] == ["40 are few"]
    whole, _ = rounded(graph, "int8")
    assert round_activations(whole, lambda c: "no") is whole


@settings(max_examples=25, deadline=None)
@given(
    m=st.integers(1, 3), n=st.integers(1, 5), groups=st.integers(1, 3), group=st.sampled_from([2, 4, 6, 16]),
    form=st.sampled_from(["int4_halves", "int8"]), seed=st.integers(0, 99),
)  # fmt: skip
def test_errors_are_those_of_rounding(m: int, n: int, groups: int, group: int, form: str, seed: int) -> None:
    rng, k = np.random.default_rng(seed), groups * group
    b = cases.Builder()
    x, w = b.input("x", m, k), b.constant("w", n, k)
    value = rng.standard_normal((n, k)).astype("float32")
    b.constants["w"] = (w, value)
    graph = b.graph(dot((m, n), k, lambda i, j, r: x[i, r] * w[j, r]))
    made, _ = rounded(graph, form, group)
    a = rng.standard_normal((m, k)).astype("float32")

    def most(v: np.ndarray) -> np.ndarray:
        return np.repeat(np.abs(v).reshape(len(v), groups, group).max(-1), group, -1)

    step = 8 if form != "int8" else 254
    bound = np.abs(a) @ (most(value) / step).T + 1e-4
    assert (np.abs(evaluate(made, [a])[0] - a @ value.T) <= bound).all()
    both = round_activations(made, lambda c: "")
    exactly = evaluate(made, [a])[0]
    bound = (most(a) / 254) @ (np.abs(value) + most(value) / step).T + 1e-4
    assert (np.abs(evaluate(both, [a])[0] - exactly) <= bound).all()
