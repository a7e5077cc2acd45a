"""Loops of a reduction in other orders: it starts before it adds up, and adds up once, or is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from helpers import check_interpreted, expected, inputs
from programs import conv2d, matmul

from schedules import te
from schedules.errors import ScheduleError
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG

Do = Callable[[Schedule], object]


def repeated() -> Schedule:
    """A block ``B`` left inside a loop which it does not use: each iteration of ``D_j`` computes the same
    element. The loops: D_i, B_ax0, D_j, B_r0."""
    x = te.placeholder((3, 5), "float32", "X")
    k = te.reduce_axis(5, "k")
    b = te.compute((3,), lambda i: te.sum(x[i, k], axis=k), "B")
    d = te.compute((3, 4), lambda i, j: b[i] + x[i, 0], "D")
    s = Schedule(te.dag([x, te.compute((3, 4), lambda i, j: d[i, j] * te.const(2, "float32"), "E")]))
    s.compute_at("B", "D_j")
    s.inline("D")
    s.reorder("B_ax0", "D_j")
    return s


def windows() -> Schedule:
    """A block ``B`` of which each iteration of ``C_i`` computes a window that overlaps the next: the loops
    C_i, B_ax0, B_r0."""
    x = te.placeholder((6, 4), "float32", "X")
    k = te.reduce_axis(4, "k")
    b = te.compute((6,), lambda i: te.sum(x[i, k], axis=k), "B")
    c = te.compute((5,), lambda i: b[i] + b[i + 1], "C")
    s = Schedule(te.dag([x, te.compute((5,), lambda i: c[i] * te.const(2, "float32"), "D")]))
    s.compute_at("B", "C_i")
    s.inline("C")
    return s


def mixed(*loops: str, factor: int, program: Callable[[], ComputeDAG] = matmul) -> Schedule:
    """Two loops as one, split again."""
    s = Schedule(program())
    s.split(s.fuse(*loops), [None, factor])
    return s


REFUSED: list[tuple[Callable[[], Schedule], Do, str]] = [
    (
        lambda: mixed("C_j", "C_k", factor=2),
        lambda s: s.reorder("C_j_C_k_1", "C_j_C_k_0"),
        r"reorder: C_j_C_k_0 and C_j_C_k_1 both mix spatial and reduction axes of block C.*or reorder before",
    ),
    (
        lambda: mixed("C_j", "C_k", factor=4),
        lambda s: s.reorder("C_j_C_k_1", "C_i", "C_j_C_k_0"),
        r"reorder: C_j_C_k_0 and C_j_C_k_1 both mix .* keep C_j_C_k_0 outside",
    ),
    (
        repeated,
        lambda s: s.reorder("B_r0", "D_j"),
        r"reorder: D_j computes the same elements of block B again; B_r0 .*; keep B_r0 inside D_j",
    ),
    (
        repeated,
        lambda s: s.tile(["D_j", "B_r0"], [2, 2]),
        r"reorder: D_j_1 computes the same elements of block B again; B_r0_0 outside",
    ),
    (
        windows,
        lambda s: s.reorder("B_r0", "C_i"),
        r"reorder: C_i computes the same elements of block B again; B_r0 outside",
    ),
    (
        repeated,
        lambda s: s.fuse("D_j", "B_r0"),
        r"fuse: B_r0 reduces block B, and D_j computes the same elements of it again; fuse only loops of the",
    ),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_an_order_that_starts_again_too_late_is_refused(case: int) -> None:
    start, do, message = REFUSED[case]
    s = start()
    with pytest.raises(ScheduleError, match=message) as caught:
        do(s)
    assert len(str(caught.value)) < 400


ACCEPTED: list[tuple[Callable[[], Schedule], Do]] = [
    (lambda: mixed("C_j", "C_k", factor=4), lambda s: s.reorder("C_j_C_k_0", "C_i", "C_j_C_k_1")),
    (lambda: mixed("C_j", "C_k", factor=4), lambda s: s.vectorize("C_j_C_k_1")),
    (lambda: mixed("C_i", "C_j", factor=3), lambda s: s.reorder("C_k", "C_i_C_j_1", "C_i_C_j_0")),
    (lambda: mixed("Y_u", "Y_v", factor=2, program=conv2d), lambda s: s.reorder("Y_u_Y_v_1", "Y_u_Y_v_0")),
    (repeated, lambda s: s.tile(["B_ax0", "D_j"], [1, 2])),
    (repeated, lambda s: s.reorder(*reversed(s.split("D_j", [None, 2])))),
    (repeated, lambda s: s.reorder(*reversed(s.split("B_r0", [None, 2])))),
    (repeated, lambda s: (s.split("D_j", [None, 1]), s.reorder("B_r0", "D_j_1"))),
    (repeated, lambda s: s.fuse("B_ax0", "D_j")),
    (windows, lambda s: s.reorder("B_r0", "B_ax0")),
    (windows, lambda s: s.fuse("B_ax0", "B_r0")),
]


@pytest.mark.parametrize("case", range(len(ACCEPTED)))
def test_an_order_that_starts_first_is_right(case: int) -> None:
    start, do = ACCEPTED[case]
    s = start()
    do(s)
    data = inputs(s.dag)
    check_interpreted(s.nest, s.dag, data, expected(s.dag, data))
