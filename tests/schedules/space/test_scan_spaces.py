"""Every sketch of a scan is right, whatever is decided."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from helpers import check_compiled, check_interpreted, host, inputs
from random_scans import random_scan

from schedules import te
from schedules.schedule import Schedule
from schedules.space.derive import derive
from schedules.te.compute_dag import ComputeDAG


def check_space(dag: ComputeDAG, threads: int, each: int, *, compiled: bool) -> tuple[str, ...]:
    """Raise unless samples of every sketch are right; returns the names of the sketches."""
    target = host(threads)
    space, data = derive(dag, target), inputs(dag)
    want = te.evaluate(dag, data)
    for n in range(len(space.sketches)):
        rows = space.sample(n, each, np.random.default_rng(n))
        assert np.isfinite(space.features(n, rows)).all()
        for row in rows[space.valid(n, rows)]:
            s = Schedule.replay(dag, space.trace(n, row), target)
            check_interpreted(s.nest, dag, data, want)
            if compiled:
                check_compiled(dag, s.trace, target, data, want)
    return space.sketches


def selective() -> list[Any]:
    """A small selective scan: a state for each channel and number, whose sum over numbers is read."""
    t, d, n = 6, 12, 8
    dt, x = (te.placeholder((t, d), name=name) for name in ("dt", "x"))
    b, c, a = (
        te.placeholder((t, n), name="b"),
        te.placeholder((t, n), name="c"),
        te.placeholder((d, n), name="a"),
    )

    def step(h: Any, i: Any, j: Any, k: Any) -> Any:
        kept = te.minimum(te.maximum(dt[i, j] * a[j, k], -1.0), 1.0) * te.minimum(h[i - 1, j, k], 5.0)
        return kept + dt[i, j] * b[i, k] * x[i, j]

    h = te.scan((t, d, n), lambda h, i, j, k: step(h, i, j, k), init=0.0, name="h")
    r = te.reduce_axis(n, name="r")
    return [dt, a, b, c, x, te.compute((t, d), lambda i, j: te.sum(c[i, r] * h[i, j, r], axis=r), name="y")]


def test_states_lie_in_registers_or_in_memory() -> None:
    b = te.placeholder((5, 21), name="b")
    y = te.scan((5, 21), lambda y, t, i: b[t, i] - y[t - 1, i], init=0.0, name="y")
    assert check_space(te.dag([b, y]), 1, 2, compiled=False) == ("y.in=registers", "y.in=memory")


def test_a_selective_scan_has_lanes_of_channels_or_of_numbers() -> None:
    assert derive(te.dag(selective()), host(1)).sketches == ("h.lanes=k", "h.lanes=j")


def sweep(n: int, m: int) -> ComputeDAG:
    """Each point waits for the one to the left, and reads the row above."""
    a = te.placeholder((n, m), name="a")

    def point(y: Any, i: Any, j: Any) -> Any:
        return te.minimum(y[i, j - 1], 4.0) - te.minimum(y[i - 1, j] * 2.0 + a[i, j], 4.0)

    y = te.scan((n, m), point, init=1.0, axis=(0, 1), name="y")
    return te.dag([a, te.compute((n, m), lambda i, j: y[i, j] + 1.0, name="z")])


def elimination(n: int, m: int, k: int, axis: int) -> ComputeDAG:
    """A scan forwards, and one backwards that alone reads what it makes."""
    shape = (n, m, k)
    a, b = (te.placeholder(shape, name=x) for x in "ab")

    def before(x: Any, i: tuple[Any, ...], by: int) -> Any:
        return x[(*i[:axis], i[axis] - by, *i[axis + 1 :])]

    def forwards(p: Any, q: Any, *i: Any) -> Any:
        f = te.minimum(a[i] * 2.0 + b[i], 3.0)
        return te.minimum(before(p, i, 1), 4.0) - f, te.maximum(before(q, i, 1) + f, -4.0)

    p, q = te.scan(
        [shape, shape],
        lambda p, q, i, j, t: forwards(p, q, i, j, t),
        init=[0.0, 1.0],
        axis=axis,
        name=["p", "q"],
    )
    s = te.scan(
        shape,
        lambda s, i, j, t: te.minimum(p[i, j, t] - te.minimum(before(s, (i, j, t), -1), q[i, j, t]), 9.0),
        init=0.0,
        axis=axis,
        reverse=True,
        name="s",
    )
    return te.dag([a, b, te.compute(shape, lambda i, j, t: s[i, j, t] - a[i, j, t], name="z")])


def test_what_a_sweep_does_not_wait_for_is_a_choice() -> None:
    assert derive(sweep(3, 20), host(1)).sketches == ("scans.parts=ahead", "plain")
    assert derive(sweep(3, 3), host(1)).sketches == ("plain",)  # shorter than vectors


def test_a_scan_in_tiles_of_another_is_a_choice() -> None:
    w = host(1).limit("vector_bytes", 16) // 4
    have = derive(elimination(2, w + 3, 2 * w, 2), host(1)).sketches
    assert have == ("scans.in=tiles scans.parts=ahead", "scans.in=tiles", "scans.parts=ahead", "plain")
    assert derive(elimination(3, 4, 5, 0), host(1)).sketches == ("scans.in=tiles", "plain")


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 20), (3, 19), (4, 33), (2, 64)])
def test_sweeps_compiled(shape: tuple[int, int]) -> None:
    check_space(sweep(*shape), 1, 3, compiled=True)


@pytest.mark.slow
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(2, 19, 32), (3, 16, 16), (1, 5, 7), (2, 33, 24)])
def test_eliminations_compiled(shape: tuple[int, int, int], axis: int) -> None:
    check_space(elimination(*shape, axis), 1 + axis % 2, 2, compiled=True)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_a_selective_scan_compiled(threads: int) -> None:
    check_space(te.dag(selective()), threads, 2, compiled=True)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 40, 20))
def test_spaces_of_random_scans(first: int) -> None:
    for seed in range(first, first + 20):
        check_space(random_scan(Random(seed)), 1 + seed % 2, 2, compiled=seed % 4 == 0)


@pytest.mark.fuzz
@pytest.mark.parametrize("first", range(1000, 1400, 50))
def test_spaces_of_many_random_scans(first: int) -> None:
    for seed in range(first, first + 50):
        check_space(random_scan(Random(seed)), 1 + seed % 2, 3, compiled=True)
