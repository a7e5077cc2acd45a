"""Products of one tensor that are added become one: windows inside of windows, and the tensor itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate
from hypothesis import given, settings
from hypothesis import strategies as st

import autotune as at
from schedules.graph.added_products import add_products
from schedules.graph.edit import is_product
from schedules.graph.graph import Graph
from schedules.graph.optimize import MAY_LOSE, optimized
from schedules.graph.rewrite import Choices, RewritePlace

te = at.te


def same(a: Graph, b: Graph, exactly: bool = True) -> None:
    arrays = cases.inputs_of(a)
    for x, y in zip(evaluate(a, arrays), evaluate(b, arrays), strict=True):
        atol = 0 if exactly else 1e-5 * float(np.sqrt(np.mean(x**2)))
        np.testing.assert_allclose(y, x, rtol=0, atol=atol)


def products(graph: Graph) -> int:
    return sum(map(is_product, graph.dag.stages))


def taken(graph: Graph) -> tuple[Graph, list[RewritePlace]]:
    """The graph with every place taken, and these."""
    asked: list[RewritePlace] = []
    return add_products.run(graph, lambda p: not asked.append(p)), asked  # type: ignore[func-returns-value]


def added(*xs: Any) -> Any:
    y = xs[0]
    for x in xs[1:]:
        y = cases.add(y, x)
    return y


def block(
    windows: list[int], itself: bool, stride: int = 1, norms: bool = False, channels: int = 3, size: int = 7
) -> Graph:
    """Convolutions of one image that keep its size, and the image itself, added; then a ReLU."""
    b = cases.Builder()
    x = b.input("x", 2, channels, size, size + 1)
    x = cases.relu(x)
    out = channels if itself else channels + 1
    ys = [cases.conv(b, x, out, k, stride, k // 2, f"c{n}") for n, k in enumerate(windows)] + [x] * itself
    ys = [cases.batch_norm(b, y, f"n{n}") for n, y in enumerate(ys)] if norms else ys
    return b.graph(cases.relu(added(*ys)))


@settings(max_examples=12, deadline=None)
@given(st.lists(st.sampled_from((1, 3, 5)), min_size=1, max_size=3), st.booleans(), st.integers(1, 3))
def test_windows_and_the_image_itself_are_one_convolution(
    windows: list[int], itself: bool, stride: int
) -> None:
    stride = 1 if itself else stride
    graph = block(windows, itself, stride)
    after, asked = taken(after_maps(graph))
    same(graph, after)
    assert products(after) == 1
    assert len(asked) == (len(windows) + itself > 1)
    assert all(MAY_LOSE["add_products"].usually(p) == (len(windows) > 1) for p in asked)


def after_maps(graph: Graph) -> Graph:
    """As the rewrites before this one leave it."""
    return optimized(graph, Choices("none")).graph if not graph.islands else graph


@pytest.mark.parametrize("itself", [False, True])
def test_batch_norms_are_a_part_of_the_one_convolution(itself: bool) -> None:
    graph = block([3, 1], itself, norms=True)
    made = optimized(graph)
    same(graph, made.graph, exactly=False)
    assert [a.taken for a in made.asked if a.rewrite == "add_products"] == [True]
    assert products(made.graph) == 1
    groups = [s for s in made.graph.dag.stages if s.reducer is None and not s.name.endswith("_padded")]
    assert len(groups) <= 3, "the ReLU before, a padding, and bias with the ReLU after"


def test_dense_products_are_one() -> None:
    b = cases.Builder()
    x = b.input("x", 4, 5)
    y = added(*(cases.dense(b, x, 6, f"d{n}") for n in range(3)))
    graph = b.graph(cases.relu(y))
    made = optimized(graph)
    same(graph, made.graph)
    assert products(made.graph) == 1


def of_groups() -> Graph:
    """Depthwise convolutions of 3 x 3 and 1 x 1, and the image."""
    b = cases.Builder()
    x = cases.relu(b.input("x", 1, 3, 6, 6))

    def depthwise(k: int, name: str) -> Any:
        w, p = b.constant(f"{name}_w", 3, k, k), k // 2
        padded = cases.stage(
            (1, 3, 6 + 2 * p, 6 + 2 * p),
            lambda n, c, i, j: te.select(
                te.all(i >= p, i < 6 + p, j >= p, j < 6 + p), x[n, c, i - p, j - p], 0.0
            ),
        )
        r, s = te.reduce_axis(k, "r"), te.reduce_axis(k, "s")
        return cases.stage(
            (1, 3, 6, 6),
            lambda n, c, i, j: te.sum((padded if p else x)[n, c, i + r, j + s] * w[c, r, s], axis=(r, s)),
            name,
        )

    return b.graph(added(depthwise(3, "a"), depthwise(1, "b"), x))


def dilated() -> Graph:
    """Taps 2 apart beside taps 2 apart, one row further."""
    b = cases.Builder()
    x, v, w = b.input("x", 12, 3), b.constant("v", 4, 3, 3), b.constant("w", 4, 2, 3)
    r, c = te.reduce_axis(3, "r"), te.reduce_axis(3, "c")
    q, d = te.reduce_axis(2, "q"), te.reduce_axis(3, "d")
    y = te.compute((8, 4), lambda i, o: te.sum(x[i + 2 * r, c] * v[o, r, c], axis=(r, c)), "y")
    z = te.compute((8, 4), lambda i, o: te.sum(w[o, q, d] * x[i + 2 * q + 2, d], axis=(q, d)), "z")
    return b.graph(added(y, z))


def scaled() -> Graph:
    """The image times a number for each channel, less another."""
    b = cases.Builder()
    x = b.input("x", 1, 3, 6, 6)
    y, f, m = cases.conv(b, x, 3, 1, name="y"), b.constant("f", 3), b.constant("m", 3)
    z = cases.conv(b, x, 3, 1, name="z")
    return b.graph(cases.stage(y.shape, lambda *i: y[i] + (x[i] - m[i[1]]) * f[i[1]] + z[i]))


@pytest.mark.parametrize("graph", [of_groups, dilated, scaled, lambda: sliced()])
def test_of_other_shapes(graph: Callable[[], Graph]) -> None:
    before = after_maps(graph())
    after, asked = taken(before)
    same(before, after)
    assert products(after) == 1 and len(asked) == 1


def beside(change: Callable[[cases.Builder, Any], tuple[Any, ...]]) -> Graph:
    b = cases.Builder()
    return b.graph(*change(b, b.input("x", 1, 3, 8, 8)))


def wrong_padding(value: float, shift: int) -> Graph:
    """A padding of other numbers than zeros, or that leaves elements out."""
    b = cases.Builder()
    x = b.input("x", 8, 2)
    pad = te.compute(
        (10, 2), lambda i, c: te.select(te.all(i >= 1 + shift, i < 9), x[i - 1, c], value), "pad"
    )
    w, v, r = b.constant("w", 3, 3, 2), b.constant("v", 3, 2), te.reduce_axis(3, "r")
    c, d = te.reduce_axis(2, "c"), te.reduce_axis(2, "d")
    y = te.compute((8, 3), lambda i, o: te.sum(pad[i + r, c] * w[o, r, c], axis=(r, c)), "y")
    z = te.compute((8, 3), lambda i, o: te.sum(x[i, d] * v[o, d], axis=d), "z")
    return b.graph(added(y, z))


def interleaved() -> Graph:
    """Taps 2 apart, and one tap between them."""
    b = cases.Builder()
    x, v, w = b.input("x", 10, 3), b.constant("v", 4, 3, 3), b.constant("w", 4, 3)
    r, c, d = te.reduce_axis(3, "r"), te.reduce_axis(3, "c"), te.reduce_axis(3, "d")
    y = te.compute((6, 4), lambda i, o: te.sum(x[i + 2 * r, c] * v[o, r, c], axis=(r, c)), "y")
    z = te.compute((6, 4), lambda i, o: te.sum(w[o, d] * x[i + 1, d], axis=d), "z")
    return b.graph(added(y, z))


def times() -> Graph:
    """A product of two convolutions."""
    b = cases.Builder()
    x = b.input("x", 1, 3, 8, 8)
    y, z = (cases.conv(b, x, 4, 1, name=n) for n in "yz")
    return b.graph(cases.stage(y.shape, lambda *i: y[i] * z[i]))


def steps_apart() -> Graph:
    """Taps 2 apart, and of these the first and the third."""
    b = cases.Builder()
    x, v, w = b.input("x", 10, 3), b.constant("v", 4, 3, 3), b.constant("w", 4, 2, 3)
    r, c = te.reduce_axis(3, "r"), te.reduce_axis(3, "c")
    q, d = te.reduce_axis(2, "q"), te.reduce_axis(3, "d")
    y = te.compute((6, 4), lambda i, o: te.sum(x[i + 2 * r, c] * v[o, r, c], axis=(r, c)), "y")
    z = te.compute((6, 4), lambda i, o: te.sum(w[o, q, d] * x[i + 4 * q, d], axis=(q, d)), "z")
    return b.graph(added(y, z))


def shared() -> Graph:
    """Of two convolutions, another stage reads the wider one."""
    b = cases.Builder()
    x = cases.relu(b.input("x", 1, 3, 8, 8))
    y, z = cases.conv(b, x, 4, 3, 1, 1, "y"), cases.conv(b, x, 4, 1, name="z")
    return b.graph(cases.max_pool(cases.add(y, z), 2, 1), cases.max_pool(y, 2, 1))


def twice() -> Graph:
    b = cases.Builder()
    x = b.input("x", 1, 3, 8, 8)
    y, z = (cases.conv(b, x, 4, 1, name=n) for n in "yz")
    return b.graph(cases.stage(y.shape, lambda *i: (y[i] + z[i]) * (y[i] + z[i])))


def sliced() -> Graph:
    """Some channels of a tensor, and a product of others, of which they are."""
    b = cases.Builder()
    x, v, w = b.input("x", 5, 7), b.constant("v", 3, 4), b.constant("w", 3, 4)
    k, m = te.reduce_axis(4, "k"), te.reduce_axis(4, "m")
    y = te.compute((5, 3), lambda i, o: te.sum(x[i, k + 1] * v[o, k], axis=k), "y")
    z = te.compute((5, 3), lambda i, o: te.sum(x[i, m + 1] * w[o, m], axis=m), "z")
    return b.graph(te.compute((5, 3), lambda i, o: y[i, o] + z[i, o] + x[i, o + 2]))


NO_PLACES: dict[str, Callable[[], Graph]] = {
    "another tensor": lambda: beside(
        lambda b, x: (added(cases.conv(b, x, 4, 1, name="y"), cases.conv(b, cases.relu(x), 4, 1, name="z")),)
    ),
    "others read it": shared,
    "one times the other": times,
    "taps of other steps": steps_apart,
    "read twice": twice,
    "neither is inside of the other": interleaved,
    "a padding with ones": lambda: wrong_padding(1.0, 0),
    "a padding that leaves a row out": lambda: wrong_padding(0.0, 1),
}


@pytest.mark.parametrize("why", NO_PLACES)
def test_what_is_no_place(why: str) -> None:
    graph = after_maps(NO_PLACES[why]())
    after, asked = taken(graph)
    assert not asked and after is graph


def test_a_place_that_is_refused_stays() -> None:
    graph = after_maps(block([3, 1], itself=True))
    asked: list[str] = []

    def refuse(place: RewritePlace) -> bool:
        asked.append(place.name)
        return False

    assert add_products.run(graph, refuse) is graph and asked == ["c0"]
