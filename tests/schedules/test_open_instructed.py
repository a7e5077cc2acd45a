"""Sums of products by instructions where a call tells how many rows, columns or terms there are: right at
every size, also below the tile, by the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from open_cases import interpreted, sampled, with_strides
from space_cases import target

from schedules import affine, ops, te
from schedules import expr as E
from schedules.errors import ScheduleError
from schedules.expr import Const, Var
from schedules.graph.integers import with_integer_products
from schedules.ir import Buffer, Intrinsic, LoweredFunc, size_hole, walk
from schedules.ir.strides import contiguous_dimension, goes_on
from schedules.model import Trace
from schedules.open_program import lower_parts, parts_of
from schedules.passes import sums_of_zeros
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG
from schedules.te.dims import Dim, dim
from schedules.te.open_sizes import at

# A CPU with these instructions, whatever CPU this is.
FEATURES = ("amx-bf16", "amx-int8", "amx-tile", "avx512bf16", "avx512vnni")
CPU = replace(target(vector_bytes=64), features=FEATURES)


def n(most: int, least: int = 1) -> Dim:
    return dim(least, most, "n", open=True)


def operator(name: str, dtype: str | None = "bfloat16", **params: object) -> Callable[[], ComputeDAG]:
    return lambda: with_strides(ops.workload(name, params, dtype).dag)


def integers(m: object, columns: object, depth: object, a: str = "uint8") -> ComputeDAG:
    x, y = te.placeholder((m, depth), a, "x"), te.placeholder((depth, columns), "int8", "y")
    r = te.reduce_axis(depth, "r")
    return te.dag([x, y, te.compute((m, columns), lambda i, j: te.sum(x[i, r] * y[r, j], axis=r), "z")])


def attended(rows: object, columns: int, depth: int) -> ComputeDAG:
    """Two products with a stage over rows between them, as attention has, in whole numbers."""
    q, k, v = (
        te.placeholder((m, depth), "bfloat16", x) for m, x in ((rows, "q"), (columns, "k"), (columns, "v"))
    )
    r, j = te.reduce_axis(depth, "r"), te.reduce_axis(columns, "j")
    s = te.compute((rows, columns), lambda i, j: te.sum(q[i, r] * k[j, r], axis=r), "s")
    e = te.compute((rows, columns), lambda i, j: te.cast(te.maximum(s[i, j], 0.0), "bfloat16"), "e")
    return te.dag([q, k, v, te.compute((rows, depth), lambda i, d: te.sum(e[i, j] * v[j, d], axis=j), "o")])


CASES: dict[str, Callable[[], ComputeDAG]] = {
    "rows": operator("matmul", m=n(21), n=33, k=12),
    "rows of tiles": operator("matmul", m=n(21), n=16, k=32),
    "odd depth": operator("matmul", m=n(13), n=33, k=13),
    "rows that lie across": operator("matmul", m=n(13), n=33, k=12, transpose_a=1),
    "columns": operator("matmul", m=7, n=n(40), k=12),
    "columns of tiles": operator("matmul", m=20, n=n(70), k=32),
    "depth": operator("matmul", m=7, n=17, k=n(24)),
    "depth of tiles": operator("matmul", m=16, n=16, k=n(70)),
    "an epilogue": operator("matmul_bias_relu", m=n(13), n=33, k=10),
    "batch": operator("batch_matmul", b=n(4), m=3, n=33, k=8),
    "rows in a batch": operator("batch_matmul", b=2, m=n(7), n=33, k=8),
    "images": operator("conv2d", b=n(3), h=2, w=4, ci=4, co=6, k=3, padding=1),
    "points of images": operator("conv2d", b=n(3), h=3, w=4, ci=32, co=16, k=1),
    "bytes": lambda: integers(n(13), 33, 8),
    "tiles of bytes": lambda: integers(n(21), 16, 64, "int8"),
    "quantised": operator("quantized_matmul", None, m=n(13), n=17, k=8),
    "attention": lambda: attended(n(13), 32, 32),
}


def instructed(dag: ComputeDAG, most: int = 1) -> list[Trace]:
    """Sketches of the space that compute by an instruction."""

    def computes(trace: Trace) -> bool:
        used = [str(dict(s.args)["instruction"]) for s in trace.steps if s.primitive == "tensorize"]
        return any(name.startswith(("td", "vd", "vp")) for name in used)

    found = []
    for trace in sampled(dag, 1, CPU):
        if computes(trace):
            found.append(trace)
        if len(found) == most:
            break
    return found


def lowered(dag: ComputeDAG, trace: Trace) -> LoweredFunc:
    assert dag.open is not None
    return lower_parts(parts_of(dag, trace, CPU), dag.open.sizes)


def right(func: LoweredFunc, dag: ComputeDAG, sizes: Sequence[int]) -> bool:
    assert dag.open is not None
    for size in sizes:
        got, want = interpreted(func, dag, {dag.open.sizes[0].name: size})
        if not all(np.array_equal(a.astype("f8"), b.astype("f8")) for a, b in zip(got, want, strict=True)):
            return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_products_by_instructions_are_right_at_every_size(name: str) -> None:
    dag = CASES[name]()
    assert dag.open is not None
    traces = instructed(dag, 2)
    assert traces
    most = dag.open.sizes[0].most
    for trace in traces:
        func = lowered(dag, trace)
        assert any(isinstance(x, Intrinsic) for x in walk(func.body))
        assert right(func, dag, sorted({1, 2, 3, most // 2, most - 1, most}))


def test_a_tail_below_the_tile_is_right() -> None:
    dag = integers(n(5), 16, 8)
    (trace,) = instructed(dag)
    func = lowered(dag, trace)
    assert any(isinstance(x, Intrinsic) for x in walk(func.body)) and right(func, dag, (1, 4, 5))


@pytest.mark.parametrize("most", [16, 33])
def test_columns_of_few_panels_are_copied_by_instructions(most: int) -> None:
    """Where all panels are copied in one iteration, whole ones are still found among them."""
    dag = with_strides(integers(3, n(most), 8))
    for trace in instructed(dag, 3):
        func = lowered(dag, trace)
        used = {x.instruction.name for x in walk(func.body) if isinstance(x, Intrinsic)}
        assert "interleave4_int8" in used
        assert right(func, dag, (1, 15, most - 1, most))


def test_sums_that_are_mostly_tails_are_by_no_instruction() -> None:
    """Of an open sum whole runs alone are by one: there are some below the largest size, or none is
    offered."""
    assert not instructed(integers(3, 16, n(4)))
    dag = integers(3, 16, n(12))
    for trace in instructed(dag, 8):
        assert any(isinstance(x, Intrinsic) for x in walk(lowered(dag, trace).body))


def test_merged_sums_that_are_mostly_tails_are_by_no_instruction() -> None:
    """An axis that is merged with an open one is open too."""

    def merged(most: int) -> ComputeDAG:
        g = n(most)
        x, y = te.placeholder((5, g, 2), "uint8", "x"), te.placeholder((g, 2, 16), "int8", "y")
        r, s = te.reduce_axis(g, "r"), te.reduce_axis(2, "s")
        return te.dag(
            [x, y, te.compute((5, 16), lambda i, j: te.sum(x[i, r, s] * y[r, s, j], axis=[r, s]), "z")]
        )

    assert not instructed(with_strides(merged(2)))
    dag = with_strides(merged(6))
    for trace in instructed(dag, 8):
        func = lowered(dag, trace)
        assert any(isinstance(x, Intrinsic) for x in walk(func.body)) and right(func, dag, (1, 5, 6))


def test_instructions_without_a_whole_run_below_the_tile_are_loops() -> None:
    """A shifted tile of the sum that is taken off makes a second part, whose sizes have no run of a copy."""
    m, r = n(17), te.reduce_axis(8, "r")
    x, y = te.placeholder((3, 8), "uint8", "x"), te.placeholder((8, m), "int8", "y")
    zero = te.placeholder((), "int32", "zero")
    value = lambda i, j: te.sum((x[i, r] - zero[()]) * y[r, j], axis=r)  # noqa: E731
    dag = with_strides(te.dag([x, y, zero, te.compute((3, m), value, "z")]))
    every = ((t, parts_of(dag, t, CPU)) for t in sampled(dag, 4, CPU) if "vpdpbusd" in str(t))
    trace, parts = next((t, found) for t, found in every if found[-1].sizes[0].most == 15)
    with pytest.raises(ScheduleError, match="tensorize"):
        lower(parts[1])
    assert right(lowered(dag, trace), dag, (1, 15, 16, 17))


def test_rows_that_tiles_have_are_copied() -> None:
    """Where rows may be fewer than those of a tile, no run of the instruction reads them in place."""
    dag = operator("matmul", m=n(21), n=16, k=32)()
    found = [t for t in instructed(dag, 8) if "tdpbf16ps" in str(t)]
    assert found
    for trace in found:
        copied = {dict(s.args)["buffer"] for s in trace.steps if s.primitive == "cache_read"}
        assert {"a", "b"} <= copied
    fixed = dag.largest
    assert any({"a"}.isdisjoint(
        {dict(s.args)["buffer"] for s in t.steps if s.primitive == "cache_read"}
    ) for t in instructed(fixed, 8) if "tdpbf16ps" in str(t))  # fmt: skip


def test_rows_that_are_merged_with_open_ones_are_open_too() -> None:
    x, w = te.placeholder((n(9), 4, 32), "bfloat16", "x"), te.placeholder((32, 16), "bfloat16", "w")
    r = te.reduce_axis(32, "r")
    value = lambda b, i, j: te.sum(x[b, i, r] * w[r, j], axis=r)  # noqa: E731
    dag = te.dag([x, w, te.compute((x.shape[0], 4, 16), value, "y")])
    traces = instructed(dag, 8)
    assert any("merge_axes" in str(t) and "tdpbf16ps" in str(t) for t in traces)
    for trace in traces:
        assert lowered(dag, trace)


@pytest.mark.slow
def test_open_columns_over_several_tiles_are_runs() -> None:
    """Rows and columns are one loop, whose quotients by the number of tiles tell both."""
    dag = CASES["columns of tiles"]()
    traces = instructed(dag, 8)
    assert all(any(w in str(t) for t in traces) for w in ("vdpbf16ps", "tdpbf16ps"))
    for trace in traces:
        assert any(isinstance(x, Intrinsic) for x in walk(lowered(dag, trace).body))


def test_quotients_of_what_is_below_a_product_are_known() -> None:
    tiles, ranges = E.ceildiv(Var("n.size"), 16), {"n.size": (1, 100)}
    i = Var("i")
    for extent in (tiles * 4, 4 * tiles):
        known = ranges | {"i": (0, 27)} | affine.quotients("i", extent, ranges)
        assert affine.bounds(E.binary("//", i, tiles), known) == (0, 3)
    known = ranges | {"i": (0, 6)} | affine.quotients("i", tiles, ranges)
    assert affine.simplify(E.binary("//", i, tiles), known) == Const(0)
    assert affine.simplify(E.binary("%", i, tiles), known) == i
    m = ranges | {"m.size": (2, 5)}
    pair = affine.quotients("i", E.binary("*", tiles, Var("m.size")), m)
    assert affine.bounds(E.binary("//", i, tiles), m | pair) == (0, 4)
    assert affine.bounds(E.binary("//", i, Var("m.size")), m | pair) == (0, 6)
    assert not affine.quotients("i", tiles * 4 + 1, ranges) and not affine.quotients("i", Const(8), ranges)


def test_padded_depths_need_no_tail_beside_open_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    dag = operator("matmul", m=n(5), n=16, k=5)()
    (trace,) = instructed(dag)
    assert right(lowered(dag, trace), dag, (1, 4, 5))
    monkeypatch.setattr(sums_of_zeros, "_is_open", lambda extent: False)
    with pytest.raises(ValueError, match="are not the axes"):
        lowered(dag, trace)


def test_a_remainder_of_what_is_below_an_open_divisor_is_itself() -> None:
    tiles = E.ceildiv(Var("n.size"), 16)
    ranges = {"n.size": (1, 100), "m.size": (3, 9), "i": (0, 2)}
    assert affine.simplify(E.binary("%", Const(0), tiles), ranges) == Const(0)
    i, m = Var("i"), Var("m.size")
    assert affine.simplify(E.binary("%", i, m), ranges) == i
    assert affine.simplify(E.binary("//", i, m), ranges) == Const(0)
    assert affine.simplify(E.binary("%", i, Var("n.size")), ranges) != i


def test_a_tile_of_the_largest_size_leaves_arguments_open() -> None:
    """One part of the program is then for one size, whose number it has."""
    x = te.placeholder((n(8), 3), name="x")
    dag = te.dag([x, te.compute(x.shape, lambda i, j: x[i, j] + 1.0, "y")])
    s = Schedule(dag)
    s.split("y_i", (None, 8), "shift")
    func = lower_parts(parts_of(dag, s.trace), dag.open.sizes)
    assert all(affine.has_size(b.shape[0]) for b in func.params)
    assert right(func, dag, range(1, 9))


# -- integers ----------------------------------------------------------------------------------


def dequantised(m: object, depth: object) -> ComputeDAG:
    a, b = te.placeholder((m, depth), "uint8", "a"), te.placeholder((depth, 5), "int8", "b")
    k = te.reduce_axis(depth, "k")
    value = lambda i, j: te.sum((te.cast(a[i, k], "int32") - 3) * b[k, j], axis=k)  # noqa: E731
    return te.dag([a, b, te.compute((m, 5), value, "c")])


def test_dequantised_products_of_open_rows_become_products_of_integers() -> None:
    dag = dequantised(n(9), 8)
    made = with_integer_products(dag)
    assert [s.name for s in made.stages] == ["c_sum", "c_sum_of_b", "c"]
    for size in (1, 4, 9):
        here = at(made, {"n": size})
        data = [np.arange(x.shape[0] * x.shape[1]).reshape(x.shape).astype(x.dtype) for x in here.inputs]
        assert np.array_equal(te.evaluate(here, data)[0], te.evaluate(at(dag, {"n": size}), data)[0])
        assert here.stages[-1].axes[0].extent == size and here.stages[1].axes[0].extent == 5


def test_dequantised_products_of_an_open_depth_stay_as_they_are() -> None:
    """How often a zero point counts is no number there."""
    dag = dequantised(4, n(9))
    assert with_integer_products(dag) is dag
    assert len(with_integer_products(dag.largest).stages) > 1


@pytest.mark.parametrize("key", ["m", "k"])
def test_a_quantized_operator_of_open_sizes_is_the_operator_of_each(key: str) -> None:
    sizes = {"m": 3, "n": 5, "k": 8}
    dag = ops.workload("quantized_matmul", {**sizes, key: dim(1, 9, key, open=True)}).dag
    rng = np.random.default_rng(0)
    for size in (1, 4, 9):
        fixed = ops.workload("quantized_matmul", {**sizes, key: size}).dag
        data = [
            rng.integers(0, 7, t.shape).astype(t.dtype) if t.shape else np.array(1, t.dtype)
            for t in fixed.inputs
        ]
        assert np.array_equal(te.evaluate(at(dag, {key: size}), data)[0], te.evaluate(fixed, data)[0])


# -- strides -----------------------------------------------------------------------------------


def test_what_lies_side_by_side_where_an_extent_is_open() -> None:
    size = size_hole("n")
    room = Buffer("x", (Const(5), size), "float32", strides=(Const(24), Const(1)))
    assert contiguous_dimension(room) == 1 and not goes_on(room, 0)
    assert not goes_on(replace(room, strides=(Const(1), Const(1))), 0)
    rows = Buffer("x", (size, Const(3), Const(4)), "float32", strides=(Const(20), Const(4), Const(1)))
    assert not goes_on(rows, 0) and goes_on(rows, 1)
    assert goes_on(replace(rows, strides=(Const(12), Const(4), Const(1))), 0)
    assert goes_on(replace(rows, strides=None), 0)
