"""Outputs that other stages read: each is written whole, and returned, whatever the schedule."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random

import numpy as np
import pytest
from grid_cases import Case, emulate
from helpers import check_compiled, host, interpret, same
from random_schedules import random_schedule

import autotune as at
from autotune import te
from schedules.errors import ScheduleError
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.te.compute_dag import ComputeDAG

M, N, K = 13, 24, 9


def matmul_and_relu() -> ComputeDAG:
    """A product, and its positive part."""
    a, b = te.placeholder((M, K), name="a"), te.placeholder((K, N), name="b")
    k = te.reduce_axis(K, "k")
    c = te.compute((M, N), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c")
    return te.dag([a, b, c, te.compute((M, N), lambda i, j: te.maximum(c[i, j], 0.0), "d")])


def elementwise_chain() -> ComputeDAG:
    """Every stage of a chain, the last first."""
    x = te.placeholder((M, N), name="x")
    a = te.compute((M, N), lambda i, j: x[i, j] + 1.0, "a")
    b = te.compute((M, N), lambda i, j: a[i, j] * 2.0, "b")
    return te.dag([x, te.compute((M, N), lambda i, j: b[i, j] - a[i, j], "c"), a, b])


def stencils() -> ComputeDAG:
    """What neighbours read more than once."""
    x = te.placeholder((M + 4, N), name="x")
    a = te.compute((M + 2, N), lambda i, j: x[i, j] + x[i + 2, j], "a")
    return te.dag([x, a, te.compute((M, N), lambda i, j: a[i, j] - a[i + 2, j] + a[i + 1, j], "b")])


def parts() -> ComputeDAG:
    """Read in part only, and in another order."""
    x = te.placeholder((M, N), name="x")
    a = te.compute((M, N), lambda i, j: x[i, j] * 3.0, "a")
    return te.dag([x, a, te.compute((N // 2, M - 2), lambda i, j: a[j + 1, 2 * i] + 1.0, "b")])


def row_maximum_sum_and_difference() -> ComputeDAG:
    """As a softmax, with exact numbers."""
    x, k, q = te.placeholder((M, N), name="x"), te.reduce_axis(N, "k"), te.reduce_axis(N, "q")
    top = te.compute((M,), lambda i: te.max(x[i, k], axis=k), "top")
    e = te.compute((M, N), lambda i, j: x[i, j] - top[i], "e")
    total = te.compute((M,), lambda i: te.sum(e[i, q], axis=q), "total")
    return te.dag([x, top, total, te.compute((M, N), lambda i, j: e[i, j] * 64.0 - total[i], "y")])


def mean_deviation_and_result() -> ComputeDAG:
    """As a norm that keeps what its gradient needs, with exact numbers."""
    x, k, q = te.placeholder((M, N), name="x"), te.reduce_axis(N, "k"), te.reduce_axis(N, "q")
    mean = te.compute((M,), lambda i: te.sum(x[i, k], axis=k), "mean")
    var = te.compute((M,), lambda i: te.sum((x[i, q] - mean[i]) * (x[i, q] - mean[i]), axis=q), "var")
    scale = te.compute((M,), lambda i: var[i] + 1.0, "scale")
    return te.dag([x, te.compute((M, N), lambda i, j: (x[i, j] - mean[i]) + scale[i], "y"), mean, scale])


PROGRAMS: dict[str, Callable[[], ComputeDAG]] = {
    f.__name__: f
    for f in (matmul_and_relu, elementwise_chain, stencils, parts, row_maximum_sum_and_difference,
              mean_deviation_and_result)
}  # fmt: skip


@cache
def case(name: str) -> Case:
    dag, rng = PROGRAMS[name](), np.random.default_rng(1)
    data = tuple(rng.integers(-3, 4, t.shape).astype(t.dtype) for t in dag.inputs)
    return Case(dag, data, tuple(te.evaluate(dag, list(data))))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_sketch_writes_every_output(name: str, threads: int) -> None:
    c = case(name)
    space, rng = derive(c.dag, host(threads)), np.random.default_rng(0)
    for number in range(0, len(space.sketches), max(1, len(space.sketches) // 8)):
        rows = space.sample(number, 30, rng)
        for row in rows[space.valid(number, rows)][:2]:
            trace = space.trace(number, row)
            check_compiled(c.dag, trace, host(threads), list(c.inputs), list(c.expected))


@pytest.mark.fast("elementwise_chain")
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_kernel_of_a_grid_writes_every_output(name: str) -> None:
    emulate(case(name), 5)


@pytest.mark.fast("mean_deviation_and_result")
@pytest.mark.parametrize("name", PROGRAMS)
def test_random_schedules_write_every_output(name: str) -> None:
    c = case(name)
    for seed in range(12):
        s = random_schedule(c.dag, Random(seed), 6)
        same(interpret(s.nest, c.dag, list(c.inputs)), list(c.expected), f"seed {seed}")
        check_compiled(c.dag, s.trace, host(), list(c.inputs), list(c.expected))


def test_what_is_returned_is_not_inlined() -> None:
    s = Schedule(elementwise_chain())
    with pytest.raises(ScheduleError, match="inline a: a is an output of the kernel"):
        s.inline("a")


def test_a_kernel_returns_all_in_their_order() -> None:
    c = case("elementwise_chain")
    kernel = at.build(Schedule(c.dag), target=host())
    c.check(kernel(*c.inputs), "returned")
    outs = tuple(np.full(w.shape, np.nan, np.float32) for w in c.expected)
    kernel(*c.inputs, out=outs)
    c.check(outs, "into out=")


@pytest.mark.slow
def test_tune_and_load_take_them(tmp_path: object) -> None:
    x = te.placeholder((64, 96), name="x")
    k = te.reduce_axis(96, "k")
    total = te.compute((64,), lambda i: te.sum(x[i, k], axis=k), "total")
    y = te.compute((64, 96), lambda i, j: x[i, j] - total[i], "y")
    data = np.random.default_rng(0).integers(-3, 4, (64, 96)).astype(np.float32)
    db = f"{tmp_path}/log.db"
    result = at.tune([x, total, y], trials=3, budget_s=20, db=db, target=host())
    assert result.best is not None
    got = at.load([x, total, y], db=db, target=host())(data)
    np.testing.assert_array_equal(got[0], data.sum(1))
    np.testing.assert_array_equal(got[1], data - data.sum(1)[:, None])
