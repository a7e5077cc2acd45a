"""How the estimates take loops that are one instruction: as vectors, a lane of each operand being one
element."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from dot_products import interleaving, product, tensorized
from space_cases import target

from cost_model.analytic import AnalyticModel
from cost_model.pretrained import Prior, shipped
from schedules import te
from schedules.instructions import INSTRUCTIONS, Instruction
from schedules.model import Target
from schedules.schedule import Schedule
from schedules.space import DerivedSpace, derive
from schedules.space.estimate.cpu.facts import BlockFacts, analyse
from schedules.space.estimate.cpu.features import CPU_FORMULAS
from schedules.space.estimate.cpu.limits import within
from schedules.space.estimate.cpu.quantities import FEATURES_PER_BLOCK, measure, register_tile, step_cycles
from schedules.space.estimate.cpu.rates import TILE_BYTES, CpuRates
from schedules.space.estimate.cpu.traffic import waits
from schedules.space.holes import Columns
from schedules.space.sketch_builder import SketchBuilder, enumerate_drafts
from schedules.te.compute_dag import ComputeDAG

DOTS = ("vdpbf16ps", "vpdpbusd")
LIMITS = {**dict(target(1, 64).limits), "vector_registers": 32}
WIDE = Target("cpu", "x86-64-v4", "", ("avx512bf16", "avx512vnni"), 1, tuple(sorted(LIMITS.items())))
NOTHING = Columns({})


def facts(s: Schedule, name: str) -> BlockFacts:
    return next(b for b in analyse(s.nest) if b.name == name)


def in_floats(m: int, n: int, k: int, rows: int, vectors: int, steps: int) -> Schedule:
    """`tensorized` for float32, of which an element is a lane: nothing is interleaved."""
    a, b = te.placeholder((m, k), "float32", "a"), te.placeholder((k, n), "float32", "b")
    r = te.reduce_axis(k, "k")
    s = Schedule(te.dag([a, b, te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "c")]))
    s.cache_write("c", "local")
    s.cache_read("c", "b", "global")
    s.pack("b_global", (0, vectors * 16), (1, 0, 2))
    s.vectorize(s.split(s.loops("b_global")[2], (None, 16))[1])
    io, ii = s.split("c_write_x0", (None, rows))
    jo, ji = s.split("c_write_x1", (None, vectors * 16))
    s.reorder(jo, io, ii, ji)
    s.unroll(ii)
    s.vectorize(ji)
    s.compute_at("c", io)
    i, j, k0 = (x for x in s.loops("c") if x not in (jo, io))
    j0, j1 = s.split(j, (None, 16))
    ko, ku = s.split(k0, (None, steps))
    s.reorder(ko, ku, i, j0, j1)
    for loop in (i, j0, ku):
        s.unroll(loop)
    s.vectorize(j1)
    s.decompose_reduction("c", ko)
    return s


# Of the product of 48 x 192 x 500 in floats, before estimates knew instructions: the shipped models do not.
OF_FLOATS = {
    "instances": 4608000, "vectors": 24, "registers": 14, "l1_conflicts": 0.976562, "l2_conflicts": 0.125,
    "lanes": 16, "lane_use": 1, "unrolled": 24, "reduction": 250, "parts": 1, "outer": 48, "parallel": 1,
    "balance": 1, "tail_waste": 2, "loads": 14, "issue_cycles": 13, "inner_bytes": 104768,
    "inner_in_l1": 3.197266, "l1_traffic": 10752000, "l2_traffic": 5028864, "memory_bytes": 516864,
    "fetched_bytes": 36864, "from_l2": 5065728, "paged_rows": 1, "l1_touched": 1408, "l2_touched": 519168,
    "l1_run": 156.444444, "l2_run": 86528, "read_alignment": 64, "write_alignment": 256,
    "compute_cycles": 156288, "memory_cycles": 79152, "cycles": 172118.4,
}  # fmt: skip


def test_quantities_of_floats_are_what_they_were() -> None:
    got = measure(facts(in_floats(48, 192, 500, 4, 3, 2), "c"), NOTHING, CpuRates.of(WIDE))
    assert {q: float(got[q]) for q in FEATURES_PER_BLOCK if got[q]} == pytest.approx(OF_FLOATS, rel=1e-6)


@pytest.mark.parametrize("name", DOTS)
@pytest.mark.parametrize("tile", [(4, 4, 1), (3, 2, 2), (8, 3, 4)])
def test_a_product_has_the_quantities_of_one_in_floats(name: str, tile: tuple[int, int, int]) -> None:
    """With as many lanes as terms are left of its sums."""
    ins = INSTRUCTIONS[name]
    terms = ins.iterations["t"]
    s = tensorized(product(ins, 48, 192, 32 * terms), ins, *tile)
    m = CpuRates.of(WIDE)
    got = measure(facts(s, "c"), NOTHING, m)
    want = measure(facts(in_floats(48, 192, 32, *tile), "c"), NOTHING, m)
    assert {q: float(got[q]) for q in FEATURES_PER_BLOCK} == {q: float(want[q]) for q in FEATURES_PER_BLOCK}


@pytest.mark.parametrize("name", DOTS)
def test_a_copy_that_interleaves_is_one_of_words(name: str) -> None:
    ins = INSTRUCTIONS[name]
    terms = ins.iterations["t"]
    s = tensorized(product(ins, 8, 128, 16 * terms), ins, 4, 4, 1)
    b = facts(s, "b_global")
    tile = register_tile(b, NOTHING, CpuRates.of(WIDE))
    assert (tile.lanes, tile.vectors, tile.gathers) == (16, 1, 0)
    assert tile.loads == terms + 1  # a row each, and what is written
    q = measure(b, NOTHING, CpuRates.of(WIDE))
    assert q["instances"] == 128 * 16 and q["tail_waste"] == 1 and q["memory_bytes"] == 2 * 128 * 16 * 4
    assert q["write_alignment"] == 4 * 64  # of a panel's row


def tiles(d: SketchBuilder, ins: Instruction) -> None:
    """`tensorized` with its tile as holes."""
    s, b = d.s, d.s.nest.buffer("b").dtype
    terms = ins.iterations["t"]
    rows, vec = d.choice("rows", (1, 2, 3, 4)), 64
    s.cache_write("c", "local")
    s.cache_read("c", "b", "global")
    s.pack("b_global", (terms, vec), (1, 0, 3, 2))
    s.tensorize(s.split(s.loops("b_global")[2], (None, 16))[1], interleaving(b))
    io, ii = s.split("c_write_x0", (None, rows))
    jo, ji = s.split("c_write_x1", (None, vec))
    s.reorder(jo, io, ii, ji)
    s.unroll(ii)
    s.vectorize(ji)
    s.compute_at("c", io)
    i, j, k = (x for x in s.loops("c") if x not in (jo, io))
    j0, j1 = s.split(j, (None, 16))
    kk, ki = s.split(k, (None, terms))
    ko, ku = s.split(kk, (None, d.choice("steps", (1, 2, 4))))
    s.reorder(ko, ku, i, j0, j1, ki)
    for loop in (i, j0, ku):
        s.unroll(loop)
    init = s.decompose_reduction("c", ko)
    s.vectorize([x for x in s.loops(init) if x not in (jo, io)][-1])
    s.tensorize(j1, ins)


def with_holes(dag: ComputeDAG, ins: Instruction, machine: Target) -> DerivedSpace:
    return DerivedSpace(dag, machine, enumerate_drafts(dag, machine, lambda d: tiles(d, ins)))


@pytest.mark.parametrize("name", DOTS)
def test_features_of_rows_are_those_of_the_instantiated_nests(name: str) -> None:
    ins = INSTRUCTIONS[name]
    dag = product(ins, 24, 128, 16 * ins.iterations["t"])
    space = with_holes(dag, ins, WIDE)
    rows = space.sample(0, 16, np.random.default_rng(0))
    for row, got in zip(rows, space.features(0, rows), strict=True):
        nest = Schedule.replay(dag, space.trace(0, row), WIDE).nest
        want = CPU_FORMULAS.of(nest, WIDE).features(np.zeros((1, 0), np.int64))[0]
        assert np.array_equal(got, want), space.trace(0, row)


# -- registers of their own -----------------------------------------------------------------------


def in_tiles(rows: int, columns: int, ins: Instruction) -> Schedule:
    """A product of 96 x 128 x 128 in ``rows`` by ``columns`` registers of results."""
    s = Schedule(product(INSTRUCTIONS["vdpbf16ps"], 96, 128, 128))
    s.cache_write("c", "local")
    s.cache_read("c", "b", "global")
    s.pack("b_global", (2, 16), (1, 0, 3, 2))
    io, ii = s.split("c_write_x0", (None, 16 * rows))
    jo, ji = s.split("c_write_x1", (None, 16 * columns))
    s.reorder(io, jo, ii, ji)
    s.compute_at("c", jo)
    i, j, k = (x for x in s.loops("c") if x not in (jo, io))
    (i0, i1), (j0, j1) = s.split(i, (None, 16)), s.split(j, (None, 16))
    ko, k1, t = s.split(k, (None, 16, 2))
    s.reorder(ko, i0, j0, i1, j1, k1, t)
    s.unroll(i0)
    s.unroll(j0)
    s.decompose_reduction("c", ko)
    s.tensorize(i1, ins)
    return s


def test_tiles_are_registers() -> None:
    ins, m = INSTRUCTIONS["tdpbf16ps"], CpuRates.of(WIDE)
    unit = m.of_instruction(ins)
    b = facts(in_tiles(2, 2, ins), "c")
    tile = register_tile(b, NOTHING, unit)
    assert (tile.lanes, tile.unrolled, tile.vectors) == (256, 4, 4)
    assert (tile.accumulators, tile.registers, tile.spills, tile.gathers) == (4, 6, 0, 0)
    assert tile.loads == 16 * (2 * 2 + 2)  # rows: each lies apart, those of the argument across two lines
    q = measure(b, NOTHING, m)
    assert q["instances"] == 96 * 128 * 128 / 32 and q["tail_waste"] == 1
    waits = step_cycles(b, tile, NOTHING, unit)
    assert waits.math == 4 * 16 and waits.chains == 52 and waits.loads == 60


@pytest.mark.parametrize(
    "rows, columns, spills, fits", [(2, 3, 0, True), (3, 3, 3, False), (6, 4, 18, False)]
)
def test_a_tile_larger_than_the_unit_is_beyond_the_limits(
    rows: int, columns: int, spills: int, fits: bool
) -> None:
    ins, m = INSTRUCTIONS["tdpbf16ps"], CpuRates.of(WIDE)
    s = in_tiles(rows, columns, ins)
    b = facts(s, "c")
    assert register_tile(b, NOTHING, m.of_instruction(ins)).spills == spills
    assert bool(within(analyse(s.nest), NOTHING, m)) is fits


def test_four_tiles_are_estimated_faster_than_one() -> None:
    ins, m = INSTRUCTIONS["tdpbf16ps"], CpuRates.of(WIDE)
    one, two, four = (
        measure(facts(in_tiles(*tile, ins), "c"), NOTHING, m)["cycles"] for tile in ((1, 1), (1, 2), (2, 2))
    )
    assert four < two < one


SERVER = replace(
    WIDE,
    features=("amx-int8", "amx-tile"),
    limits=tuple(sorted({**LIMITS, "l1_bytes": 48 << 10, "l2_bytes": 2 << 20, "l3_bytes": 64 << 20}.items())),
)


def integers(size: int) -> tuple[DerivedSpace, int]:
    """The space of an integer product of ``size`` cubed, and its sketch by tiles."""
    a = te.placeholder((size, size), "uint8", "a")
    b, r = te.placeholder((size, size), "int8", "b"), te.reduce_axis(size, "r")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "c")
    space = derive(te.dag([a, b, c]), SERVER)
    return space, space.sketches.index("c.with=tdpbusd")


def rows_of(space: DerivedSpace, k: int, *middle: tuple[int, int]) -> np.ndarray:
    """Rows of decisions: tiles of 32 by 32, in (rows, columns) of tiles at a time."""
    chosen = {"c.x0": 32, "c.vec": 32, "c.steps": 1}
    return np.array(
        [[(chosen | {"c.x0.mid": i, "c.x1.mid": j})[h] for h in space.holes(k)] for i, j in middle]
    )


def test_tiles_that_go_on_along_rows_of_a_result_are_estimated_faster() -> None:
    """Down the columns, each row of a tile is in another page than the last tile's, until the next column. So
    stores wait. A few rows of tiles at a time are as good. Order of the times that were measured."""
    space, k = integers(1024)
    features = space.features(k, rows_of(space, k, (32, 32), (2, 2), (32, 1), (32, 4)))
    along, few, down, pairs = features[:, space.feature_names.index("est_time_s")]
    assert along < few < pairs < down
    assert down > 1.2 * along and few < 1.1 * along


@pytest.mark.parametrize("size, waited", [(1024, True), (256, False)])
def test_only_results_beyond_the_second_cache_are_waited_for(size: int, waited: bool) -> None:
    space, k = integers(size)
    m = CpuRates.of(SERVER)
    for middle, down in (((size // 32, 1), True), ((2, size // 32), False)):
        trace = space.trace(k, rows_of(space, k, middle)[0])
        s = Schedule.replay(space.dag, trace, SERVER)
        assert (waits(facts(s, "c_write"), NOTHING, m) > 0.05 * size * size) == (waited and down)
        assert waits(facts(s, "c"), NOTHING, m) == 0


def test_tiles_come_more_slowly_from_the_second_cache_than_vectors() -> None:
    ins, m = INSTRUCTIONS["tdpbusd"], CpuRates.of(SERVER)
    assert m.of_instruction(ins).rates == (TILE_BYTES, *m.rates[1:])
    assert m.of_instruction(INSTRUCTIONS["vpdpbusd"]).rates == m.rates
    b = facts(in_tiles(2, 2, INSTRUCTIONS["tdpbf16ps"]), "c")
    small = replace(m, l1=4096.0)
    held, beyond = (measure(b, NOTHING, x) for x in (m, small))
    assert beyond["from_l2"] > held["from_l2"]
    assert beyond["memory_cycles"] >= beyond["from_l2"] / TILE_BYTES


# -- machines differ -----------------------------------------------------------------------------------------


def test_what_an_instruction_costs_is_the_machines() -> None:
    """Cores with AMX take four times as long for vdpbf16ps as for a multiply-add."""
    other = replace(WIDE, features=tuple(sorted((*WIDE.features, "amx-bf16", "amx-tile"))))
    for name, more in (("vdpbf16ps", 4), ("vpdpbusd", 1)):
        b = facts(tensorized(product(ins := INSTRUCTIONS[name], 48, 128, 128), ins, 4, 4, 1), "c")
        usual, here = (CpuRates.of(t).of_instruction(ins) for t in (WIDE, other))
        tile = register_tile(b, NOTHING, usual)
        assert step_cycles(b, tile, NOTHING, usual).math == 8
        assert step_cycles(b, tile, NOTHING, here).math == 8 * more


def test_the_fast_instruction_is_estimated_first_and_the_slow_one_last() -> None:
    """A product in tiles of AMX, by multiply-adds of the same numbers, and by vdpbf16ps beside AMX."""
    features = tuple(sorted((*WIDE.features, "amx-bf16", "amx-tile")))
    m = CpuRates.of(replace(WIDE, features=features))
    dot = INSTRUCTIONS["vdpbf16ps"]
    dots = tensorized(product(dot, 96, 128, 128), dot, 4, 4, 1)
    tiles, pairs, floats = (
        measure(facts(s, "c"), NOTHING, m)["cycles"]
        for s in (in_tiles(2, 2, INSTRUCTIONS["tdpbf16ps"]), dots, in_floats(96, 128, 128, 4, 4, 1))
    )
    assert 6 * tiles < floats < pairs


# -- operations of integers ----------------------------------------------------------------------------------


def test_operations_of_integers_count_where_integers_are_computed() -> None:
    ins = INSTRUCTIONS["vpdpbusd"]
    s = Schedule(product(ins, 4, 16, 8))
    assert (facts(s, "c").flops, facts(s, "c").integer_steps) == (2, 3)  # a product takes two
    floats = Schedule(product(INSTRUCTIONS["vdpbf16ps"], 4, 16, 8))
    assert (facts(floats, "c").flops, facts(floats, "c").integer_steps) == (2, 0)
    x, at = te.placeholder((8,), name="x"), te.placeholder((8,), "int32", "at")
    s = Schedule(te.dag([x, at, te.compute((8,), lambda i: x[te.clip(at[i] + 1, 0, 7)] * 2.0, "y")]))
    assert (facts(s, "y").flops, facts(s, "y").integer_steps) == (1, 0)  # arithmetic of indices is none


def test_conversions_count_where_they_are_done() -> None:
    """Of what a block computes with and what it stores, not of copies, nor of what an instruction reads."""
    m = CpuRates.of(WIDE)
    x = te.placeholder((64,), "bfloat16", "x")
    copy = te.compute((64,), lambda i: x[63 - i], "copy")
    y = te.compute((64,), lambda i: te.cast(x[i] * 2.0, "bfloat16"), "y")
    z = te.compute((64,), lambda i: te.cast(te.cast(x[i] * 2.0, "float16"), "float32"), "z")
    s = Schedule(te.dag([x, copy, y, z]))
    found = {
        (name, a.buffer): a.conversion for name in ("copy", "y", "z") for a in facts(s, name).accesses
    }
    assert found["copy", "x"] == found["copy", "copy"] == found["z", "z"] == 0
    assert found["y", "x"] == found["z", "x"] == 1 and found["y", "y"] == 10  # a shift; rounding
    dot = INSTRUCTIONS["vdpbf16ps"]
    dots = facts(tensorized(product(dot, 96, 128, 128), dot, 4, 4, 1), "c")
    assert not any(a.conversion for a in dots.accesses)
    plain = facts(s, "y")
    free = replace(plain, accesses=tuple(replace(a, conversion=0) for a in plain.accesses))
    steps = [step_cycles(b, register_tile(b, NOTHING, m), NOTHING, m).math for b in (plain, free)]
    assert steps[0] > 3 * steps[1]


# -- first picks ---------------------------------------------------------------------------------------------

PLAIN = {"bfloat16": "bfloat16", "uint8": "int8", "int8": "int8"}  # {dtype of a: that of b}
TILES = ("amx-bf16", "amx-int8", "amx-tile")


def of_cpu(arch: str, *features: str) -> Target:
    return Target("cpu", arch, "x86_64-linux-gnu", tuple(sorted(features)), 1, WIDE.limits)


@cache
def candidates(dtype: str, machine: Target) -> tuple[DerivedSpace, np.ndarray, np.ndarray]:
    """(the space of a product, features of some of its rows, the sketch of each)."""
    a, b = te.placeholder((256, 256), dtype, "a"), te.placeholder((256, 256), PLAIN[dtype], "b")
    r = te.reduce_axis(256, "k")
    c = te.compute((256, 256), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "c")
    space = derive(te.dag([a, b, c]), machine)
    rng = np.random.default_rng(0)
    rows = [space.sample(k, 40, rng) for k in range(len(space.sketches))]
    rows = [x[space.valid(k, x)] for k, x in enumerate(rows)]
    features = np.concatenate([space.features(k, x) for k, x in enumerate(rows)])
    return space, features, np.repeat(np.arange(len(rows)), [len(x) for x in rows])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "machine", "first"),
    [
        ("bfloat16", of_cpu("znver4", "avx512bf16", "avx512vnni"), "vdpbf16ps"),
        ("uint8", of_cpu("znver4", "avx512bf16", "avx512vnni"), "vpdpbusd"),
        ("bfloat16", of_cpu("emeraldrapids", "avx512bf16", "avx512vnni", *TILES), "tdpbf16ps"),
        ("int8", of_cpu("emeraldrapids", "avx512bf16", "avx512vnni", *TILES), "tdpbssd"),
        ("uint8", of_cpu("emeraldrapids", "avx512bf16", "avx512vnni", *TILES), "tdpbusd"),
        ("bfloat16", of_cpu("emeraldrapids", "avx512bf16"), ""),  # multiply-adds of float32 are as fast
    ],
)
@pytest.mark.parametrize("model", ["analytic", "shipped"])
def test_the_fast_instruction_is_picked_without_a_trial(
    dtype: str, machine: Target, first: str, model: str
) -> None:
    space, features, sketches = candidates(dtype, machine)
    names = space.feature_names
    known = AnalyticModel(names) if model == "analytic" else Prior(names, features, shipped(machine))
    picked = space.sketches[sketches[np.argmax(known.predict(features))]]
    assert f"with={first}" in picked if first else "with=" not in picked
