"""Sums of scans in panels, and points of their steps that nothing reads."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from helpers import check_compiled, check_interpreted, host, inputs
from hypothesis import given, settings
from hypothesis import strategies as st

from schedules import te
from schedules.errors import ScheduleError
from schedules.expr import show
from schedules.ir.printer import show as show_nest
from schedules.ir.unread import read_where
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.space.derive import derive
from schedules.te.compute_dag import ComputeDAG


def factor(n: int, reverse: bool = False, strict: bool = False, dtype: str = "float32") -> ComputeDAG:
    """A factorisation in small integers: a row of L a step, of which a triangle is read."""
    A = te.placeholder((n, n), dtype, "A")
    L = te.state((n, n), dtype, axis=0, reverse=reverse, name="L")

    def bounded(c: Any, i: Any) -> Any:
        k = te.reduce_axis((c + 1, n) if reverse else (0, c), "k")
        return te.sum(L[k, i] * L[k, c], axis=k)

    s = te.compute((n, n), bounded, "s")
    d = te.compute((n,), lambda c: te.minimum(A[c, c] - s[c, c], 2.0), "d")

    def step(c: Any, i: Any) -> Any:
        return te.minimum(te.maximum(A[i, c] - s[c, i] + d[c], -3.0), 3.0)

    L = te.scan(L, te.compute((n, n), step, "L"))

    def read(i: Any, j: Any) -> Any:
        inside = (i < j if strict else i <= j) if reverse else (j < i if strict else j <= i)
        return te.select(inside, L[j, i], A[i, j])

    return te.dag([A, te.compute((n, n), read, "R")])


def right(s: Schedule, *, compiled: bool) -> None:
    data = inputs(s.dag)
    want = te.evaluate(s.dag, data)
    check_interpreted(s.nest, s.dag, data, want)
    if compiled:
        check_compiled(s.dag, s.trace, host(1), data, want)


def random_panels(s: Schedule, rng: Random) -> None:
    """Panels, tiles of their sums, and what is left out of each, of any sizes."""
    rows, lanes = rng.choice((1, 2, 3)), rng.choice((1, 2, 4))
    _, inner = s.split("s_c", rows * rng.randint(1, 3))
    ahead = s.reduce_ahead("s", inner)
    *_, c, i, k = s.loops(ahead)
    c0, c1 = s.split(c, (None, rows))
    i0, i1 = s.split(i, (None, lanes), "guard")
    s.reorder(i0, c0, k, c1, i1)
    if rng.random() < 0.7:
        start = s.decompose_reduction(ahead, k)
        s.vectorize(s.loops(start)[-1])
        s.vectorize(i1)
    for name in (ahead, "s", "L"):
        if rng.random() < 0.7:
            at_tiles = (rows, lanes) if rng.random() < 0.5 else (rng.choice((1, 2)), rng.choice((1, 3, 4)))
            s.skip_unread(name, at_tiles)


@settings(max_examples=5)
@given(n=st.integers(1, 11), reverse=st.booleans(), strict=st.booleans(), seed=st.integers(0, 10**6))
def test_panels_mean_what_the_steps_do(n: int, reverse: bool, strict: bool, seed: int) -> None:
    s = Schedule(factor(n, reverse, strict))
    try:
        random_panels(s, Random(seed))
    except ScheduleError as err:  # a triangle of one point has all of it
        assert n <= 2 and "skip_unread" in str(err)
    right(s, compiled=False)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_panels_compiled(seed: int) -> None:
    s = Schedule(factor(5 + seed % 9, seed % 2 == 1, seed % 3 == 0))
    random_panels(s, Random(seed))
    right(s, compiled=True)


def test_what_is_read_of_a_factorisation_is_a_triangle() -> None:
    found = {name: [show(c) for c in cs] for name, cs in read_where(Schedule(factor(7)).nest).items()}
    assert found == {"s": ["0' - 1' <= 0"], "L": ["0' - 1' <= 0"]}


def test_the_steps_of_a_triangle_run_over_what_is_read() -> None:
    dag = factor(9)
    whole, part = Schedule(dag), Schedule(dag)
    for name in ("s", "L"):
        part.skip_unread(name, (1, 1))
    assert "for L_i in range(9):" in show_nest(lower(whole.nest))
    assert "for L_i in range(s_c * -1 + 9):" in show_nest(lower(part.nest))


def test_what_all_of_is_read_is_not_left_out() -> None:
    n = 6
    dag = factor(n)
    a = te.placeholder((n, n), name="a")
    y = te.scan((n, n), lambda y, t, i: a[t, i] - y[t - 1, i], init=0.0, name="y")
    last = te.compute((n, n), lambda i, j: te.select(j <= i, y[i, j], 0.0) + y[i, n - 1 - j], "z")
    assert read_where(Schedule(te.dag([a, last])).nest) == {}
    assert "L" in read_where(Schedule(dag).nest)


def test_a_value_that_is_a_place_is_never_left_out() -> None:
    n = 6
    a = te.placeholder((n, n), name="a")
    place = te.compute((n, n), lambda i, j: te.cast(te.minimum(te.maximum(a[i, j], 0.0), 5.0), "int32"), "p")
    got = te.compute(
        (n, n), lambda i, j: te.select(j <= i, a[te.minimum(te.maximum(place[i, j], 0), n - 1), j], 0.0), "g"
    )
    assert "p" not in read_where(Schedule(te.dag([a, got])).nest)


@pytest.mark.parametrize("n", [40, pytest.param(67, marks=pytest.mark.slow)])
def test_every_sketch_of_panels_is_right(n: int) -> None:
    dag = factor(n, dtype="float64")
    space = derive(dag, host(1))
    assert any("sums=ahead" in x for x in space.sketches)
    data = inputs(dag)
    want = te.evaluate(dag, data)
    for k in range(len(space.sketches)):
        rows = space.sample(k, 20, np.random.default_rng(k))
        assert np.isfinite(space.features(k, rows)).all()
        for row in rows[space.valid(k, rows)][: 1 if n == 40 else 6]:
            check_compiled(dag, space.trace(k, row), host(1), data, want)


def _split(s: Schedule) -> str:
    return s.split("s_c", 4)[1]


REFUSED = {
    "no reduction": (lambda s: s.reduce_ahead("L", _split(s)), r"^reduce_ahead L: it is not a reduction"),
    "twice": (
        lambda s: (s.reduce_ahead("s", "s_c_1"), s.reduce_ahead("s", "s_c_1")),
        r"^reduce_ahead s: it starts elsewhere; use reduce_ahead before decompose_reduction",
    ),
    "not around": (lambda s: s.reduce_ahead("s", "L_i"), r"^reduce_ahead s: L_i is not around it"),
    "other points": (
        lambda s: s.reduce_ahead("s", "s_i"),
        r"^reduce_ahead s: it reads L\[k, i\], and no axis of it tells which of that loop s_i stores",
    ),
    "tiles": (lambda s: s.skip_unread("s", (1,)), r"^skip_unread s: it has 2 axes, and 1 tiles are given"),
    "no tile": (lambda s: s.skip_unread("s", (0, 1)), r"^skip_unread s: a tile has 0 points"),
    "all is read": (
        lambda s: s.skip_unread("d", (1,)),
        r"^skip_unread d: something may read each point",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    steps, message = REFUSED[name]
    s = Schedule(factor(9))
    if name == "twice":
        _split(s)
    with pytest.raises(ScheduleError, match=message):
        steps(s)
