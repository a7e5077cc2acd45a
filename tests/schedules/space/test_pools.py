"""Spaces of pools: windows along one axis or several, that overlap or not, dilated, padded."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from helpers import expected, inputs, interpret, same
from hypothesis import given, settings
from space_cases import target

from schedules import te
from schedules.expr import Expr
from schedules.ir import blocks
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.te.compute_dag import ComputeDAG


def pool(
    out: tuple[int, ...],
    k: tuple[int, ...],
    stride: int,
    dilation: int = 1,
    padding: int = 0,
    fold: str = "max",
) -> ComputeDAG:
    """Windows over the last axes of two channels."""
    shape = [(n - 1) * stride + (w - 1) * dilation + 1 - 2 * padding for n, w in zip(out, k, strict=True)]
    x = te.placeholder((2, *shape), name="x")
    z = x
    if padding:

        def padded(c: Expr, *at: Expr) -> Expr:
            inside = [e for i, n in zip(at, shape, strict=True) for e in (i >= padding, i < n + padding)]
            return te.select(te.all(*inside), x[(c, *(i - padding for i in at))], 0.0)

        z = te.compute((2, *(n + 2 * padding for n in shape)), padded, "pad")
    axes = [te.reduce_axis(w, f"r{d}") for d, w in enumerate(k)]
    of = {"max": te.max, "sum": te.sum}[fold]

    def value(c: Expr, *at: Expr) -> te.Reduction:
        return of(z[(c, *(i * stride + r * dilation for i, r in zip(at, axes, strict=True)))], axis=axes)

    y = te.compute((2, *out), value, "y")
    if fold == "max":
        return te.dag([x, y])
    return te.dag([x, te.compute((2, *out), lambda *at: y[at] * 0.5, "mean")])


def check(dag: ComputeDAG) -> None:
    """Every sketch is right at one of its rows."""
    space = derive(dag, target())
    data = inputs(dag)
    want = expected(dag, data)
    rng = np.random.default_rng(0)
    for k in range(len(space.sketches)):
        some = space.sample(k, 16, rng)
        for row in some[space.valid(k, some)][:1]:
            nest = Schedule.replay(dag, space.trace(k, row), space.target).nest
            same(interpret(nest, dag, data), want, space.sketches[k])


# Lanes of float32 of the target are eight.
WIDE = [
    ((9, 16), (7, 7), 7),
    ((9, 16), (9, 7), 9),
    ((12, 20), (20, 5), 4),
    ((40,), (7,), 3),
    ((3, 4, 12), (9, 9, 5), 5),
]


@pytest.mark.parametrize(("out", "k", "stride"), WIDE)
@pytest.mark.parametrize("fold", ["max", "sum"])
def test_a_window_shorter_than_a_vector_has_lanes_of_outputs(
    out: tuple[int, ...], k: tuple[int, ...], stride: int, fold: str
) -> None:
    space = derive(pool(out, k, stride, fold=fold), target())
    assert all(space.holes(s) for s in range(len(space.sketches)))
    for s in range(len(space.sketches)):
        every = [b for b in blocks(space.sketch(s).nest.body) if b.reducer is not None]
        assert all(len(b.writes[0].indices) <= len(out) + 1 for b in every)  # no results of lanes


def test_a_dilated_window_has_lanes_of_outputs() -> None:
    """Nothing lies side by side in it."""
    space = derive(pool((64,), (15,), 4, dilation=2), target())
    assert any("vec" in h for h in space.holes(0))


def test_a_long_window_has_lanes_of_its_own() -> None:
    nest = derive(pool((3, 4), (16, 16), 16), target()).sketch(0).nest
    assert any("_rf" in b.name for b in blocks(nest.body))


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_every_sketch_of_a_pool_is_right(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 3), label="rank")
    most = {1: 20, 2: 11, 3: 5}[rank]
    k = tuple(data.draw(st.integers(1, most)) for _ in range(rank))
    out = tuple(data.draw(st.integers(1, {1: 12, 2: 5, 3: 3}[rank])) for _ in range(rank))
    stride, dilation = data.draw(st.integers(1, most)), data.draw(st.integers(1, 3))
    padding = data.draw(st.integers(0, (min(k) - 1) // 2))
    check(pool(out, k, stride, dilation, padding, data.draw(st.sampled_from(["max", "sum"]))))
