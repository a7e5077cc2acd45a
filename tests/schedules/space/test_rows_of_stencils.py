"""Stages that read neighbours: rows together, borders apart, and vectors that stay in registers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers import check_compiled, check_interpreted, expected, host, inputs

from autotune.targets import from_name
from schedules import expr as E
from schedules import te
from schedules.ir import Loop, Store, walk
from schedules.ir.nest import find_block
from schedules.model import Target
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.space.rules.cpu.neighbours import near_axes
from schedules.te.compute_dag import ComputeDAG


def stencil(shape: tuple[int, ...], border: str = "kept", dtype: str = "float64") -> ComputeDAG:
    """Sums of a point and its neighbours along each axis. ``border``: what its points are."""
    x = te.placeholder(shape, dtype, "x")

    def point(*at: te.Expr) -> te.Expr:
        total = x[at]
        for d, n in enumerate(shape):
            for by in (-1, 1):
                there = tuple(a + by if k == d else a for k, a in enumerate(at))
                inside = te.all(there[d] >= 0, there[d] < n)
                total = total + (x[there] if border == "kept" else te.select(inside, x[there], 0.0))
        if border != "kept":
            return total
        inside = te.all(*(c for a, n in zip(at, shape, strict=True) for c in (a > 0, a < n - 1)))
        return te.select(inside, total, x[at])

    return te.dag([x, te.compute(shape, point, "y")])


def axes(dag: ComputeDAG) -> set[str]:
    s = Schedule(dag)
    return near_axes(find_block(s.nest, "y"))


def test_neighbours_are_found_along_their_axes() -> None:
    assert len(axes(stencil((9, 8)))) == 2
    assert len(axes(stencil((9, 7)))) == 1  # short
    x = te.placeholder((9, 9), "float32", "x")
    assert axes(te.dag([x, te.compute((9, 9), lambda i, j: x[i, j] * 2.0, "y")])) == set()
    assert axes(te.dag([x, te.compute((9, 9), lambda i, j: x[i, j] + x[j, i], "y")])) == set()
    assert len(axes(te.dag([x, te.compute((8, 9), lambda i, j: x[i, j] + x[i + 1, j], "y")]))) == 1
    index = te.placeholder((9,), "int32", "index")
    gathered = te.compute((8, 9), lambda i, j: x[index[i], j] + x[index[i + 1], j], "y")
    assert axes(te.dag([x, index, gathered])) == set()


def test_vectors_are_kept_where_registers_are_wide() -> None:
    for name, kept in (("x86-64-v4", True), ("x86-64-v3", False)):
        space = derive(stencil((20, 40)), from_name(name))
        assert ("y.vec", "y.rows") == space.holes(0)
        rows = space.sample(0, 1, np.random.default_rng(0))
        steps = [s for s in space.trace(0, rows[0]).steps if s.primitive == "annotate"]
        assert bool(steps) is kept


def test_only_borders_choose() -> None:
    """Of the loops over vectors, most store a sum, not a select."""
    dag, target = stencil((40, 320), "zero"), from_name("x86-64-v4")
    space = derive(dag, target)
    for row in space.sample(0, 4, np.random.default_rng(0)):
        func = lower(Schedule.replay(dag, space.trace(0, row), target).nest)
        loops = [x for x in walk(func.body) if isinstance(x, Loop) and x.kind == "serial"]
        inner = [x for x in loops if not any(y in loops for y in walk(x.body))]
        stores = [[y for y in walk(x.body) if isinstance(y, Store)] for x in inner]
        assert any(all(not any(map(_chooses, E.walk(y.value))) for y in found) for found in stores)


def _chooses(e: E.Expr) -> bool:
    return isinstance(e, E.Select)


@pytest.mark.fast("1-two-zero")
@pytest.mark.parametrize("border", ["kept", "zero"])
@pytest.mark.parametrize("shape", [(33,), (9, 17), (8, 9, 19)], ids=["one", "two", "three"])
@pytest.mark.parametrize("threads", [1, 2])
def test_every_choice_is_right(shape: tuple[int, ...], border: str, threads: int) -> None:
    dag = stencil(shape, border)
    target = host(threads)
    space, data = derive(dag, target), inputs(dag)
    want, rng = expected(dag, data), np.random.default_rng(0)
    for k in range(len(space.sketches)):
        rows = space.sample(k, 6, rng)
        for row in rows[space.valid(k, rows)][:3]:
            trace = space.trace(k, row)
            check_interpreted(Schedule.replay(dag, trace, target).nest, dag, data, want)
            check_compiled(dag, trace, target, data, want)


def layers(rows: int) -> ComputeDAG:
    """Two products of a few rows, and rows relative to their largest number."""
    x, v, w = (
        te.placeholder(s, "float32", n) for n, s in (("x", (rows, 12)), ("v", (12, 40)), ("w", (40, 24)))
    )
    k, r, c = te.reduce_axis(12, "k"), te.reduce_axis(40, "r"), te.reduce_axis(24, "c")
    h = te.compute((rows, 40), lambda i, j: te.sum(x[i, k] * v[k, j], axis=k), "h")
    y = te.compute((rows, 24), lambda i, j: te.sum(te.maximum(h[i, r], 0.0) * w[r, j], axis=r), "y")
    top = te.compute((rows,), lambda i: te.max(y[i, c], axis=c), "top")
    return te.dag([x, v, w, te.compute((rows, 24), lambda i, j: y[i, j] - top[i], "z")])


def small_caches(t: Target) -> Target:
    return replace(t, limits=tuple(sorted({**dict(t.limits), "l2_bytes": 1024}.items())))


@pytest.mark.slow
def test_large_weights_of_few_rows_are_multiplied_ahead() -> None:
    def ways(dag: ComputeDAG, t: Target) -> set[str]:
        return {x for sketch in derive(dag, t).sketches for x in sketch.split(",") if x.startswith("z.by=")}

    target = small_caches(host())
    assert any("ahead" in x for x in ways(layers(8), target))
    assert not any("ahead" in x for x in ways(layers(9), target))  # blocks of rows share the weights
    assert not any("ahead" in x for x in ways(layers(8), host()))
    space, data = derive(layers(8), target), inputs(layers(8))
    want = expected(layers(8), data)
    ahead = [k for k, name in enumerate(space.sketches) if "ahead" in name]
    for k in (ahead[0], ahead[-1]):
        rows = space.sample(k, 8, np.random.default_rng(0))
        trace = space.trace(k, rows[space.valid(k, rows)][0])
        check_interpreted(Schedule.replay(layers(8), trace, target).nest, layers(8), data, want)
        check_compiled(layers(8), trace, host(), data, want)
