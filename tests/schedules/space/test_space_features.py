"""Quantities of a nest: the same for a sketch's rows, for concrete nests and for the interpreter's counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from space_cases import BIG, big_space, library_case, own_case, target

from autotune.backends.building.from_trace import emit_module
from schedules import ops, te
from schedules.ir import Nest, interp
from schedules.primitives.vectorize import MAX_LANES
from schedules.schedule import Schedule
from schedules.space import DerivedSpace, derive
from schedules.space.estimate.base import Estimate
from schedules.space.estimate.counting import Number
from schedules.space.estimate.cpu.facts import analyse
from schedules.space.estimate.cpu.features import CPU_FORMULAS, FEATURE_NAMES
from schedules.space.estimate.cpu.limits import Limits, within
from schedules.space.estimate.cpu.quantities import FEATURES_PER_BLOCK, measure, register_tile
from schedules.space.estimate.cpu.rates import CpuRates
from schedules.space.holes import Columns


def one(nest: Nest, machine: CpuRates) -> np.ndarray:
    """The features of a concrete nest."""
    return Estimate(CPU_FORMULAS, analyse(nest), machine).features(np.zeros((1, 0), np.int64))[0]


@pytest.mark.fast("add", "argmin", "fused_multiply_add", "matmul", "norm2", "reduce_sum", "softmax")
@pytest.mark.parametrize("name", sorted(ops.REGISTRY))
def test_features_are_those_of_the_instantiated_nest(name: str) -> None:
    rng = np.random.default_rng(11)
    for seed in range(2):
        case = library_case(name, np.random.default_rng([seed, 5]), 40)
        space = derive(case.dag, target(1 + seed % 2))
        for k in rng.permutation(len(space.sketches))[:3]:
            rows = space.sample(k, 64, rng)
            rows = rows[space.valid(k, rows)][:2]
            found = space.features(k, rows)
            for row, got in zip(rows, found, strict=True):
                nest = Schedule.replay(case.dag, space.trace(k, row), space.target).nest
                want = one(nest, CpuRates.of(space.target))
                # Panels of nested sums and the tile around them are two holes. Neither is known to divide the
                # other, so what is read may be estimated higher before both are filled.
                most = 1.5 if "sums=nested" in space.sketches[k] else 1.0
                each = zip(FEATURE_NAMES, got, want, strict=True)
                wrong = [n for n, g, w in each if not w <= g <= most * w]
                assert not wrong, f"{case.label} {space.sketches[k]} {row.tolist()}: {wrong}"


@pytest.mark.parametrize("name", ["column_argmin", "contract4", "index_maps", "two_products", "reverse"])
def test_so_they_are_for_users_own_expressions(name: str) -> None:
    rng = np.random.default_rng(2)
    case = own_case(name, rng, 30)
    space = derive(case.dag, target(2))
    rows = space.sample(0, 64, rng)
    rows = rows[space.valid(0, rows)][:4]
    for row, got in zip(rows, space.features(0, rows), strict=True):
        nest = Schedule.replay(case.dag, space.trace(0, row), space.target).nest
        assert np.array_equal(got, one(nest, CpuRates.of(space.target)))


@pytest.mark.fast("add", "avg_pool2d", "fused_multiply_add", "matmul_bias_relu", "permute")
@pytest.mark.parametrize("name", sorted(BIG))
def test_features_are_finite_and_independent_of_the_batch(name: str) -> None:
    space = big_space(name)
    rng = np.random.default_rng(0)
    for k in range(len(space.sketches)):
        rows = space.sample(k, 64, rng)
        found = space.features(k, rows)
        assert found.shape == (64, len(space.feature_names)) and found.dtype == np.float32
        assert np.isfinite(found).all()
        assert np.array_equal(found[7:9], space.features(k, rows[7:9]))
        assert len(space.features(k, rows[:0])) == 0
        assert len(space.valid(k, rows[:0])) == 0


def _counted(nest: Nest, arrays: dict[str, np.ndarray]) -> int:
    """Bytes that the interpreter reads and writes."""
    counts: dict[str, int] = {}
    interp.run(nest, arrays, counts=counts)
    return sum(n * arrays[key.split()[1]].itemsize for key, n in counts.items())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bytes_of_an_elementwise_nest_are_those_counted(dtype: str) -> None:
    n = 256
    w = ops.workload("fused_multiply_add", {"n": n}, dtype)
    space = derive(w.dag, target())
    arrays = {t.name: np.ones(t.shape, t.dtype) for t in w.dag.params}
    rows = space.sample(0, 20, np.random.default_rng(0))
    tile = rows[:, space.holes(0).index("e.vec")] * rows[:, space.holes(0).index("e.body")]
    checked = 0
    for row in rows[n % tile == 0][:3]:
        nest = Schedule.replay(w.dag, space.trace(0, row), space.target).nest
        q = measure(analyse(nest)[0], Columns(), CpuRates.of(space.target))
        assert q["memory_bytes"] == 5 * n * np.dtype(dtype).itemsize == _counted(nest, arrays)
        checked += 1
    assert checked


def test_bytes_of_a_copy_with_reuse_are_counted_once() -> None:
    """What is read again counts once toward memory, as often as it is read toward the first cache."""
    a, b = te.placeholder((8, 16), name="a"), te.placeholder((16,), name="b")
    dag = te.dag([a, b, te.compute((8, 16), lambda i, j: a[i, j] + b[j], "c")])
    s = Schedule(dag)
    s.vectorize(s.loops("c")[-1])
    q = measure(analyse(s.nest)[0], Columns(), CpuRates.of(target()))
    assert q["memory_bytes"] == (128 + 16 + 128) * 4
    arrays = {t.name: np.ones(t.shape, np.float32) for t in dag.params}
    assert _counted(s.nest, arrays) == (128 + 128 + 128) * 4 == q["l1_traffic"]


def test_what_is_read_twice_in_one_place_is_one_read() -> None:
    x = te.placeholder((64,), name="x")
    s = Schedule(te.dag([x, te.compute((64,), lambda i: x[i] * x[i] + x[63 - i], "y")]))
    s.vectorize(s.split(s.loops("y")[0], (None, 16))[1])
    (b,) = analyse(s.nest)
    assert [(a.buffer, a.write) for a in b.accesses] == [("y", True), ("x", False), ("x", False)]
    assert b.flops == 2


def measured(s: Schedule) -> dict[str, Number]:
    """The quantities of a schedule's one block."""
    (b,) = analyse(s.nest)
    return measure(b, Columns(), CpuRates.of(target()))


def test_a_matrix_product_in_registers() -> None:
    """6 rows of 2 vectors: 12 accumulators, 2 vectors of b and a broadcast element of a."""
    w = ops.workload("matmul", {"m": 12, "n": 32, "k": 10})
    s = Schedule(w.dag)
    i, j, k = s.loops("c")
    i0, i1 = s.split(i, (None, 6))
    j0, j1 = s.split(j, (None, 16))
    s.reorder(i0, j0, k, i1, j1)
    s.unroll(i1)
    s.vectorize(j1)
    q = measured(s)
    assert q["vectors"] == 12 and q["lanes"] == 16 and q["unrolled"] == 6
    assert q["reduction"] == 10 and q["outer"] == 4 and q["instances"] == 12 * 32 * 10
    assert q["registers"] == 12 + 2 + 1 and q["spills"] == 0 and q["gathers"] == 0
    assert q["inner_bytes"] == (6 * 16 + 6 * 10 + 10 * 16) * 4
    assert q["memory_bytes"] == (12 * 32 + 12 * 10 + 10 * 32) * 4
    assert set(q) == set(FEATURES_PER_BLOCK)


@pytest.mark.parametrize(
    ("n", "k", "ways"),
    [
        (1024, 64, 64 / 8),  # 64 rows of b, 4 KiB apart: all in one set of 8 ways
        (1040, 64, 1 / 8),  # 65 lines apart: each in a set of its own
        (1040, 1024, 12 / 8),  # 12 rows of a, 4 KiB apart
    ],
)
def test_rows_a_power_of_two_apart_share_few_cache_sets(n: int, k: int, ways: float) -> None:
    s = Schedule(ops.workload("matmul", {"m": 12, "n": n, "k": k}).dag)
    i, j, r = s.loops("c")
    r0, r1 = s.split(r, (None, 64))
    j0, j1 = s.split(j, (None, 16))
    s.reorder(r0, j0, r1, i, j1)
    s.unroll(i)
    s.vectorize(j1)
    q = measured(s)
    assert q["l1_conflicts"] == pytest.approx(ways)
    assert q["reduction"] == 64 and q["parts"] == k // 64
    calm = Schedule(ops.workload("matmul", {"m": 12, "n": 1040, "k": 64}).dag)
    assert measured(calm)["l1_conflicts"] < 1


@pytest.mark.parametrize(
    ("k", "n", "read", "write"),
    [
        (24, 40, 32, 32),  # rows of 96 and of 160 bytes
        (1024, 40, 4096, 32),
        (24, 1 << 16, 16 << 10, 16 << 10),  # of b, and more than is told apart
    ],
)
def test_alignment_of_rows_is_a_power_of_two(k: int, n: int, read: int, write: int) -> None:
    q = measured(Schedule(ops.workload("matmul", {"m": 3, "n": n, "k": k}).dag))
    assert (q["read_alignment"], q["write_alignment"]) == (read, write)
    flat = measured(Schedule(ops.workload("add", {"n": 4096}).dag))
    assert flat["read_alignment"] == flat["write_alignment"] == 0  # one row


@pytest.mark.parametrize(("rows", "columns"), [(1, 6), (2, 3), (6, 1)])
def test_tiles_of_planes_read_a_strip_of_each_row(rows: int, columns: int) -> None:
    """A pixel's channels lie side by side, and so do the pixels of a row; rows are pages apart."""
    shape = {"b": 1, "h": 96, "w": 96, "ci": 128, "co": 64, "kh": 1, "kw": 1}
    s = Schedule(ops.workload("conv2d", shape).dag)
    b, x, y, c, *red = s.loops("y")
    x0, x1 = s.split(x, (None, rows))
    y0, y1 = s.split(y, (None, columns))
    c0, c1 = s.split(c, (None, 16))
    s.reorder(b, x0, y0, c0, *red, x1, y1, c1)
    s.unroll(x1)
    s.unroll(y1)
    s.vectorize(c1)
    q = measured(s)
    pixels, weights = 96 * 96 * 128, 128 * 64  # of which a strip is 16
    assert q["strips"] == pytest.approx((rows * pixels + 128 * weights) / (pixels + weights))
    assert q["paged_rows"] == rows


def test_whether_rows_are_pipelined_is_told() -> None:
    s = Schedule(ops.workload("matmul", {"m": 3, "n": 8, "k": 5}).dag)
    assert measured(s)["pipelined"] == 0
    s.annotate(s.loops("c")[0], "software_pipeline", 1)
    assert measured(s)["pipelined"] == 1


@pytest.mark.parametrize(
    ("rows", "lanes", "run"),
    [
        (8, 16, 4096),  # eight rows at a time, each to its end
        (8, 128, 4096),
        (64, 16, 16),  # sixty-four of them: a vector of each, then the next row
        (64, 128, 128),
    ],
)
def test_few_rows_are_read_to_their_end_and_many_in_short_runs(rows: int, lanes: int, run: int) -> None:
    s = Schedule(ops.workload("matmul", {"m": 1, "n": 4096, "k": 4096}).dag)
    i, j, r = s.loops("c")
    r0, r1 = s.split(r, (None, rows))
    j0, j1 = s.split(j, (None, lanes))
    s.reorder(i, r0, j0, r1, j1)
    s.vectorize(j1)
    q = measured(s)
    assert q["memory_runs"] == pytest.approx(4096 * 4096 / run + 1, rel=0.01)  # a follows on


def test_whole_rows_of_a_small_dimension_follow_each_other() -> None:
    """Pixels of 64 channels: all 512 of a row of the image are one run, whatever tiles they are read in."""
    s = Schedule(ops.workload("conv2d", {"h": 512, "w": 512, "ci": 64, "co": 64, "k": 1}).dag)
    *_, p, q, o, _, _, c = s.loops("y")
    q0, q1 = s.split(q, (None, 16))
    s.reorder(p, q0, c, q1, o)
    s.unroll(q1)
    s.vectorize(o)
    found = measured(s)
    assert found["memory_runs"] == pytest.approx(512, rel=0.05)


def test_loops_that_run_once_do_not_end_a_run() -> None:
    """The kernel's own loops of a 1x1x1 convolution lie between channels and pixels."""
    s = Schedule(ops.workload("conv3d", {"d": 128, "h": 64, "w": 64, "ci": 64, "co": 64, "k": 1}).dag)
    *spatial, q, o, r0, r1, r2, c = s.loops("y")
    s.reorder(*spatial, q, r0, r1, r2, c, o)
    s.vectorize(o)
    assert measured(s)["memory_runs"] == pytest.approx(128 * 64, rel=0.05)  # rows of pixels


@pytest.mark.parametrize(
    ("order", "unrolled", "run"),
    [
        ("jIk", 1, 16),  # a loop over rows of b, for several rows of a: of each row a vector
        ("jIk", 8, 4096),  # unrolled: each row has an instruction of its own, that goes on along it
        ("kIj", 1, 4096),  # row by row
    ],
)
def test_rows_are_followed_where_instructions_go_on_along_them(order: str, unrolled: int, run: int) -> None:
    s = Schedule(ops.workload("matmul", {"m": 16, "n": 4096, "k": 4096}).dag)
    i, j, r = s.loops("c")
    i0, i1 = s.split(i, (None, 2))
    j0, j1 = s.split(j, (None, 16))
    r0, r1, r2 = s.split(r, (None, 8 // unrolled, unrolled))
    s.reorder(r0, *({"I": i0, "j": j0, "k": r1}[x] for x in order), r2, i1, j1)
    s.unroll(i1)
    s.unroll(r2)
    s.vectorize(j1)
    assert measured(s)["memory_runs"] == pytest.approx(4096 * 4096 / run, rel=0.3)  # a has some too


@pytest.mark.parametrize(
    ("rows", "taps", "held"),
    [
        (2, "unroll", 0),  # 4 accumulators, 2 operands, 4 pixels that later taps read: 10 registers of 16
        (3, "unroll", 9 + 2 + 9 - 16),
        (3, "serial", 0),  # each tap reads anew
    ],
)
def test_what_later_taps_read_again_takes_registers(rows: int, taps: str, held: int) -> None:
    s = Schedule(ops.workload("depthwise_conv2d", {"h": 14, "w": 14, "c": 8, "k": 3}).dag)
    b, p, q, c, r0, r1 = s.loops("y")
    p0, p1 = s.split(p, (None, rows))
    q0, q1 = s.split(q, (None, rows))
    s.reorder(b, p0, q0, r0, r1, p1, q1, c)
    s.unroll(p1)
    s.unroll(q1)
    s.vectorize(c)
    if taps == "unroll":
        s.unroll(r0)
        s.unroll(r1)
    q = measured(s)
    assert q["held"] == held and q["spills"] == 0


def test_rows_that_share_cache_sets_cost_time_beside_what_memory_takes() -> None:
    def a_column(n: int) -> float:
        s = Schedule(ops.workload("matmul", {"m": 8, "n": n, "k": 1024}).dag)
        i, j, r = s.loops("c")
        i0, i1 = s.split(i, (None, 4))
        r0, r1 = s.split(r, (None, 64))
        j0, j1 = s.split(j, (None, 16))
        s.reorder(r0, j0, i0, r1, i1, j1)
        s.unroll(i1)
        s.vectorize(j1)
        q = measured(s)
        assert q["memory_cycles"] > q["compute_cycles"]
        return float(q["cycles"]) / n

    assert a_column(8192) > 1.05 * a_column(8208)


def _turned(lanes: int, rows: int = 16, n: int = 4096) -> dict[str, Number]:
    """A matrix transposed by tiles, columns of tiles one after the other, and streamed to memory."""
    w = ops.workload("permute", {"shape": (n, n), "axes": (1, 0)})
    s = Schedule(w.dag)
    i, j = s.loops("y")
    i0, i1 = s.split(i, (None, rows))
    j0, j1 = s.split(j, (None, lanes))
    s.reorder(j0, i0, i1, j1)
    s.unroll(i1)
    s.vectorize(j1)
    s.annotate("y", "nontemporal", 2)
    return measured(s)


def test_single_lines_are_streamed_at_half_the_speed_of_pairs() -> None:
    moved = {lanes: _turned(lanes)["from_memory"] for lanes in (16, 32, 64)}
    size = 4096 * 4096 * 4
    assert moved == {16: size + 2 * size, 32: 2 * size, 64: 2 * size}


def test_lines_that_follow_each_other_are_no_single_ones() -> None:
    x = te.placeholder((1 << 22,), name="x")
    s = Schedule(te.dag([x, te.compute((1 << 22,), lambda i: x[i] + 1.0, "y")]))
    s.vectorize(s.split(s.loops("y")[0], (None, 16))[1])
    s.annotate("y", "nontemporal", 1)
    assert measured(s)["from_memory"] == 2 * (4 << 22)


def test_so_many_rows_are_followed_and_no_more() -> None:
    """Instructions of a tile each go along a row of their own; of 64, prefetching follows half."""
    assert _turned(32)["memory_runs"] <= 4096  # rows
    assert _turned(64)["memory_runs"] == pytest.approx(4096 * 4096 / 16 / 2, rel=0.01)


def test_a_virtual_machine_does_not_have_its_hosts_third_cache_to_itself() -> None:
    """It may name all of it, 480 MB, as that of two cores: 64 MB are streamed there too."""
    limits = dict(target(vector_bytes=64).limits)
    w = ops.workload("permute", {"shape": (4096, 4096), "axes": (1, 0)})
    chosen = {}
    for l3 in (16 << 20, 240 << 20):
        here = replace(target(), limits=tuple(sorted({**limits, "l3_bytes": l3}.items())))
        space = derive(w.dag, here)
        rows = space.sample(0, 200, np.random.default_rng(0))
        est = space.features(0, rows)[:, FEATURE_NAMES.index("est_time_s")]
        chosen[l3] = rows[est.argmin()].tolist()
        assert rows[est.argmin(), space.holes(0).index("y.stream")] == 2
    assert chosen[16 << 20] == chosen[240 << 20]


def test_memory_answers_slower_over_a_mesh() -> None:
    host = replace(target(), arch="znver4", features=())
    nest = Schedule(ops.workload("add", {"n": 1 << 24}).dag).nest
    one, *servers = (
        measure(analyse(nest)[0], Columns(), CpuRates.of(t))["memory_cycles"]
        for t in (host, replace(host, arch="icelake-server"), replace(host, features=("amx-tile",)))
    )
    assert servers[0] == servers[1] > 1.2 * one


# -- limits ------------------------------------------------------------------------------------


def _matmul() -> DerivedSpace:
    return big_space("matmul")


def test_limits_drop_register_tiles_that_spill() -> None:
    space = _matmul()
    k = next(k for k, n in enumerate(space.sketches) if "c.vec" in space.holes(k))
    rows = space.sample(k, 512, np.random.default_rng(0))
    facts, env = space.sketch(k).estimate.facts, Columns(zip(space.holes(k), rows.T, strict=True))
    m = CpuRates.of(space.target)
    spills = np.max(
        [np.broadcast_to(measure(b, env, m)["spills"], 512) for b in facts if b.reduces], axis=0
    )
    ok = space.valid(k, rows)
    assert (spills[ok] <= Limits().spilled_registers).all()
    assert (spills > Limits().spilled_registers).any() and ok.any()
    wide = replace(m, registers=1000.0)
    assert within(facts, env, wide).sum() > ok.sum()


def test_limits_bound_lanes_unrolled_code_and_buffers() -> None:
    space = _matmul()
    rows = space.sample(0, 256, np.random.default_rng(0))
    facts, env = space.sketch(0).estimate.facts, Columns(zip(space.holes(0), rows.T, strict=True))
    m = CpuRates.of(space.target)
    base = within(facts, env, m)
    few = within(facts, env, m, Limits(unrolled_vectors=4))
    assert (base & ~few).any() and not (few & ~base).any()
    assert not within(facts, env, m, Limits(scratch_bytes=1 << 10)).any()
    lanes = np.max([np.broadcast_to(measure(b, env, m)["lanes"], 256) for b in facts], axis=0)
    assert (lanes[base] <= MAX_LANES).all()


def test_limits_count_every_copy_of_a_peeled_tile() -> None:
    params = {"h": 56, "w": 56, "c": 32, "kh": 3, "kw": 3, "padding": 1}
    space = derive(ops.workload("depthwise_conv2d", params).dag, target())
    k = space.sketches.index("pad=inline y.unroll=yes")
    facts = space.sketch(k).estimate.facts
    rows = space.sample(k, 512, np.random.default_rng(0))
    env = Columns(zip(space.holes(k), rows.T, strict=True))
    m = CpuRates.of(space.target)
    [y] = [b for b in facts if b.name == "y"]
    parts = np.minimum(env["y.x1.mid"], 3) * np.minimum(env["y.x2.mid"], 3)
    assert set(parts.tolist()) == {4, 6, 9}
    code = measure(y, env, m)["vectors"] * parts
    base, few = within(facts, env, m), within(facts, env, m, Limits(peeled_vectors=324))
    assert np.array_equal(few, base & (code <= 324)) and (base & ~few).any() and few.any()


@pytest.mark.slow
def test_limits_bound_lanes_that_are_read_one_by_one() -> None:
    """Of a group's channels, at a border that is not copied: every lane has code of its own."""
    sizes = {"d": 1, "h": 3, "w": 11, "ci": 24, "co": 24, "groups": 8, "k": (3, 2, 3), "padding": (1, 2, 0)}
    space = derive(ops.workload("conv3d", sizes, "uint8").dag, target())
    k = space.sketches.index("pad=inline y.unroll=yes")
    facts, rows = space.sketch(k).estimate.facts, space.sample(k, 256, np.random.default_rng(0))
    env = Columns(zip(space.holes(k), rows.T, strict=True))
    m = CpuRates.of(space.target)
    [y] = [b for b in facts if b.reduces]
    lanes = measure(y, env, m)["lanes"] * measure(y, env, m)["unrolled"]
    one_by_one = register_tile(y, env, m).gathers > 0
    any_code = Limits(code=1 << 60)
    loose = within(facts, env, m, replace(any_code, guarded_lanes=1 << 30))
    ok = within(facts, env, m, any_code)
    assert np.array_equal(ok, loose & ~(one_by_one & (lanes > Limits().guarded_lanes)))
    assert (loose & ~ok).any() and ok.any()
    largest = int(np.argmax(np.where(ok & one_by_one, lanes, 0)))
    emit_module(space.dag, space.trace(k, rows[largest]), space.target)  # raises where it is too long


@pytest.mark.parametrize(
    ("op", "params"),
    [("add", {"n": 300_000_000}), ("matmul", {"m": 16385, "n": 16385, "k": 16385})],
)
def test_limits_count_no_results_and_no_more_than_is_allocated(op: str, params: dict[str, int]) -> None:
    """Results of more than a gigabyte; the accumulators of a tile, but all of an operand that is packed."""
    space = derive(ops.workload(op, params).dag, target())
    for k, name in enumerate(space.sketches):
        ok = space.valid(k, space.sample(k, 256, np.random.default_rng(0)))
        assert ok.any() == ("pack=root" not in name), name


def test_blocks_stand_side_by_side_the_hottest_first() -> None:
    case = library_case("transpose_batch_matmul_softmax", np.random.default_rng(1), 40)
    space, rng = derive(case.dag, target()), np.random.default_rng(4)
    rows = space.sample(0, 64, rng)
    rows = rows[space.valid(0, rows)][:8]
    machine, orders = CpuRates.of(space.target), set()
    for row, got in zip(rows, space.features(0, rows), strict=True):
        nest = Schedule.replay(case.dag, space.trace(0, row), space.target).nest
        each = [measure(b, Columns(), machine) for b in analyse(nest)]
        order = sorted(range(len(each)), key=lambda k: -float(each[k]["cycles"]))
        found = dict(zip(FEATURE_NAMES, got.tolist(), strict=True))
        for n, k in enumerate(order[:3]):
            for f in FEATURES_PER_BLOCK:
                assert found[f"block{n}.{f}"] == np.float32(each[k][f]), (n, f)
        assert found["total.cycles"] == pytest.approx(sum(float(q["cycles"]) for q in each), rel=1e-6)
        orders.add(tuple(order[:3]))
    assert len(orders) > 1, "rows of one matrix differ in what is hottest"
