"""Transposed convolutions as models have them: right for every parameter, and without steps that add 0."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate
from helpers import check_compiled, host
from hypothesis import given, settings
from hypothesis import strategies as st

import autotune as at
from autotune.models.operators.convolution import transposed_convolution
from schedules import expr as E
from schedules.graph.edit import is_product
from schedules.graph.graph import Graph, Group
from schedules.graph.optimize import optimize
from schedules.graph.partition import partition
from schedules.ir import Guard, Loop, Stmt, kids
from schedules.ir.exprs import expressions
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.space import derive

te = at.te
SHORT = st.integers(1, 4)


@dataclass(frozen=True)
class Layer:
    """Parameters of one, each a number an axis."""

    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    out: tuple[int, ...]
    groups: int = 1
    depth: int = 1
    each: int = 1
    bias: bool = False

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        channels = self.groups * self.depth
        return (2, channels, *self.sizes), (channels, self.each, *self.kernel)


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    rank = draw(st.integers(1, 3))
    axes = []
    for _ in range(rank):
        size, k, s, d = draw(st.tuples(SHORT, SHORT, SHORT, SHORT))
        full = (size - 1) * s + d * (k - 1) + 1
        before = draw(st.integers(0, min(d * (k - 1) + 1, full - 1)))
        after = draw(st.integers(-(max(s, d) - 1), min(d * (k - 1) + 1, full - 1 - before)))  # below 0: more
        axes.append((size, k, s, d, before, full - before - after))
    groups, depth, each = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    return Layer(*zip(*axes, strict=True), groups, depth, each, draw(st.booleans()))


def scattered(a: Layer, x: Any, w: Any, bias: Any) -> Any:
    """Every element times every tap, added where it falls."""
    y = np.zeros((x.shape[0], a.groups * a.each, *a.out), x.dtype)
    for c, *tap in np.ndindex(*w.shape[:1], *a.kernel):
        for i in np.ndindex(*a.sizes):
            place = [
                n * s + t * d - b
                for n, s, t, d, b in zip(i, a.stride, tap, a.dilation, a.before, strict=True)
            ]
            if all(0 <= p < n for p, n in zip(place, a.out, strict=True)):
                first = c // a.depth * a.each
                own = slice(first, first + a.each)
                y[(slice(None), own, *place)] += x[(slice(None), c, *i)][:, None] * w[(c, slice(None), *tap)]
    return y if bias is None else y + bias.reshape(-1, *(1,) * len(a.out))


def made(a: Layer, known: bool = True) -> tuple[Graph, Any]:
    """(the graph, the tensor) of a layer; weights are constants if ``known``."""
    b = cases.Builder()
    x_shape, w_shape = a.shapes
    give = b.constant if known else b.input
    x, w = b.input("x", *x_shape), give("w", *w_shape)
    bias = give("b", a.groups * a.each) if a.bias else None
    y = transposed_convolution(x, w, bias, a.stride, a.dilation, a.before, a.out, a.groups)
    return b.graph(y), y


def check(a: Layer, known: bool = True) -> Graph:
    graph, _ = made(a, known)
    arrays = cases.inputs_of(graph)
    names = dict(zip(graph.inputs, arrays, strict=True)) | dict(graph.values)
    want = scattered(a, names["x"], names["w"], names.get("b"))
    np.testing.assert_array_equal(evaluate(graph, arrays)[0], want)
    after = optimize(graph)
    np.testing.assert_array_equal(run(after, arrays)[0], want)
    return after


def run(graph: Graph, arrays: list[Any]) -> list[Any]:
    """What the kernels of a graph compute, one after the other."""
    known = dict(zip(graph.inputs, arrays, strict=True)) | dict(graph.values)
    for g in partition(graph):
        assert isinstance(g, Group)
        for name, y in zip(g.outputs, te.evaluate(g.dag, given_to(g, known)), strict=True):
            known[name] = y.reshape(graph.dag.tensors[name].shape)
    return [known[name] for name in graph.outputs]


def given_to(g: Group, known: dict[str, Any]) -> list[Any]:
    found = []
    for t, a in zip(g.dag.inputs, g.inputs, strict=True):
        flat = np.ascontiguousarray(known[a.tensor]).reshape(-1)
        found.append(flat[a.start : a.start + int(np.prod(t.shape, dtype=int))].reshape(t.shape))
    return found


@pytest.mark.slow
@settings(max_examples=40)
@given(layers(), st.booleans())
def test_every_layer_is_the_scatter(a: Layer, known: bool) -> None:
    check(a, known)


@pytest.mark.soak
@settings(max_examples=600)
@given(layers(), st.booleans())
def test_many_layers_are_the_scatter(a: Layer, known: bool) -> None:
    check(a, known)


def product_of(graph: Graph) -> Any:
    return next(s for s in graph.dag.stages if is_product(s))


def test_with_a_stride_of_one_it_is_a_convolution() -> None:
    """The same kernel, with its weights turned ahead: no condition is left, and no stage but the sum."""
    after = check(Layer((5, 6), (3, 3), (1, 1), (1, 1), (1, 1), (5, 6), depth=4, each=3))
    s = product_of(after)
    assert not any(isinstance(x, E.Select) for x in E.walk(s.values[0]))
    assert [x.name for x in after.dag.stages] == ["pad", "conv_transpose"]


STRIDED = Layer((4, 5), (3, 3), (2, 2), (1, 1), (1, 1), (8, 10), depth=4, each=20, bias=True)
PARAMETERS = {
    "a tap less in a phase": STRIDED,
    "as many in each": Layer((4, 5), (4, 4), (2, 2), (1, 1), (1, 1), (8, 10), depth=4, each=20),
    "an odd size": Layer((3, 4), (3, 3), (2, 2), (1, 1), (1, 1), (5, 7), depth=3, each=20, bias=True),
    "phases without taps": Layer((3, 3), (2, 1), (3, 2), (1, 1), (0, 0), (8, 5), depth=3, each=16),
    "a common divisor": Layer((3, 3), (3, 2), (4, 1), (2, 1), (1, 0), (11, 4), depth=2, each=16),
    "groups": Layer((4, 4), (3, 3), (2, 3), (1, 2), (1, 1), (7, 12), groups=2, depth=3, each=16),
    "three axes": Layer((2, 3, 3), (3, 2, 3), (2, 2, 1), (1, 1, 1), (1, 0, 1), (3, 6, 3), depth=2, each=16),
    "one axis": Layer((6,), (5,), (2,), (3,), (2,), (19,), depth=3, each=16),
}


@pytest.mark.fast("phases without taps")
@pytest.mark.parametrize("name", PARAMETERS)
def test_every_sketch_of_its_kernels_is_right(name: str) -> None:
    after = optimize(made(PARAMETERS[name])[0])
    rng = np.random.default_rng(0)
    for g in partition(after):
        assert isinstance(g, Group)
        dag = replace(g.dag, constants=())  # weights are packed in each call
        space = derive(dag, host())
        data = [rng.integers(-3, 4, t.shape).astype(t.dtype) for t in dag.inputs]
        want = te.evaluate(dag, data)
        assert space.sketches != ("separate",)
        for k in range(min(3, len(space.sketches))):
            rows = space.sample(k, 64, rng)
            for row in rows[space.valid(k, rows)][:1]:
                check_compiled(dag, space.trace(k, row), space.target, data, want)


def steps(s: Stmt) -> int:
    """Multiplications that a lowered kernel of one product runs, by its loops' extents."""
    found = 0

    def go(x: Stmt, env: dict[str, int]) -> None:
        nonlocal found
        if isinstance(x, Loop):
            for i in range(int(E.evaluate(x.extent, env))):
                go(x.body, env | {x.var: i})
        elif isinstance(x, Guard) and not E.evaluate(x.cond, env):
            return
        elif getattr(x, "update", False):
            assert not any(isinstance(e, E.Select) for v in expressions(x) for e in E.walk(v))
            found += 1
        else:
            for k in kids(x):
                go(k, env)

    go(s, {})
    return found


@pytest.mark.slow
def test_no_step_adds_zero() -> None:
    """Of 2 · 2 taps a phase of a 3 × 3 kernel has 1, 2, 2 and 4."""
    a = replace(STRIDED, sizes=(2, 2), out=(4, 4), depth=2, each=16)
    g = next(g for g in partition(optimize(made(a)[0])) if any(map(is_product, g.dag.stages)))
    space = derive(g.dag, host())
    rng = np.random.default_rng(1)
    rows = space.sample(0, 256, rng)
    row = rows[space.valid(0, rows)][0]
    func = lower(Schedule.replay(g.dag, space.trace(0, row), space.target).nest)
    points = 2 * a.sizes[0] * a.sizes[1] * a.each * a.depth
    assert points * 9 <= steps(func.body) < points * 9 * 1.7


def test_an_epilogue_joins_phases_and_a_turned_map_does_not() -> None:
    """Between layers results are stored in turn by the kernel of the sum; a caller's have channels first."""
    b = cases.Builder()
    x = b.input("x", 1, 4, 3, 3)
    h = transposed_convolution(
        x, b.constant("v", 4, 8, 4, 4), b.constant("c", 8), (2, 2), (1, 1), (1, 1), (6, 6)
    )
    y = transposed_convolution(
        cases.relu(h), b.constant("w", 8, 4, 4, 4), None, (2, 2), (1, 1), (1, 1), (12, 12)
    )
    graph = b.graph(y)
    after = optimize(graph)
    arrays = cases.inputs_of(graph)
    np.testing.assert_array_equal(run(after, arrays)[0], evaluate(graph, arrays)[0])
    first, second, turned = (g.dag.stages for g in partition(after) if isinstance(g, Group))
    assert any(map(is_product, first)) and first[-1].reducer is None, "relu follows the sum in its kernel"
    assert any(map(is_product, second)) and [s.reducer for s in turned] == [None]


def test_channels_of_groups_are_last_and_phases_are_not() -> None:
    a = PARAMETERS["groups"]
    assert product_of(optimize(made(a)[0])).axes[-1].extent == a.groups * a.each


def test_a_batch_norm_after_phases_folds_into_weights() -> None:
    b = cases.Builder()
    x = b.input("x", 1, 4, 3, 3)
    y = transposed_convolution(x, b.constant("v", 4, 8, 3, 3), None, (2, 2), (1, 1), (1, 1), (5, 5))
    graph = b.graph(cases.batch_norm(b, y, "norm"))
    after = optimize(graph)
    last = after.dag.stages[-1].values[0]
    assert not any(isinstance(x, E.Binary) and x.op == "*" and E.loads(x) for x in E.walk(last))
    arrays = cases.inputs_of(graph)
    np.testing.assert_allclose(evaluate(after, arrays)[0], evaluate(graph, arrays)[0], rtol=1e-4, atol=1e-4)
