"""Lanes of a sum that add what some of them choose: one load for all, and additions under a mask."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import check_compiled, expected, host, inputs

from autotune.backends.building.from_trace import emit_module
from autotune.codegen.llvm.address import Addresses
from autotune.targets import from_name
from schedules import te
from schedules.ir.nest import find_block
from schedules.schedule import Schedule
from schedules.space.rules.patterns import is_row_reduction

STEPS = 11
SERVER = from_name("x86-64-v4")


def bins(n: int, dtype: str = "float64", shift: int = 0) -> te.ComputeDAG:
    """Of each of ``n`` bins the sum of ``data`` whose ``place`` is inside of it. ``shift``: how far data lie
    behind places."""
    edge, place = te.placeholder((n + 1,), dtype, "edge"), te.placeholder((STEPS,), dtype, "place")
    data, k = te.placeholder((STEPS,), dtype, "data"), te.reduce_axis(STEPS, "k")

    def term(i: te.Expr) -> te.Expr:
        mine = te.all(k + shift < STEPS, edge[i] <= place[k], place[k] < edge[i + 1])
        return te.select(mine, data[k + shift], 0.0)

    return te.dag([edge, place, data, te.compute((n,), lambda i: te.sum(term(i), axis=k), "s")])


def in_lanes(dag: te.ComputeDAG) -> Schedule:
    s = Schedule(dag, SERVER)
    _, lane = s.split("s_i", (None, 8), "guard")
    s.reorder("s_k", lane)
    s.vectorize(lane)
    s.decompose_reduction("s", "s_k")
    return s


def code(s: Schedule) -> str:
    return emit_module(s.dag, s.trace, SERVER).text


def test_what_lanes_share_is_loaded_whatever_they_choose() -> None:
    text = code(in_lanes(bins(16)))
    assert "@llvm.vector.reduce.or" not in text and "select i1" not in text  # no place is chosen
    added = [line for line in text.splitlines() if "fadd <8 x double>" in line]
    (name,) = {line.split(" = ")[0].strip() for line in added}
    assert any(f"<8 x double> {name}, <8 x double>" in x for x in text.splitlines() if "select <8 x i1>" in x)


def test_what_may_lie_outside_is_loaded_where_a_lane_asks() -> None:
    assert "@llvm.vector.reduce.or" in code(in_lanes(bins(16, shift=1)))


@pytest.mark.parametrize("dtype", ("float32", "float64"))
@pytest.mark.parametrize("shift", (0, 1, 4))
@pytest.mark.parametrize("n", (5, 16, 19))
def test_sums_under_masks_are_right(n: int, shift: int, dtype: str) -> None:
    """Arrays end at pages that cannot be read."""
    s = in_lanes(bins(n, dtype, shift))
    edge, place, data = inputs(s.dag, n)
    given = [np.sort(edge), place, data]
    check_compiled(s.dag, s.trace, host(1), given, expected(s.dag, given))


def test_zeros_that_are_added_or_left_are_zero() -> None:
    s = in_lanes(bins(16))
    given = [np.arange(17.0), np.arange(11.0), np.full(11, -0.0)]
    check_compiled(s.dag, s.trace, host(1), given, [np.zeros(16)])


def test_an_access_inside_is_proved_for_every_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    """What tests above would find: a proof that holds for anything."""
    monkeypatch.setattr(Addresses, "stays_inside", lambda self, buffer, flat: True)
    assert "@llvm.vector.reduce.or" not in code(in_lanes(bins(16, shift=1)))


def test_the_stack_of_functions_of_lanes_is_aligned() -> None:
    x = te.placeholder((64,), "float64", "x")

    def text(f: object, lanes: bool) -> str:
        s = Schedule(te.dag([x, te.compute((64,), lambda i: f(x[i]), "y")]), SERVER)  # type: ignore[operator]
        if lanes:
            s.vectorize(s.split("y_i", (None, 8))[1])
        return code(s)

    assert "nounwind alignstack(64) {" in text(te.sin, True)
    assert "alignstack" not in text(te.sin, False) and "alignstack" not in text(lambda v: v + 1.0, True)


def test_many_results_that_share_rows_are_no_rows() -> None:
    def is_rows(dag: te.ComputeDAG) -> bool:
        s = Schedule(dag)
        return is_row_reduction(s.nest, find_block(s.nest, "s"))

    assert not is_rows(bins(16)) and is_rows(bins(5))  # few results fill no lanes
    score, mask = te.placeholder((16, STEPS), name="score"), te.placeholder((STEPS,), name="mask")
    k = te.reduce_axis(STEPS, "k")
    most = te.compute((16,), lambda i: te.max(score[i, k] + mask[k], axis=k), "s")
    assert is_rows(te.dag([score, mask, most]))
