"""Depthwise convolutions by blocks of the product that sums their channels: samples are right, and the rule
is offered where it applies."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import pytest
from helpers import check_compiled, check_interpreted, interpret, same
from space_cases import target, values

from schedules import te
from schedules.ir import Alloc, Loop, const, walk
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.te.compute_dag import ComputeDAG

BLOCKS = "windows=blocks"


def separable(
    h: int, w: int, c: int, o: int, k: int = 3, stride: int = 1, between: bool = True, after: bool = True
) -> ComputeDAG:
    """A padded depthwise convolution, perhaps a map of it, and the product of its channels."""
    pad = k // 2
    x, wd = te.placeholder((h, w, c), name="x"), te.placeholder((k, k, c), name="wd")
    wp, bias = te.placeholder((c, o), name="wp"), te.placeholder((o,), name="bias")
    made: Any = x
    if pad:
        inside = lambda i, j: te.all(i >= pad, i < h + pad, j >= pad, j < w + pad)  # noqa: E731
        made = te.compute(
            (h + 2 * pad, w + 2 * pad, c),
            lambda i, j, q: te.select(inside(i, j), x[i - pad, j - pad, q], 0.0),
            "padded",
        )
    r, s, ci = te.reduce_axis(k, "r"), te.reduce_axis(k, "s"), te.reduce_axis(c, "ci")
    oh, ow = (h + 2 * pad - k) // stride + 1, (w + 2 * pad - k) // stride + 1
    d = te.compute(
        (oh, ow, c),
        lambda i, j, q: te.sum(made[i * stride + r, j * stride + s, q] * wd[r, s, q], axis=(r, s)),
        "d",
    )
    read = d
    if between:
        read = te.compute((oh, ow, c), lambda i, j, q: te.minimum(te.maximum(d[i, j, q], 0.0), 6.0), "read")
    y = te.compute((oh, ow, o), lambda i, j, f: te.sum(read[i, j, ci] * wp[ci, f], axis=ci), "y")
    if not after:
        return te.dag([x, wd, wp, y])
    return te.dag([x, wd, wp, bias, te.compute((oh, ow, o), lambda i, j, f: y[i, j, f] + bias[f], "z")])


SHAPES: dict[str, dict[str, Any]] = {
    "odd": {"h": 3, "w": 5, "c": 11, "o": 3},
    "wide": {"h": 2, "w": 8, "c": 18, "o": 9},
    "stride": {"h": 5, "w": 8, "c": 9, "o": 5, "stride": 2},
    "large window": {"h": 3, "w": 6, "c": 8, "o": 3, "k": 5},
    "nothing between": {"h": 4, "w": 8, "c": 8, "o": 8, "between": False},
    "nothing after": {"h": 4, "w": 6, "c": 13, "o": 8, "after": False},
    "no padding": {"h": 4, "w": 6, "c": 10, "o": 4, "k": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_sample_is_right(shape: str, threads: int) -> None:
    check(separable(**SHAPES[shape]), threads)


def test_a_small_one_is_right() -> None:
    """Interpreted, with its borders."""
    dag, rng = separable(2, 3, 5, 2), np.random.default_rng(0)
    space = derive(dag, target())
    data = values(dag, rng)
    nest = Schedule.replay(dag, space.trace(0, space.sample(0, 1, rng)[0]), space.target).nest
    same(interpret(nest, dag, data), te.evaluate(dag, data), "blocks")


def check(dag: ComputeDAG, threads: int) -> None:
    """Samples of each sketch, interpreted at each stage and compiled."""
    rng = np.random.default_rng(0)
    space = derive(dag, target(threads))
    assert space.sketches[0] == BLOCKS
    data = values(dag, rng)
    want = te.evaluate(dag, data)
    for sketch in range(len(space.sketches)):
        rows = space.sample(sketch, 40, rng)
        rows = np.unique(rows[space.valid(sketch, rows)], axis=0)
        assert len(rows)
        for n, row in enumerate(rows[rng.permutation(len(rows))[:4]]):
            trace = space.trace(sketch, row)
            if n == 0:
                check_interpreted(Schedule.replay(dag, trace, space.target).nest, dag, data, want)
            check_compiled(dag, trace, space.target, data, want)


def held(dag: ComputeDAG, sketch: int = 0) -> dict[str, int]:
    """Elements of what a lowered schedule allocates."""
    space = derive(dag, target())
    row = space.sample(sketch, 1, np.random.default_rng(0))[0]
    func = lower(Schedule.replay(dag, space.trace(sketch, row), space.target).nest)
    made = [x.buffer for x in walk(func.body) if isinstance(x, Alloc)]
    return {b.name: prod(const(n) for n in b.shape) for b in made}


def test_a_block_is_all_that_lies_between() -> None:
    dag = separable(8, 12, 16, 8)
    assert "padded" not in held(dag)
    assert held(dag)["read"] <= 12 * 16 < 8 * 12 * 16 <= held(dag, 1)["read"]


def loops(dag: ComputeDAG) -> Sequence[Loop]:
    space = derive(dag, target(2))
    row = space.sample(0, 1, np.random.default_rng(0))[0]
    nest = Schedule.replay(dag, space.trace(0, row), space.target).nest
    return [x for x in walk(nest.body) if isinstance(x, Loop)]


def test_threads_share_rows_and_borders_are_peeled() -> None:
    every = loops(separable(8, 12, 16, 8))
    assert any(x.kind == "parallel" for x in every)
    assert sum("partition" in dict(x.annotations) for x in every) >= 2


def test_offered_where_channels_stay_apart_and_one_product_reads_them() -> None:
    x, w = te.placeholder((6, 6, 8), name="x"), te.placeholder((3, 3, 8, 8), name="w")
    wp = te.placeholder((8, 5), name="wp")
    r, s, q, ci = (te.reduce_axis(n, a) for n, a in ((3, "r"), (3, "s"), (8, "q"), (8, "ci")))
    dense = te.compute(
        (4, 4, 8), lambda i, j, f: te.sum(x[i + r, j + s, q] * w[r, s, q, f], axis=(r, s, q)), "dense"
    )
    y = te.compute((4, 4, 5), lambda i, j, f: te.sum(dense[i, j, ci] * wp[ci, f], axis=ci), "y")
    assert not any("windows" in n for n in derive(te.dag([x, w, wp, y]), target()).sketches)
    wd = te.placeholder((3, 3, 8), name="wd")
    deep = te.compute(
        (4, 4, 8), lambda i, j, c: te.sum(x[i + r, j + s, c] * wd[r, s, c], axis=(r, s)), "deep"
    )
    one = te.compute((4, 4, 5), lambda i, j, f: te.sum(deep[i, j, ci] * wp[ci, f], axis=ci), "one")
    twice = te.compute((4, 4, 8), lambda i, j, c: deep[i, j, c] * 2.0, "twice")
    assert BLOCKS in derive(te.dag([x, wd, wp, one]), target()).sketches
    assert not any("windows" in n for n in derive(te.dag([x, wd, wp, one, twice]), target()).sketches)
    turned = te.compute((4, 4, 5), lambda j, i, f: te.sum(deep[i, j, ci] * wp[ci, f], axis=ci), "turned")
    assert not any("windows" in n for n in derive(te.dag([x, wd, wp, turned]), target()).sketches)
