"""compute_at where a block outside the loop reads the results too, after it: right, or refused."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from helpers import check_compiled, check_interpreted, expected, host, inputs
from hypothesis import given, settings
from programs import normalize

from schedules import ops, te
from schedules.errors import ScheduleError
from schedules.ir.nest import loops_of
from schedules.schedule import Schedule
from schedules.space.derive import derive
from schedules.te.compute_dag import ComputeDAG


def rows_together(dag: ComputeDAG, lanes: int) -> Schedule:
    """`normalize` row by row, its row sum in so many lanes."""
    s = Schedule(dag)
    for name in ("total", "e", "top"):
        s.compute_at(name, "Y_i")
    _, inner = s.split(s.loops("total")[-1], (None, lanes))
    s.rfactor("total", inner)
    return s


def pair(read: object, first: object = lambda e, i: e[i], n: int = 12, m: int = 12) -> Schedule:
    """``B`` reads what ``A`` computes as ``first`` says, in loop ``B_i``; then ``C`` as ``read`` says."""
    x = te.placeholder((2 * n,), "float32", "X")
    a = te.compute((2 * n,), lambda i: x[i] + te.const(1, "float32"), "A")
    b = te.compute((n,), lambda i: first(a, i) * te.const(2, "float32"), "B")  # type: ignore[operator]
    c = te.compute((m,), lambda i: read(a, i) + b[0], "C")  # type: ignore[operator]
    return Schedule(te.dag([x, c]))


def right(s: Schedule) -> None:
    data = inputs(s.dag)
    check_interpreted(s.nest, s.dag, data, expected(s.dag, data))


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(lanes=st.integers(1, 13), late=st.sampled_from(["plain", "vectorize", "partition", "parallel"]))
def test_a_stage_is_computed_where_it_is_added_up_first(lanes: int, late: str) -> None:
    s = rows_together(normalize(), lanes)
    outer = s.loops("total_rf")[-2]
    s.compute_at("e", outer)
    assert s.loops("e")[: len(s.loops("total_rf")) - 1] == s.loops("total_rf")[:-1]
    assert outer not in s.loops("Y")
    if late == "vectorize":
        s.vectorize(s.loops("e")[-1])
        s.decompose_reduction("total_rf", outer)
        s.vectorize(s.loops("total_rf")[-1])
    elif late == "partition":
        s.decompose_reduction("total_rf", outer)
        s.partition(outer)
    elif late == "parallel":
        s.parallel("Y_i")
    right(s)
    data = inputs(s.dag)
    check_compiled(s.dag, s.trace, host(2), data, expected(s.dag, data))


def test_what_a_loop_computes_in_two_dimensions_is_read_after_it() -> None:
    x = te.placeholder((6, 10), "float32", "X")
    a = te.compute((6, 10), lambda i, j: x[i, j] + te.const(1, "float32"), "A")
    k = te.reduce_axis(10, "k")
    b = te.compute((6,), lambda i: te.sum(a[i, k], axis=k), "B")
    s = Schedule(te.dag([x, te.compute((10, 6), lambda j, i: a[i, j] * b[i], "C")]))
    outer, _ = s.split("B_k", (None, 4))
    s.compute_at("A", outer)
    right(s)


@pytest.mark.parametrize(
    ("first", "read", "n", "m"),
    [
        (lambda a, i: a[i], lambda a, i: a[i + 1], 12, 12),  # one element more
        (lambda a, i: a[i + 1], lambda a, i: a[i], 12, 12),  # one before
        (lambda a, i: a[2 * i], lambda a, i: a[i], 12, 12),  # every other is computed
        (lambda a, i: a[i] + a[i + 7], lambda a, i: a[i], 12, 19),  # two places
        (lambda a, i: a[i], lambda a, i: a[i], 11, 12),
    ],
)
def test_what_was_not_computed_is_not_read(first: object, read: object, n: int, m: int) -> None:
    s = pair(read, first, n, m)
    with pytest.raises(ScheduleError, match=r"compute_at A: C reads A outside B_i; choose a loop around all"):
        s.compute_at("A", "B_i")


@pytest.mark.parametrize("fused", [False, True])
def test_a_diagonal_leaves_the_rest_of_its_box(fused: bool) -> None:
    x = te.placeholder((5, 5), "float32", "X")
    a = te.compute((5, 5), lambda i, j: x[i, j] + te.const(1, "float32"), "A")
    b = te.compute((5, 3), lambda i, j: a[i, i] + x[i, j], "B")
    s = Schedule(te.dag([x, te.compute((5, 5), lambda i, j: a[i, j] + b[i, 0], "C")]))
    loop = s.fuse("B_i", "B_j") if fused else "B_i"
    with pytest.raises(ScheduleError, match=f"C reads A outside {loop}"):
        s.compute_at("A", loop)


@pytest.mark.parametrize("do", [lambda s: s.parallel("B_i"), lambda s: s.bind("B_i", "threadIdx.x")])
def test_what_others_compute_meanwhile_is_not_read_later(do: Callable[[Schedule], None]) -> None:
    """Each iteration would add up all of A again, in memory that the others read."""
    x, y = te.placeholder((5, 4), "float32", "X"), te.placeholder((3, 5), "float32", "Z")
    j = te.reduce_axis(4, "j")
    a = te.compute((5,), lambda k: te.sum(x[k, j], axis=j), "A")
    b = te.compute((3, 5), lambda i, k: a[k] * y[i, k], "B")
    s = Schedule(te.dag([x, y, te.compute((5,), lambda k: a[k] + b[0, k], "C")]))
    do(s)
    with pytest.raises(ScheduleError, match="C reads A outside B_i"):
        s.compute_at("A", "B_i")
    s = Schedule(s.dag)
    s.compute_at("A", "B_i")
    right(s)
    with pytest.raises(ScheduleError):
        do(s)


def test_an_end_that_is_cut_off_is_not_taken_for_a_whole() -> None:
    """Iteration r of the row computes A from r on: what lies before it is of another iteration."""
    x = te.placeholder((6,), "float32", "X")
    a = te.compute((6,), lambda i: x[i] + te.const(1, "float32"), "A")
    b = te.compute((6, 6), lambda r, j: te.select(r + j < 6, a[r + j], te.const(0, "float32")), "B")
    s = Schedule(te.dag([x, te.compute((6, 6), lambda r, i: a[i] + b[r, i], "C")]))
    s.compute_at("B", "C_r")
    with pytest.raises(ScheduleError, match="C reads A outside"):
        s.compute_at("A", s.loops("B")[-1])


def test_a_reader_before_the_loop_is_refused() -> None:
    s = rows_together(normalize(), 4)
    with pytest.raises(ScheduleError, match="compute_at e: total_rf reads e outside Y_j"):
        s.compute_at("e", "Y_j")


@pytest.mark.parametrize("threads", [1, 2])
def test_softmax_adds_up_exponentials_as_it_computes_them(threads: int) -> None:
    space = derive(ops.workload("softmax", {"m": 64, "n": 200}).dag, host(threads))
    nest = space.sketch(0).nest
    e = {x.var for x in loops_of(nest, "e")}
    assert {x.var for x in loops_of(nest, "row_sum_rf")[:-1]} <= e
    assert not {x.var for x in loops_of(nest, "y")} >= e


def test_online_comes_before_it() -> None:
    x, v = te.placeholder((3, 8), "float32", "X"), te.placeholder((8,), "float32", "V")
    k, r, q = (te.reduce_axis(8, n) for n in "krq")
    top = te.compute((3,), lambda i: te.max(x[i, k], axis=k), "top")
    e = te.compute((3, 8), lambda i, j: te.exp(x[i, j] - top[i]), "e")
    total = te.compute((3,), lambda i: te.sum(e[i, r], axis=r), "total")
    mixed = te.compute((3,), lambda i: te.sum(e[i, q] * v[q], axis=q), "mixed")
    s = Schedule(te.dag([x, v, te.compute((3,), lambda i: mixed[i] / total[i], "Y")]))
    for name in ("mixed", "total", "e", "top"):
        s.compute_at(name, "Y_i")
    s.compute_at("e", s.loops("mixed")[-1])
    before = s.nest
    with pytest.raises(ScheduleError, match="online top: .* also holds e; use online before compute_at"):
        s.online("top", ["total", "mixed"], 4)
    assert s.nest == before
