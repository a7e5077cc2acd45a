"""`at.explain` for GPUs: what warps access, on a device's target and on the emulator's."""

from __future__ import annotations

import re

import pytest
from said import said
from warp_products import Tiles, by_warps

import autotune as at
from autotune import backends
from autotune.report.explain.warps import MOST
from schedules import ops, te
from schedules.errors import ScheduleError
from schedules.schedule import Schedule

TARGETS = ("cuda-emulator", "h100")


def product(target: str, pad: int, n: int = 256, k: int = 256) -> Schedule:
    """A block makes 32 x 4 elements, 32 threads along its rows: they read a column of a tile of a."""
    s = Schedule(ops.workload("matmul", {"m": n, "n": n, "k": k}).dag, backends.parse(target))
    i, j, k = s.loops("c")
    bi, ti = s.split(i, 32)
    bj, jj = s.split(j, 4)
    k0, k1 = s.split(k, 32)
    s.reorder(bi, bj, k0, ti, k1, jj)
    s.bind(s.fuse(bi, bj), "blockIdx.x")
    s.bind(ti, "threadIdx.x")
    copy = s.cache_read("c", "a", "shared")
    s.compute_at(copy, k0)
    s.bind([x for x in s.loops(copy) if x.startswith(copy)][-1], "threadIdx.x")
    s.decompose_reduction("c", k0)
    if pad:
        s.annotate(copy, "pad", pad)
    return s


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_conflicts_of_banks_appear_and_padding_ends_them(target: str) -> None:
    usual, padded = (at.explain(product(target, pad)) for pad in (0, 1))
    assert usual.number("bank conflicts", "factor") > 10
    assert "turns where" in said(usual) and "a_shared" in said(usual)
    assert padded.number("bank conflicts", "factor") == 1 and "bank conflicts none" in said(padded)
    for e in (usual, padded):
        assert e.number("counted", "blocks") == 2 and e.number("counted", "of_blocks") == 8 * 64
        steps = e.number("counted", "k")
        assert 32 <= steps < 256 and f"k 256 -> {steps}" in said(e)
        assert e.number("moved in shared", "written_bytes") == 2 * 32 * steps * 4
        assert e.number("moved in shared", "read_bytes") == 2 * 32 * 4 * steps * 4


@pytest.mark.parametrize("target", TARGETS)
def test_a_transposition_is_not_coalesced_on_one_side(target: str) -> None:
    s = Schedule(ops.workload("permute", {"shape": (64, 96), "axes": (1, 0)}).dag, backends.parse(target))
    outer, inner = s.loops(s.blocks()[0])
    s.bind(outer, "blockIdx.x")
    s.bind(inner, "threadIdx.x")
    e = at.explain(s)
    needed, taken = 2 * 64 * 4 // 32, 2 * 64
    assert e.number("global memory", "share") == 2 * needed / (needed + taken)
    assert "x takes 8 times as many as it needs" in said(e)
    assert e.number("coalescing", "share") == e.number("global memory", "share")  # the estimate agrees


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("n", "differ"), [(128, 0), (120, 1)])
def test_a_tail_within_a_warp_diverges(target: str, n: int, differ: int) -> None:
    x = te.placeholder((n,), "float32", "x")
    s = Schedule([x, te.compute((n,), lambda i: x[i] * 2.0, "y")], backends.parse(target))
    block, thread = s.split("y_i", 64)
    s.bind(block, "blockIdx.x")
    s.bind(thread, "threadIdx.x")
    e = at.explain(s)
    assert e.number("divergence", "divergent") == differ
    assert ("the threads of a warp differ" if differ else "the threads of a warp agree") in said(e)
    assert e.number("global memory", "read_bytes") == e.number("global memory", "written_bytes") == 4 * n


def test_tiles_that_are_too_large_are_not_counted() -> None:
    s = Schedule(ops.workload("matmul", {"m": 512, "n": 512, "k": 512}).dag, backends.parse("h100"))
    i, j, _ = s.loops("c")
    bi, ti = s.split(i, 512)
    s.reorder(bi, ti, j)
    s.bind(bi, "blockIdx.x")
    s.bind(ti, "threadIdx.x")
    s.unroll(s.split(j, 512)[1])
    e = at.explain(s)
    assert e.number("problem", "points") == 512**3
    assert f"too many to be interpreted (at most {MOST:,})" in said(e) and "[counter]" not in said(e)


@pytest.mark.slow
def test_matrix_units_and_copies_in_the_background_are_told() -> None:
    dag = ops.workload("matmul", {"m": 64, "n": 64, "k": 128}, "float16").dag
    s = by_warps(dag, Tiles(32, 32, 2, 2, 32, 3, 1))
    e = at.explain(Schedule.replay(dag, s.trace, backends.parse("a100")))
    units = "ldmatrix_float16_a, ldmatrix_float16_b_trans, mma_m16n8k16_float32_float16"
    assert f"matrix units {units}" in said(e)
    assert "in the background, begun 2 iterations ahead" in said(e) and e.number("copies", "stages") == 3
    before = said(at.explain(product("h100", 1)))
    assert "matrix units" not in before and "in the background" not in before


def test_a_hint_of_a_block_is_none_of_a_loop() -> None:
    s = product("h100", 0)
    loop = s.loops("c")[0]
    for name, where, text in (
        ("async", loop, f"async is of a block, and {loop} is a loop; name a block"),
        ("swizzle", loop, f"swizzle is of a block, and {loop} is a loop; name a block"),
        ("stages", "a_shared", "stages is of a loop, and a_shared is a block; name a loop"),
        ("load_cache", loop, f"load_cache is of a block, and {loop} is a loop; name a block"),
    ):
        with pytest.raises(ScheduleError, match=re.escape(text)):
            s.annotate(where, name, 1 if name != "swizzle" else 32)
