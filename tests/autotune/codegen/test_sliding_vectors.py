"""Vectors that the next iteration reads again stay in registers: right, and nothing else is read."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from helpers import check_compiled, expected, host, inputs
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.backends.building.from_trace import emit_module
from autotune.codegen.llvm.emit import emit
from autotune.targets import from_name
from schedules import te
from schedules.errors import ScheduleError
from schedules.model import Trace
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG

WIDE = from_name("x86-64-v4")


def sums(rows: int, n: int, near: list[tuple[int, int]], dtype: str) -> ComputeDAG:
    """Weighted sums of neighbours. The tensor has just the elements that they read."""
    low, high = ([f(p[d] for p in near) for d in (0, 1)] for f in (min, max))
    shape = tuple(e + b - a for e, a, b in zip((rows, n), low, high, strict=True))
    x = te.placeholder(shape, dtype, "x")

    def point(i: te.Expr, j: te.Expr) -> te.Expr:
        found = x[i + near[0][0] - low[0], j + near[0][1] - low[1]]
        for k, (a, b) in enumerate(near[1:], 2):
            found = found + x[i + a - low[0], j + b - low[1]] * k
        return te.cast(found, dtype)

    return te.dag([x, te.compute((rows, n), point, "y")])


def in_lanes(dag: ComputeDAG, lanes: int, rows: int = 1, slide: int = 1) -> Trace:
    s = Schedule(dag)
    i, j = s.loops("y")
    (above, beside), (outer, inner) = s.split(i, [None, rows]), s.split(j, [None, lanes])
    s.reorder(above, outer, beside, inner)
    s.unroll(beside)
    s.vectorize(inner)
    for loop in (above, outer):
        s.partition(loop)
    s.annotate(outer, "slide", slide)
    return s.trace


def loads(dag: ComputeDAG, trace: Trace, kind: str) -> int:
    return len(re.findall(rf"= load <{kind}>", emit_module(dag, trace, WIDE).text))


def test_one_vector_is_loaded_where_three_are_read() -> None:
    """In the loop; the first iteration has a load of its own before it."""
    dag = sums(1, 48, [(0, -1), (0, 0), (0, 1)], "float64")
    assert loads(dag, in_lanes(dag, 8, slide=0), "8 x double") == 3
    trace = in_lanes(dag, 8)
    assert (loads(dag, trace, "8 x double"), loads(dag, trace, "8 x i64")) == (0, 2)
    text = emit_module(dag, trace, WIDE).text
    assert re.search(r"phi <8 x i64> \[ %\w+, %entry \]", text)


def test_rows_above_each_other_are_apart() -> None:
    dag = sums(8, 48, [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1)], "float32")
    assert loads(dag, in_lanes(dag, 16, 2, slide=0), "16 x float") == 4 * 3
    assert loads(dag, in_lanes(dag, 16, 2), "16 x i32") == 4 * 2


@pytest.mark.parametrize(
    "near", [[(0, 0)], [(0, 0), (1, 0)], [(0, 0), (0, 40)], [(0, k) for k in range(0, 20, 9)]]
)
def test_what_is_not_read_again_stays(near: list[tuple[int, int]]) -> None:
    """No neighbour, one above, one far away, and more vectors than an iteration before had."""
    dag = sums(2, 48, near, "float64")
    there = in_lanes(dag, 8)
    assert "shufflevector" not in emit_module(dag, there, WIDE).text
    assert loads(dag, there, "8 x double") == len(near)


def test_what_the_loop_writes_is_loaded_again() -> None:
    """An output in the memory of its input."""
    x = te.placeholder((40,), "float64", "x")
    dag = te.dag([x, te.compute((32,), lambda i: x[i] + x[i + 1], "y")])
    s = Schedule(dag)
    o, i = s.split("y_i", [None, 8])
    s.vectorize(i)
    s.annotate(o, "slide", 1)
    func = lower(s.nest)
    assert "phi <8 x i64>" in emit(func, WIDE).text
    assert "phi <8 x i64>" not in emit(replace(func, overlapping=(("y", "x"),)), WIDE).text


def test_the_hint_is_0_or_1() -> None:
    s = Schedule(sums(1, 48, [(0, 0), (0, 1)], "float64"))
    with pytest.raises(ScheduleError, match="slide is 0 to 1, not 2"):
        s.annotate("y_j", "slide", 2)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    near=st.lists(st.tuples(st.integers(-1, 1), st.integers(-5, 5)), min_size=1, max_size=6, unique=True),
    n=st.integers(1, 70),
    rows=st.integers(1, 5),
    lanes=st.sampled_from((2, 4, 8, 16, 24, 32)),
    together=st.sampled_from((1, 2, 4)),
    dtype=st.sampled_from(("float64", "float32", "int32", "float16", "int8")),
)
def test_random_neighbours(
    near: list[tuple[int, int]], n: int, rows: int, lanes: int, together: int, dtype: str
) -> None:
    dag = sums(rows, n, near, dtype)
    data = inputs(dag)
    check_compiled(dag, in_lanes(dag, lanes, together), host(), data, expected(dag, data))


@pytest.mark.parametrize("n", [16, 40, 41])
@pytest.mark.parametrize("near", [[-1, 0, 1], [0, 3], [-7, 1], [0, 1, 2, 3, 4, 5, 6, 7, 8]])
def test_nothing_outside_is_read(n: int, near: list[int]) -> None:
    """Inputs begin, or end, at pages that must not be touched."""
    dag = sums(1, n, [(0, k) for k in near], "float64")
    data = inputs(dag)
    check_compiled(dag, in_lanes(dag, 8), host(), data, expected(dag, data))
