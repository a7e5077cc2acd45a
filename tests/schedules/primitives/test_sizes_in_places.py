"""Primitives where a call tells the place of a read, or a value: by the interpreter at several sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from open_cases import close, interpreted

from schedules import te
from schedules.constants import split_constants
from schedules.errors import ScheduleError
from schedules.ir import regions
from schedules.model import Trace
from schedules.open_program import lower_parts, parts_of
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG
from schedules.te.dims import dim


def wrong_at(dag: ComputeDAG, trace: Trace) -> list[int]:
    """The sizes at which the program of a trace is wrong."""
    assert dag.open is not None
    ((name, (least, most)),) = dag.open.ranges.items()
    func = lower_parts(parts_of(dag, trace), dag.open.sizes)
    return [n for n in range(least, most + 1) if not close(*interpreted(func, dag, {name: n}), exact=True)]


def last_rows(n: Any) -> ComputeDAG:
    """The last eight rows of what is computed, twice; zeros where there are fewer."""
    x = te.placeholder((n, 4), name="x")
    p = te.compute((n, 4), lambda i, j: x[i, j] * 2.0, "p")

    def value(b: te.Expr, t: te.Expr, j: te.Expr) -> te.Expr:
        return te.select(8 - n <= t, p[n - 8 + t, j], 0.0)

    return te.dag([x, te.compute((2, 8, 4), value, "y")])


def test_a_region_that_is_counted_from_the_end_is_whole() -> None:
    dag = last_rows(dim(1, 13, "n", open=True))
    s = Schedule(dag.largest)
    s.compute_at("p", "y_b")
    assert wrong_at(dag, s.trace) == []


def test_a_region_that_is_clipped_there_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_if_positive(base: te.Expr) -> bool:
        return False

    monkeypatch.setattr(regions, "may_be_negative", as_if_positive)
    dag = last_rows(dim(1, 13, "n", open=True))
    s = Schedule(dag.largest)
    s.compute_at("p", "y_b")
    assert wrong_at(dag, s.trace)


def rows_at(n: Any, place: Any) -> ComputeDAG:
    x = te.placeholder((n, 4), name="x")
    p = te.compute((n, 4), lambda i, j: x[i, j] * 2.0, "p")
    return te.dag([x, p, te.compute((4,), lambda j: p[place(n), j] + 1.0, "y")])


def test_what_is_read_at_a_place_that_a_call_tells_is_not_moved_to_where_it_is_made() -> None:
    n = dim(1, 13, "n", open=True)
    x, w = te.placeholder((n, 4), name="x"), te.placeholder((13, 4), name="w")
    p = te.compute((13, 4), lambda i, j: w[i, j] * 2.0, "p")
    s = Schedule(te.dag([x, w, te.compute((4,), lambda j: p[n - 1, j] + x[0, j], "y")]))
    with pytest.raises(
        ScheduleError, match=r"reads p at \?n.size - 1, a place that a call tells.*choose a loop further out"
    ):
        s.reverse_compute_at("y", "p_i")


@pytest.mark.parametrize("primitive", ["split", "written", "copied", "fused", "vectorized", "merged"])
def test_steps_around_a_place_that_a_call_tells(primitive: str) -> None:
    dag = rows_at(dim(1, 13, "n", open=True), lambda n: n - 1)
    s = Schedule(dag.largest)
    match primitive:
        case "split":
            s.split("p_i", (None, 4), "shift")
        case "written":
            s.cache_write("y", "local")
        case "copied":
            s.cache_read("y", "p", "local")
        case "fused":
            s.fuse("p_i", "p_j")
        case "vectorized":
            s.vectorize(s.split("p_j", (None, 4))[1])
            s.vectorize("y_j")
        case "merged":
            s.merge_axes("p_i", "p_j")
    assert wrong_at(dag, s.trace) == []


def test_what_is_made_of_constants_and_a_size_is_not_made_ahead() -> None:
    n = dim(1, 13, "n", open=True)
    x, w, r = te.placeholder((n, 4), name="x"), te.placeholder((8, 4), name="w"), te.reduce_axis(4, "r")

    def packed(value: Any, columns: Any = 8) -> list[str]:
        turned = te.compute((4, columns), lambda i, j: value(w[j % 8, i]), "turned")
        y = te.compute((n, columns), lambda i, j: te.sum(x[i, r] * turned[r, j], axis=r), "y")
        dag = replace(te.dag([x, w, y]), constants=("w",))
        return list(split_constants(Schedule(dag).nest, dag.constants)[1])

    assert packed(lambda v: v) == ["w"]
    assert packed(lambda v: v * te.cast(n, "float32")) == []
    assert packed(lambda v: v, n) == []  # as much as a call says
