"""Rule for elementwise stages: a thread for each element or short vector, neighbouring threads side by
side."""

from __future__ import annotations

from schedules.dtypes import DTYPES
from schedules.space.sketch_builder import SketchBuilder, extent

# Threads of a block that are offered.
THREADS = (64, 128, 256, 512, 1024)
LANES = (1, 2, 4, 8, 16)  # up to 16 bytes of what takes less than 4 each
EACH = (1, 2, 4)  # vectors of a thread, a block's width apart: independent accesses in flight
USED_ONCE = (0, 3)  # caches, for what is used once: those of the compiler's choice, or to be left first
LARGE = 16 << 20  # bytes of results for which that is offered: about as many as the second cache has
BLOCKS = (2, 4, 8, 16, 32)  # of a bounded grid, for each processor


def schedule_map(d: SketchBuilder, name: str) -> None:
    """Fuse the loops of a stage and distribute them over blocks of threads: as many as needed, or a bounded
    number, each of which goes on a grid further while there is work (a grid-stride loop)."""
    b = d.block(name)
    loops = [x.var for x in d.loops(name)]
    last = extent(d.loops(name)[-1])
    lanes = d.choice(f"{name}.vec", lanes_of(last, d.dtype(b)))
    flat = d.fused(loops)
    total = 1
    for i in b.iters:
        total *= int(getattr(i.extent, "value", 1))
    rest, v = d.s.split(flat, (None, lanes))
    threads = d.choice(f"{name}.threads", [t for t in THREADS if t <= total] or [32])
    each = d.choice(f"{name}.each", [k for k in EACH if k * 64 <= total] or [1])
    sms = d.target.limit("sms", 1)
    bounded = total > 4 * BLOCKS[0] * sms * THREADS[0]
    if bounded and d.choose(f"{name}.grid", ("whole", "bounded")) == "bounded":
        blocks = d.choice(f"{name}.blocks", [k * sms for k in BLOCKS])
        turn, block, vectors, thread = d.s.split(rest, (None, blocks, each, threads))
        d.s.reorder(block, thread, turn, vectors, v)
    else:
        block, vectors, thread = d.s.split(rest, (None, each, threads))
        d.s.reorder(block, thread, vectors, v)
    d.s.bind(block, "blockIdx.x")
    d.s.bind(thread, "threadIdx.x")
    d.s.unroll(vectors)
    d.s.vectorize(v)
    if d.target.bounds_launches and total * DTYPES[d.dtype(b)].itemsize >= LARGE:
        cache = d.choice(f"{name}.cache", USED_ONCE)
        for hint in ("load_cache", "store_cache"):
            d.s.annotate(name, hint, cache)


def lanes_of(n: int, dtype: str) -> list[int]:
    """Vectors that cut an axis of ``n`` into whole ones."""
    return [k for k in LANES if n % k == 0 and k <= max(4, 16 // DTYPES[dtype].itemsize)]
