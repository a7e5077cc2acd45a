"""Schedules of scatters: random ones, what is refused, and mutants that are caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from helpers import check_compiled, check_interpreted, interpret, same
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import random_schedule
from scatter_cases import Scatter, counts, random_scatter, rows

from autotune.targets import detect
from schedules import te
from schedules.errors import ScheduleError
from schedules.expr import Const
from schedules.ir.interp import InterpError
from schedules.ir.nest import find_block, map_blocks, replace_stmt, root_child
from schedules.passes.lower import lower
from schedules.schedule import Schedule


def check(c: Scatter, s: Schedule, *, compiled: bool = True) -> None:
    """The interpreter, each pass and the compiled kernel give what numpy does."""
    check_interpreted(s.nest, c.dag, c.inputs, c.expected)
    if compiled:
        check_compiled(c.dag, s.trace, detect(threads=1), c.inputs, c.expected)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=3, deadline=None)
def test_random_schedules_of_random_scatters(seed: int) -> None:
    c, rng = random_scatter(seed), Random(seed)
    check(c, random_schedule(c.dag, rng, rng.randint(3, 9)), compiled=False)


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_many_random_schedules_of_random_scatters(seed: int) -> None:
    c, rng = random_scatter(seed), Random(seed)
    s = random_schedule(c.dag, rng, rng.randint(3, 9))
    try:
        check(c, s, compiled=seed % 3 == 0)
    except Exception as err:
        err.add_note(f"{seed}: {s.trace}")
        raise


# --- by hand ----------------------------------------------------------------------------------


def few() -> Scatter:
    return rows(n=6, d=9, v=3)


def counts_of_few() -> Scatter:
    return counts(n=26, bins=3)


def columns(c: Scatter) -> Schedule:
    s = Schedule(c.dag)
    outer, inner = s.split("g_d", [None, 8])
    s.reorder(outer, "g_n", inner)
    s.vectorize(inner)
    s.parallel(outer)
    return s


def copies(c: Scatter) -> Schedule:
    s = Schedule(c.dag)
    outer, _ = s.split("g_n", [4, None])
    s.rfactor("g", outer)
    s.parallel(outer)
    s.vectorize("g_d")
    return s


def chains(c: Scatter) -> Schedule:
    s = Schedule(c.dag)
    _, inner = s.split("h_i0", [None, 4])
    s.rfactor("h", inner)
    s.unroll(inner)
    return s


def masked(c: Scatter) -> Schedule:
    s = Schedule(c.dag)
    s.annotate("h", "masked", 1)
    _, inner = s.split("h_i0", [None, 7])
    s.rfactor("h", inner)
    return s


@pytest.mark.parametrize(
    ("case", "schedule"), [(few, columns), (few, copies), (counts_of_few, chains), (counts_of_few, masked)]
)
def test_a_push_its_copies_and_its_chains(
    case: Callable[[], Scatter], schedule: Callable[[Scatter], Schedule]
) -> None:
    c = case()
    check(c, schedule(c))


def test_threads_have_copies(two_cpus: None) -> None:
    c = rows(n=500, d=33, v=40)
    for s in (columns(c), copies(c)):
        check_compiled(c.dag, s.trace, detect(threads=2), c.inputs, c.expected)


def test_a_row_without_place_is_left_out_as_a_whole() -> None:
    s = Schedule(rows().dag)
    s.vectorize("g_d")
    text = str(lower(s.nest))
    assert "Guard" in text
    assert text.index("Guard") < text.index("kind='vectorize'")


# --- what is refused --------------------------------------------------------------------------


def refused(said: str, name: str, *args: object) -> None:
    s = Schedule(rows().dag)
    with pytest.raises(ScheduleError, match=said):
        getattr(s, name)(*args)


def test_what_would_race_is_refused_with_the_remedy() -> None:
    refused("parallel g_n: block g reduces over it.* race on g; rfactor the loop first", "parallel", "g_n")
    s = Schedule(rows().dag)
    s.reorder("g_d", "g_n")
    with pytest.raises(
        ScheduleError, match="lanes of block g may meet in an element of g; vectorize a loop over"
    ):
        s.vectorize("g_n")


def test_what_has_no_whole_output_is_refused() -> None:
    refused("decomposed already", "decompose_reduction", "g", "g_n")
    refused("use it before decompose_reduction", "cache_write", "g")
    s = Schedule(rows().dag)
    s.vectorize("g_d_init")
    with pytest.raises(
        ScheduleError, match="g is not started by g_init in plain loops of its own; use rfactor first"
    ):
        s.rfactor("g", "g_n")
    x, ids = te.placeholder((9,), name="x"), te.placeholder((9,), "int32", "ids")
    h = te.scatter_add((4,), lambda n: ids[n], lambda n: x[n], 9, name="h")
    z = Schedule(te.dag([x, ids, te.compute((4,), lambda i: h[i] * 2.0, name="z")]))
    with pytest.raises(ScheduleError, match="its writes are not one element per spatial iteration in order"):
        z.compute_at("h", "z_i")
    with pytest.raises(ScheduleError, match="reduces over h_n there|writes h too"):
        z.reverse_compute_at("z", "h_n")
    with pytest.raises(ScheduleError, match="h_init writes h too|h writes h too"):
        z.inline("h_init")


def test_what_tells_places_is_read() -> None:
    """A copy of the indices is whole before the terms go to their places."""
    ids, x = te.placeholder((3,), "int32", "ids"), te.placeholder((3,), name="x")
    y = te.scatter_add((4,), lambda n: ids[n], lambda n: x[n], over=(3,), mode="clip", name="y")
    s = Schedule(te.dag([ids, x, y]))
    s.cache_write(s.cache_read("y", "ids"))
    data = [np.array([1, 3, 7], "int32"), np.array([1, 2, 4], "float32")]
    check_interpreted(s.nest, s.dag, data, [np.array([0, 1, 0, 6], "float32")])


def test_copies_of_lanes_are_started_before_them() -> None:
    x = te.placeholder((5,), name="x")
    y = te.scatter_add((9,), lambda n: n + 2, lambda n: x[n], over=(5,), name="y")
    s = Schedule(te.dag([x, y]))
    s.vectorize("y_n")
    s.rfactor("y", "y_n")
    one = np.ones(5, "float32")
    same(interpret(lower(s.nest), s.dag, [one]), [np.pad(one, 2)], "lowered")  # which is verified


def test_no_index_is_read_where_no_term_is() -> None:
    ids, x = te.placeholder((1,), "int32", "ids"), te.placeholder((1,), name="x")
    y = te.scatter_add((1,), lambda n: ids[n], lambda n: x[n], over=(1,), name="y")
    s = Schedule(te.dag([ids, x, y]))
    s.split("y_n", [None, 3, 2])  # six places for one term
    s.partition(s.loops("y")[-1])
    one = np.ones(1, "float32")
    check_interpreted(s.nest, s.dag, [np.zeros(1, "int32"), one], [one])


# --- mutants ----------------------------------------------------------------------------------


def test_a_missing_start_is_found() -> None:
    c = rows()
    s = columns(c)
    nest = replace_stmt(s.nest, root_child(s.nest, "g_init"), None)
    with pytest.raises((AssertionError, InterpError)):
        same(interpret(nest, c.dag, c.inputs), c.expected, "without its start")


def test_a_copy_that_is_not_joined_is_found() -> None:
    c = rows()
    s = copies(c)
    last = find_block(s.nest, "g")
    iters = tuple(replace(i, extent=Const(3)) if i.kind == "reduce" else i for i in last.iters)
    nest = replace_stmt(s.nest, last, replace(last, iters=iters))
    with pytest.raises(AssertionError):
        same(interpret(nest, c.dag, c.inputs), c.expected, "without the last copy")


def test_a_copy_that_is_not_started_is_found() -> None:
    c = rows()
    nest = map_blocks(
        copies(c).nest, lambda b: replace(b, values=(Const(1.0, "float32"),)) if b.name == "g_rf_init" else b
    )
    with pytest.raises(AssertionError):
        same(interpret(nest, c.dag, c.inputs), c.expected, "from 1")


def test_terms_left_in_at_the_tail_are_found() -> None:
    c = rows(n=30)
    s = copies(c)  # 30 terms in 4 copies of 8
    nest = map_blocks(s.nest, lambda b: replace(b, where=()) if b.name == "g_rf" else b)
    with pytest.raises((AssertionError, InterpError)):
        same(interpret(nest, c.dag, c.inputs), c.expected, "beyond the last term")
