"""Attention on matrix units, scheduled by hand: one kernel, whose scores stay in the registers of warps."""

from __future__ import annotations

from dataclasses import dataclass

from warp_products import copy_by_threads, load_by_warps

from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG

M, N, K = 16, 8, 16  # of one mma of bfloat16
MMA = "mma_m16n8k16_float32_bfloat16"
ROWS = ("dot", "e", "mixed", "row_max", "row_max_rf", "row_max_shift", "row_max_scale", "row_sum", "inv_sum")


@dataclass(frozen=True)
class AttentionTiles:
    """``warps`` of a block, each with ``rows`` positions of q. ``part`` positions of k and v at a time, of
    which ``stages`` parts lie in shared memory."""

    warps: int = 4
    rows: int = 16
    part: int = 64
    stages: int = 1


def by_warps(dag: ComputeDAG, t: AttentionTiles) -> Schedule:
    """``y = softmax(q k^T) v`` of bfloat16 (flash attention: Dao, "FlashAttention-2", 2023): a warp has whole
    rows of the scores, so that maxima and sums of rows are those of 4 neighbouring lanes."""
    s = Schedule(dag)
    s.inline("scores")
    z, h, i, c = s.loops("y")
    bi, wi, ti, ii = s.split(i, [None, t.warps, t.rows // M, M])
    tj, jj = s.split(c, [None, N])
    s.reorder(z, h, bi, wi, ti, tj, ii, jj)
    block = s.fuse(z, h, bi)
    s.bind(block, "blockIdx.x")
    s.bind(wi, "threadIdx.y")
    for b in ("inv_sum", "row_sum", "mixed", "e", "row_max", "dot"):
        s.compute_at(b, block)
    part = s.online_rounded("row_max", ["row_sum", "mixed"], t.part)
    s.compute_at("dot", part)
    around = {block, part}
    s.decompose_reduction("row_max_rf", _own(s, "row_max_rf", around)[0])
    for x in ROWS:
        s.set_scope(x, "fragment")
    for product, *read in (("dot", "q", "k"), ("mixed", "v")):
        for x in read:
            s.cache_read(product, x, "shared")
            s.cache_read(product, f"{x}_shared", "fragment")
    _product(s, "dot", around, t, ["q_shared_fragment", "k_shared_fragment"], whole=True)
    _product(s, "mixed", around, t, ["v_shared_fragment"])
    s.annotate(part, "stages", t.stages)
    for x, where in (("k", part), ("v", part), ("q", block)):
        s.compute_at(f"{x}_shared", where)
        copy_by_threads(s, f"{x}_shared", t.warps)
    for x, how in (("q", "a"), ("k", "b"), ("v", "b_trans")):
        load_by_warps(s, f"{x}_shared_fragment", f"ldmatrix_bfloat16_{how}")
    for b in s.blocks():
        if b.startswith(("row_", "inv_", "mixed_")) or b == "e":
            _rows(s, b, around, t.warps)
    return s


def _own(s: Schedule, block: str, around: set[str]) -> list[str]:
    return [x for x in s.loops(block) if x not in around]


def _product(
    s: Schedule, block: str, around: set[str], t: AttentionTiles, reads: list[str], whole: bool = False
) -> None:
    """``block[z, h, i, j]``, a sum, as mma of warps. ``whole``: it is to start here."""
    z, h, i, j, k = _own(s, block, around)
    wi, ti, ii = s.split(i, [t.warps, t.rows // M, M])
    tj, jj = s.split(j, [None, N])
    ki, kk = s.split(k, [None, K])
    s.reorder(z, h, wi, ki, ti, tj, ii, jj, kk)
    s.bind(wi, "threadIdx.y")
    if whole:
        s.decompose_reduction(block, z)
    for x in (ki, ti, tj):
        s.unroll(x)
    for x in reads:
        s.compute_at(x, ki)
    s.tensorize(ii, MMA)


def _rows(s: Schedule, block: str, around: set[str], warps: int) -> None:
    """Let each warp do its rows. ``row_max_rf`` has one axis more, of one part."""
    own = _own(s, block, around)
    at = 3 if block.startswith("row_max_rf") else 2
    warp, _ = s.split(own[at], [warps, None])
    s.reorder(warp, *own[:at])
    s.bind(warp, "threadIdx.y")
