"""Every operator on GPUs, by sampled schedules: emulated, and compiled to machine code."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from grid_cases import (
    SMALL,
    TARGET,
    Case,
    case,
    emulate,
    masked_add,
    need_cxx,
    program,
    sampled,
    space,
    workload_case,
)
from helpers import check_compiled, expected, inputs
from needs import missing
from space_cases import BIG

import autotune as at
from autotune import backends
from autotune.codegen.grid_code import grid_code
from autotune.codegen.simt import cuda, cxx, emulator, nvrtc
from schedules import ops, te
from schedules.ir import Alloc, nbytes, walk
from schedules.passes.simt import lower_simt
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.space.estimate.gpu.facts import analyse

EACH, MANY = 6, 20  # schedules of an operator


def test_every_operator_is_here() -> None:
    assert set(SMALL) == set(ops.REGISTRY)


@pytest.mark.fast("add")
@pytest.mark.parametrize("op", SMALL)
def test_sampled_schedules_compute_the_operator(op: str) -> None:
    emulate(case(op), EACH)


def test_loops_of_the_emulator_stay_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU's compiler is told to unroll, clang would too, and take 15 times as long."""
    programs = [program(case("matmul").dag, trace) for _, trace in sampled(case("matmul").dag, 1)]
    sources = [cuda.source(p) for p in programs]
    assert any("#pragma unroll" in x for x in sources)
    codes = [grid_code(p, "cuda", cuda.generate(p)) for p in programs]
    compiled: list[str] = []
    monkeypatch.setattr(emulator, "runtime", lambda compiler: b"")
    monkeypatch.setattr(cxx, "build", lambda source, *flags, given: compiled.append(source) or b"")
    emulator.build(*programs)
    for code in codes:
        emulator.driver(code)
    assert len(compiled) == 1 + len(codes)
    assert not any("unroll" in line for x in compiled for line in x.splitlines() if line.lstrip()[:1] == "#")


@pytest.mark.soak
@pytest.mark.parametrize("op", SMALL)
def test_many_sampled_schedules_compute_the_operator(op: str) -> None:
    emulate(case(op), MANY)


@pytest.mark.fast("add")
@pytest.mark.parametrize("op", [op for op in SMALL if not op.startswith("quantized_")])
def test_sampled_schedules_compute_the_operator_in_float16(op: str) -> None:
    emulate(case(op, "float16"), 3)


@pytest.mark.fast("1", "1003")
@pytest.mark.parametrize("n", [1, 31, 1000, 1003])
def test_vector_add_with_a_mask(n: int) -> None:
    emulate(masked_add(n), 6)
    assert len(program(masked_add(n).dag, next(sampled(masked_add(n).dag, 1))[1]).kernels) == 1


@pytest.mark.slow
def test_a_long_reduction_is_split_among_blocks() -> None:
    x = te.placeholder((3, 140, 150), "float32", name="x")
    i, j = te.reduce_axis(140, name="i"), te.reduce_axis(150, name="j")
    dag = te.dag([x, te.compute((3,), lambda b: te.sum(x[b, i, j], axis=(i, j)), name="y")])
    data = np.random.default_rng(4).integers(-3, 4, (3, 140, 150)).astype("float32")
    c = Case(dag, (data,), (data.sum((1, 2)),))
    emulate(c, 4)
    (first, second) = program(dag, next(sampled(dag, 1))[1]).kernels
    assert first.grid[0] > 3 * second.grid[0]


# Products with more steps than there are tiles for the processors.
LONG: dict[str, dict[str, object]] = {
    "matmul_bias_relu": {"m": 6, "n": 21, "k": 1030},
    "conv2d": {"h": 3, "w": 3, "ci": 128, "co": 6, "k": 3, "padding": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("op", LONG)
def test_a_long_product_may_be_split_among_blocks(op: str) -> None:
    c = workload_case(op, LONG[op])
    split = {n for n in space(c.dag).sketches if "reduction=split" in n}
    # operands shared, of a window in two ways, or direct; and a window as a product
    whole, parts = (4, 3) if op == "conv2d" else (2, 2)
    assert len(split) == parts and len(space(c.dag).sketches) == parts + whole
    emulate(c, 8)
    for name, trace in sampled(c.dag, 2):
        p = program(c.dag, trace)
        partial = next(x for x in p.kernels if x.name == "kernel0")
        parts = 1
        if any(name.startswith(x) for x in split):
            assert len(p.kernels) == 2 and len(p.scratch) == 1
            parts = int(p.scratch[0].shape[-1].value)  # type: ignore[attr-defined]
            assert parts > 1 and partial.grid[0] % parts == 0
        facts = analyse(Schedule.replay(c.dag, trace, TARGET).nest)
        assert [k.grid[0] for k in p.kernels] == [int(f.blocks.value) for f in facts]  # type: ignore[attr-defined]


# Channels that vectors fill, and tiles do not divide.
PADDED: dict[str, dict[str, object]] = {
    "conv2d": {"h": 5, "w": 5, "ci": 12, "co": 8, "k": 3, "padding": 1},
    "depthwise_conv2d": {"h": 5, "w": 6, "c": 12, "k": 3, "padding": 1},
    "max_pool2d": {"h": 6, "w": 5, "c": 12, "k": 3, "stride": 1, "padding": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("op", PADDED)
def test_vectors_of_padded_arrays_stay_in_them(op: str) -> None:
    """Before and behind the arrays lies no memory."""
    need_cxx()
    c = workload_case(op, PADDED[op])
    chosen = (t for _, t in sampled(c.dag, 30) if ") t1 = AT_LOAD" in cuda.source(program(c.dag, t)))
    traces = list(islice(chosen, 2))
    assert traces
    for trace in traces:
        check_compiled(c.dag, trace, TARGET, c.inputs, c.expected)


def test_rows_that_are_spread_over_another_axis() -> None:
    """Which thread has an element of ``e`` is not that of all elements of ``o`` that need it."""
    x, y = te.placeholder((3, 6), "float32", name="x"), te.placeholder((3, 6, 8), "float32", name="y")
    e = te.compute((3, 6), lambda i, j: te.exp(x[i, j]), name="e")
    k = te.reduce_axis(6, name="k")
    t = te.compute((3,), lambda i: te.sum(e[i, k], axis=k), name="t")
    dag = te.dag([x, y, te.compute((3, 6, 8), lambda i, j, q: e[i, j] * y[i, j, q] / t[i], name="o")])
    data = inputs(dag)
    emulate(Case(dag, tuple(data), tuple(expected(dag, data))), 3)


def test_sums_of_rows_of_different_kinds() -> None:
    """Each has as many axes of rows as it has itself, whatever else is left to schedule."""
    x, v = te.placeholder((4, 33), "float32", name="x"), te.placeholder((4, 5, 33), "float32", name="v")
    k, q = te.reduce_axis(33, name="k"), te.reduce_axis(33, name="q")
    t = te.compute((4,), lambda i: te.sum(x[i, k], axis=k), name="t")
    dag = te.dag([x, v, t, te.compute((4, 5), lambda i, j: te.sum(v[i, j, q], axis=q), name="o")])
    data = inputs(dag)
    emulate(Case(dag, tuple(data), (data[0].sum(1), data[1].sum(2))), 2)


FAR = [0.0, -2.5, np.nan, np.inf, -np.inf, 2.0**31, -(2.0**31), 2.0**40, 2.0**63, -(2.0**63), 1e30, -1e30]


@pytest.mark.fast("int32-float32")
@pytest.mark.parametrize("source", ["float16", "float32", "float64"])
@pytest.mark.parametrize("to", ["int32", "int64"])
def test_casts_to_integers_end_at_their_ends(source: str, to: str) -> None:
    need_cxx()
    x = te.placeholder((len(FAR),), source, name="x")
    dag = te.dag([x, te.compute((len(FAR),), lambda i: te.cast(x[i], to), name="y")])
    with np.errstate(over="ignore"):
        data = np.array(FAR).astype(source)
    want = expected(dag, [data])
    for _, trace in sampled(dag, 2):
        check_compiled(dag, trace, TARGET, [data], want)


@pytest.mark.slow
def test_sums_of_everything_are_plain() -> None:
    x = te.placeholder((13, 31), "int64", name="x")
    i, j = te.reduce_axis(13, name="i"), te.reduce_axis(31, name="j")
    y = te.compute((), lambda: te.sum(x[i, j], axis=(i, j)), name="y")
    z = te.compute((9,), lambda k: y[()] + x[0, k] // 2, name="z")
    data = np.random.default_rng(3).integers(-9, 9, (13, 31))
    emulate(Case(te.dag([x, y]), (data,), (np.asarray(data.sum()),)), 2)
    emulate(Case(te.dag([x, z]), (data,), (data.sum() + data[0, :9] // 2,)), 2)


@pytest.mark.slow
def test_rows_of_sums_are_reduced_in_two_kernels() -> None:
    """The inner sums belong to all threads of a row, each of which needs others of them."""
    x = te.placeholder((5, 6, 7), "float32", name="x")
    k, j = te.reduce_axis(7, name="k"), te.reduce_axis(6, name="j")
    inner = te.compute((5, 6), lambda m, n: te.sum(x[m, n, k], axis=k), name="inner")
    high = te.compute((5,), lambda m: te.max(inner[m, j], axis=j), name="high")
    y = te.compute((5, 6), lambda m, n: inner[m, n] - high[m], name="y")
    data = np.random.default_rng(3).integers(-9, 9, (5, 6, 7)).astype("float32")
    sums = data.sum(2)
    emulate(Case(te.dag([x, y]), (data,), (sums - sums.max(1, keepdims=True),)), 6)


@pytest.mark.slow
def test_a_row_of_one_element() -> None:
    for op, params in (
        ("attention", {"heads": 2, "seq": 1, "dim": 3}),
        ("transpose_batch_matmul_softmax", {"heads": 3, "seq": 1, "dim": 1}),
        ("softmax", {"m": 1, "n": 5}),
        ("softmax", {"m": 3, "n": 1}),
    ):
        emulate(workload_case(op, dict(params)), 8)


def test_a_product_with_enough_tiles_is_not_split() -> None:
    big = ops.workload("matmul", {"m": 4096, "n": 4096, "k": 4096}).dag
    assert not any("reduction" in n for n in derive(big, backends.parse("h100")).sketches)
    few = ops.workload("matmul", {"m": 16, "n": 4096, "k": 4096}).dag
    assert any("reduction=split" in n for n in derive(few, backends.parse("h100")).sketches)


@pytest.mark.fast("4100")
@pytest.mark.parametrize("n", [4100, 5003])
def test_a_bounded_grid_goes_on_as_long_as_there_is_work(n: int) -> None:
    c = workload_case("add", {"n": n})
    emulate(c, 12)
    blocks = set()
    for name, trace in sampled(c.dag, 8):
        (kernel,) = program(c.dag, trace).kernels
        if "bounded" in name:
            blocks.add(kernel.grid[0])
    assert blocks <= {2 * k for k in (2, 4, 8, 16, 32)} and len(blocks) > 1


@pytest.mark.slow
def test_split_products_compile_to_machine_code() -> None:
    _compile("matmul", {"m": 5, "n": 9, "k": 2050}, 4, ("sm_80", "sm_90"))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_constants_keep_all_their_digits(dtype: str) -> None:
    x = te.placeholder((7,), dtype, name="x")
    y = te.compute(
        (7,),
        lambda i: x[i] * 0.1 + te.select(x[i] < -0.3, te.const(-1e-300, dtype), te.const(1 / 3, dtype)),
        name="y",
    )
    data = np.linspace(-1, 1, 7).astype(dtype)
    one = np.dtype(dtype).type
    expected = data * one(0.1) + np.where(data < one(-0.3), one(-1e-300), one(1 / 3))
    emulate(Case(te.dag([x, y]), (data,), (expected,)), 2)
    text = cuda.source(program(te.dag([x, y]), next(sampled(te.dag([x, y]), 1))[1]))
    assert ("0.3333333333333333" in text) == (dtype == "float64")


@pytest.mark.fast("matmul", "layer_norm", "matmul_bias_gelu", "fused_multiply_add")
@pytest.mark.parametrize("op", BIG)
def test_shared_memory_is_no_more_than_was_estimated(op: str) -> None:
    """What the limits let through fits."""
    dag, target = ops.workload(op, BIG[op]).dag, backends.parse("a100")
    found, rng = derive(dag, target), np.random.default_rng(5)
    for number, name in enumerate(found.sketches):
        rows = found.sample(number, 400, rng)
        for row in rows[found.valid(number, rows)][:2]:
            nest = Schedule.replay(dag, found.trace(number, row), target).nest
            for k, f in zip(lower_simt(nest).kernels, analyse(nest), strict=True):
                held = [x.buffer for x in walk(k.body) if isinstance(x, Alloc) and x.buffer.scope == "shared"]
                estimated = int(f.shared_bytes.value)  # type: ignore[attr-defined]
                assert sum(map(nbytes, held)) <= estimated, (name, row.tolist())


def test_more_shared_memory_than_there_is_reaches_no_compiler() -> None:
    x = te.placeholder((64, 2048), "float32", name="x")
    s = Schedule([x, te.compute((64, 2048), lambda i, j: x[i, 2047 - j], name="y")])
    copy = s.cache_read("y", "x", "shared")
    block, _ = s.split(s.loops("y")[0], (None, 32))
    s.compute_at(copy, block)
    s.bind(block, "blockIdx.x")
    with pytest.raises(at.ScheduleError, match=r"keeps 26\d{4} bytes .* of which sm_90 has 232448"):
        at.compile_for(s, "h100")


@pytest.mark.fast("add", "matmul_bias_gelu", "argmax", "conv2d_bn_relu", "avg_pool2d")
@pytest.mark.parametrize("op", SMALL)
def test_estimates_of_a_row_are_what_its_kernels_take(op: str) -> None:
    dag = case(op).dag
    for name, trace in sampled(dag, 2):
        p = program(dag, trace)
        facts = analyse(Schedule.replay(dag, trace, TARGET).nest)
        for k, f in zip(p.kernels, facts, strict=True):
            threads = int(np.prod([int(x.value) for x in f.threads]))  # type: ignore[attr-defined]
            assert k.threads <= threads, name
            assert k.grid[0] == int(f.blocks.value), name  # type: ignore[attr-defined]


def _compile(
    op: str, params: dict[str, object], count: int, archs: tuple[str, ...], dtype: str | None = None
) -> None:
    if not nvrtc.available():
        missing("nvrtc")
    dag = ops.workload(op, params, dtype).dag
    found = derive(dag, backends.parse("a100"))
    rng = np.random.default_rng(3)
    for number, name in enumerate(found.sketches):
        rows = found.sample(number, 400, rng)
        rows = rows[found.valid(number, rows)][: -(-count // len(found.sketches))]
        for row in rows:
            p = program(dag, found.trace(number, row))
            for arch in archs:
                cubin = nvrtc.compile_cubin(cuda.source(p), arch)
                assert len(cubin.facts) == len(p.kernels), (name, row)
                for k in p.kernels:
                    facts = cubin.facts[k.name]
                    assert facts["shared_bytes"] <= 48 << 10, (name, row.tolist(), facts)
                    assert facts["registers"] * k.threads <= 65536, (name, row.tolist(), facts)


@pytest.mark.fast("add", "reduce_sum")
@pytest.mark.parametrize("op", SMALL)
def test_schedules_compile_to_machine_code(op: str) -> None:
    _compile(op, SMALL[op], 2, ("sm_80",))


@pytest.mark.fast("add")
@pytest.mark.parametrize("op", ["add", "softmax", "matmul", "depthwise_conv2d", "max_pool2d"])
def test_schedules_of_float16_compile_to_machine_code(op: str) -> None:
    _compile(op, SMALL[op], 2, ("sm_80", "sm_90"), "float16")


# Sizes worth tuning, of every operator; of these a product that may be split.
LARGE = {**BIG, "batch_matmul": {"b": 2, "m": 64, "n": 64, "k": 2048}}


@pytest.mark.soak
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("op", SMALL)
def test_twenty_schedules_compile_for_two_architectures(op: str, dtype: str) -> None:
    if dtype in ops.get(op).dtypes:
        _compile(op, LARGE[op], MANY, ("sm_80", "sm_90"), dtype)


@pytest.mark.slow
def test_numbers_that_are_computed_from_indices_may_be_large() -> None:
    need_cxx()
    a = te.placeholder((24,), "int64", name="a")
    b = te.compute((24,), lambda i: a[i] + te.cast(i * 300_000_000, "int64"), "b")
    dag = te.dag([a, b])
    x = np.arange(24, dtype=np.int64)
    for name, trace in sampled(dag, 2):
        p, y = program(dag, trace), np.zeros(24, np.int64)
        assert emulator.run(emulator.build(p), p, [x, y], 0) is None, name
        np.testing.assert_array_equal(y, x + np.arange(24) * 300_000_000)
