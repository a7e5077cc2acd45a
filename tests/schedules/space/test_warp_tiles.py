"""Tiles of warps, stages of copies, groups of tiles and channels that lie side by side: what spaces offer
where a GPU copies in the background."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from grid_cases import Case, emulate, need_cxx, space, workload_case

from autotune import backends
from autotune.codegen.simt import emulator
from schedules import affine, ops
from schedules import expr as E
from schedules.expr import Const
from schedules.ir import Copy, Store, const, walk
from schedules.ir.grid import GridProgram
from schedules.ir.interp_grid import run_grid
from schedules.ir.warps import watch
from schedules.model import Trace
from schedules.passes.simt import lower_simt
from schedules.schedule import Schedule
from schedules.space import DerivedSpace, derive
from schedules.space.estimate.counting import number
from schedules.space.holes import Columns
from schedules.te.compute_dag import ComputeDAG

A100, H100, T4 = (backends.parse(x) for x in ("a100", "h100", "t4"))
EMULATED = backends.parse("a100-emulator")
SQUARE = {"m": 4096, "n": 4096, "k": 4096}
# What a product's own kernel in CUDA's library is: 128 x 128 x 16, warps of 64 x 64, 4 x 8 lanes, 3 stages.
HAND = {
    "c.0.warps": 2, "c.0.turns": 2, "c.0.squares": 2, "c.0.own": 4,
    "c.1.warps": 2, "c.1.turns": 16, "c.1.squares": 1, "c.1.own": 1,
    "c.group": 8, "c.store_cache": 0, "c.min_blocks": 2, "c.turns": 4, "c.unrolled": 4, "c.stages": 3,
    "a_shared.vec": 4, "b_shared.vec": 4,
}  # fmt: skip


def warps_of(found: DerivedSpace) -> int:
    return next(n for n, name in enumerate(found.sketches) if "threads=warps" in name)


def hand(target: str) -> tuple[DerivedSpace, int, np.ndarray]:
    found = derive(ops.workload("matmul", SQUARE).dag, backends.parse(target))
    n = warps_of(found)
    return found, n, np.array([[HAND[h] for h in found.holes(n)]])


def small(dag: ComputeDAG, each: int) -> Iterator[tuple[str, Trace]]:
    """Candidates of the sketches of warps, of blocks that an interpreter runs in a moment."""
    found, rng = derive(dag, A100), np.random.default_rng(0)
    for n, name in enumerate(found.sketches):
        if "threads=warps" not in name:
            continue
        rows = found.sample(n, 400, rng)
        rows = rows[found.valid(n, rows)]
        named = found.holes(n)
        tile = [k for k, h in enumerate(named) if h.endswith((".warps", ".squares", ".turns", ".own"))]
        for row in rows[np.argsort(rows[:, tile].prod(axis=1), kind="stable")][:each]:
            yield name, found.trace(n, row)


def program(dag: ComputeDAG, trace: Trace) -> GridProgram:
    return lower_simt(Schedule.replay(dag, trace, A100).nest)


@pytest.mark.parametrize("target", ["a100", "h100"])
def test_the_estimate_ranks_the_shape_of_a_library_near_the_top(target: str) -> None:
    found, n, row = hand(target)
    assert found.valid(n, row).all()
    (took,) = found.features(n, row)[:, -1]
    rng, best = np.random.default_rng(0), np.inf
    for k in range(len(found.sketches)):
        rows = found.sample(k, 4000, rng)
        best = min(best, found.features(k, rows[found.valid(k, rows)])[:, -1].min())
    assert took < 1.02 * best


@pytest.mark.slow
def test_a_warp_reads_its_operands_without_conflicts() -> None:
    """One warp's tile of 64 x 64, of one step: rows of 64 bytes, whose chunks change places."""
    dag = ops.workload("matmul", {"m": 64, "n": 64, "k": 16}).dag
    found = derive(dag, A100)
    n = warps_of(found)
    one = {**HAND, "c.0.warps": 1, "c.1.warps": 1, "c.stages": 1}
    trace = found.trace(n, np.array([one.get(h, 1) for h in found.holes(n)]))
    p = program(dag, trace)
    assert [k.block for k in p.kernels] == [(32, 1, 1)]
    a, b = np.ones((64, 16), "float32"), np.ones((16, 64), "float32")
    c = np.zeros((64, 64), "float32")
    (counts,) = watch(p, {"a": a, "b": b, "c": c})
    assert (c == 16).all()
    assert {x.name: x.cost / x.least for x in counts.of("shared")} == {"a_shared": 1.0, "b_shared": 1.0}


@pytest.mark.slow
@pytest.mark.parametrize("landing", ["late", "early", "random"])
def test_tiles_of_warps_compute_a_product_whenever_copies_land(landing: str) -> None:
    w = ops.workload("matmul", {"m": 17, "n": 18, "k": 13})
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-3, 4, t.shape).astype(t.dtype) for t in w.dag.inputs)
    for name, trace in small(w.dag, 2):
        p = program(w.dag, trace)
        assert any(isinstance(x, Copy) for k in p.kernels for x in walk(k.body)), name
        arrays = {"a": a, "b": b, "c": np.full((17, 18), np.nan, "float32")}
        run_grid(p, arrays, landing=landing)
        assert np.array_equal(arrays["c"], a @ b), name


# Sizes that tiles of warps do not divide.
ODD: dict[str, dict[str, object]] = {
    "matmul": {"m": 37, "n": 52, "k": 36},
    "batch_matmul": {"b": 2, "m": 19, "n": 24, "k": 17},
    "matmul_bias_relu": {"m": 33, "n": 20, "k": 40},
    "quantized_matmul": {"m": 19, "n": 33, "k": 20, "weight_zeros": 1},
    "conv2d": {"h": 7, "w": 17, "ci": 8, "co": 20, "k": 3, "padding": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("op", ODD)
def test_operators_are_right_in_any_order_of_copies(op: str) -> None:
    need_cxx()
    w = ops.workload(op, ODD[op], layout="NCHW" if op == "conv2d" else None)
    rng = np.random.default_rng(1)
    inputs = [rng.integers(-3, 4, t.shape).astype(t.dtype) for t in w.dag.inputs]
    c = Case(w.dag, tuple(inputs), tuple(ops.reference(w, inputs)))
    found, rng = derive(w.dag, EMULATED), np.random.default_rng(0)
    programs = []
    for n, name in enumerate(found.sketches):
        rows = found.sample(n, 200, rng)
        for row in rows[found.valid(n, rows)][:3]:
            s = Schedule.replay(w.dag, found.trace(n, row), EMULATED)
            programs.append((f"{name} {row.tolist()}", lower_simt(s.nest)))
    assert any("threads=warps" in name for name, _ in programs)
    obj = emulator.build(*(p for _, p in programs))
    for n, (name, p) in enumerate(programs):
        for order in ("early", "late", "random"):
            outputs = c.poisoned()
            fault = emulator.run(obj, p, [*c.inputs, *outputs], n, order=order)
            assert fault is None, f"{name}: {fault}"
            c.check(outputs, f"{name}, copies land {order}")


def test_only_gpus_that_copy_in_the_background_are_offered_stages() -> None:
    dag = ops.workload("matmul", SQUARE).dag
    for target, has in ((A100, True), (H100, True), (T4, False)):
        found = derive(dag, target)
        assert any("threads=warps" in x for x in found.sketches) is has
        holes = {h for n in range(len(found.sketches)) for h in found.holes(n)}
        assert ("c.stages" in holes) is has and ("c.prefetch" in holes) is not has


@pytest.mark.parametrize("group", [1, 4, 8])
def test_blocks_take_rows_of_tiles_in_groups(group: int) -> None:
    """Blocks one after another go down a column of the group, then to the next column."""
    found, n, row = hand("h100")
    row[0, found.holes(n).index("c.group")] = group
    s = Schedule.replay(ops.workload("matmul", SQUARE).dag, found.trace(n, row[0]), H100)
    (kernel,) = lower_simt(s.nest).kernels
    (block,) = kernel.blocks
    assert kernel.grid == (1024, 1, 1)
    (store,) = (x for x in walk(kernel.body) if isinstance(x, Store) and x.buffer == "c")
    first = dict.fromkeys({v for i in store.indices for v in E.variables(i)}, Const(0))
    tiles = []
    for place in range(2 * 32 * group):
        at = [E.substitute(i, {**first, block.var: Const(place)}) for i in store.indices]
        tiles.append([(const(affine.simplify(i, {})) or 0) // 128 for i in at])
    assert tiles == [[g * group + r, c] for g in range(2) for c in range(32) for r in range(group)]


@pytest.mark.slow
def test_groups_that_no_tiles_fill_compute_a_product() -> None:
    c = workload_case("matmul", {"m": 150, "n": 260, "k": 9})
    assert any("c.group" in space(c.dag).holes(n) for n in range(len(space(c.dag).sketches)))
    emulate(c, 8)


def test_convolutions_of_distant_channels_may_be_read_side_by_side() -> None:
    params = {"b": 2, "h": 14, "w": 14, "ci": 32, "co": 32, "k": 3, "padding": 1}
    dags = {x: ops.workload("conv2d", params, layout=x).dag for x in ("NCHW", "NHWC")}
    names = {x: derive(dag, A100).sketches for x, dag in dags.items()}
    assert any("channels=last" in n for n in names["NCHW"])
    assert not any("channels=last" in n for n in names["NHWC"])
    found = derive(dags["NCHW"], A100)
    n = next(k for k, x in enumerate(found.sketches) if "channels=last y.operands=shared" in x)
    rows = found.sample(n, 50, np.random.default_rng(0))
    p = lower_simt(Schedule.replay(dags["NCHW"], found.trace(n, rows[found.valid(n, rows)][0]), A100).nest)
    assert len(p.kernels) == 3 and len(p.scratch) == 2


def test_shallow_sums_and_products_have_no_other_channels() -> None:
    for params in (
        {"h": 14, "w": 14, "ci": 3, "co": 32, "k": 3},
        {"h": 14, "w": 14, "ci": 32, "co": 32, "k": 1},
    ):
        dag = ops.workload("conv2d", params, layout="NCHW").dag
        assert not any("channels=last" in n for n in derive(dag, A100).sketches)
    assert not any("channels" in n for n in derive(ops.workload("matmul", SQUARE).dag, A100).sketches)


def test_a_thread_of_few_registers_begins_few_copies() -> None:
    """What makes 85 copies in single elements spilled, with 32 sums and 255 registers."""
    params = {"b": 32, "h": 56, "w": 56, "ci": 64, "co": 64, "k": 3, "padding": 1}
    found = derive(ops.workload("conv2d", params, layout="NCHW").dag, H100)
    n = found.sketches.index("y.operands=shared y.taps=together")
    rows = found.sample(n, 3000, np.random.default_rng(1))
    rows = rows[found.valid(n, rows)]
    named, (k,) = found.holes(n), found.sketch(n).estimate.facts
    most = 0.0
    for row in rows:
        env = Columns(zip(named, map(int, row), strict=True))
        copies = sum(number(w.unrolled, env) / number(w.lanes, env) for w in k.work if number(w.stages, env))
        most = max(most, float(copies))
    assert 10 < most < 80
