"""Peeling where outer loops decide: borders of padded tiles, wherever a tile begins."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from helpers import check_compiled, check_interpreted, expected, host, inputs
from hypothesis import assume, given, settings
from programs import make

from autotune.backends.building.from_trace import build_object, scheduled
from autotune.codegen.llvm.compile import load_object
from schedules import expr as E
from schedules import ops, te
from schedules.expr import Const, Select, Var
from schedules.ir import Guard, Loop, Seq, Store, in_order, walk
from schedules.ir.exprs import expressions
from schedules.model import Target
from schedules.passes.lower import lower
from schedules.passes.partition import partition
from schedules.schedule import Schedule
from schedules.space.derive import derive
from schedules.space.estimate.cpu.facts import analyse
from schedules.te.compute_dag import ComputeDAG

ROW, J = Var("i"), Var("j")


def windows(n: int, m: int, before: int, after: int, stride: int, dtype: str = "float32") -> ComputeDAG:
    """Sums over 3 x 2 windows of a plane with so much padding around."""
    x = te.placeholder((n, m), dtype, "X")
    p = te.compute(
        (n + before + after, m + before + after),
        lambda i, j: te.select(
            te.all(i >= before, i < n + before, j >= before, j < m + before),
            x[i - before, j - before],
            te.const(0, dtype),
        ),
        "P",
    )
    u, v = te.reduce_axis(3, "u"), te.reduce_axis(2, "v")
    rows, columns = (n + before + after - 3) // stride + 1, (m + before + after - 2) // stride + 1
    return te.dag(
        [
            x,
            te.compute(
                (rows, columns),
                lambda i, j: te.sum(p[i * stride + u, j * stride + v], axis=(u, v)),
                "Y",
            ),
        ]
    )


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(3, 12),
    m=st.integers(2, 9),
    before=st.integers(0, 4),
    after=st.integers(0, 4),
    stride=st.integers(1, 3),
    mid=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    tile=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    tail=st.sampled_from(["guard", "shift"]),
)
def test_any_padding_in_any_tiles(
    n: int,
    m: int,
    before: int,
    after: int,
    stride: int,
    mid: tuple[int, int],
    tile: tuple[int, int],
    tail: str,
) -> None:
    s = Schedule(windows(n, m, before, after, stride))
    s.inline("P")
    rows, columns, *_ = (int(s.nest.buffer("Y").shape[k].value) for k in (0, 1))  # type: ignore[attr-defined]
    assume(tail == "guard" or (tile[0] <= rows and tile[1] <= columns))
    s.cache_write("Y", "local")
    outer, middle, inner = zip(
        *(s.split(x, (None, b, t), tail) for x, b, t in zip(s.loops("Y_write"), mid, tile, strict=True)),
        strict=True,
    )
    s.reorder(*outer, *middle, *inner)
    s.compute_at("Y", middle[-1])
    for x in middle:
        s.partition(x)
    s.parallel(s.fuse(*outer))
    data = inputs(s.dag)
    want = expected(s.dag, data)
    check_interpreted(s.nest, s.dag, data, want)
    if (n + m) % 4 == 0:
        check_compiled(s.dag, s.trace, host(2), data, want)


def stencil(mid: int, reach: int = 1) -> Loop:
    """Rows of X around each of 12, in parts: those of the border have no neighbours on one side."""
    at = Var("o") * mid + ROW + J - reach
    there = E.all_of(E.compare("<=", Const(0), at), E.compare("<", at, 12))
    load = Select(there, E.Load("X", (at,), "float32"), Const(0.0, "float32"))
    body = Loop("j", Const(2 * reach + 1), Store("Y", (Var("o") * mid + ROW, J), load), "unroll")
    return Loop("o", Const(12 // mid), Loop("i", Const(mid), body, "serial", (("partition", 1),)))


def choices(s: object) -> int:
    return sum(isinstance(y, Select) for x in walk(s) for e in expressions(x) for y in E.walk(e))  # type: ignore[arg-type]


def test_the_middle_has_no_choice_wherever_the_part_begins() -> None:
    out = partition(stencil(4))
    assert isinstance(out, Loop) and isinstance(out.body, Seq)
    first, middle, last = out.body.stmts
    assert choices(middle) == 0 and choices(first) and choices(last)
    assert lengths(out) == [[1, 3, 0], [0, 4, 0], [0, 3, 1]]


def lengths(out: Loop) -> list[list[int]]:
    """Iterations of the pieces, for each part."""
    pieces = [x.extent for x in in_order(out.body) if isinstance(x, Loop)]
    parts = range(int(E.evaluate(out.extent, {})))
    return [[int(E.evaluate(n, {"o": o})) for n in pieces] for o in parts]


def test_parts_that_are_all_border_are_not_run_twice() -> None:
    out = partition(stencil(2, 7))
    assert isinstance(out, Loop)
    assert all(sum(x) == 2 and min(x) >= 0 for x in lengths(out)), lengths(out)


def test_a_loop_that_the_part_alone_decides_is_peeled_to_constants() -> None:
    out = partition(stencil(12))
    extents = [x.extent for x in walk(out) if isinstance(x, Loop) and x.var == "i"]
    assert extents == [Const(10)]


def test_what_an_inner_extent_decides_stays() -> None:
    """The inner loop's length is not known: nothing says for which iterations all of it is inside."""
    inner = Loop(
        "j", E.minimum(Var("n"), 4), Guard(Var("o") + ROW + J < 9, Store("Y", (ROW,), Const(1.0, "float32")))
    )
    loop = Loop("i", Const(8), inner, "serial", (("partition", 1),))
    out = partition(Loop("n", Const(9), Loop("o", Const(3), loop)))
    assert all("j" not in E.variables(x.extent) for x in walk(out) if isinstance(x, Loop))
    assert sum(isinstance(x, Guard) for x in walk(out)) == 1


def test_what_an_empty_piece_would_accumulate_is_not_touched() -> None:
    """The last row, which the piece at the end accumulates alone, is outside where that has no iterations."""
    s = Schedule(make("max_pool", "int32"))
    s.reorder("Y_z", "Y_o", "Y_u", "Y_v", "Y_y")
    s.decompose_reduction("Y", "Y_u")
    _, inner = s.split(s.fuse("Y_v", "Y_y"), (None, 3))
    s.partition(inner)
    data = inputs(s.dag)
    want = expected(s.dag, data)
    check_interpreted(s.nest, s.dag, data, want)
    check_compiled(s.dag, s.trace, host(), data, want)


def test_what_a_value_decides_stays() -> None:
    """How long a piece is would be read from memory: of another iteration, or not allocated yet."""
    limit = E.Load("F", (Var("o"),), E.INDEX)
    loop = Loop(
        "i", Const(8), Guard(E.compare("<", ROW, limit), Store("Y", (ROW,), Const(1.0, "float32"))),
        "serial", (("partition", 1),),
    )  # fmt: skip
    out = partition(Loop("o", Const(3), loop))
    assert [x.extent for x in walk(out) if isinstance(x, Loop)] == [Const(3), Const(8)]


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_depthwise_has_a_sketch_without_a_copy_whose_tiles_are_peeled(threads: int) -> None:
    workload = ops.workload("depthwise_conv2d", {"h": 8, "w": 12, "c": 16, "kh": 3, "kw": 3, "padding": 1})
    space = derive(workload.dag, host(threads))
    k = space.sketches.index("pad=inline y.unroll=yes")
    [y] = [b for b in space.sketch(k).estimate.facts if b.name == "y"]
    assert y.selects == 0
    plain = Schedule(workload.dag)
    plain.inline("pad")
    assert next(b for b in analyse(plain.nest) if b.name == "y").selects > 0
    data = [x.astype(np.float32) for x in inputs(workload.dag)]
    (want,) = ops.reference(workload, data)
    rows = space.sample(k, 256, np.random.default_rng(threads))
    rows = rows[space.valid(k, rows)][:12]
    assert len(rows) == 12
    spared = 0
    for row in rows:
        trace = space.trace(k, row)
        body = lower(Schedule.replay(workload.dag, trace, space.target).nest).body
        stores = [x for x in walk(body) if isinstance(x, Store)]
        spared += any(not choices(x) and x.buffer.startswith("y") and E.loads(x.value) for x in stores)
        out = np.full_like(want, np.nan)
        kernel = load_object(build_object(workload.dag, trace, space.target))
        kernel.run([a.ctypes.data for a in (*data, out)])
        np.testing.assert_array_equal(out, want)
    assert spared


@pytest.mark.slow
@pytest.mark.parametrize("arch, vector", [("znver4", 64), ("znver3", 32)])
def test_peeled_tiles_of_any_size_are_legal_and_spared_the_choice(arch: str, vector: int) -> None:
    """Nine copies of a window in every tile are more code than most, and none of it is too much. Where the
    loop over tiles had one iteration, nothing was peeled."""
    params = {"h": 112, "w": 112, "c": 32, "kh": 3, "kw": 3, "padding": 1}
    workload = ops.workload("depthwise_conv2d", params)
    limits = (("vector_bytes", vector), ("vector_registers", vector // 2))
    space = derive(workload.dag, Target("cpu", arch, limits=limits))
    k = space.sketches.index("pad=inline y.unroll=yes")
    rows = space.sample(k, 400, np.random.default_rng(0))
    rows = rows[space.valid(k, rows)]
    names = [h.name for h in space.sketch(k).holes]
    points = rows[:, names.index("y.x1")] * rows[:, names.index("y.x2")]
    for row in rows[np.argsort(-points, kind="stable")][:12]:
        body = scheduled(workload.dag, space.trace(k, row), space.target).body
        steps = (x for x in walk(body) if isinstance(x, Store) and E.loads(x.value))
        assert any(not choices(x) for x in steps if "x" in {y.buffer for y in E.loads(x.value)})
