"""A product of float16 on the matrix units of a GPU (sm_80 and later), written by hand in public primitives.

Run it to see the loop nest: ``python examples/matrix_units.py``. ``benchmarks/gpu.py`` times its tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

import autotune as at
from schedules import ops
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG

M, N, K = 16, 8, 16  # of one mma of float16
LOADS = {"a": "ldmatrix_float16_a", "b": "ldmatrix_float16_b_trans"}


@dataclass(frozen=True)
class Tiles:
    """``rows`` × ``columns`` of a warp, ``down`` × ``across`` warps of a block, ``depth`` steps of the sum at
    a time, ``stages`` of them in shared memory, and blocks in groups of ``group`` rows of tiles."""

    rows: int = 64
    columns: int = 64
    down: int = 2
    across: int = 2
    depth: int = 32
    stages: int = 4
    group: int = 8

    @property
    def shared_bytes(self) -> int:
        """Of the stages of both operands."""
        return self.stages * (self.down * self.rows + self.across * self.columns) * self.depth * 2


def product(m: int, n: int, k: int, tiles: Tiles = Tiles()) -> Schedule:
    """C = A·B of these sizes."""
    return by_warps(ops.workload("matmul", {"m": m, "n": n, "k": k}, "float16").dag, tiles)


def by_warps(dag: ComputeDAG, t: Tiles) -> Schedule:
    """C = A·B: a warp has its part of C in registers. A and B come to shared memory in the background,
    ``stages - 1`` iterations ahead. Each warp loads its rows and columns from there."""
    s = at.Schedule(dag)
    s.set_scope("c", "fragment")
    for x, tile in (("a", [t.down * t.rows, t.depth]), ("b", [t.depth, t.across * t.columns])):
        s.pack(s.cache_read("c", x, "shared"), tile, [])  # zeros beyond the ends
        s.cache_read("c", f"{x}_shared", "fragment")
    block = _results(s, t)
    s.compute_at("c", block)
    i, j, k = s.loops("c")[1:]
    wi, ti, ii = s.split(i, [t.down, t.rows // M, M])
    wj, tj, jj = s.split(j, [t.across, t.columns // N, N])
    ko, ki, kk = s.split(k, [None, t.depth // K, K])
    s.reorder(ko, wi, wj, ki, ti, tj, ii, jj, kk)
    s.bind(s.fuse(wi, wj), "threadIdx.y")
    s.decompose_reduction("c", ko)
    s.annotate(ko, "stages", t.stages)
    for x, load in LOADS.items():
        s.compute_at(f"{x}_shared_fragment", ki)
        s.compute_at(f"{x}_shared", ko)
        copy_by_threads(s, f"{x}_shared", t.down * t.across)
        load_by_warps(s, f"{x}_shared_fragment", load)
    for x in (ki, ti, tj):
        s.unroll(x)
    s.tensorize(ii, "mma_m16n8k16_float32_float16")
    return s


def _results(s: Schedule, t: Tiles) -> str:
    """What is done with sums, by the warps that have them; the loop over blocks."""
    i, j = s.loops("c_float16")
    bi, wi, ti, ii = s.split(i, [None, t.down, t.rows // M, M])
    bj, wj, tj, jj = s.split(j, [None, t.across, t.columns // N, N])
    g, bi = s.split(bi, [None, t.group])
    s.reorder(g, bj, bi, wi, wj, ti, tj, ii, jj)
    block = s.fuse(g, bj, bi)
    s.bind(block, "blockIdx.x")
    s.bind(s.fuse(wi, wj), "threadIdx.y")
    return block


def own_loops(s: Schedule, name: str) -> list[str]:
    """The loops of a block that no other block is in."""
    others = {x for b in s.blocks() if b != name for x in s.loops(b)}
    return [x for x in s.loops(name) if x not in others]


def copy_by_threads(s: Schedule, name: str, warps: int) -> None:
    """Copy to shared memory by all threads, 8 neighbouring elements each at a time."""
    outer, warp, lane, v = s.split(s.fuse(*own_loops(s, name)), [None, warps, 32, 8])
    s.reorder(warp, lane, outer, v)
    s.bind(warp, "threadIdx.y")
    s.bind(lane, "threadIdx.x")
    s.unroll(outer)
    s.vectorize(v)
    s.annotate(name, "async", 1)
    s.annotate(name, "swizzle", 128)


def load_by_warps(s: Schedule, name: str, instruction: str) -> None:
    """Load a fragment, 16 × 16 elements at a time."""
    *_, rows, columns = own_loops(s, name)
    ro, ri = s.split(rows, [None, 16])
    co, ci = s.split(columns, [None, 16])
    s.reorder(ro, co, ri, ci)
    s.unroll(ro)
    s.unroll(co)
    s.tensorize(ri, instruction)


if __name__ == "__main__":
    print(product(4096, 4096, 4096))
