"""reverse_compute_at where one iteration computes a part of what the consumer reads: right, or refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from helpers import check_interpreted, expected, inputs

from schedules import te
from schedules.errors import ScheduleError
from schedules.expr import Expr
from schedules.schedule import Schedule

TWO = te.const(2, "float32")


def two_producers(at: Callable[[Expr, Expr], tuple[Expr, Expr]]) -> Schedule:
    """``D[i, j]`` reads ``P[i]``, and ``Q[at(i, j)]``, of which iteration i of ``P_i`` computes column i."""
    a, b = te.placeholder((4,), "float32", "A"), te.placeholder((4,), "float32", "B")
    p = te.compute((4,), lambda i: a[i] * TWO, "P")
    q = te.compute((4, 4), lambda j, i: p[i] * b[j], "Q")
    s = Schedule(te.dag([a, b, te.compute((4, 4), lambda i, j: p[i] + q[at(i, j)], "D")]))
    s.reverse_compute_at("Q", "P_i")
    return s


def around_both(whole: bool) -> Schedule:
    """``D[i, j]`` reads ``P[i, j]``, and of ``Q``, which each iteration of ``P_i`` computes for itself, all
    elements or its own."""
    a = te.placeholder((3, 5), "float32", "A")
    k = te.reduce_axis(3, "k")
    q = te.compute((3,), lambda i: a[i, 0] * TWO, "Q")
    p = te.compute((3, 5), lambda i, j: a[i, j] + q[i], "P")
    if whole:
        d = te.compute((3, 5), lambda i, j: te.sum(p[i, j] * q[k], axis=k), "D")
    else:
        d = te.compute((3, 5), lambda i, j: p[i, j] * q[i], "D")
    s = Schedule(te.dag([a, d]))
    s.compute_at("Q", "P_i")
    return s


def one_row(row: int) -> Schedule:
    """``D`` reads one row of ``C``, whose rows are computed one after another."""
    a = te.placeholder((3, 5), "float32", "A")
    c = te.compute((3, 5), lambda i, j: a[i, j] * TWO, "C")
    return Schedule(te.dag([a, te.compute((5,), lambda j: c[row, j] + TWO, "D")]))


def scalar() -> Schedule:
    """``D`` reads the only element of ``S``."""
    a = te.placeholder((1, 4), "float32", "A")
    k = te.reduce_axis(4, "k")
    total = te.compute((1,), lambda o: te.sum(a[o, k], axis=k), "S")
    return Schedule(te.dag([a, te.compute((5,), lambda i: total[0] * TWO, "D")]))


def tiles(*factors: int | None) -> Schedule:
    s = scalar()
    s.split("S_o", factors)
    return s


REFUSED: list[tuple[Callable[[], Schedule], str, str]] = [
    (
        lambda: two_producers(lambda i, j: (i, j)),
        "P_i",
        "it reads more of Q than one iteration of P_i .* in Q",
    ),
    (
        lambda: around_both(True),
        "P_j",
        "it reads more of Q than one iteration of P_i computes, in Q; choose a",
    ),
    (lambda: one_row(0), "C_i", "it reads more of C than one iteration of C_i computes"),
    (lambda: one_row(2), "C_i", "it reads more of C than one iteration of C_i computes"),
    (lambda: tiles(None, 4), "S_o_1", "it reads more of S than one iteration of S_o_1 computes"),
    (lambda: tiles(2, 4), "S_o_0", "it reads more of S than one iteration of S_o_0 computes"),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_what_an_iteration_does_not_compute_is_not_read(case: int) -> None:
    start, loop, message = REFUSED[case]
    with pytest.raises(ScheduleError, match=f"reverse_compute_at D: {message}.*"):
        start().reverse_compute_at("D", loop)


ACCEPTED: list[tuple[Callable[[], Schedule], str]] = [
    (lambda: two_producers(lambda i, j: (j, i)), "P_i"),
    (lambda: around_both(False), "P_j"),
    (scalar, "S_o"),
    (lambda: tiles(None, 4), "S_o_0"),
]


@pytest.mark.parametrize("case", range(len(ACCEPTED)))
def test_what_an_iteration_computes_is_read_there(case: int) -> None:
    start, loop = ACCEPTED[case]
    s = start()
    s.reverse_compute_at("D", loop)
    data = inputs(s.dag)
    check_interpreted(s.nest, s.dag, data, expected(s.dag, data))


def test_an_iteration_outside_the_producer_is_not_lost() -> None:
    a = te.placeholder((4,), "float32", "A")
    c = te.compute((4,), lambda i: a[i] * TWO, "C")
    padded = te.compute((6,), lambda i: te.select(i < 4, c[i], te.const(0, "float32")), "D")
    s = Schedule(te.dag([a, padded]))
    with pytest.raises(ScheduleError, match="its iterations i from 4 on lie outside C "):
        s.reverse_compute_at("D", "C_i")
    s.compute_at("C", "D_i")
    data = inputs(s.dag)
    check_interpreted(s.nest, s.dag, data, expected(s.dag, data))
