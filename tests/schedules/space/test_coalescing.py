"""Sectors that a warp touches: the estimate beside what `ir.warps` counts when it runs the kernel."""

from __future__ import annotations

import numpy as np
import pytest
from grid_cases import TARGET
from hypothesis import given, settings
from hypothesis import strategies as st

import autotune as at
from schedules import te
from schedules.ir.warps import watch
from schedules.model import Target
from schedules.passes.simt import lower_simt
from schedules.schedule import Schedule
from schedules.space.estimate.gpu.coalescing import sectors
from schedules.space.estimate.gpu.facts import analyse
from schedules.space.holes import Columns

# Blocks of a warp or more: threads along y and x.
BLOCKS = [(1, 32), (1, 64), (2, 16), (4, 8), (8, 4), (16, 2), (32, 1), (2, 32)]
STEPS = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 12, 16, 31, 32, 33, 64, 100])
DTYPES = st.sampled_from(["int8", "float16", "float32", "float64"])
NEAR = 0.15  # where requests begin is averaged


def shares(s: Schedule) -> dict[str, tuple[float, float]]:
    """{buffer: (estimated, counted) sectors over those that would do} of a kernel of one block."""
    (k,) = analyse(s.nest)
    program = lower_simt(s.nest)
    (counted,) = watch(
        program, {b.name: np.zeros([x.value for x in b.shape], b.dtype) for b in program.params}
    )
    (work,) = k.work
    names = [s.dag.outputs[0], *dict.fromkeys(x.buffer for x in s.dag.stages[0].reads())]
    found = {}
    for name, a in zip(names, work.accesses, strict=True):
        touched, least = sectors(a.request, a.item, Columns())
        of = next(b for b in counted.buffers if b.name == name)
        found[name] = float(touched / least), of.cost / of.least
    return found


def tiled(dag: te.ComputeDAG, block: tuple[int, int], lanes: int = 1) -> Schedule:
    """Rows of y along y, columns along x, vectors of ``lanes`` columns."""
    s = Schedule(dag, TARGET)
    rows, columns = s.loops("y")
    by, ty = s.split(rows, (None, block[0]))
    bx, tx, v = s.split(columns, (None, block[1], lanes))
    s.reorder(by, bx, ty, tx, v)
    for loop, axis in ((by, "blockIdx.y"), (bx, "blockIdx.x"), (ty, "threadIdx.y"), (tx, "threadIdx.x")):
        s.bind(loop, axis)
    if lanes > 1:
        s.vectorize(v)
    return s


def agree(s: Schedule) -> None:
    for name, (estimated, counted) in shares(s).items():
        assert estimated == pytest.approx(counted, rel=NEAR), (name, estimated, counted)


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(BLOCKS), st.integers(1, 4), STEPS, DTYPES)
def test_rows_of_threads(block: tuple[int, int], n: int, step: int, dtype: str) -> None:
    """``A[t * st + i]`` for every stride."""
    threads = block[0] * block[1]
    x = te.placeholder((threads * step + n,), dtype, "x")
    dag = te.dag([x, te.compute((threads, n), lambda t, i: x[t * step + i], "y")])
    s = Schedule(dag, TARGET)
    t, _ = s.loops("y")
    b, t = s.split(t, (None, threads))
    s.bind(b, "blockIdx.x")
    s.bind(t, "threadIdx.x")
    agree(s)


@settings(deadline=None, max_examples=15)
@given(
    st.sampled_from(BLOCKS),
    st.sampled_from([1, 2, 4]),
    STEPS,
    DTYPES,
    st.booleans(),
    st.sampled_from([0, 1, 8]),
)
def test_tiles_and_vectors(
    block: tuple[int, int], lanes: int, step: int, dtype: str, turned: bool, gap: int
) -> None:
    """Columns at a distance, rows with a gap behind them; or the transposition of them."""
    rows, columns = block[0], block[1] * lanes
    if turned:
        x = te.placeholder((columns, rows * step + gap), dtype, "x")
        y = te.compute((rows, columns), lambda i, j: x[j, i * step], "y")
    else:
        x = te.placeholder((rows, columns * step + gap), dtype, "x")
        y = te.compute((rows, columns), lambda i, j: x[i, j * step], "y")
    agree(tiled(te.dag([x, y]), block, lanes))


@settings(deadline=None, max_examples=12)
@given(st.sampled_from([2, 4, 8, 16, 32, 64]), DTYPES, st.booleans())
def test_threads_of_a_fused_loop(columns: int, dtype: str, turned: bool) -> None:
    """Indices with ``//`` and ``%``."""
    shape = (128 // columns, columns)
    x = te.placeholder(shape[::-1] if turned else shape, dtype, "x")
    rule = (lambda i, j: x[j, i]) if turned else (lambda i, j: x[i, j])
    s = Schedule(te.dag([x, te.compute(shape, rule, "y")]), TARGET)
    b, t = s.split(s.fuse(*s.loops("y")), (None, 64))
    s.bind(b, "blockIdx.x")
    s.bind(t, "threadIdx.x")
    agree(s)


@settings(deadline=None, max_examples=12)
@given(st.sampled_from(BLOCKS), STEPS, DTYPES)
def test_threads_that_read_backwards(block: tuple[int, int], step: int, dtype: str) -> None:
    x = te.placeholder((block[0], block[1] * step), dtype, "x")
    rule = lambda i, j: x[block[0] - 1 - i, (block[1] - 1 - j) * step]  # noqa: E731
    agree(tiled(te.dag([x, te.compute(block, rule, "y")]), block))


def test_what_data_decides_is_taken_to_be_apart() -> None:
    x, ids = te.placeholder((4096,), "float32", "x"), te.placeholder((1, 64), "int32", "ids")
    dag = te.dag([x, ids, te.compute((1, 64), lambda i, j: x[ids[i, j]], "y")])
    (k,) = analyse(tiled(dag, (1, 32)).nest)
    found = [sectors(a.request, a.item, Columns()) for a in k.work[0].accesses]
    assert sorted(float(touched) for touched, _ in found) == [4, 4, 32]


def test_threads_that_read_one_element_touch_one_sector() -> None:
    x = te.placeholder((8,), "float32", "x")
    dag = te.dag([x, te.compute((8, 64), lambda i, j: x[i], "y")])
    assert shares(tiled(dag, (1, 32)))["x"] == (1.0, 1.0)


@pytest.mark.parametrize(("step", "share"), [(1, 1.0), (2, 0.5), (4, 0.25), (8, 0.125), (100, 0.125)])
def test_explain_tells_the_same_share_twice(step: int, share: float) -> None:
    """By the estimate and by the counter, of what is read at a distance and written side by side."""
    x = te.placeholder((32 * step,), "float32", "x")
    s = Schedule([x, te.compute((32,), lambda i: x[i * step], "y")], TARGET)
    s.bind("y_i", "threadIdx.x")
    e = at.explain(s)
    assert e.number("coalescing", "share") == e.number("global memory", "share") == 2 / (1 + 1 / share)


def test_a_stride_orders_candidates() -> None:
    """Threads along rows read in sectors of their own: slower, whatever the stride is."""

    def seconds(by_rows: bool) -> float:
        x = te.placeholder((1024, 1024), "float32", "x")
        dag = te.dag([x, te.compute((1024, 1024), lambda i, j: x[i, j] * 2.0, "y")])
        s = Schedule(dag, Target("cuda", "sm_90", limits=(("sm_threads", 2048), ("sms", 132))))
        i, j = s.loops("y")
        threads, other = (i, j) if by_rows else (j, i)
        b, t = s.split(threads, (None, 256))
        s.reorder(other, b, t)
        s.bind(other, "blockIdx.y")
        s.bind(b, "blockIdx.x")
        s.bind(t, "threadIdx.x")
        return float(at.explain(s).number("time", "time_s"))

    assert seconds(by_rows=True) > 1.5 * seconds(by_rows=False)
