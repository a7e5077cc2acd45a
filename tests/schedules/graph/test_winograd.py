"""Convolutions in Winograd's tiles: where they apply, and that they compute the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import lcm
from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate
from hypothesis import given, settings
from hypothesis import strategies as st
from test_rewrites import run_groups

import autotune as at
from autotune.run.kernels import default_kernel
from autotune.targets import detect
from schedules.errors import WorkloadError
from schedules.graph.fold import fold_constants
from schedules.graph.graph import Graph, Group
from schedules.graph.layout import order_dimensions
from schedules.graph.optimize import optimize
from schedules.graph.partition import partition
from schedules.graph.toom_cook import short_convolution
from schedules.graph.winograd import Winograd, WinogradPlace
from schedules.model import Workload
from schedules.te.compute_dag import ComputeDAG
from schedules.te.rounding import evaluate_with_bounds

te = at.te


def convolution(
    n: int = 1,
    h: int = 9,
    w: int = 11,
    ci: int = 3,
    co: int = 4,
    k: int = 3,
    pad: int = 1,
    dtype: str = "float32",
) -> Graph:
    """A convolution of an image, channels first, and a ReLU."""
    b = cases.Builder()
    x = b.input("x", n, ci, h, w)
    g = b.graph(cases.relu(cases.conv(b, x, co, k, 1, pad, "c")))
    return g if dtype == "float32" else in_dtype(g, dtype)


def in_dtype(graph: Graph, dtype: str) -> Graph:
    """A graph of float32 in another dtype."""
    dag = ComputeDAG.from_json(_retyped(graph.dag.to_json(), dtype))
    values = {n: v.astype(dtype) for n, v in graph.values.items()}
    return replace(graph, dag=dag, values=values)


def _retyped(x: Any, dtype: str) -> Any:
    if isinstance(x, dict):
        return {k: _retyped(v, dtype) for k, v in x.items()}
    if isinstance(x, list):
        return [_retyped(v, dtype) for v in x]
    return dtype if x == "float32" else x


def with_weights_that_divide(graph: Graph, place: WinogradPlace) -> Graph:
    """Weights of which transformed ones are integers."""
    taps = graph.values["c_w"].shape[-1]
    rows = short_convolution(place.tile, taps).weights
    by = lcm(*(c.denominator for row in rows for c in row)) ** 2
    return replace(graph, values={n: v * by for n, v in graph.values.items()})


def bounds(graph: Graph, arrays: list[Any]) -> Any:
    given_ = dict(zip(graph.inputs, arrays, strict=True)) | dict(graph.values)
    return evaluate_with_bounds(graph.dag, [given_[t.name] for t in graph.dag.inputs])


@settings(max_examples=12, deadline=None)
@given(
    st.tuples(*(st.integers(a, b) for a, b in ((1, 2), (4, 9), (4, 9), (1, 3), (1, 3)))),
    st.sampled_from((2, 3, 4)),
    st.sampled_from(((3, 0), (3, 1), (5, 2), (2, 1))),
    st.booleans(),
)
def test_tiles_compute_the_convolution(
    sizes: tuple[int, ...], tile: int, window: tuple[int, int], last: bool
) -> None:
    """In float64, with weights whose transforms are integers."""
    graph = convolution(*sizes, *window, dtype="float64")
    graph = order_dimensions(graph) if last else graph
    rewrite = Winograd(tile)
    places = rewrite.places(graph)
    k, pad = window
    assert bool(places) == (min(sizes[1:3]) + 2 * pad - k + 1 >= tile)
    for place in places:
        graph = with_weights_that_divide(graph, place)
        arrays = [a.astype("float64") for a in cases.inputs_of(graph)]
        (want,) = evaluate(graph, arrays)
        (got,) = evaluate(rewrite.apply(graph, place), arrays)
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-12 * max(1.0, float(np.abs(want).max())))


@pytest.mark.parametrize("taps", [(3,), (5, 2), (2, 3, 3)])
def test_windows_of_any_rank_and_shape(taps: tuple[int, ...]) -> None:
    b = cases.Builder()
    sizes = [n + 4 for n in taps]
    x, w = b.input("x", *sizes, 3), b.constant("c_w", *taps, 3, 2)
    r, c = [te.reduce_axis(n, f"r{d}") for d, n in enumerate(taps)], te.reduce_axis(3, "c")

    def value(*at: Any) -> Any:
        moved = (i + k for i, k in zip(at[:-1], r, strict=True))
        return te.sum(x[(*moved, c)] * w[(*r, c, at[-1])], axis=(*r, c))

    graph = b.graph(cases.stage((*(5 for _ in taps), 2), value, "c"))
    arrays = cases.inputs_of(graph)
    (place,) = Winograd(2).places(graph)
    (want,) = evaluate(graph, arrays)
    (got,) = evaluate(Winograd(2).apply(graph, place), arrays)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * float(np.abs(want).max()))


@pytest.mark.parametrize(("tile", "k"), [(2, 3), (4, 3), (2, 5)])
def test_errors_are_within_bounds(tile: int, k: int) -> None:
    """The bounds follow from the stages, those of transformed weights among them."""
    rng = np.random.default_rng(0)
    graph = convolution(h=9, w=7, ci=8, co=6, k=k, pad=k // 2)
    graph = replace(
        graph, values={n: rng.standard_normal(v.shape).astype("float32") for n, v in graph.values.items()}
    )
    arrays = [rng.standard_normal(a.shape).astype("float32") for a in cases.inputs_of(graph)]
    exact = in_dtype(graph, "float64")
    (want,) = evaluate(exact, [a.astype("float64") for a in arrays])
    (place,) = Winograd(tile).places(graph)
    tiles = Winograd(tile).apply(graph, place)
    found, direct = bounds(tiles, arrays), bounds(graph, arrays)
    away = np.abs(in_steps(tiles, arrays) - want)
    assert (away <= found.bounds[0]).all()
    assert found.bounds[0].max() > direct.bounds[0].max()


def in_steps(graph: Graph, arrays: list[Any]) -> Any:
    """The output, each operation rounded to the dtype of its tensors."""
    (made,) = run_groups(fold_constants(graph), arrays)
    return made


def test_transformed_weights_are_constants() -> None:
    """The rest is a product of matrices, and transforms of data and of results, a kernel each."""
    graph = optimize(convolution(h=8, w=8, ci=32, co=32))
    (place,) = Winograd(4).places(graph)
    tiles = fold_constants(Winograd(4).apply(graph, place))
    groups = [g for g in partition(tiles) if isinstance(g, Group)]
    assert [s.name for g in groups for s in g.dag.stages if s.reducer] == [
        "c_data_0",
        "c_data_1",
        "c_products",
        "c_back_0",
        "c",
    ]
    assert len(groups) == 5
    assert groups[-1].dag.stages[-1].reducer is None  # the ReLU
    assert {a.dtype.name for a in tiles.values.values()} == {"float32"}
    assert sum(v.ndim == 4 for v in tiles.values.values()) == 1
    arrays = cases.inputs_of(graph)
    np.testing.assert_allclose(run_groups(tiles, arrays)[0], evaluate(graph, arrays)[0], rtol=0, atol=1e-3)


def strided() -> Graph:
    b = cases.Builder()
    return b.graph(cases.relu(cases.conv(b, b.input("x", 1, 3, 9, 9), 4, 3, 2, 1, "c")))


def of_inputs() -> Graph:
    """Weights that a caller gives."""
    g = convolution()
    return replace(g, dag=replace(g.dag, constants=()), values={}, inputs=("x", "c_w"))


def depthwise() -> Graph:
    b = cases.Builder()
    x, w = b.input("x", 1, 3, 9, 9), b.constant("w", 3, 3, 3)
    r, s = te.reduce_axis(3, "r"), te.reduce_axis(3, "s")
    y = te.compute(
        (1, 3, 7, 7), lambda n, c, i, j: te.sum(x[n, c, i + r, j + s] * w[c, r, s], axis=(r, s)), "c"
    )
    return b.graph(y)


def windowed(step: int, start: int) -> Graph:
    """A window whose elements are ``step`` apart, from ``start`` on."""
    b = cases.Builder()
    x, w = b.input("x", 1, 3, 9, 9), b.constant("w", 4, 3, 3, 3)
    r, s, c = te.reduce_axis(3, "r"), te.reduce_axis(3, "s"), te.reduce_axis(3, "c")
    return b.graph(
        te.compute(
            (1, 4, 5, 5),
            lambda n, o, i, j: te.sum(
                x[n, c, i + step * r + start, j + step * s] * w[o, c, r, s], axis=(c, r, s)
            ),
            "c",
        )
    )


def guarded() -> Graph:
    """Padding as a part of the product."""
    b = cases.Builder()
    x, w = b.input("x", 9, 3), b.constant("w", 4, 3, 3)
    r, c = te.reduce_axis(3, "r"), te.reduce_axis(3, "c")

    def value(i: Any, o: Any) -> Any:
        return te.sum(te.select(i + r < 8, x[i + r, c], 0.0) * w[o, c, r], axis=(c, r))

    return b.graph(te.compute((7, 4), value, "c"))


@pytest.mark.parametrize(
    "graph",
    [strided, guarded, of_inputs, depthwise, lambda: windowed(2, 0), lambda: windowed(1, 1),
     lambda: convolution(k=1, pad=0), lambda: convolution(k=7, pad=3),
     lambda: convolution(h=3, w=3), lambda: cases.transformer(1)],
)  # fmt: skip
def test_others_are_no_places(graph: Callable[[], Graph]) -> None:
    made = graph()
    assert Winograd(4).places(made) == ()
    with pytest.raises(WorkloadError, match="'c' is no convolution that .* of 4 compute.* take a place"):
        Winograd(4).apply(made, WinogradPlace("c", 4))


def test_places_are_data() -> None:
    graph = convolution()
    (place,) = Winograd(2).places(graph)
    assert {place: 1}[WinogradPlace("c", 2)] == 1
    assert Winograd(2).apply(graph, place).dag == Winograd(4).apply(graph, place).dag
    assert not Winograd.exact
    assert Winograd(1).places(graph) == Winograd(7).places(graph) == ()


def test_every_place_of_a_model_is_applied_in_turn() -> None:
    graph = optimize(cases.residual_net())
    arrays = cases.inputs_of(graph)
    (want,) = evaluate(graph, arrays)
    rewrite = Winograd(2)
    places = rewrite.places(graph)
    assert len(places) >= 3
    for place in places:
        graph = rewrite.apply(graph, place)
    assert rewrite.places(fold_constants(graph)) == ()
    (got,) = evaluate(graph, arrays)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * float(np.abs(want).max()))


@pytest.mark.slow
@pytest.mark.parametrize(("tile", "k"), [(2, 3), (4, 3), (2, 5)])
def test_compiled_kernels_compute_the_convolution(tile: int, k: int) -> None:
    graph = optimize(convolution(h=10, w=7, ci=5, co=18, k=k, pad=k // 2))
    (place,) = Winograd(tile).places(graph)
    tiles = fold_constants(Winograd(tile).apply(graph, place))
    known = dict(zip(graph.inputs, arrays := cases.inputs_of(graph), strict=True)) | dict(tiles.values)
    for g in partition(tiles):
        assert isinstance(g, Group)
        kernel = default_kernel(Workload(g.dag), detect(threads=1))
        given_ = [
            np.ascontiguousarray(known[a.tensor]).reshape(t.shape)
            for t, a in zip(g.dag.inputs, g.inputs, strict=True)
        ]
        known[g.outputs[0]] = kernel(*given_).reshape(tiles.dag.tensors[g.outputs[0]].shape)
    (want,) = evaluate(graph, arrays)
    np.testing.assert_allclose(known[tiles.outputs[0]], want, rtol=0, atol=2e-5 * float(np.abs(want).max()))
