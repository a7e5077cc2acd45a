"""What people read of a schedule: the printed loop nest, and `help` of a primitive."""

from __future__ import annotations

import pytest

from schedules import te
from schedules.expr import Hole
from schedules.ir.printer import outline
from schedules.primitives import PRIMITIVES
from schedules.schedule import Schedule


def product() -> Schedule:
    a, b = te.placeholder((10, 7), name="A"), te.placeholder((7, 8), name="B")
    k = te.reduce_axis(7, "k")
    return Schedule([a, b, te.compute((10, 8), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")])


def written(s: Schedule) -> str:
    return next(line.strip() for line in str(s).splitlines() if "# block C" in line)


def test_factors_that_divide_leave_no_condition() -> None:
    s = product()
    s.split("C_i", [None, 5])
    assert written(s).startswith("C[C_i_0 * 5 + C_i_1, C_j] += A[")


def test_a_tail_shows_its_condition() -> None:
    s = product()
    s.split("C_i", [None, 4])
    s.split("C_k", [None, 2])
    assert written(s).startswith("if C_i_0 * 4 + C_i_1 < 10 and C_k_0 * 2 + C_k_1 < 7: C[")


def test_a_shifted_tail_needs_no_condition() -> None:
    a = te.placeholder((10,), name="A")
    s = Schedule([a, te.compute((10,), lambda i: a[i] + 1.0, name="C")])
    s.split("C_i", [None, 4], tail="shift")
    assert written(s).startswith("C[min(")


def test_nothing_is_said_of_holes() -> None:
    s = product()
    s.split("C_i", [None, Hole("t")])
    assert written(s).startswith("C[")


@pytest.mark.parametrize("name", PRIMITIVES)
def test_a_method_is_documented_as_its_primitive(name: str) -> None:
    doc = getattr(Schedule, name).__doc__
    assert doc == PRIMITIVES[name].__doc__ and len(doc.splitlines()) > 1


def test_an_outline_leaves_out_loops_of_one_step() -> None:
    a = te.placeholder((2, 1), name="A")
    s = Schedule([a, te.compute((2, 1), lambda i, j: a[i, j] + 1.0, name="C")])
    assert outline(s.nest) == "for C_i in range(2):\n C = from A"
