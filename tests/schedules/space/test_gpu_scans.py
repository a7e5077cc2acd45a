"""Scans for GPUs: a thread for each point of the other axes; right in the emulator, or refused by name."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from grid_cases import TARGET, need_cxx
from helpers import inputs, poisoned, same
from random_scans import random_scan

from autotune.codegen.simt import emulator
from autotune.targets import from_name
from schedules import te
from schedules.errors import ScheduleError
from schedules.ir import Alloc, nbytes, walk
from schedules.passes.simt import lower_simt
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.te.compute_dag import ComputeDAG


def check(dag: ComputeDAG, each: int = 1) -> list[tuple[str, list[tuple[int, int]]]]:
    """Raise unless samples of every sketch are right; returns their names, and (blocks, threads) of their
    kernels."""
    space, data = derive(dag, TARGET), inputs(dag)
    want, found = te.evaluate(dag, data), []
    for n, name in enumerate(space.sketches):
        rows = space.sample(n, each, np.random.default_rng(n))
        assert np.isfinite(space.features(n, rows)).all()
        for row in rows[space.valid(n, rows)]:
            found.append((name, lower_simt(Schedule.replay(dag, space.trace(n, row), TARGET).nest)))
    built = emulator.build(*(p for _, p in found))
    for n, (name, p) in enumerate(found):
        outs = [poisoned(w) for w in want]
        assert not emulator.run(built, p, [*data, *outs], n)
        same(outs, want, name)
    return [(name, [(int(np.prod(k.grid)), k.threads) for k in p.kernels]) for name, p in found]


def recurrence(axis: int, reverse: bool, shape: tuple[int, int] = (6, 70)) -> ComputeDAG:
    a, b = te.placeholder(shape, name="a"), te.placeholder(shape, name="b")
    s = -1 if reverse else 1

    def value(y: Any, i: Any, j: Any) -> Any:
        before = y[i - s, j] if axis == 0 else y[i, j - s]
        return te.minimum(te.maximum(b[i, j] - a[i, j] * before, -8.0), 8.0)

    return te.dag([a, b, te.scan(shape, lambda y, i, j: value(y, i, j), 2.0, axis, reverse, name="y")])


@pytest.mark.slow
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_thread_has_all_steps_of_a_point(axis: int, reverse: bool) -> None:
    need_cxx()
    ((_, [(blocks, threads)]),) = check(recurrence(axis, reverse))
    points = (70, 6)[axis]
    assert blocks * threads >= points and (blocks - 1) * threads < points


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_scans_are_right_or_refused(first: int) -> None:
    need_cxx()
    done = 0
    for seed in range(first, first + 20):
        dag = random_scan(Random(seed))
        try:
            check(dag)
            done += 1
        except ScheduleError as err:
            assert "is a scan that" in str(err), (seed, err)
    assert done >= 5


@pytest.mark.fuzz
@pytest.mark.parametrize("first", range(1000, 1400, 50))
def test_many_random_scans_are_right_or_refused(first: int) -> None:
    test_random_scans_are_right_or_refused(first)


@pytest.mark.slow
def test_pairs_blocks_and_readers() -> None:
    """An associative scan of pairs in one chain and in blocks, and a scan whose sum over points is read."""
    need_cxx()
    a, b = te.placeholder((9, 5), name="a"), te.placeholder((9, 5), name="b")

    def then(x: Any, y: Any) -> Any:
        return x[0] + y[0], te.maximum(x[1], y[1])

    for block in (None, 4):
        check(te.dag([a, b, *te.associative_scan(then, (a, b), identity=(0.0, -9.0), block=block)]))
    k = te.reduce_axis(5, name="k")
    h = te.cumsum(a, name="h")
    check(te.dag([a, te.compute((9,), lambda t: te.sum(h[t, k], axis=k), name="y")]))


def test_registers_keep_the_last_step() -> None:
    space = derive(recurrence(0, False), TARGET)
    row = space.sample(0, 1, np.random.default_rng(0))[0]
    (kernel,) = lower_simt(Schedule.replay(recurrence(0, False), space.trace(0, row), TARGET).nest).kernels
    assert [nbytes(x.buffer) for x in walk(kernel.body) if isinstance(x, Alloc)] == [4]


def layer() -> list[Any]:
    w, x = te.placeholder((5, 5), name="w"), te.placeholder((7, 5), name="x")
    h, k = te.state((7, 5), init=0.0, name="h"), te.reduce_axis(5, name="k")
    g = te.compute((7, 5), lambda t, j: te.sum(w[j, k] * h[t - 1, k], axis=k), name="g")
    return [w, x, te.scan(h, te.compute((7, 5), lambda t, j: g[t, j] + x[t, j]))]


def neighbours() -> list[Any]:
    x = te.placeholder((7, 5), name="x")
    return [x, te.scan((7, 5), lambda h, t, j: h[t - 1, te.minimum(j + 1, 4)] + x[t, j], init=0.0, name="h")]


@pytest.mark.parametrize(
    ("made", "why"),
    [(layer, "has a step of 2 stages"), (neighbours, "reads other points of the steps before")],
)
def test_what_threads_would_wait_for_is_refused(made: Any, why: str) -> None:
    with pytest.raises(ScheduleError, match=f"stage h is a scan that {why}, .*; tune for a CPU, or call"):
        derive(te.dag(made()), from_name("a100"))
