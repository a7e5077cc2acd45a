"""Tiles that begin with lines of memory move only where what they compute goes with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from grid_cases import TARGET
from helpers import expected, inputs, same
from hypothesis import given, settings
from hypothesis import strategies as st
from space_cases import target

from autotune.codegen.simt import cuda
from schedules import te
from schedules.ir import interp
from schedules.passes.lower import lower
from schedules.passes.simt import lower_simt
from schedules.schedule import Schedule
from schedules.space.derive import derive
from schedules.te.compute_dag import ComputeDAG

M, N = 4, 64

x = te.placeholder((M, N), name="x")
line = te.placeholder((16,), name="line")
few = te.placeholder((M, 4), name="few")
half = te.placeholder((M, 32), name="half")
wide = te.placeholder((M, 2 * N + 1), name="wide")
long = te.placeholder((M * N // 32, 32), name="long")
e = te.compute((M, N), lambda i, j: x[i, j] + 1.0, name="e")

PROGRAMS: dict[str, tuple[list[te.Tensor], Callable[..., object], bool]] = {  # inputs, y, whether tiles move
    "itself": ([x], lambda i, j: x[i, j] * 2.0, True),
    "a row for all": ([x], lambda i, j: x[i, j] + x[0, j], True),
    "the next one": ([wide], lambda i, j: wide[i, j] + wide[i, j + 1], True),
    "from the end": ([x], lambda i, j: x[i, N - 1 - j], True),
    "every other one": ([wide], lambda i, j: wide[i, 2 * j + 1], True),
    "computed before": ([x], lambda i, j: e[i, j] * 2.0, True),
    # what is simplified by what is known of a tile that did not move
    "a line for all": ([x, line], lambda i, j: x[i, j] + line[j % 16], False),
    "one for a line": ([few], lambda i, j: few[i, j // 16], False),
    "computed at the line's beginning": ([x], lambda i, j: e[i, j] + e[i, j // 16 * 16], False),
    "in another shape": ([long], lambda i, j: long[(i * N + j) // 32, (i * N + j) % 32], False),
    # what is true of some tiles only, which may be tested around them
    "half of it": ([half], lambda i, j: te.select(j < 32, half[i, j], 0.0), False),
    "with padding": ([half], lambda i, j: te.select(j < 28, half[i, j], 0.0), False),
    "every other line": ([x], lambda i, j: te.select((j // 16) % 2 < 1, x[i, j], 0.0), False),
    "the first ones": ([x], lambda i, j: te.select(i * N + j < 80, x[i, j], 0.0), True),  # whole rows
}


def dag_of(name: str) -> ComputeDAG:
    given_, y, _ = PROGRAMS[name]
    return te.dag([*given_, te.compute((M, N), y, name="y")])


def scheduled(dag: ComputeDAG, fused: bool, peeled: bool, rows: int, lanes: int, at: int) -> Schedule:
    """y in tiles of lanes, or of rows of lanes that are unrolled; all else is computed for a row."""
    s = Schedule(dag)
    i, j = s.loops("y")
    if "e" in s.blocks() and not fused:
        s.compute_at("e", i)
    loop = s.fuse(i, j) if fused else j
    outer, inner = s.split(loop, (None, lanes), "shift")
    s.vectorize(inner)
    if rows > 1:
        outer, unrolled = s.split(outer, (None, rows), "shift")
        s.unroll(unrolled)
    if peeled:
        s.partition((i, outer)[at] if not fused else outer)
    s.annotate("y", "nontemporal", 2)
    return s


def right(dag: ComputeDAG, s: Schedule, skew: int) -> tuple[str, ...]:
    """Check it wherever lines begin; the interpreter also raises for what lies outside. What is moved."""
    data = inputs(dag)
    func = lower(s.nest)
    arrays = {t.name: a for t, a in zip(dag.inputs, data, strict=True)} | {"y": np.full((M, N), np.nan, "f4")}
    interp.run(func, arrays, skews={"y": skew})
    same([arrays["y"]], expected(dag, data), f"begun at {skew}")
    return func.skewed


@pytest.mark.parametrize("name", PROGRAMS)
def test_tiles_move_where_what_they_compute_does(name: str) -> None:
    dag = dag_of(name)
    for skew in (0, 5, 15):
        moved = right(dag, scheduled(dag, False, False, 1, 16, 0), skew)
        assert moved == (("y",) if PROGRAMS[name][2] else ())


def test_pieces_of_a_fused_loop_are_no_whole_rows() -> None:
    dag = dag_of("the first ones")
    assert right(dag, scheduled(dag, True, True, 1, 16, 0), 5) == ()


@pytest.mark.slow
@given(
    name=st.sampled_from(sorted(PROGRAMS)),
    fused=st.booleans(),
    peeled=st.booleans(),
    rows=st.sampled_from([1, 2]),
    lanes=st.sampled_from([8, 16, 32]),
    at=st.integers(0, 1),
    skew=st.integers(0, 15),
)
@settings(deadline=None, max_examples=150)
def test_any_program_in_any_tiles(
    name: str, fused: bool, peeled: bool, rows: int, lanes: int, at: int, skew: int
) -> None:
    dag = dag_of(name)
    right(dag, scheduled(dag, fused, peeled, rows, lanes, at), skew)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_derived_spaces_stream(name: str) -> None:
    """As a target does whose caches are so small that these arrays lie in memory."""
    dag = dag_of(name)
    cpu = target(vector_bytes=64)
    small = {**dict(cpu.limits), "l2_bytes": 64, "l3_bytes": 64}
    space = derive(dag, replace(cpu, limits=tuple(sorted(small.items()))))
    moved = 0
    for k in range(len(space.sketches)):
        names = list(space.holes(k))
        if "y.stream" not in names:
            continue
        rows = space.sample(k, 40, np.random.default_rng(0))
        rows = np.unique(rows[space.valid(k, rows)], axis=0)
        rows = rows[rows[:, names.index("y.stream")] == 2]
        for row in rows[:6]:
            s = Schedule.replay(dag, space.trace(k, row), space.target)
            moved += "y" in right(dag, s, 12)
    # rows are taken together there, and so are some of "the first ones" with others
    assert moved > 0 or not PROGRAMS[name][2] or name == "the first ones"


def test_a_gpu_does_not_know_where_lines_begin() -> None:
    s = Schedule(dag_of("itself"), TARGET)
    i, j = s.loops("y")
    outer, middle, inner = s.split(j, (None, 4, 4))
    s.bind(i, "blockIdx.x")
    s.bind(outer, "threadIdx.x")
    s.unroll(middle)
    s.vectorize(inner)
    plain = cuda.source(lower_simt(s.nest))
    s.annotate("y", "nontemporal", 2)
    assert cuda.source(lower_simt(s.nest)) == plain
