"""Axes of extent 1 at the end of a shape hide nothing of what is contiguous."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from helpers import check_compiled, check_interpreted, expected, inputs
from space_cases import target

from schedules import ops, te
from schedules.ir import const
from schedules.ir.nest import loops_of
from schedules.schedule import Schedule
from schedules.space import DerivedSpace, derive
from schedules.te.compute_dag import ComputeDAG

Shape = tuple[int, ...]


def turned(shape: Shape) -> ComputeDAG:
    axes = (1, 0, *range(2, len(shape)))
    return ops.workload("permute", {"shape": shape, "axes": axes}).dag


def backwards(shape: Shape) -> ComputeDAG:
    x = te.placeholder(shape[:1], name="x")
    return te.dag([x, te.compute(shape, lambda i, *_: x[shape[0] - 1 - i] * 2.0, "y")])


def sums(shape: Shape) -> ComputeDAG:
    x, r = te.placeholder(shape, name="x"), te.reduce_axis(shape[0], "r")
    rest = shape[1:]
    return te.dag([x, te.compute(rest or (1,), lambda *at: te.sum(x[(r, *at[: len(rest)])], axis=r), "y")])


CASES: dict[str, tuple[Callable[[Shape], ComputeDAG], Shape]] = {
    "a transposition": (turned, (70, 52)),
    "in another order": (backwards, (100,)),
    "a sum": (sums, (100,)),
}


@pytest.mark.fast(but=["a transposition-*"])
@pytest.mark.parametrize("units", [(1,), (1, 1)])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_the_space_is_as_large_as_without(case: str, threads: int, units: Shape) -> None:
    make, shape = CASES[case]
    space, plain = (derive(make(s), target(threads)) for s in ((*shape, *units), shape))
    assert options(space) == options(plain)
    row = space.sample(0, 64, np.random.default_rng(threads))
    (row, *_) = row[space.valid(0, row)]
    s = Schedule.replay(space.dag, space.trace(0, row), space.target)
    data = inputs(space.dag)
    want = expected(space.dag, data)
    check_interpreted(s.nest, space.dag, data, want)
    check_compiled(space.dag, s.trace, space.target, data, want)


def options(space: DerivedSpace) -> list[list[tuple[int, ...]]]:
    """Of the holes, whatever their names."""
    return [[getattr(h, "options", ()) for h in space.sketch(n).holes] for n in range(len(space.sketches))]


def test_a_padded_copy_of_one_channel_is_made_in_vectors() -> None:
    params = {"h": 40, "w": 40, "ci": 1, "co": 8, "k": 5, "padding": 2}
    space = derive(ops.workload("conv2d", params).dag, target())
    n = next(k for k, name in enumerate(space.sketches) if "pad.at=root" in name)
    rows = space.sample(n, 64, np.random.default_rng(0))
    row = rows[space.valid(n, rows)][0]
    s = Schedule.replay(space.dag, space.trace(n, row), space.target)
    (lanes,) = (x for x in loops_of(s.nest, "pad") if x.kind == "vectorize")
    assert const(lanes.extent) == 44, "columns"


def test_results_in_order_may_be_written_around_the_caches() -> None:
    x, b = te.placeholder((2048, 2048, 1), name="x"), te.placeholder((2048,), name="b")
    space = derive(te.dag([x, b, te.compute(x.shape, lambda i, j, k: x[i, j, k] + b[j], "y")]), target())
    assert "y.stream" in space.holes(0)


def test_a_stage_of_rows_is_computed_in_vectors() -> None:
    """Halves, and in the loop that makes them their sum over the last axis but one."""
    shape, r = (6, 80, 1), te.reduce_axis(80, "r")
    x = te.placeholder(shape, name="x")
    e = te.compute(shape, lambda i, j, k: x[i, j, k] / 2.0, "e")
    total = te.compute((6,), lambda i: te.sum(e[i, r, 0], axis=r), "total")
    dag = te.dag([x, te.compute(shape, lambda i, j, k: e[i, j, k] - total[i], "y")])
    space = derive(dag, target())
    rows = space.sample(0, 16, np.random.default_rng(0))
    s = Schedule.replay(dag, space.trace(0, rows[space.valid(0, rows)][0]), space.target)
    for name in ("e", "y"):
        assert next(const(x.extent) or 0 for x in loops_of(s.nest, name) if x.kind == "vectorize") >= 8
    data = inputs(dag)
    check_compiled(dag, s.trace, space.target, data, te.evaluate(dag, data))
