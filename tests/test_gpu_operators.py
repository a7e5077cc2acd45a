"""Every operator on GPUs, by sampled schedules: emulated, and compiled to machine code."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from grid_cases import SMALL, TARGET, Case, case, masked_add, missing, need_cxx, program, sampled, space
from helpers import check_compiled, expected, inputs
from space_cases import BIG

import autotune as at
from autotune import targets
from autotune.codegen import cuda, emulator, nvrtc
from schedules import ops, te
from schedules.expr import Const
from schedules.ir import Alloc, Loop, blocks, nbytes, walk
from schedules.schedule import Schedule
from schedules.simt import lower_simt
from schedules.space import derive, quantities
from schedules.space.derive import Sketch
from schedules.space.gpu import analyse
from schedules.space.holes import Choice, Columns

EACH = 20  # schedules of an operator


def _some(c: Case, count: int) -> list[tuple[str, emulator.GridProgram]]:
    each = -(-count // len(space(c.dag).sketches))
    return [(name, program(c.dag, trace)) for name, trace in sampled(c.dag, each)][:count]


def test_every_operator_is_here() -> None:
    assert set(SMALL) == set(ops.REGISTRY)


def emulate(c: Case, count: int) -> None:
    need_cxx()
    found = _some(c, count)
    obj = emulator.build(*(p for _, p in found))
    for n, (name, p) in enumerate(found):
        outputs = c.poisoned()
        fault = emulator.run(obj, p, [*c.inputs, *outputs], n)
        assert fault is None, f"{name}: {fault}"
        c.check(outputs, name)


@pytest.mark.parametrize("op", SMALL)
def test_sampled_schedules_compute_the_operator(op: str) -> None:
    emulate(case(op), EACH)


@pytest.mark.parametrize("op", SMALL)
def test_sampled_schedules_compute_the_operator_in_float16(op: str) -> None:
    emulate(case(op, "float16"), 6)


@pytest.mark.parametrize("n", [1, 31, 1000, 1003])
def test_vector_add_with_a_mask(n: int) -> None:
    emulate(masked_add(n), 6)
    assert len(program(masked_add(n).dag, next(sampled(masked_add(n).dag, 1))[1]).kernels) == 1


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


def workload_case(op: str, params: dict[str, object]) -> Case:
    workload = ops.workload(op, params)
    rng = np.random.default_rng(1)
    inputs = tuple(rng.integers(-3, 4, t.shape).astype(t.dtype) for t in workload.dag.inputs)
    return Case(workload.dag, inputs, tuple(ops.reference(workload, list(inputs))))


@pytest.mark.parametrize("op", LONG)
def test_a_long_product_may_be_split_among_blocks(op: str) -> None:
    c = workload_case(op, LONG[op])
    split = {n for n in space(c.dag).sketches if "reduction=split" in n}
    whole = 3 if op == "conv2d" else 2  # operands shared, of a window in two ways, or direct
    assert len(split) == 2 and len(space(c.dag).sketches) == 2 + whole
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
    "conv2d_transpose": {"h": 4, "w": 4, "ci": 4, "co": 12, "k": 3, "stride": 2, "padding": 1},
}


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


def test_sums_of_everything_are_plain() -> None:
    x = te.placeholder((13, 31), "int64", name="x")
    i, j = te.reduce_axis(13, name="i"), te.reduce_axis(31, name="j")
    y = te.compute((), lambda: te.sum(x[i, j], axis=(i, j)), name="y")
    z = te.compute((9,), lambda k: y[()] + x[0, k] // 2, name="z")
    data = np.random.default_rng(3).integers(-9, 9, (13, 31))
    emulate(Case(te.dag([x, y]), (data,), (np.asarray(data.sum()),)), 2)
    emulate(Case(te.dag([x, y, z]), (data,), (data.sum() + data[0, :9] // 2,)), 2)


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
    assert not any("reduction" in n for n in derive(big, targets.parse("h100")).sketches)
    few = ops.workload("matmul", {"m": 16, "n": 4096, "k": 4096}).dag
    assert any("reduction=split" in n for n in derive(few, targets.parse("h100")).sketches)


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


@pytest.mark.parametrize("op", ["softmax", "layer_norm", "rms_norm"])
def test_a_row_is_made_by_one_kernel(op: str) -> None:
    for _, trace in sampled(case(op).dag, 5):
        p = program(case(op).dag, trace)
        assert len(p.kernels) == 1 and not p.scratch


@pytest.mark.parametrize(
    ("shape", "axes"), [((37, 45), (1, 0)), ((9, 3, 70), (2, 1, 0)), ((8, 9, 10, 33), (0, 3, 1, 2))]
)
def test_transpositions_cross_in_shared_memory(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    c = workload_case("permute", {"shape": shape, "axes": axes})
    emulate(c, 24)
    assert any("squares" in name for name in space(c.dag).sketches)


def test_what_is_added_to_a_transposition_is_read_where_it_lies() -> None:
    a, b = te.placeholder((19, 40), "float32", name="a"), te.placeholder((40, 19), "float32", name="b")
    dag = te.dag([a, b, te.compute((19, 40), lambda i, j: a[i, j] + b[j, i] * 2.0, name="c")])
    x, y = (np.arange(760, dtype="float32").reshape(s) for s in ((19, 40), (40, 19)))
    emulate(Case(dag, (x, y), (x + y.T * 2,)), 12)
    squares = next(t for name, t in sampled(dag, 1) if "squares" in name)
    (kernel,) = program(dag, squares).kernels
    assert [x.buffer.name for x in walk(kernel.body) if isinstance(x, Alloc)] == ["b_shared"]


def test_no_squares_where_rows_are_read_as_they_are_written() -> None:
    for op, params in (("add", {"n": 5000}), ("permute", {"shape": (64, 8, 32), "axes": (1, 0, 2)})):
        assert not any("squares" in x for x in derive(ops.workload(op, params).dag, TARGET).sketches)


def test_a_block_has_many_short_rows() -> None:
    w = ops.workload("softmax", {"m": 10_000, "n": 10})
    for _, trace in sampled(w.dag, 6):
        (kernel,) = program(w.dag, trace).kernels
        assert kernel.block[0] <= 8 and kernel.block[1] >= 16


@pytest.mark.parametrize(("op", "m", "n"), [("layer_norm", 20, 10), ("softmax", 33, 32)])
def test_short_rows_compute_the_operator(op: str, m: int, n: int) -> None:
    emulate(workload_case(op, {"m": m, "n": n}), 12)


def test_a_row_made_of_a_short_sum_has_threads_for_itself() -> None:
    m, n, c = 24, 8, 200
    x, z = te.placeholder((m, n), "float32", name="x"), te.placeholder((m, c), "float32", name="z")
    k = te.reduce_axis(n, name="k")
    total = te.compute((m,), lambda i: te.sum(x[i, k], axis=k), name="total")
    dag = te.dag([x, z, te.compute((m, c), lambda i, j: total[i] * z[i, j], name="y")])
    a, b = (np.random.default_rng(5).integers(-4, 5, s).astype("float32") for s in ((m, n), (m, c)))
    emulate(Case(dag, (a, b), (a.sum(1, keepdims=True) * b,)), 12)
    (sketch,) = (derive(dag, H100).sketch(n) for n in range(len(derive(dag, H100).sketches)))
    assert max({h.name: h.options for h in sketch.holes if isinstance(h, Choice)}["y.threads"]) >= 128


@pytest.mark.parametrize("n", [40_000, 56_000])
def test_the_longest_rows_that_registers_hold_have_candidates(n: int) -> None:
    found = derive(ops.workload("softmax", {"m": 64, "n": n}).dag, H100)
    rows = found.sample(0, 2000, np.random.default_rng(0))
    assert found.valid(0, rows).any()


def test_two_convolutions_may_both_be_split() -> None:
    x = te.placeholder((1, 9, 9, 128), "float32", name="x")
    weights = [te.placeholder((3, 3, 128, 128), "float32", name=n) for n in "vw"]

    def convolution(x: te.Tensor, w: te.Tensor, size: int) -> te.Tensor:
        r, s, c = (te.reduce_axis(n, name=a) for n, a in ((3, "r"), (3, "s"), (128, "c")))
        return te.compute(
            (1, size, size, 128),
            lambda b, p, q, o: te.sum(x[b, p + r, q + s, c] * w[r, s, c, o], axis=(r, s, c)),
            name=f"y{size}",
        )

    y = convolution(convolution(x, weights[0], 7), weights[1], 5)
    names = derive(te.dag([x, *weights, y]), H100).sketches
    assert any("y7.reduction=split" in n and "y5.reduction=split" in n for n in names)


def test_no_squares_of_an_axis_that_a_buffer_has_twice() -> None:
    x = te.placeholder((40, 80, 40), "float32", name="x")
    for y in (
        te.compute((40, 40), lambda i, j: x[j, i, i] * 2.0, name="y"),
        te.compute((40, 40), lambda i, j: x[j, i + j // 2, i] * 2.0, name="y"),
    ):
        assert not any("squares" in n for n in derive(te.dag([x, y]), H100).sketches)


def test_a_part_of_a_long_row_has_many_threads() -> None:
    found = derive(ops.workload("reduce_sum", {"m": 1, "n": 1 << 22}).dag, TARGET)
    holes = {h.name: h.options for h in found.sketch(0).holes if isinstance(h, Choice)}
    assert max(holes["y_rf_write.threads"]) == 1024


H100 = targets.parse("h100")


def product_of(**decisions: int) -> tuple[Sketch, np.ndarray]:
    """The sketch of a large product by shared memory, and a row of it: 128 x 128 by 256 threads, 8 x 8 each,
    but for these decisions."""
    sketch = derive(ops.workload("matmul", {"m": 4096, "n": 4096, "k": 4096}).dag, H100).sketch(0)
    usual = {f"{axis}.{cut}": n for axis in "01" for cut, n in (("vthread", 2), ("threads", 16), ("own", 4))}
    usual |= {"turns": 2, "unrolled": 8, "prefetch": 0, "min_blocks": 1, "a_shared.vec": 4, "b_shared.vec": 4}
    row = [(usual | decisions)[h.name.removeprefix("c.")] for h in sketch.holes]
    return sketch, np.array([row])


def valid(**decisions: int) -> bool:
    sketch, row = product_of(**decisions)
    ((_, (ok,), _),) = sketch.valid.run(row)
    return bool(ok[0])


def test_what_is_fetched_ahead_is_counted_once() -> None:
    """Not once for each turn of the loop: then no long product could have had it."""
    sketch, row = product_of(prefetch=1)
    (k,) = sketch.kernels
    env = Columns({h.name: int(x) for h, x in zip(sketch.holes, row[0], strict=True)})
    assert quantities.number(k.local_bytes, env) == 4 * (8 * 8 + 2 * 128 * 16 // 256)
    assert valid(prefetch=1)


def test_blocks_that_are_to_share_a_processor_bound_its_registers() -> None:
    assert valid(min_blocks=2) and not valid(min_blocks=4)  # 65536 registers / 1024 threads < 64 accumulators
    assert valid(min_blocks=4, **{"1.threads": 8, "turns": 1})
    sketch, row = product_of(min_blocks=2)
    decisions = {h.name: int(x) for h, x in zip(sketch.holes, row[0], strict=True)}
    dag = ops.workload("matmul", {"m": 4096, "n": 4096, "k": 4096}).dag
    for n, bounds in ((1, "(256)"), (2, "(256, 2)")):
        s = Schedule.replay(dag, sketch.trace, H100, decisions | {"c.min_blocks": n})
        assert f"__launch_bounds__{bounds}" in cuda.source(lower_simt(s.nest))


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_a_thread_reuses_what_it_reads_of_either_operand(layout: str) -> None:
    params = {"h": 28, "w": 28, "ci": 64, "co": 64, "kh": 3, "kw": 3, "padding": 1}
    found = derive(ops.workload("conv2d", params, layout=layout).dag, H100)
    for number, name in enumerate(found.sketches):
        if "shared" not in name:
            continue
        sketch = found.sketch(number)
        most = Columns({h.name: max(h.options) for h in sketch.holes if isinstance(h, Choice)})
        (kernel,) = sketch.kernels
        (product,) = (w for w in kernel.work if any(a.scope == "shared" for a in w.accesses[1:]))
        reuse = [int(quantities.number(a.reuse, most)) for a in product.accesses if a.scope == "shared"]
        assert len(reuse) == 2 and min(reuse) >= 8, name


def test_rows_that_threads_read_at_the_same_place_are_padded() -> None:
    w = ops.workload("batch_matmul", {"b": 4, "m": 64, "n": 64, "k": 32, "transpose_b": 1})
    trace = next(t for name, t in sampled(w.dag, 1) if "shared" in name)
    nest = Schedule.replay(w.dag, trace, TARGET).nest
    pads = {b.name: dict(b.annotations).get("pad") for b in blocks(nest.body) if "_shared" in b.name}
    assert set(pads.values()) == {4} and len(pads) == 2


def test_only_compilers_of_nvidia_are_told_how_many_blocks_share_a_processor() -> None:
    dag = ops.workload("matmul", {"m": 64, "n": 64, "k": 64}).dag
    for target, has in (("h100", True), ("adreno-740", False)):
        holes = derive(dag, targets.parse(target)).holes(0)
        assert any("min_blocks" in h for h in holes) is has


def test_memory_that_is_not_touched_costs_nothing() -> None:
    def estimate(width: int) -> float:
        x = te.placeholder((65_536, width), "float32", name="x")
        dag = te.dag([x, te.compute((65_536, 8), lambda i, j: x[i, j] * 2.0, name="y")])
        found, rng = derive(dag, H100), np.random.default_rng(0)
        times = []
        for n in range(len(found.sketches)):
            rows = found.sample(n, 400, rng)
            times.append(found.features(n, rows[found.valid(n, rows)])[:, -1].min())
        return float(min(times))

    assert estimate(4096) < 4 * estimate(8)


def test_steps_of_a_product_are_unrolled_and_its_results_stored_in_vectors() -> None:
    w = ops.workload("matmul", {"m": 64, "n": 64, "k": 64})
    for name, trace in sampled(w.dag, 4):
        nest = Schedule.replay(w.dag, trace, TARGET).nest
        loops = [x for x in walk(nest.body) if isinstance(x, Loop)]
        assert any(x.kind == "unroll" and "_r0_" in x.var for x in loops), name
        (vector,) = (x.extent for x in loops if x.kind == "vectorize" and "write" in x.var)
        assert vector == Const(1) or f"AT_STORE(float, {vector.value}, v_c[" in cuda.source(lower_simt(nest))


@pytest.mark.parametrize("op", BIG)
def test_shared_memory_is_no_more_than_was_estimated(op: str) -> None:
    """What the limits let through fits."""
    dag, target = ops.workload(op, BIG[op]).dag, targets.parse("a100")
    found, rng = derive(dag, target), np.random.default_rng(5)
    for number, name in enumerate(found.sketches):
        rows = found.sample(number, 400, rng)
        for row in rows[found.valid(number, rows)][:8]:
            nest = Schedule.replay(dag, found.trace(number, row), target).nest
            for k, f in zip(lower_simt(nest).kernels, analyse(nest), strict=True):
                held = [x.buffer for x in walk(k.body) if isinstance(x, Alloc) and x.buffer.scope == "shared"]
                estimated = int(f.shared_bytes.value)  # type: ignore[attr-defined]
                assert sum(map(nbytes, held)) <= estimated, (name, row.tolist())


def test_more_shared_memory_than_there_is_reaches_no_compiler() -> None:
    x = te.placeholder((64, 512), "float32", name="x")
    s = Schedule([x, te.compute((64, 512), lambda i, j: x[i, 511 - j], name="y")])
    copy = s.cache_read("y", "x", "shared")
    block, _ = s.split(s.loops("y")[0], (None, 32))
    s.compute_at(copy, block)
    s.bind(block, "blockIdx.x")
    with pytest.raises(at.ScheduleError, match=r"keeps 6\d{4} bytes .* of which sm_90 has 49152"):
        at.compile_for(s, "h100")


@pytest.mark.parametrize("op", SMALL)
def test_estimates_of_a_row_are_what_its_kernels_take(op: str) -> None:
    dag = case(op).dag
    for name, trace in sampled(dag, 4):
        p = program(dag, trace)
        facts = analyse(Schedule.replay(dag, trace, TARGET).nest)
        for k, f in zip(p.kernels, facts, strict=True):
            threads = int(np.prod([int(x.value) for x in f.threads]))  # type: ignore[attr-defined]
            assert k.threads <= threads, name
            assert k.grid[0] == int(f.blocks.value), name  # type: ignore[attr-defined]


def _compile(
    op: str, params: dict[str, object], count: int, archs: tuple[str, ...], dtype: str = "float32"
) -> None:
    if not nvrtc.available():
        missing("nvrtc")
    dag = ops.workload(op, params, dtype).dag
    found = derive(dag, targets.parse("a100"))
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


@pytest.mark.parametrize("op", SMALL)
def test_schedules_compile_to_machine_code(op: str) -> None:
    _compile(op, SMALL[op], 2, ("sm_80",))


@pytest.mark.parametrize("op", ["add", "softmax", "matmul", "depthwise_conv2d", "max_pool2d"])
def test_schedules_of_float16_compile_to_machine_code(op: str) -> None:
    _compile(op, SMALL[op], 2, ("sm_80", "sm_90"), "float16")


# Sizes worth tuning, of every operator; of these a product that may be split.
LARGE = {**BIG, "batch_matmul": {"b": 2, "m": 64, "n": 64, "k": 2048}}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("op", SMALL)
def test_twenty_schedules_compile_for_two_architectures(op: str, dtype: str) -> None:
    _compile(op, LARGE[op], EACH, ("sm_80", "sm_90"), dtype)


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
