"""A copied tensor is stored once for each place at which a window reads it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from helpers import check_interpreted, expected, inputs
from hypothesis import given, settings
from hypothesis import strategies as st

from schedules import te
from schedules.errors import ScheduleError
from schedules.ir.nest import writers
from schedules.model import Trace, Workload
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG
from schedules.trace_names import to_canonical, to_named


def windows(q: int = 5, taps: int = 3, c: int = 3, o: int = 4, step: int = 2, apart: int = 1) -> ComputeDAG:
    """A padded convolution along one axis, whose taps are ``apart``."""
    reach = step * (q - 1) + apart * (taps - 1) + 1
    x, w = te.placeholder((max(reach - 2, 1), c), name="X"), te.placeholder((taps, c, o), name="W")
    inside = lambda i: te.all(i > 0, i < max(reach - 2, 1) + 1)  # noqa: E731
    p = te.compute((reach, c), lambda i, u: te.select(inside(i), x[i - 1, u], 0.0), "P")
    t, u = te.reduce_axis(taps, "t"), te.reduce_axis(c, "u")
    value = lambda i, j: te.sum(p[step * i + apart * t, u] * w[t, u, j], axis=(t, u))  # noqa: E731
    return te.dag([x, w, te.compute((q, o), value, "C")])


def check(s: Schedule) -> None:
    data = inputs(s.dag)
    check_interpreted(s.nest, s.dag, data, expected(s.dag, data))
    again = Trace.from_json(s.trace.to_json())
    assert again == s.trace and Schedule.replay(s.dag, again).nest == s.nest
    w = Workload(s.dag)
    renamed, _ = to_canonical(w, s.trace)
    Schedule.replay(w.canonical, renamed)
    assert to_named(w, renamed) == s.trace


def test_a_row_of_a_window_is_a_row_of_the_copy() -> None:
    s = Schedule(windows())
    s.merge_axes("C_t", "C_u")
    s.cache_read("C", "P")
    s.unfold("P_global", ["C_t_C_u"])
    assert [n.value for n in s.nest.buffer("P_global").shape] == [5, 9]
    assert s.loops("P_global") == ["P_global_u0", "P_global_u1"]
    assert "P_global[C_i, C_t_C_u]" in str(s)
    check(s)


@settings(max_examples=30)
@given(
    q=st.integers(1, 5), taps=st.integers(1, 4), c=st.integers(1, 4), step=st.integers(1, 3),
    apart=st.integers(1, 3), merged=st.booleans(), tile=st.integers(2, 8), inlined=st.booleans(),
)  # fmt: skip
def test_any_window(
    q: int, taps: int, c: int, step: int, apart: int, merged: bool, tile: int, inlined: bool
) -> None:
    """Then packed with zeros at the ends of rows, with its padding inlined."""
    s = Schedule(windows(q, taps, c, 3, step, apart))
    axis = s.merge_axes("C_t", "C_u") if merged else "C_t"
    s.cache_read("C", "P")
    s.unfold("P_global", [axis])
    rank = 2 if merged else 3
    s.pack("P_global", [0] * (rank - 1) + [tile], list(range(rank + 1)))
    if inlined:
        s.inline("P")
    check(s)


def test_channels_of_groups_are_a_dimension() -> None:
    x, w = te.placeholder((6, 12), name="X"), te.placeholder((4, 3, 5), name="W")
    c = te.reduce_axis(3, "c")
    value = lambda i, g, o: te.sum(x[i, g * 3 + c] * w[g, c, o], axis=c)  # noqa: E731
    s = Schedule(te.dag([x, w, te.compute((6, 4, 5), value, "C")]))
    s.cache_read("C", "X")
    s.unfold("X_global", ["C_c"])
    assert [n.value for n in s.nest.buffer("X_global").shape] == [6, 4, 3]
    check(s)


def test_an_offset_copy_is_unfolded_too() -> None:
    x, w = te.placeholder((9,), "int8", "X"), te.placeholder((3, 4), "int8", "W")
    t = te.reduce_axis(3, "t")
    s = Schedule(te.dag([x, w, te.compute((4, 4), lambda i, j: te.sum(x[2 * i + t] * w[t, j], axis=t), "C")]))
    copy, *_ = s.cache_read_offset("C", "X", 128)
    s.unfold(copy, ["C_t"])
    data = [np.random.default_rng(0).integers(-128, 128, v.shape).astype("int8") for v in s.dag.inputs]
    check_interpreted(s.nest, s.dag, data, expected(s.dag, data))
    assert len(writers(s.nest, copy)[0].iters) == 2


Do = Callable[[Schedule], object]


def copied(s: Schedule) -> None:
    s.cache_read("C", "P")


def scheduled(s: Schedule) -> None:
    copied(s)
    s.split("P_global_x0", [None, 2])
    s.unfold("P_global", ["C_t"])


def cut(s: Schedule) -> None:
    copied(s)
    s.split("C_t", [None, 2])
    s.unfold("P_global", ["C_t_0"])


def read_twice(s: Schedule) -> None:
    s.cache_read("C", "X")
    s.unfold("X_global", ["C_i"])


@pytest.mark.parametrize(
    ("make", "do", "message"),
    [
        (windows, lambda s: s.unfold("Q", ["C_t"]), "there is no buffer 'Q'"),
        (
            windows,
            lambda s: s.unfold("X", ["C_t"]),
            "only a buffer made by cache_read can be unfolded; cache_",
        ),
        (windows, lambda s: s.unfold("P", ["C_t"]), "block P computes it; cache_read it and unfold the copy"),
        (windows, scheduled, "block P_global is scheduled already; unfold it first"),
        (
            windows,
            cut,
            "loop C_t_0 is not a whole axis of block C, which reads it; unfold before other steps",
        ),
        (
            windows,
            lambda s: (copied(s), s.unfold("P_global", ["C_j"])),
            "C_j does not move what C reads of it",
        ),
        (
            windows,
            lambda s: (copied(s), s.unfold("P_global", [])),
            "no loop does not move what C reads of it",
        ),
        (windows, lambda s: (copied(s), s.unfold("P_global", ["C_q"])), "no loop 'C_q'"),
    ],
)
def test_refused(make: Callable[[], ComputeDAG], do: Do, message: str) -> None:
    s = Schedule(make())
    with pytest.raises(ScheduleError, match=message):
        do(s)


def test_what_may_lie_outside_or_at_several_places_is_refused() -> None:
    x, t = te.placeholder((4,), name="X"), te.reduce_axis(3, "t")
    guarded = lambda i: te.sum(te.select(i + t < 4, x[i + t], 0.0), axis=t)  # noqa: E731
    s = Schedule(te.dag([x, te.compute((4,), guarded, "C")]))
    s.cache_read("C", "X")
    with pytest.raises(ScheduleError, match=r"C reads it at i \+ t, which is not known to stay inside of it"):
        s.unfold("X_global", ["C_t"])
    twice = Schedule(te.dag([x, te.compute((2,), lambda i: te.sum(x[i] * x[i + t], axis=t), "C")]))
    twice.cache_read("C", "X")
    with pytest.raises(ScheduleError, match="it is read at 2 places; give each its own copy by cache_read_p"):
        twice.unfold("X_global", ["C_t"])
    n = te.placeholder((3,), "int32", "N")
    gathered = Schedule(te.dag([x, n, te.compute((2,), lambda i: te.sum(x[n[t]], axis=t), "C")]))
    gathered.cache_read("C", "X")
    with pytest.raises(ScheduleError, match="C gathers from it, so that the place of a read is not known"):
        gathered.unfold("X_global", ["C_t"])
