"""Kernels of a grid: barriers where they must be, local buffers that are a thread's own, reductions across
threads; by the interpreter that runs threads side by side, and by emulated CUDA C."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from grid_cases import TARGET, case, need_cxx, program, sampled
from grid_changes import changed, count, without
from helpers import check_compiled, expected, inputs

from autotune.codegen.simt import cuda, emulator, opencl
from schedules import te
from schedules.errors import ScheduleError
from schedules.expr import Const, Expr, Load, Var, minimum
from schedules.ir import Alloc, AllReduce, Barrier, Guard, Loop, Stmt, Store, seq, walk, with_body
from schedules.ir.grid import GridProgram
from schedules.ir.interp import InterpError
from schedules.ir.interp_grid import run_grid
from schedules.ir.printer import show
from schedules.passes.barriers import barriers
from schedules.passes.cross_thread import cross_thread
from schedules.passes.simt import lower_simt
from schedules.schedule import Schedule
from schedules.te.evaluator import evaluate

M, N, K = 13, 10, 11


def product(tile: int = 2, ahead: bool = False) -> Schedule:
    """A matrix product: 4×4 threads of 2×2 (or other) elements, operands fetched into shared memory."""
    a, b = te.placeholder((M, K), "float32", name="A"), te.placeholder((K, N), "float32", name="B")
    k = te.reduce_axis(K, name="k")
    s = Schedule([a, b, te.compute((M, N), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")], TARGET)
    out = s.cache_write("C", "local")
    i, j = s.loops(out)
    bi, vi, ti, ii = s.split(i, (None, 1, 4, tile))
    bj, vj, tj, jj = s.split(j, (None, 2, 4, 1))
    s.reorder(bi, bj, ti, tj, vi, vj, ii, jj)
    block, thread = s.fuse(bi, bj), s.fuse(ti, tj)
    s.bind(block, "blockIdx.x")
    s.bind(thread, "threadIdx.x")
    s.compute_at("C", block)
    _, x, y, r = s.loops("C")
    vi, ti, ii = s.split(x, (1, 4, tile))
    vj, tj, jj = s.split(y, (2, 4, 1))
    k0, k1 = s.split(r, (None, 4))
    s.reorder(k0, ti, tj, k1, vi, vj, ii, jj)
    s.bind(s.fuse(ti, tj), "threadIdx.x")
    for name in "AB":
        copy = s.cache_read("C", name, "shared")
        s.compute_at(copy, k0)
        flat = s.fuse(*[x for x in s.loops(copy) if x.startswith(copy)])
        o, t = s.split(flat, (None, 16))
        s.reorder(t, o)
        s.bind(t, "threadIdx.x")
    s.decompose_reduction("C", k0)
    if ahead:
        s.annotate(k0, "prefetch", 1)
    return s


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.integers(-4, 5, (M, K)).astype("f4"), rng.integers(-4, 5, (K, N)).astype("f4")


def multiply(p: GridProgram, backwards: bool = False) -> np.ndarray:
    a, b = data()
    c = np.full((M, N), np.nan, "f4")
    run_grid(p, {"A": a, "B": b, "C": c}, backwards=backwards)
    return c


@pytest.mark.parametrize("backwards", [False, True])
def test_threads_may_run_in_any_order(backwards: bool) -> None:
    a, b = data()
    np.testing.assert_array_equal(multiply(lower_simt(product().nest), backwards), a @ b)


@pytest.mark.parametrize("backwards", [False, True])
def test_operands_are_loaded_ahead_into_registers(backwards: bool) -> None:
    p = lower_simt(product(ahead=True).nest)
    kept = {x.buffer.name: x.buffer for k in p.kernels for x in walk(k.body) if isinstance(x, Alloc)}
    assert {"A_shared_next", "B_shared_next"} <= set(kept)
    assert kept["A_shared_next"].scope == "local"
    assert [n.value for n in kept["A_shared_next"].shape] == [1, 2]  # type: ignore[attr-defined]
    a, b = data()
    np.testing.assert_array_equal(multiply(p, backwards), a @ b)
    for number in range(count(p, Barrier)):
        with pytest.raises(InterpError, match="race"):
            multiply(without(p, Barrier, number))


@pytest.mark.parametrize("tile", [1, 2, 3])
def test_accumulators_are_as_many_as_a_thread_has(tile: int) -> None:
    (kernel,) = lower_simt(product(tile).nest).kernels
    (local,) = [x.buffer for x in walk(kernel.body) if isinstance(x, Alloc) and x.buffer.scope == "local"]
    assert [n.value for n in local.shape] == [tile, 2]  # type: ignore[attr-defined]


def test_every_barrier_is_needed() -> None:
    p = lower_simt(product().nest)
    assert count(p, Barrier) == 2  # before the fetches, and after them
    for number in range(2):
        with pytest.raises(InterpError, match="race on [AB]_shared.*thread"):
            multiply(without(p, Barrier, number))


def test_every_guard_is_needed() -> None:
    p = lower_simt(product().nest)
    guards = count(p, Guard)
    assert guards
    a, b = data()
    for number in range(guards):
        try:
            wrong = not np.array_equal(multiply(without(p, Guard, number)), a @ b)
        except InterpError as err:
            assert "out of bounds" in str(err)
            wrong = True
        assert wrong, f"guard {number} can be left out"


def test_emulated_code_finds_missing_barriers() -> None:
    need_cxx()
    p = lower_simt(product().nest)
    broken = [without(p, Barrier, number) for number in range(count(p, Barrier))]
    obj = emulator.build(p, *broken)
    a, b = data()
    for which in range(1 + len(broken)):
        c = np.full((M, N), np.nan, "f4")
        fault = emulator.run(obj, p, [a, b, c], which)
        if which == 0:
            assert fault is None
            np.testing.assert_array_equal(c, a @ b)
        else:
            assert fault is not None and "with no barrier between them" in fault


def test_emulated_code_finds_divergence_and_overruns() -> None:
    need_cxx()
    p = lower_simt(product().nest)

    def divergent(s: Stmt) -> Stmt:
        if isinstance(s, Loop) and s.kind == "threadIdx.x":
            return replace(s, body=seq(Guard(Var(s.var) < 3, Barrier()), s.body))
        return with_body(s, divergent)

    def far(s: Stmt) -> Stmt:
        if isinstance(s, Store) and s.buffer == "A_shared":
            return Store(s.buffer, (s.indices[0] + 8, *s.indices[1:]), s.value)
        return with_body(s, far)

    obj = emulator.build(changed(p, divergent), changed(p, far))
    a, b = data()
    said = [emulator.run(obj, p, [a, b, np.zeros((M, N), "f4")], n) or "" for n in range(2)]
    assert "not all threads reach" in said[0]
    assert "A_shared[" in said[1]


@pytest.mark.fast("conv2d_bias_relu")
@pytest.mark.parametrize("op", ["softmax", "reduce_sum", "batch_matmul", "conv2d_bias_relu", "attention"])
def test_derived_kernels_do_not_race(op: str) -> None:
    c = case(op)
    for backwards, (name, trace) in enumerate(sampled(c.dag, 1)):
        outputs = c.poisoned()
        arrays = dict(zip((t.name for t in c.dag.params), [*c.inputs, *outputs], strict=True))
        run_grid(program(c.dag, trace), arrays, backwards=backwards % 2 == 1)
        c.check(outputs, name)


def test_a_local_buffer_of_several_threads_is_refused() -> None:
    x = te.placeholder((8,), "float32", name="x")
    y = te.compute((8,), lambda i: x[i] + x[i], name="y")
    z = te.compute((8,), lambda i: y[7 - i] + x[i], name="z")
    s = Schedule([x, z], TARGET)
    _, inner = s.split(s.loops("z")[0], (1, 8))
    outer = s.loops("z")[0]
    s.bind(outer, "blockIdx.x")
    s.bind(inner, "threadIdx.x")
    s.compute_at("y", outer)
    s.bind(s.loops("y")[-1], "threadIdx.x")
    s.set_scope("y", "local")
    with pytest.raises(ScheduleError, match="buffer y: .* another thread's element, .* use scope shared"):
        lower_simt(s.nest)
    s.set_scope("y", "shared")
    p = lower_simt(s.nest)
    assert count(p, Barrier) == 1
    data = np.arange(8, dtype="f4")
    out = np.full(8, np.nan, "f4")
    run_grid(p, {"x": data, "z": out})
    np.testing.assert_array_equal(out, 2 * data[::-1] + data)


def neighbours(own: int, apart: int) -> Schedule:
    """8 threads, each of which makes ``own`` elements of y and reads what lies ``apart`` from them."""
    n = 8 * own
    x = te.placeholder((n + apart,), "float32", name="x")
    y = te.compute((n + apart,), lambda i: x[i] * 2, name="y")
    s = Schedule([x, te.compute((n,), lambda i: y[i] + y[i + apart], name="z")], TARGET)
    block, thread, _ = s.split(s.loops("z")[0], (1, 8, own))
    s.bind(block, "blockIdx.x")
    s.bind(thread, "threadIdx.x")
    s.compute_at("y", block)
    thread, _ = s.split(s.loops("y")[-1], (None, own))
    s.bind(thread, "threadIdx.x")
    s.set_scope("y", "local")
    return s


@pytest.mark.parametrize(("own", "apart"), [(1, 1), (4, 1), (4, 3), (4, 4)])
def test_a_local_element_of_the_next_thread_is_refused(own: int, apart: int) -> None:
    s = neighbours(own, apart)
    with pytest.raises(ScheduleError, match="buffer y: at .* another thread's element"):
        lower_simt(s.nest)
    s.set_scope("y", "shared")
    p = lower_simt(s.nest)
    (data,) = inputs(s.dag)
    out = np.full(8 * own, np.nan, "f4")
    run_grid(p, {"x": data, "z": out})
    np.testing.assert_array_equal(out, 2 * (data[: 8 * own] + data[apart:]))


def within_rows(back: bool) -> Schedule:
    """y is computed by threads of a loop within that over rows, and read by those of another."""
    x = te.placeholder((4, 8), "float32", name="x")
    y = te.compute((4, 8), lambda i, j: x[i, j] + x[i, j], name="y")
    z = te.compute((4, 8), lambda i, j: y[i, 7 - j if back else j] + x[i, j], name="z")
    s = Schedule([x, z], TARGET)
    i, j = s.loops("z")
    block, row = s.split(i, (None, 2))
    s.bind(block, "blockIdx.x")
    s.bind(row, "threadIdx.y")
    s.bind(j, "threadIdx.x")
    s.compute_at("y", row)
    s.bind(s.loops("y")[-1], "threadIdx.x")
    return s


@pytest.mark.parametrize("backwards", [False, True])
def test_a_thread_of_a_row_keeps_its_own(backwards: bool) -> None:
    s = within_rows(False)
    p = lower_simt(s.nest)
    (own,) = [x.buffer for x in walk(p.kernels[0].body) if isinstance(x, Alloc)]
    assert own.scope == "local" and own.shape == (Const(1), Const(1))
    (data,) = inputs(s.dag)
    out = np.full((4, 8), np.nan, "f4")
    run_grid(p, {"x": data, "z": out}, backwards=backwards)
    np.testing.assert_array_equal(out, 3 * data)


def test_threads_of_a_row_share_nothing_within_its_loop() -> None:
    s = within_rows(True)
    with pytest.raises(ScheduleError, match="buffer y: at .* another thread's element"):
        lower_simt(s.nest)
    s.set_scope("y", "shared")
    with pytest.raises(ScheduleError, match="buffer y: it is shared by .* compute its producer outside"):
        lower_simt(s.nest)


def test_no_barrier_is_within_a_loop_over_threads() -> None:
    t = Var("t")
    write = Loop("t", Const(4), Store("s", (t,), Const(1.0, "float32")), "threadIdx.x")
    read = Loop("t", Const(4), Store("o", (t,), Load("s", (3 - t,), "float32")), "threadIdx.x")
    with pytest.raises(ScheduleError, match=r"loop r is threadIdx.y and holds two .* that the other writes"):
        barriers(Loop("r", Const(2), seq(write, read), "threadIdx.y"), frozenset({"s"}))
    barriers(Loop("r", Const(2), seq(write, read), "threadIdx.y"), frozenset({"o"}))


@pytest.mark.slow
def test_what_rows_read_of_other_threads_is_shared() -> None:
    """Derived: of a row that is computed once, its neighbours and its end; of its sum, the next row's."""
    x = te.placeholder((4, 33), "float32", name="x")
    k = te.reduce_axis(33, name="k")
    e = te.compute((4, 33), lambda i, j: te.exp(x[i, j]), name="e")
    t = te.compute((4,), lambda i: te.sum(e[i, k], axis=k), name="t")
    outputs = {
        "next": te.compute((4, 32), lambda i, j: (e[i, j] - e[i, j + 1]) / t[i], name="o"),
        "end": te.compute((4, 33), lambda i, j: e[i, 32 - j] / t[i], name="o"),
        "below": te.compute((3, 33), lambda i, j: e[i + 1, j] / (t[i] + t[i + 1]), name="o"),
    }
    for what, o in outputs.items():
        dag = te.dag([x, o])
        (data,) = inputs(dag)
        for name, trace in sampled(dag, 3):
            p, out = program(dag, trace), np.full(o.shape, np.nan, "f4")
            run_grid(p, {"x": data, "o": out})
            np.testing.assert_allclose(out, evaluate(dag, [data])[0], 1e-5, 1e-5, err_msg=f"{what} {name}")


def test_a_sum_over_two_axes_reads_what_is_kept_of_rows() -> None:
    """Threads have a part of the last axis of a reduction alone, but of all axes of what it reads."""
    x = te.placeholder((3, 5, 6), "float32", name="x")
    a, b = te.reduce_axis(5, name="a"), te.reduce_axis(6, name="b")
    e = te.compute((3, 5, 6), lambda i, j, k: te.exp(x[i, j, k]), name="e")
    t = te.compute((3,), lambda i: te.sum(e[i, a, b], axis=(a, b)), name="t")
    dag = te.dag([x, te.compute((3, 5, 6), lambda i, j, k: e[i, j, k] / t[i], name="o")])
    for _, trace in sampled(dag, 3):
        p = program(dag, trace)
        (data,) = inputs(dag)
        out = np.full((3, 5, 6), np.nan, "f4")
        run_grid(p, {"x": data, "o": out})
        np.testing.assert_allclose(out, evaluate(dag, [data])[0], 1e-5)


def test_a_buffer_between_kernels_cannot_stay_on_the_chip() -> None:
    x = te.placeholder((8,), "float32", name="x")
    y = te.compute((8,), lambda i: x[i] + x[i], name="y")
    s = Schedule([x, te.compute((8,), lambda i: y[i] + x[i], name="z")], TARGET)
    for name in "yz":
        s.bind(s.loops(name)[0], "blockIdx.x")
    assert [b.name for b in lower_simt(s.nest).scratch] == ["y"]
    s.set_scope("y", "shared")
    with pytest.raises(ScheduleError, match="buffer y: several kernels use it"):
        lower_simt(s.nest)


def test_threads_reduce_together_into_a_local_element_only() -> None:
    x = te.placeholder((4, 32), "float32", name="x")
    k = te.reduce_axis(32, name="k")
    s = Schedule([x, te.compute((4,), lambda i: te.sum(x[i, k], axis=k), name="y")], TARGET)
    s.decompose_reduction("y", s.loops("y")[1])
    with pytest.raises(ScheduleError, match="bind .* reduces over it"):
        s.bind(s.loops("y")[1], "threadIdx.x")


def sums_of_rows(m: int, rows: int, each: int) -> Schedule:
    """Sums by 64 threads, in blocks of so many rows of threads, each of which sums so many rows."""
    x = te.placeholder((m, 64), "float32", name="x")
    k = te.reduce_axis(64, name="k")
    s = Schedule([x, te.compute((m,), lambda i: te.sum(x[i, k], axis=k), name="y")], TARGET)
    out = s.cache_write("y", "local")
    block, thread, r = s.split(s.loops(out)[0], (None, rows, each))
    s.bind(block, "blockIdx.x")
    s.bind(thread, "threadIdx.y")
    s.compute_at("y", block)
    _, row, kk = s.loops("y")
    thread, r = s.split(row, (None, each))
    s.decompose_reduction("y", kk)
    s.bind(thread, "threadIdx.y")
    s.bind(kk, "threadIdx.x")
    s.unroll(r)
    return s


@pytest.mark.fast("False-1")
@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize("more", [False, True])
def test_all_threads_come_to_a_reduction(more: bool, each: int) -> None:
    """Of the last block some rows are none, and others have threads that only copy."""
    need_cxx()
    s = sums_of_rows(7, 2, each)
    if more:
        copy = s.cache_read("y", "x", "shared")
        s.compute_at(copy, s.loops("y")[0])
        *_, row, column = s.loops(copy)
        s.bind(row, "threadIdx.y") if each == 2 else s.bind(s.split(row, (1, 4))[1], "threadIdx.y")
        s.bind(column, "threadIdx.x")
    p = lower_simt(s.nest)
    assert p.kernels[0].block == (64, 4 if more else 2, 1)
    (data,) = inputs(s.dag)
    for backwards in (False, True):
        out = np.full(7, np.nan, "f4")
        run_grid(p, {"x": data, "y": out}, backwards=backwards)
        np.testing.assert_array_equal(out, data.sum(1))
    out = np.full(7, np.nan, "f4")
    assert emulator.run(emulator.build(p), p, [data, out]) is None
    np.testing.assert_array_equal(out, data.sum(1))


def test_a_reduction_that_some_threads_do_less_often_is_refused() -> None:
    row, here = Var("row"), Load("y", (Const(0),), "float32")
    add = Store("y", (Const(0),), here + Load("x", (Var("t"),), "float32"))
    across = Loop("t", Const(32), add, "threadIdx.x")
    known = Load("n", (row,), "int32") > 0
    for body, where in [
        (Loop("i", minimum(2, 7 - row), across), r"in loop i, which runs .* times; unroll it"),
        (Guard(known, across), r"where .*n\[row\]"),
    ]:
        with pytest.raises(ScheduleError, match="reduce into y together, but not all .* " + where):
            cross_thread(Loop("row", Const(4), body, "threadIdx.y"))


def test_blocks_are_outermost() -> None:
    x = te.placeholder((4, 8), "float32", name="x")
    s = Schedule([x, te.compute((4, 8), lambda i, j: x[i, j] + x[i, j], name="y")], TARGET)
    s.bind(s.loops("y")[1], "blockIdx.x")
    with pytest.raises(ScheduleError, match="blocks are the outermost loops of a kernel"):
        lower_simt(s.nest)


def test_a_loop_carries_what_is_pending_to_its_beginning() -> None:
    def phase(kind: str, *uses: Stmt) -> Stmt:
        return Loop("t", Const(4), seq(*uses), kind)

    t = Var("t")
    one = Store("s", (t,), Const(1.0, "float32"))
    other = Store("o", (t,), Load("s", (3 - t,), "float32"))
    once = barriers(seq(phase("threadIdx.x", one), phase("threadIdx.x", other)), frozenset({"s"}))
    assert [type(x).__name__ for x in once.stmts] == ["Loop", "Barrier", "Loop"]  # type: ignore[union-attr]
    turns = Loop("i", Const(2), seq(phase("threadIdx.x", one), phase("threadIdx.x", other)))
    looped = barriers(turns, frozenset({"s"}))
    kinds = [type(x).__name__ for x in looped.body.stmts]  # type: ignore[union-attr]
    assert kinds == ["Barrier", "Loop", "Barrier", "Loop"]


@pytest.mark.fast("1003-False")
@pytest.mark.parametrize(("n", "vectors"), [(1003, False), (1004, True), (1024, True)])
def test_vectors_are_cut_by_no_tail(n: int, vectors: bool) -> None:
    need_cxx()
    x = te.placeholder((n,), "float32", name="x")
    s = Schedule([x, te.compute((n,), lambda i: x[i] + x[i], name="y")], TARGET)
    block, thread, lanes = s.split(s.loops("y")[0], (None, 64, 4))
    s.bind(block, "blockIdx.x")
    s.bind(thread, "threadIdx.x")
    s.vectorize(lanes)
    p = lower_simt(s.nest)
    assert ("AT_STORE(float, 4" in cuda.source(p).removeprefix(cuda.PRELUDE)) == vectors
    assert cuda.generate(p).align == (dict.fromkeys("xy", 16) if vectors else {})
    data, out = np.arange(n, dtype="f4"), np.full(n + 8, -7, "f4")
    assert emulator.run(emulator.build(p), p, [data, out[:n]]) is None
    np.testing.assert_array_equal(out, [*(2 * data), *[-7] * 8])


def padded(x: te.Tensor, i: Expr, j: Expr, c: Expr) -> Expr:
    return te.select(te.all(i >= 1, i < 7, j >= 1, j < 7), x[i - 1, j - 1, c], 0)


def positive(e: Expr) -> Expr:
    return te.select(e > 0, e, 0)


# Of x, 6 by 6 rows of 4 elements: what 8 by 8 rows of 8 are made of, and whether that is loaded as vectors.
CHOICES = {
    "padding": (lambda x, i, j, c: padded(x, i, j, c % 4), True),
    "a part of a value": (lambda x, i, j, c: te.maximum(padded(x, i, j, c % 4), 0) + 1, True),
    "the other side": (lambda x, i, j, c: te.select(te.any(i < 2, j >= 6), 0, x[i - 2, j, c % 4]), True),
    "two sides": (lambda x, i, j, c: te.select(c < 4, x[i % 6, 5, c], x[5 - i % 6, 0, c - 4]), True),
    "chosen by what is padded": (lambda x, i, j, c: positive(padded(x, i, j, c % 4)), True),
    "lanes that differ": (lambda x, i, j, c: te.select(j * 8 + c < 46, x[j, i % 6, c % 4], 0), False),
}


@pytest.mark.fast("lanes that differ")
@pytest.mark.parametrize("what", CHOICES)
def test_vectors_are_loaded_where_they_are_chosen(what: str) -> None:
    """Before and behind the arrays lies no memory; blocks of 12 rows end in a tail."""
    need_cxx()
    choose, vectors = CHOICES[what]
    x = te.placeholder((6, 6, 4), "float32", name="x")
    s = Schedule([x, te.compute((8, 8, 8), partial(choose, x), name="y")], TARGET)
    block, thread, lanes = s.split(s.fuse(*s.loops("y")), (None, 24, 4))
    s.bind(block, "blockIdx.x")
    s.bind(thread, "threadIdx.x")
    s.vectorize(lanes)
    assert ("AT_LOAD(float, 4, v_x" in cuda.source(lower_simt(s.nest))) == vectors
    data = inputs(s.dag)
    check_compiled(s.dag, s.trace, TARGET, data, expected(s.dag, data))


def test_the_text_of_a_kernel() -> None:
    p = lower_simt(product().nest)
    text, other = cuda.source(p), opencl.source(p)
    assert 'extern "C" __global__ void __launch_bounds__(16) kernel0(const float* __restrict__ v_A' in text
    assert text.count("__syncthreads();") == other.count("barrier(CLK_LOCAL_MEM_FENCE") == 2
    assert "AT_SHARED(float, v_A_shared, 32);" in text
    assert "__local float v_A_shared[32]" in other and "reqd_work_group_size(16, 1, 1)" in other
    assert "#define at_" not in other  # such macros would repeat their arguments
    softmax = program(case("softmax").dag, next(sampled(case("softmax").dag, 1))[1])
    assert any(isinstance(x, AllReduce) for x in walk(softmax.kernels[0].body))
    assert "__shfl_xor_sync" not in opencl.source(softmax)
    assert "bind[threadIdx.x]" in show(product().nest)
