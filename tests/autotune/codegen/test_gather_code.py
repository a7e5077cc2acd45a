"""Indices that are read from tensors, in code: every sketch on CPUs and GPUs, and what could go wrong."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from backends import on_opencl
from gather_cases import EXACT, embedding, layer_norm_of_an_embedding, places, take, whole
from grid_cases import TARGET as ON_A_GPU
from grid_cases import Case, emulate, need_cxx, program, sampled
from helpers import check_compiled, check_interpreted, execute, host, interpret, run_object, same
from needs import missing
from random_schedules import random_schedule
from space_cases import target

import autotune as at
from autotune.backends.building.from_trace import module_of
from autotune.backends.drivers import opencl as opencl_devices
from autotune.codegen.llvm.compile import compile_module
from autotune.codegen.llvm.emit import emit
from autotune.codegen.simt import cuda, opencl
from schedules import expr as E
from schedules import te
from schedules.errors import ScheduleError
from schedules.expr import INDEX, Binary, Cast, Const, Load, Var
from schedules.ir import Alloc, Buffer, Guard, Loop, LoweredFunc, Prefetch, Store, blocks, seq, walk
from schedules.ir.nest import loops_of
from schedules.model import Trace
from schedules.passes.drop_harmless_guards import drop_harmless_guards
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.space.estimate.cpu.facts import analyse as analyse_cpu
from schedules.space.estimate.gpu.facts import analyse as analyse_gpu
from schedules.te.compute_dag import ComputeDAG


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def traces(dag: ComputeDAG, threads: int, each: int) -> list[Trace]:
    """Valid candidates of every sketch for CPUs."""
    space = derive(dag, target(threads))
    out = []
    for k in range(len(space.sketches)):
        rows = space.sample(k, 40, rng())
        found = rows[space.valid(k, rows)][:each]
        assert len(found) and np.isfinite(space.features(k, found)).all()
        out += [space.trace(k, r) for r in found]
    return out


@pytest.mark.fast("embedding", "along_the_last_axis", "from_the_end", "of_a_stage", "of_sums", "guarded")
@pytest.mark.parametrize("name", EXACT)
def test_every_sketch_computes_it(name: str) -> None:
    c = EXACT[name](rng())
    check_compiled(c.dag, Trace(()), host(), c.inputs, c.expected)
    for trace in traces(c.dag, 2, 1):
        check_interpreted(Schedule.replay(c.dag, trace, target(2)).nest, c.dag, c.inputs, c.expected)
        check_compiled(c.dag, trace, target(2), c.inputs, c.expected)


@pytest.mark.slow
def test_every_sketch_of_an_embedding_and_of_its_layer_norm() -> None:
    """In vectors, with tails."""
    c = embedding(rng(), 9, (7, 70))
    for trace in traces(c.dag, 1, 4):
        check_interpreted(Schedule.replay(c.dag, trace, host()).nest, c.dag, c.inputs, c.expected)
        check_compiled(c.dag, trace, host(), c.inputs, c.expected)
    c = layer_norm_of_an_embedding(rng())
    for trace in traces(c.dag, 1, 3):
        c.check(interpret(Schedule.replay(c.dag, trace, host()).nest, c.dag, c.inputs), "interpreted")
        for where, got in execute(c.dag, trace, host(), c.inputs).items():
            c.check(got, where)


@pytest.mark.fast("embedding")
@pytest.mark.parametrize("name", EXACT)
def test_kernels_for_gpus_compute_it(name: str) -> None:
    emulate(EXACT[name](rng()), 3)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_vectors_of_indices_and_of_what_they_read(dtype: str) -> None:
    for axis, shape, inner in ((1, (6, 11), (16,)), (0, (6, 12), (2, 8))):
        w, ids = te.placeholder(shape, name="W"), te.placeholder(inner, dtype, name="ids")
        full = (6, *inner) if axis else (*inner, 12)

        def value(*i: te.Expr, w: te.Tensor = w, ids: te.Tensor = ids, axis: int = axis) -> te.Expr:
            return w[i[0], ids[i[1:]]] + 1.0 if axis else w[ids[i[:-1]], i[-1]]

        dag = te.dag([w, ids, te.compute(full, value, "out")])
        a, n = whole(rng(), *shape), places(rng(), shape[axis], *inner, dtype=dtype)
        emulate(Case(dag, (a, n), (take(a, n, axis) + axis,)), 6)
        chosen = [cuda.source(program(dag, t)) for _, t in sampled(dag, 20)]
        assert any("AT_LOAD(float, 4, v_W" in x for x in chosen) == (axis == 0)
        assert any("AT_LOAD(int, 4, v_ids" in x for x in chosen) == (axis == 1 and dtype == "int32")


def test_the_end_is_found_before_an_index_is_made_shorter() -> None:
    """GPUs count in 32 bits, in which 2**32 is 0."""
    n = np.array([2**32, 2**32 + 1, -(2**32), 2**63 - 1])
    c = embedding(rng(), 4, (7, 3))
    emulate(Case(c.dag, (c.inputs[0], n), (c.inputs[0][[6, 6, 0, 6]],)), 2)
    check_compiled(c.dag, Trace(()), host(), (c.inputs[0], n), (c.inputs[0][[6, 6, 0, 6]],))
    (_, trace) = next(sampled(c.dag, 1))
    text = cuda.source(program(c.dag, trace))
    assert "((int)at_min_int64(at_max_int64(v_ids[" in text


def test_opencl_computes_it() -> None:
    c = embedding(rng(), 5, (7, 8))
    (_, trace) = next(sampled(c.dag, 1))
    p = program(c.dag, trace)
    assert "at_min_int64(at_max_int64(v_ids[" in opencl.generate(p).text
    if opencl_devices.context() is None:
        missing("opencl")
    same(on_opencl(p, c.dag, c.inputs), c.expected, "OpenCL")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_random_schedules(seed: int) -> None:
    for name in EXACT:
        c, random = EXACT[name](rng()), Random(seed)
        s = random_schedule(c.dag, random, random.randint(2, 8))
        check_interpreted(s.nest, c.dag, c.inputs, c.expected)
        if seed:
            check_compiled(c.dag, s.trace, host(2), c.inputs, c.expected)


@pytest.mark.fuzz
@pytest.mark.parametrize("name", EXACT)
def test_many_random_schedules(name: str) -> None:
    for seed in range(1000, 1200):
        c, random = EXACT[name](np.random.default_rng(seed)), Random(seed)
        s = random_schedule(c.dag, random, random.randint(3, 10))
        check_interpreted(s.nest, c.dag, c.inputs, c.expected)
        check_compiled(c.dag, s.trace, host(1 + seed % 2), c.inputs, c.expected)


# --- what could go wrong ------------------------------------------------------------------------


def moved_rows() -> Case:
    """Rows at indices that a stage computes."""
    w, ids = te.placeholder((7, 16), name="W"), te.placeholder((6,), "int32", name="ids")
    moved = te.compute((6,), lambda i: ids[i] + 1, "moved")
    out = te.compute((6, 16), lambda i, j: w[moved[i], j] + 1.0, "out")
    a, n = whole(rng(), 7, 16), np.array([3, 0, 5, -4, 9, 2], np.int32)
    return Case(te.dag([w, ids, out]), (a, n), (take(a, n + 1) + 1,))


@pytest.mark.parametrize("unroll", [False, True])
def test_an_index_that_is_computed_meanwhile_is_read_again(unroll: bool) -> None:
    """One element of memory holds the index of each row in turn."""
    c = moved_rows()
    s = Schedule(c.dag)
    i, j = s.loops("out")
    s.compute_at("moved", i)
    if unroll:
        s.unroll(i)
    s.vectorize(j)
    assert [x.buffer.shape for x in walk(lower(s.nest).body) if isinstance(x, Alloc)] == [(Const(1),)]
    check_interpreted(s.nest, c.dag, c.inputs, c.expected)
    check_compiled(c.dag, s.trace, host(), c.inputs, c.expected)


def test_an_index_is_read_again_once_it_is_written() -> None:
    """``at[0] = ids[i]; out[i] = W[at[0]]`` for two rows, one after the other."""
    w, out = Buffer("W", (Const(7),), "float32"), Buffer("out", (Const(2),), "float32")
    ids, at = Buffer("ids", (Const(2),), "int32"), Buffer("at", (Const(1),), "int32")
    held = Binary(
        "min", Binary("max", Load("at", (Const(0),), "int32"), Const(0, "int32")), Const(6, "int32")
    )
    read = Load("W", (Cast(INDEX, held),), "float32")
    stores = [
        x
        for i in range(2)
        for x in (
            Store("at", (Const(0),), Load("ids", (Const(i),), "int32")),
            Store("out", (Const(i),), read),
        )
    ]
    x, y = te.placeholder((7,), name="W"), te.placeholder((2,), "int32", name="ids")
    dag = te.dag([x, y, te.compute((2,), lambda i: x[y[i]], "out")])
    func = LoweredFunc("kernel", (w, ids, out), ("out",), Alloc(at, seq(*stores)))
    data = (np.arange(7, dtype=np.float32), np.array([5, 2], np.int32))
    want = [np.array([5, 2], np.float32)]
    same(interpret(func, dag, data), want, "interpreted")
    obj = compile_module(module_of(func, host()).text, host())
    for where, got in run_object(obj, dag, host(), data).items():
        same(got, want, where)


def test_an_index_is_read_once_for_a_row() -> None:
    c = embedding(rng(), 9, (7, 64))
    s = Schedule(c.dag)
    _, j = s.loops("out")
    s.vectorize(s.split(j, (None, 8))[1])
    rows, inner = emit(lower(s.nest), host()).text.split("\nloop")[1:3]
    assert rows.count("load i64") == 1 and rows.count("select i1") == 2
    assert "load <" in inner and "load i64" not in inner and "select i1" not in inner


def test_what_is_gathered_is_needed_whole() -> None:
    c = EXACT["of_a_stage"](rng())
    s = Schedule(c.dag)
    s.compute_at("made", s.loops("out")[1])
    assert [int(x.extent.value) for x in loops_of(s.nest, "made")] == [4, 5, 7, 9]  # type: ignore[attr-defined]
    check_interpreted(s.nest, c.dag, c.inputs, c.expected)
    c = EXACT["one_index"](rng())
    s = Schedule(c.dag)
    with pytest.raises(
        ScheduleError, match=r"it reads half at index\(min\(max\(ids\[0\], 0\), 6\)\), not at one"
    ):
        s.reverse_compute_at("out", s.loops("half")[0])


def test_a_stage_before_a_gather_may_be_inlined() -> None:
    c = EXACT["of_a_stage"](rng())
    s = Schedule(c.dag)
    s.inline("made")
    assert [b.name for b in blocks(s.nest.body)] == ["out"]
    check_interpreted(s.nest, c.dag, c.inputs, c.expected)
    check_compiled(c.dag, s.trace, host(), c.inputs, c.expected)


def test_rules_keep_a_table_that_rows_gather_from() -> None:
    """Computing it for each row would be computing it again and again."""
    w, ids = te.placeholder((40, 70), name="W"), te.placeholder((9,), "int32", name="ids")
    k = te.reduce_axis(70, "k")
    made = te.compute((40, 70), lambda r, j: te.exp(w[r, j]), "made")
    total = te.compute((9,), lambda i: te.sum(made[ids[i], k] + made[i, k], axis=k), "total")
    out = te.compute((9, 70), lambda i, j: made[ids[i], j] / total[i], "out")
    dag = te.dag([w, ids, out])
    for trace in traces(dag, 1, 2):
        nest = Schedule.replay(dag, trace, target()).nest
        made_at = (
            [x.var for x in loops_of(nest, "made")] if "made" in {b.name for b in blocks(nest.body)} else []
        )
        assert not set(made_at) & {x.var for x in loops_of(nest, "out")}


@pytest.mark.parametrize("along", ["rows", "reduction"])
def test_no_operand_is_copied_that_may_be_read_anywhere(along: str) -> None:
    n = 64 if along == "rows" else 512
    w, ids = te.placeholder((700, 512), name="W"), te.placeholder((n,), "int32", name="ids")
    x, k = te.placeholder((512, 512), name="X"), te.reduce_axis(512, "k")
    if along == "rows":
        out = te.compute((64, 512), lambda i, j: te.sum(w[ids[i], k] * x[k, j], axis=k), "out")
    else:
        out = te.compute((512, 512), lambda i, j: te.sum(x[i, k] * w[ids[k], j], axis=k), "out")
    dag = te.dag([w, ids, x, out])
    space, copied = derive(dag, target(2)), set()
    for number in range(len(space.sketches)):
        rows = space.sample(number, 40, rng())
        nest = Schedule.replay(
            dag, space.trace(number, rows[space.valid(number, rows)][0]), space.target
        ).nest
        copied |= {b.name for b in nest.buffers} - set(nest.params)
    assert any(name.startswith("X") for name in copied) and not any(name.startswith("W") for name in copied)


def test_no_operand_is_shared_that_may_be_read_anywhere() -> None:
    c = EXACT["product"](rng())
    made = [Schedule.replay(c.dag, trace).nest.buffers for _, trace in sampled(c.dag, 2)]
    assert any(b.name == "X_shared" for x in made for b in x)
    assert not any(b.name == "W_shared" for x in made for b in x)


@pytest.mark.slow
def test_vectors_are_read_at_no_index_that_is_not_there() -> None:
    """Behind the arrays lies no memory. Rows of W are vectors, and only the first have an index."""
    need_cxx()
    w, ids = te.placeholder((7, 16), name="W"), te.placeholder((5,), "int32", name="ids")
    dag = te.dag([w, ids, te.compute((9, 16), lambda i, j: te.select(i < 5, w[ids[i], j], 0.0) + 1.0, "y")])
    a, n = whole(rng(), 7, 16), places(rng(), 7, 5, dtype="int32")
    want = [np.concatenate([take(a, n), np.zeros((4, 16), "float32")]) + 1]
    chosen = [t for _, t in sampled(dag, 20) if "AT_LOAD(float, 4, v_W" in cuda.source(program(dag, t))]
    for trace in chosen[:2]:
        check_compiled(dag, trace, ON_A_GPU, (a, n), want)
    assert chosen


def test_estimates_count_the_rows_that_are_read() -> None:
    dag = embedding(rng(), 5, (1000, 24)).dag
    for trace in traces(dag, 1, 1):
        (block,) = analyse_cpu(Schedule.replay(dag, trace, target()).nest)
        facts = {x.buffer: x for x in block.accesses}
        assert (
            int(E.evaluate(facts["W"].whole, {})) == 5 * 24 and int(E.evaluate(facts["ids"].whole, {})) == 5
        )
    for _, trace in sampled(dag, 1):
        (kernel,) = analyse_gpu(Schedule.replay(dag, trace).nest)
        rows = (int(E.evaluate(kernel.array_bytes, {})) - 5 * 24 * 4 - 5 * 8) / (24 * 4)
        assert 5 <= rows <= 15  # of 1000: threads behind the last row count too


def test_no_place_is_read_ahead_to_be_prefetched() -> None:
    """The indices behind the last row are nobody's memory."""
    c = embedding(rng(), 9, (7, 64))
    s = Schedule(c.dag)
    s.annotate(s.loops("out")[0], "prefetch", 2)
    asked = [x for x in walk(lower(s.nest).body) if isinstance(x, Prefetch)]
    assert {x.buffer for x in asked} <= {"ids"}
    check_compiled(c.dag, s.trace, host(), c.inputs, c.expected)


def test_a_guard_stays_where_garbage_would_be_an_index() -> None:
    """Of a buffer that is written in part, other elements are undefined, at each use another way."""
    ids, rows = Buffer("ids", (Const(8),), "int32"), Buffer("rows", (Const(8),), "float32")
    w, i = Buffer("W", (Const(7),), "float32"), Var("i")

    def guarded(index: E.Expr) -> Guard | None:
        store = Store("rows", (i,), Load("W", (index,), "float32"))
        fill = Loop("f", Const(5), Store("ids", (Var("f"),), Const(0, "int32")))
        tail = Guard(E.compare("<", i, 5), store, speculative=True)
        s = Alloc(ids, Alloc(rows, seq(fill, Loop("i", Const(8), tail))))
        found = walk(drop_harmless_guards(s, (w,)))
        return next((x for x in found if isinstance(x, Guard)), None)

    assert guarded(i % 7) is None
    held = Binary("min", Binary("max", Load("ids", (i,), "int32"), Const(0, "int32")), Const(6, "int32"))
    assert guarded(Cast(INDEX, held)) is not None


@pytest.mark.slow
def test_an_embedding_is_tuned_in_a_moment() -> None:
    w, ids = te.placeholder((300, 48), name="W"), te.placeholder((20,), "int64", name="ids")
    expression = [w, ids, te.compute((20, 48), lambda i, j: w[ids[i], j], "rows")]
    result = at.tune(expression, budget_s=2, threads=1)
    assert result.best is not None and set(result.failed) <= {"slow"}  # of 60 ns each
    kernel = at.load(expression, threads=1)
    a, n = whole(rng(), 300, 48), places(rng(), 300, 20)
    assert n.min() < 0 and n.max() >= 300
    assert np.array_equal(kernel(a, n), take(a, n))


@pytest.mark.parametrize("value", [0, 1, 3])
def test_what_is_added_to_a_known_index_counts(value: int) -> None:
    """An index that an inlined stage makes known is no variable, and no literal either."""
    x = te.placeholder((9, 5), "float32", "x")
    n = te.compute((), lambda: te.const(value, "int32"), "n")
    y = te.compute((4,), lambda i: x[te.minimum(te.maximum(n[()], 0), 5) + 2, i + 1], "y")
    dag = te.dag([x, y])
    s = Schedule(dag)
    s.inline("n")
    data = [np.arange(45, dtype=np.float32).reshape(9, 5)]
    for got in execute(dag, s.trace, host(), data).values():
        np.testing.assert_array_equal(got[0], data[0][value + 2, 1:])
