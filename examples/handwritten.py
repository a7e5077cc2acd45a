"""Schedules written by hand, in public primitives only, for a CPU with 16 vector registers of 8 floats (AVX2)
or with 32 of 16 (AVX-512). What differs between them is the register tile.

Run it to see the loop nests: ``python examples/handwritten.py``. ``benchmarks/handwritten.py`` times them.
"""

from __future__ import annotations

from dataclasses import dataclass

import autotune as at
from schedules import ops
from schedules.schedule import Schedule


@dataclass(frozen=True)
class Tiles:
    """Accumulators that fill the registers but for a row of B and one value of A: ``rows`` x ``lanes`` of a
    product, ``pixels`` (high, wide) x ``lanes`` of a convolution. ``block`` and ``steps``: see `matmul`."""

    rows: int
    pixels: tuple[int, int]
    lanes: int
    block: int
    steps: int


AVX2 = Tiles(rows=6, pixels=(3, 2), lanes=16, block=1, steps=8)
AVX512 = Tiles(rows=8, pixels=(2, 7), lanes=32, block=0, steps=4)


def matmul(m: int, n: int, k: int, tiles: Tiles = AVX2) -> Schedule:
    """C = A·B: B packed into panels as wide as the register tile, a tile of accumulators in registers over
    the whole of k, ``steps`` of it at a time, C written once.

    ``block`` row tiles share a panel before the next panel comes (0: all of them): with one, its rows of A
    stay in L1.
    """
    rows, lanes, block, steps = tiles.rows, tiles.lanes, tiles.block, tiles.steps
    s = at.Schedule(ops.workload("matmul", {"m": m, "n": n, "k": k}).dag)
    packed = s.cache_read("c", "b")
    panel, row, lane = s.pack(packed, [0, lanes], [1, 0, 2])
    four, one = s.split(panel, [None, 4])  # four panels at once: longer runs of B's rows
    s.reorder(four, row, one, lane)
    s.unroll(one)
    s.vectorize(lane)

    store = s.cache_write("c")
    i, j = s.loops(store)
    i0, i1, i2 = s.split(i, [None, block or -(-m // rows), rows], tail="shift")
    j0, j1 = s.split(j, [None, lanes])
    s.reorder(i0, j0, i1, i2, j1)
    s.compute_at("c", i1)
    *_, a0, a1, r = s.loops("c")
    r0, r1 = s.split(r, [None, steps])  # fewer instructions that only count
    s.reorder(r0, r1, a0, a1)
    s.partition(r0)
    s.unroll(r1)
    s.unroll(a0)
    s.vectorize(a1)
    s.decompose_reduction("c", r0)
    s.unroll(i2)
    s.vectorize(j1)
    return s


def conv2d(h: int, w: int, ci: int, co: int, tiles: Tiles = AVX2) -> Schedule:
    """A 3x3 convolution with padding 1 in NHWC: a padded copy, weights packed by output channels, a
    register tile of pixels x channels."""
    (high, wide), lanes = tiles.pixels, tiles.lanes
    params = {"h": h, "w": w, "ci": ci, "co": co, "k": 3, "padding": 1}
    s = at.Schedule(ops.workload("conv2d", params, layout="NHWC").dag)
    packed = s.cache_read("y", "w")
    panel, r, t, c, lane = s.pack(packed, [0, 0, 0, lanes], [3, 0, 1, 2, 4])
    four, one = s.split(panel, [None, 4])
    s.reorder(four, r, t, c, one, lane)
    s.unroll(one)
    s.vectorize(lane)
    _, channels = s.split(s.loops("pad")[-1], [None, min(32, ci)], tail="shift")
    s.vectorize(channels)

    store = s.cache_write("y")
    b, p, q, o = s.loops(store)
    p0, p1 = s.split(p, [None, high], tail="shift")
    q0, q1 = s.split(q, [None, wide], tail="shift")
    o0, o1 = s.split(o, [None, lanes])
    s.reorder(b, p0, o0, q0, p1, q1, o1)
    s.compute_at("y", q0)
    own = s.loops("y")[4:]
    spatial, (kh, kw, kc) = own[:4], own[4:]
    c0, c1 = s.split(kc, [None, 4])
    s.reorder(kh, kw, c0, c1, *spatial)
    s.partition(c0)
    s.unroll(c1)
    for loop in spatial[:3]:
        s.unroll(loop)
    s.vectorize(spatial[3])
    s.decompose_reduction("y", kh)
    s.unroll(p1)
    s.unroll(q1)
    s.vectorize(o1)
    return s


if __name__ == "__main__":
    print(matmul(997, 991, 983))
    print(conv2d(56, 56, 64, 64))
