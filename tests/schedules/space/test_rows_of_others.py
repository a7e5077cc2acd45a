"""Stages of a row that are no reductions along it: windows, and results in another order."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from helpers import expected, inputs, interpret, same
from space_cases import target

from schedules import te
from schedules.ir import Loop, const
from schedules.ir.nest import loops_of
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.te.compute_dag import ComputeDAG


def softened(batch: int, pixels: int, channels: int, window: int, turned: bool) -> ComputeDAG:
    """Shaped as softmax of the least of a window; perhaps with channels first."""
    x = te.placeholder((batch, window, pixels, channels), name="x")
    w, c, r = (te.reduce_axis(n, v) for n, v in ((window, "w"), (channels, "c"), (channels, "r")))
    low = te.compute((batch, pixels, channels), lambda i, k, j: te.min(x[i, w, k, j], axis=w), "low")
    top = te.compute((batch, pixels), lambda i, k: te.max(low[i, k, c], axis=c), "top")
    e = te.compute(low.shape, lambda i, k, j: (low[i, k, j] - top[i, k]) / 0.5, "e")
    total = te.compute((batch, pixels), lambda i, k: te.sum(e[i, k, r], axis=r), "total")
    inv = te.compute((batch, pixels), lambda i, k: total[i, k] / 0.5, "inv")
    if turned:
        shape = (batch, channels, pixels)
        return te.dag([x, te.compute(shape, lambda i, j, k: e[i, k, j] - inv[i, k], "y")])
    return te.dag([x, te.compute(low.shape, lambda i, k, j: e[i, k, j] - inv[i, k], "y")])


SHAPES = [(2, 9, 24, 3), (1, 10, 16, 2), (3, 8, 5, 2), (2, 16, 40, 7)]


def times(loops: list[Loop]) -> int:
    """How often a stage's loops run, whatever a split rounds up."""
    return prod(const(x.extent) or 1 for x in loops)


@pytest.mark.fast(but=["False-shape3", "True-shape3"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("turned", [False, True])
def test_every_sketch_is_right(shape: tuple[int, int, int, int], turned: bool) -> None:
    dag = softened(*shape, turned)
    space = derive(dag, target())
    data = inputs(dag)
    want = expected(dag, data)
    for k in range(len(space.sketches)):
        rows = space.sample(k, 8, np.random.default_rng(0))
        nest = Schedule.replay(dag, space.trace(k, rows[space.valid(k, rows)][0]), space.target).nest
        same(interpret(nest, dag, data), want, space.sketches[k])


@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_is_computed_again_for_results_in_another_order(shape: tuple[int, int, int, int]) -> None:
    batch, pixels, channels, window = shape
    space = derive(softened(*shape, True), target())
    for k in range(len(space.sketches)):
        rows = space.sample(k, 8, np.random.default_rng(0))
        nest = Schedule.replay(space.dag, space.trace(k, rows[0]), space.target).nest
        assert times(loops_of(nest, "low")) < 2 * batch * pixels * (channels + 7) * window


@pytest.mark.parametrize("shape", SHAPES)
def test_a_window_in_a_row_has_lanes(shape: tuple[int, int, int, int]) -> None:
    nest = derive(softened(*shape, False), target()).sketch(0).nest
    assert any(x.kind == "vectorize" for x in loops_of(nest, "low"))
