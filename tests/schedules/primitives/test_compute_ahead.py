"""What a step does not wait for is computed ahead of the loop of the steps."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import check_interpreted, inputs

from schedules import te
from schedules.errors import ScheduleError
from schedules.ir.nest import find_block
from schedules.primitives.compute_ahead import parts
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG


def sweep(n: int = 5, m: int = 13) -> ComputeDAG:
    """Each point waits for the one to the left, and reads three of the row above."""
    a = te.placeholder((n + 2, m + 2), name="a")

    def point(y: Any, i: Any, j: Any) -> Any:
        around = y[i - 1, j - 1] + y[i - 1, j] + y[i - 1, j + 1] + a[i + 2, j + 1]
        return te.minimum(te.maximum(y[i, j - 1] - te.minimum(around, 9.0) * 2.0, -9.0), 9.0)

    y = te.scan((n, m), point, init=lambda i, j: a[i + 1, j + 1], axis=(0, 1), name="y")
    return te.dag([a, y])


def check(s: Schedule) -> None:
    data = inputs(s.dag)
    want = te.evaluate(s.dag, data)
    check_interpreted(s.nest, s.dag, data, want)
    assert Schedule.replay(s.dag, s.trace).nest == s.nest


@pytest.mark.parametrize("tile", [0, 1, 4, 13, 16])
def test_of_a_sweep_the_row_above_is_read_ahead(tile: int) -> None:
    s = Schedule(sweep())
    assert len(parts(s.nest, "y", "y_j")) == 1
    assert s.compute_ahead("y", "y_j") == "y_ahead"
    assert s.blocks() == ["y_ahead", "y"] and s.loops("y_ahead") == ["y_i", "y_j_ahead"]
    assert {x.buffer for x in te_loads(s, "y")} == {"y", "a", "y_ahead"}
    check(s)
    if tile:
        tiles, steps = s.split("y_j", [None, tile])
        s.compute_at("y_ahead", tiles)
        s.vectorize(s.loops("y_ahead")[-1])
        s.unroll(steps)
        s.partition(tiles)
        check(s)


def te_loads(s: Schedule, block: str) -> list[Any]:
    from schedules.ir.nest import reads

    return list(reads(find_block(s.nest, block)))


def test_what_is_read_of_the_last_step_stays() -> None:
    """With the loop of the rows, everything that reads the row above waits."""
    s = Schedule(sweep())
    assert parts(s.nest, "y", "y_i") == ()
    with pytest.raises(
        ScheduleError, match="compute_ahead y: every operation of it waits for iterations of y_i"
    ):
        s.compute_ahead("y", "y_i")


def test_several_parts_and_outputs() -> None:
    """Equal parts are computed once; parts of both outputs have buffers of their own."""
    b, c = (te.placeholder((3, 8), name=n) for n in "bc")

    def step(p: Any, q: Any, i: Any, j: Any) -> Any:
        f = b[i, j] * 2.0 + 1.0
        return te.minimum(p[i, j - 1], 3.0) - f, te.minimum(q[i, j - 1], f) + (c[i, j] - f)

    p, q = te.scan([(3, 8), (3, 8)], step, init=[0.0, 1.0], axis=1, name=["p", "q"])
    s = Schedule(te.dag([b, c, p, q]))
    s.compute_ahead("p", "p_j")
    assert [w.buffer for w in find_block(s.nest, "p_ahead").writes] == ["p_ahead", "p_ahead1"]
    check(s)


def test_sides_of_selects_stay() -> None:
    """A side may read only where it is chosen."""
    b = te.placeholder((3, 8), name="b")

    def step(y: Any, i: Any, j: Any) -> Any:
        return te.select(j > 3, y[i, j - 1] + b[i, te.maximum(j - 3, 0)] * 2.0, b[i, j])

    s = Schedule(te.dag([b, te.scan((3, 8), step, init=0.0, axis=1, name="y")]))
    assert parts(s.nest, "y", "y_j") == ()


def recurrence() -> Schedule:
    x = te.placeholder((6, 8), name="x")
    y = te.scan((6, 8), lambda y, i, j: y[i, j - 1] + x[i, j] * 2.0, init=0.0, axis=1, name="y")
    k = te.reduce_axis(8, "k")
    return Schedule([x, y, te.compute((6,), lambda i: te.sum(y[i, k], axis=k), "z")])


@pytest.mark.parametrize(
    ("before", "block", "loop", "message"),
    [
        (None, "y", "z_i", r"compute_ahead y: z_i is no loop around it; those are y_j, y_i"),
        (None, "z", "z_i", r"compute_ahead z: it is a reduction; use it on a block that stores plain values"),
        (lambda s: s.compute_ahead("y", "y_j"), "y", "y_j", r"compute_ahead y: y_ahead exists already"),
        (None, "y", "y_q", r"there is no loop 'y_q'"),
        (None, "q", "y_j", r"there is no block 'q'"),
    ],
)
def test_refused(before: Any, block: str, loop: str, message: str) -> None:
    s = recurrence()
    with pytest.raises(ScheduleError, match=message):
        if before is not None:
            before(s)
        s.compute_ahead(block, loop)


def two_sweeps(n: int = 3, m: int = 11, k: int = 16) -> ComputeDAG:
    """Forwards and backwards, as elimination has it."""
    b = te.placeholder((n, m, k), name="b")
    up = te.scan(
        (n, m, k), lambda y, i, j, t: te.minimum(b[i, j, t] * 2.0 - y[i, j, t - 1], 9.0), init=0.0, axis=2,
        name="up",
    )  # fmt: skip
    down = te.scan(
        (n, m, k), lambda y, i, j, t: te.maximum(up[i, j, t] - y[i, j, t + 1], -9.0), init=1.0, axis=2,
        reverse=True, name="down",
    )  # fmt: skip
    return te.dag([b, te.compute((n, m, k), lambda i, j, t: down[i, j, t] + b[i, j, t], "z")])


def test_a_scan_in_a_tile_of_another() -> None:
    """A part of the other axes, with all steps; not with a part of the steps."""
    s = Schedule(two_sweeps())
    tiles, lanes = s.split("down_j", [None, 4])
    s.reorder("down_i", tiles, "down_t", lanes)
    s.compute_at("up", tiles)
    check(s)
    s = Schedule(two_sweeps())
    steps, _ = s.split("down_t", [None, 4])
    with pytest.raises(ScheduleError, match="block up makes up, which later steps of its scan read"):
        s.compute_at("up", steps)
