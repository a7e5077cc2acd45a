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
