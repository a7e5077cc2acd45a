"""What spaces for GPUs offer, and what their limits let through."""

from __future__ import annotations

import re

import numpy as np
import pytest
from grid_cases import TARGET, Case, case, emulate, program, sampled, space, workload_case

from autotune import backends
from autotune.backends.building.from_trace import MAX_OPERATIONS, grid_program
from autotune.codegen.simt import cuda
from schedules import ops, te
from schedules.errors import ScheduleError
from schedules.expr import Const
from schedules.ir import Alloc, Loop, blocks, walk
from schedules.model import Target
from schedules.passes.simt import lower_simt
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.space.derive import Sketch
from schedules.space.estimate.cpu import quantities
from schedules.space.estimate.gpu import limits
from schedules.space.holes import Choice, Columns


@pytest.mark.parametrize("op", ["softmax", "layer_norm", "rms_norm"])
def test_a_row_is_made_by_one_kernel(op: str) -> None:
    for _, trace in sampled(case(op).dag, 5):
        p = program(case(op).dag, trace)
        assert len(p.kernels) == 1 and not p.scratch


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "axes"), [((37, 45), (1, 0)), ((9, 3, 70), (2, 1, 0)), ((8, 9, 10, 33), (0, 3, 1, 2))]
)
def test_transpositions_cross_in_shared_memory(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    c = workload_case("permute", {"shape": shape, "axes": axes})
    emulate(c, 24)
    assert any("squares" in name for name in space(c.dag).sketches)


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(("op", "m", "n"), [("layer_norm", 20, 10), ("softmax", 33, 32)])
def test_short_rows_compute_the_operator(op: str, m: int, n: int) -> None:
    emulate(workload_case(op, {"m": m, "n": n}), 12)


@pytest.mark.slow
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


@pytest.mark.slow
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


H100, T4 = backends.parse("h100"), backends.parse("t4")


def product_of(target: Target = H100, **decisions: int) -> tuple[Sketch, np.ndarray]:
    """The sketch of a large product by shared memory, and a row of it: 128 x 128 by 256 threads, 8 x 8 each,
    but for these decisions."""
    sketch = derive(ops.workload("matmul", {"m": 4096, "n": 4096, "k": 4096}).dag, target).sketch(0)
    usual = {f"{axis}.{cut}": n for axis in "01" for cut, n in (("vthread", 2), ("threads", 16), ("own", 4))}
    usual |= {"turns": 2, "unrolled": 8, "prefetch": 0, "min_blocks": 1, "a_shared.vec": 4, "b_shared.vec": 4}
    usual |= {"group": 1, "store_cache": 0, "stages": 1}
    row = [(usual | decisions)[h.name.removeprefix("c.")] for h in sketch.holes]
    return sketch, np.array([row])


def valid(target: Target = H100, **decisions: int) -> bool:
    sketch, row = product_of(target, **decisions)
    ((_, (ok,), _),) = sketch.valid.run(row)
    return bool(ok[0])


def test_what_is_fetched_ahead_is_counted_once() -> None:
    """Not once for each turn of the loop: then no long product could have had it."""
    sketch, row = product_of(T4, prefetch=1)
    (k,) = sketch.estimate.facts
    env = Columns({h.name: int(x) for h, x in zip(sketch.holes, row[0], strict=True)})
    assert quantities.number(k.local_bytes, env) == 4 * (8 * 8 + 2 * 128 * 16 // 256)
    assert valid(T4, prefetch=1)


def test_copies_in_the_background_take_shared_memory_and_no_registers() -> None:
    bytes_of = []
    for stages in (1, 3):
        sketch, row = product_of(stages=stages)
        (k,) = sketch.estimate.facts
        env = Columns({h.name: int(x) for h, x in zip(sketch.holes, row[0], strict=True)})
        assert quantities.number(k.local_bytes, env) == 4 * 8 * 8
        bytes_of.append(int(quantities.number(k.shared_bytes, env)))
    assert bytes_of[1] == 3 * bytes_of[0]
    assert valid(stages=5, turns=2) and not valid(stages=5, turns=8)  # 330 of 227 KB


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
        *_, kernel = sketch.estimate.facts  # behind those that make copies
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
        holes = derive(dag, backends.parse(target)).holes(0)
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


def test_what_unroll_refuses_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of bytes many fit shared memory. Where few lanes of a vector copy them, each thread has many copies."""
    w = ops.workload("conv2d", {"h": 14, "w": 14, "ci": 64, "co": 64, "k": 3, "padding": 1}, "float8_e5m2")
    found = derive(w.dag, TARGET)
    sketch = found.sketches.index("y.operands=shared y.taps=together")
    rows = found.sample(sketch, 500, np.random.default_rng(0))
    for n, name in enumerate(found.holes(sketch)):
        if name.endswith((".vec", ".threads")):
            rows[:, n] = np.minimum(rows[:, n], 4)
    rows = found.nearest(sketch, rows)
    kept = found.valid(sketch, rows)
    monkeypatch.setattr(limits, "MAX_UNROLL", 1 << 30)
    before = derive(w.dag, TARGET).valid(sketch, rows)
    dropped = rows[before & ~kept]
    assert len(dropped) and not (kept & ~before).any()
    for row in dropped[:3]:
        with pytest.raises(ScheduleError, match="copies are more than 1024"):
            Schedule.replay(w.dag, found.trace(sketch, row), TARGET)


@pytest.mark.slow
def test_no_candidate_unrolls_to_much_more_than_is_compiled() -> None:
    """Attention of which each element is computed from a product would unroll to 300,000 operations."""
    target = backends.parse("h100-emulator")
    dag = ops.workload("attention", {"heads": 2, "seq": 32, "dim": 32, "causal": 1}, "float16").dag
    found, rng = derive(dag, target), np.random.default_rng(0)
    for n, name in enumerate(found.sketches):
        if "threads=warps" in name:
            rows = found.sample(n, 2000, rng)
            rows = rows[found.valid(n, rows)]
            unrolled = [h.endswith((".turns", ".own", ".unrolled")) for h in found.holes(n)]
            for row in rows[np.argsort(-rows[:, unrolled].prod(axis=1))][:2]:
                try:
                    grid_program(dag, found.trace(n, row), target)
                except ScheduleError as err:  # it is counted exactly before it is compiled
                    (operations,) = re.findall(r"unrolls to (\d+) operations", str(err))
                    assert int(operations) < 1.15 * MAX_OPERATIONS, name
