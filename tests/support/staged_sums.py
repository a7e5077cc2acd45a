"""A product of float32 whose operands are copied to shared memory in stages, scheduled by hand."""

from __future__ import annotations

import numpy as np
from grid_cases import Case

from schedules import te
from schedules.schedule import Schedule


def staged_sums(
    m: int, n: int, k: int, stages: int, tile: int = 8, depth: int = 8, swizzle: int = 0
) -> tuple[Case, Schedule]:
    """``c[m, n] = a[m, k] b[k, n]`` by blocks of ``tile`` × ``tile`` of 8 × 4 threads, ``depth`` steps of the
    sum at a time."""
    a, b = te.placeholder((m, k), "float32", name="a"), te.placeholder((k, n), "float32", name="b")
    kk = te.reduce_axis(k, name="k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, kk] * b[kk, j], axis=kk), name="c")
    s = Schedule([a, b, c])
    out = s.cache_write("c", "local")
    copies = []
    for x, shape in (("a", [tile, depth]), ("b", [depth, tile])):
        copies.append(s.cache_read("c", x, "shared"))
        s.pack(copies[-1], shape, [])  # zeros beyond the ends
    i, j = s.loops(out)
    bi, ty, ii = s.split(i, [None, 8, tile // 8])
    bj, tx, jj = s.split(j, [None, 4, tile // 4])
    s.reorder(bi, bj, ty, tx, ii, jj)
    block = s.fuse(bi, bj)
    s.bind(block, "blockIdx.x")
    s.bind(ty, "threadIdx.y")
    s.bind(tx, "threadIdx.x")
    s.compute_at("c", block)
    i, j, r = s.loops("c")[1:]
    ty, ii = s.split(i, [None, tile // 8])
    tx, jj = s.split(j, [None, tile // 4])
    ko, ki = s.split(r, [None, depth])
    s.reorder(ko, ty, tx, ki, ii, jj)
    s.bind(ty, "threadIdx.y")
    s.bind(tx, "threadIdx.x")
    s.decompose_reduction("c", ko)
    s.annotate(ko, "stages", stages)
    for name in copies:
        s.compute_at(name, ko)
        own = s.loops(name)[-2:]
        outer, ty, tx, v = s.split(s.fuse(*own), [None, 8, 4, 4])
        s.reorder(ty, tx, outer, v)
        s.bind(ty, "threadIdx.y")
        s.bind(tx, "threadIdx.x")
        s.unroll(outer)
        s.vectorize(v)
        s.annotate(name, "async", 1)
        if swizzle:
            s.annotate(name, "swizzle", swizzle)
    rng = np.random.default_rng(7)
    x, y = (rng.integers(-4, 5, shape).astype("float32") for shape in ((m, k), (k, n)))
    return Case(s.dag, (x, y), (x @ y,)), s
