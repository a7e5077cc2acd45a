"""A product on matrix units, scheduled by hand: what the rule for them makes is compared with it."""

from __future__ import annotations

from dataclasses import dataclass

from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG

M, N, K = 16, 8, 16  # of one mma of float16


@dataclass(frozen=True)
class WarpTiles:
    """``rows`` × ``columns`` of a warp, ``down`` × ``across`` warps of a block, ``depth`` steps of the sum at
    a time, ``stages`` of them in shared memory, and blocks in groups of ``group`` rows of tiles."""

    rows: int = 64
    columns: int = 64
    down: int = 2
    across: int = 4
    depth: int = 64
    stages: int = 3
    group: int = 8


def by_warps(dag: ComputeDAG, t: WarpTiles, product: str = "c", result: str = "c_float16") -> Schedule:
    """``result[i, j] = f(product[i, j])``, where ``product[i, j] += a[i, k] * b[k, j]`` of float16, as
    `mma.sync` of warps whose operands come through shared memory in stages."""
    s = Schedule(dag)
    s.set_scope(product, "fragment")
    tiles = {"a": [t.down * t.rows, t.depth], "b": [t.depth, t.across * t.columns]}
    for x, tile in tiles.items():
        s.pack(s.cache_read(product, x, "shared"), tile, [])  # zeros beyond the ends
        s.cache_read(product, f"{x}_shared", "fragment")
    i, j = s.loops(result)
    bi, wi, ti, ii = s.split(i, [None, t.down, t.rows // M, M])
    bj, wj, tj, jj = s.split(j, [None, t.across, t.columns // N, N])
    g, bi = s.split(bi, [None, t.group])
    s.reorder(g, bj, bi, wi, wj, ti, tj, ii, jj)
    block = s.fuse(g, bj, bi)
    s.bind(block, "blockIdx.x")
    s.bind(s.fuse(wi, wj), "threadIdx.y")
    s.compute_at(product, block)
    i, j, k = s.loops(product)[1:]
    wi, ti, ii = s.split(i, [t.down, t.rows // M, M])
    wj, tj, jj = s.split(j, [t.across, t.columns // N, N])
    ko, ki, kk = s.split(k, [None, t.depth // K, K])
    s.reorder(ko, wi, wj, ki, ti, tj, ii, jj, kk)
    s.bind(s.fuse(wi, wj), "threadIdx.y")
    s.decompose_reduction(product, ko)
    s.annotate(ko, "stages", t.stages)
    for x in "ab":
        s.compute_at(f"{x}_shared_fragment", ki)
        s.compute_at(f"{x}_shared", ko)
        _copy(s, f"{x}_shared", t.down * t.across)
        _load(s, f"{x}_shared_fragment")
    for x in (ki, ti, tj):
        s.unroll(x)
    s.tensorize(ii, "mma_m16n8k16_float32_float16")
    return s


def _copy(s: Schedule, name: str, warps: int) -> None:
    """By all threads, 8 neighbouring elements each."""
    shared = {x for b in s.blocks() if b != name for x in s.loops(b)}
    own = [x for x in s.loops(name) if x not in shared]
    outer, warp, lane, v = s.split(s.fuse(*own), [None, warps, 32, 8])
    s.reorder(warp, lane, outer, v)
    s.bind(warp, "threadIdx.y")
    s.bind(lane, "threadIdx.x")
    s.unroll(outer)
    s.vectorize(v)
    s.annotate(name, "async", 1)
    s.annotate(name, "swizzle", 128)


def _load(s: Schedule, name: str) -> None:
    """By ldmatrix, 16 × 16 elements at a time."""
    shared = {x for b in s.blocks() if b != name for x in s.loops(b)}
    rows, columns = (x for x in s.loops(name) if x not in shared)
    ro, ri = s.split(rows, [None, 16])
    co, ci = s.split(columns, [None, 16])
    s.reorder(ro, co, ri, ci)
    s.unroll(ro)
    s.unroll(co)
    s.tensorize(ri, "ldmatrix_float16_b_trans" if name.startswith("b") else "ldmatrix_float16_a")
