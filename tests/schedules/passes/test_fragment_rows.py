"""Rows of fragments: attention in one kernel, and reductions along rows."""

from __future__ import annotations

import numpy as np
import pytest
from grid_cases import need_cxx
from needs import missing
from warp_attention import AttentionTiles, by_warps

from autotune.codegen.simt import cuda, emulator, nvrtc
from schedules import ops, te
from schedules.errors import ScheduleError
from schedules.expr import Const, Load, Var
from schedules.ir import Alloc, AllReduce, Barrier, Buffer, Loop, Stmt, Store, interp, seq, walk
from schedules.ir.grid import GridKernel, GridProgram
from schedules.ir.interp import InterpError
from schedules.ir.interp_grid import run_grid
from schedules.passes.simt import lower_simt
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG


def data(dag: ComputeDAG, seed: int = 0) -> list[np.ndarray]:
    """Scores between -8 and 8, so that maxima move."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-2, 3, t.shape).astype(t.dtype) for t in dag.inputs]


def outputs(dag: ComputeDAG) -> dict[str, np.ndarray]:
    (y,) = (t for t in dag.params if t.name in dag.outputs)
    return {y.name: np.full(y.shape, 7).astype(y.dtype)}


def run_each_way(dag: ComputeDAG, s: Schedule) -> list[np.ndarray]:
    """The output by the serial interpreter, that of grids, and the emulator in three orders of landing."""
    inputs, p = data(dag), lower_simt(s.nest)
    found = []
    for run in (lambda a: interp.run(s.nest, a), lambda a: run_grid(p, a)):
        arrays = dict(zip([t.name for t in dag.inputs], inputs, strict=True)) | outputs(dag)
        run(arrays)
        found.append(arrays[dag.outputs[0]])
    obj = emulator.build(p)
    for order in ("early", "late", "random"):
        (out,) = outputs(dag).values()
        fault = emulator.run(obj, p, [*inputs, out], 0, order=order)
        assert fault is None, fault
        found.append(out)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("params", "t"),
    [
        ({"heads": 2, "seq": 64, "dim": 16}, AttentionTiles(warps=2, part=32)),
        ({"heads": 1, "seq": 48, "dim": 32, "is_causal": 1}, AttentionTiles(warps=3, part=16)),
        ({"b": 2, "heads": 1, "seq": 32, "dim": 16}, AttentionTiles(warps=1, rows=32, part=32)),
        ({"heads": 1, "seq": 64, "dim": 16}, AttentionTiles(warps=2, part=16, stages=2)),
    ],
)
def test_attention_is_one_kernel(params: dict[str, object], t: AttentionTiles) -> None:
    need_cxx()
    w = ops.workload("attention", params, "bfloat16")
    s = by_warps(w.dag, t)
    serial, *others = run_each_way(w.dag, s)
    assert all(np.array_equal(serial.view(np.uint16), x.view(np.uint16)) for x in others)
    (wanted,) = ops.reference(w, data(w.dag))
    # a mean of values between -2 and 2, whose weights are rounded by 2^-8 of them, and the result too
    assert np.abs(serial.astype("f4") - wanted.astype("f4")).max() <= 3 * 2**-8 * 2


def reductions(p: GridProgram) -> list[AllReduce]:
    return [x for x in walk(p.kernels[0].body) if isinstance(x, AllReduce)]


def test_rows_are_reduced_by_neighbours() -> None:
    """4 lanes have a row of the scores: a maximum and a sum of each."""
    w = ops.workload("attention", {"heads": 1, "seq": 64, "dim": 16}, "bfloat16")
    p = lower_simt(by_warps(w.dag, AttentionTiles(warps=2, part=32)).nest)
    assert sorted((x.op, x.near) for x in reductions(p)) == [("+", 4), ("max", 4)]


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_a_gpu_keeps_scores_in_registers(arch: str) -> None:
    """Nothing is spilled, and 64 mma are a part of 64 positions."""
    if not nvrtc.available():
        missing("nvrtc")
    w = ops.workload("attention", {"heads": 8, "seq": 1024, "dim": 64}, "bfloat16")
    p = lower_simt(by_warps(w.dag, AttentionTiles()).nest)
    (facts,) = nvrtc.compile_cubin(cuda.source(p), arch).facts.values()
    assert facts["spill_bytes"] == facts["stack_bytes"] == 0 and facts["registers"] <= 168


# -- a product whose rows are reduced ---------------------------------------------------------------


def row_sums(op: str = "+", rows: int = 16, columns: int = 16) -> ComputeDAG:
    """``r[i] = sum or maximum over j of a[i, k] * b[k, j]``, of the first ``rows`` and ``columns``."""
    a, b = te.placeholder((16, 16), "bfloat16", "a"), te.placeholder((16, 16), "bfloat16", "b")
    k, j = te.reduce_axis(16, "k"), te.reduce_axis(columns, "j")
    c = te.compute((16, 16), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c")
    reduce = te.sum if op == "+" else te.max
    r = te.compute((rows,), lambda i: reduce(c[i, j], axis=j), "r")
    return te.dag([a, b, te.compute((rows, 16), lambda i, j: c[i, j] - r[i], "y")])


def scheduled(dag: ComputeDAG, reduced: bool = True) -> Schedule:
    """One warp, which has all of the product and its reduced rows in fragments."""
    s = Schedule(dag)
    i, j = s.loops("y")
    one, i = s.split(i, [1, None])
    warp, i = s.split(i, [1, None])
    s.bind(one, "blockIdx.x")
    s.bind(warp, "threadIdx.y")
    for b in ("r", "c"):
        s.set_scope(b, "fragment")
        s.compute_at(b, one)
    i = s.loops("r")[1]
    warp, i = s.split(i, [1, None])
    s.bind(warp, "threadIdx.y")
    if reduced:
        s.decompose_reduction("r", warp)
    for x in "ab":
        s.cache_read("c", x, "shared")
        s.cache_read("c", f"{x}_shared", "fragment")
    i, j, k = (x for x in s.loops("c") if x != one)
    warp, ii = s.split(i, [1, None])
    tj, jj = s.split(j, [None, 8])
    s.reorder(warp, tj, ii, jj, k)
    s.bind(warp, "threadIdx.y")
    s.decompose_reduction("c", warp)
    s.tensorize(ii, "mma_m16n8k16_float32_bfloat16")
    for x in "ab":
        s.compute_at(f"{x}_shared_fragment", warp)
        s.compute_at(f"{x}_shared", one)
        p, q = s.loops(f"{x}_shared")[1:]
        s.bind(s.split(s.fuse(p, q), [32, None])[0], "threadIdx.x")
    return s


@pytest.mark.parametrize(("op", "columns"), [("+", 16), ("max", 16), ("max", 13), ("+", 3)])
def test_rows_of_a_product_are_reduced(op: str, columns: int) -> None:
    dag = row_sums(op, columns=columns)
    p = lower_simt(scheduled(dag).nest)
    assert [(x.op, x.near) for x in reductions(p)] == [(op, 4)]
    a, b = data(dag)
    arrays = {"a": a, "b": b} | outputs(dag)
    run_grid(p, arrays)
    c = a.astype("f4") @ b.astype("f4")
    r = c[:, :columns].sum(1) if op == "+" else c[:, :columns].max(1)
    assert np.array_equal(arrays["y"], c - r[:, None])


def test_lanes_far_apart_reduce_no_columns() -> None:
    """Lanes that have a column of the sums are 4 apart."""
    dag = column_sums()
    with pytest.raises(ScheduleError, match="block that reduces into r: lanes that are no neighbours"):
        lower_simt(scheduled(dag).nest)


def test_lanes_without_a_row_reduce_none() -> None:
    with pytest.raises(ScheduleError, match="fragment r: its rows end within a tile, but all lanes"):
        lower_simt(scheduled(row_sums(rows=13)).nest)


def column_sums() -> ComputeDAG:
    """``r[j] = sum over i of c[i, j]``."""
    a, b = te.placeholder((16, 16), "bfloat16", "a"), te.placeholder((16, 16), "bfloat16", "b")
    k, t = te.reduce_axis(16, "k"), te.reduce_axis(16, "t")
    c = te.compute((16, 16), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c")
    r = te.compute((16,), lambda j: te.sum(c[t, j], axis=t), "r")
    return te.dag([a, b, te.compute((16, 16), lambda i, j: c[i, j] - r[j], "y")])


def test_neighbours_wait_for_no_other_warp() -> None:
    """What one warp writes and another reads needs a barrier, also where both reduce rows in between."""
    at = Var("w") * 32 + Var("t")
    r, shared = Buffer("r", (), "float32", "local"), Buffer("s", (Const(64),), "float32", "shared")
    x, y = (Buffer(n, (Const(64),), "float32") for n in "xy")

    def by_all(s: Stmt) -> Stmt:
        return Loop("w", Const(2), Loop("t", Const(32), s, "threadIdx.x"), "threadIdx.y")

    one = Const(1.0, "float32")
    steps = [
        by_all(seq(Store("s", (at,), Load("x", (at,), "float32")), Store("r", (), one))),
        Loop("w", Const(2), AllReduce("r", (), "+", one, "n", 32, 4), "threadIdx.y"),
        by_all(Store("y", (at,), Load("s", (at * -1 + 63,), "float32") * Load("r", (), "float32"))),
    ]
    for barrier in ([], [Barrier()]):
        body = Alloc(shared, Alloc(r, seq(*steps[:2], *barrier, steps[2])))
        kernel = GridKernel("k", (x, y), frozenset("y"), (1, 1, 1), (32, 2, 1), (), body)
        arrays = {"x": np.arange(64, dtype="f4"), "y": np.zeros(64, "f4")}
        p = GridProgram((x, y), ("y",), (), (kernel,))
        if barrier:
            run_grid(p, arrays)
            assert np.array_equal(arrays["y"], 5 * np.arange(64)[::-1])
        else:
            with pytest.raises(InterpError, match="race on s"):
                run_grid(p, arrays)


def with_rows(swapped: bool) -> Schedule:
    """Reduced rows of which each lane would have a part of its own: columns are the outer loop
    (``swapped``), or one column is read."""
    a, b = te.placeholder((16, 16), "bfloat16", "a"), te.placeholder((16, 16), "bfloat16", "b")
    k, j = te.reduce_axis(16, "k"), te.reduce_axis(16, "j")
    c = te.compute((16, 16), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c")
    row = (lambda i: te.max(c[i, j], axis=j)) if swapped else (lambda i: c[i, 0] * 2)
    r = te.compute((16,), row, "r")
    s = scheduled(te.dag([a, b, te.compute((16, 16), lambda i, j: c[i, j] - r[i], "y")]), swapped)
    if swapped:
        s.reorder(*s.loops("r")[:1:-1])
    return s


@pytest.mark.parametrize("swapped", [True, False])
def test_lanes_keep_no_parts_of_a_row_of_their_own(swapped: bool) -> None:
    with pytest.raises(ScheduleError, match="fragment r: several lanes have the same element.*innermost"):
        lower_simt(with_rows(swapped).nest)
