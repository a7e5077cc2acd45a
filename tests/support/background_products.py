"""Products on GPUs whose operands are copied to shared memory in the background, in stages, by hand."""

from __future__ import annotations

from dataclasses import dataclass

from grid_cases import TARGET

from schedules import te
from schedules.schedule import Schedule


@dataclass(frozen=True)
class Tiles:
    """Threads of a block are ``warps``, each ``lanes``, along rows and columns. A thread has ``own`` rows and
    ``own`` vectors of ``vector`` columns, interleaved with those of the others of its warp. ``depth``: terms
    that a block has in shared memory at a time; ``together``: those that a thread reads at a time."""

    warps: tuple[int, int] = (1, 2)
    lanes: tuple[int, int] = (2, 2)
    own: tuple[int, int] = (2, 1)
    vector: int = 4
    depth: int = 4
    together: int = 4


# Elements of 128 × 128 by 4 warps of 64 × 64, whose lanes are 4 × 8.
LARGE = Tiles((2, 2), (4, 8), (16, 2), depth=16)


def staged_product(
    shape: tuple[int, int, int], stages: int, tiles: Tiles = Tiles(), dtype: str = "float32"
) -> Schedule:
    """C[m, n] of ``shape`` (m, n, k), the sum of A[m, k] * B[k, n]; float16 is added up as float32."""
    m, n, k = shape
    a, b = te.placeholder((m, k), dtype, name="A"), te.placeholder((k, n), dtype, name="B")
    r = te.reduce_axis(k, name="k")
    c = te.compute(
        (m, n),
        lambda i, j: te.sum(te.cast(a[i, r], "float32") * te.cast(b[r, j], "float32"), axis=r),
        name="C",
    )
    s = Schedule([a, b, c], TARGET)
    out = s.cache_write("C", "local")
    block = _tiled(s, out, tiles)[0]
    s.bind(block, "blockIdx.x")
    s.compute_at("C", block)
    _, step, inner = _tiled(s, "C", tiles)
    for x in inner:
        s.unroll(x)
    for name in "AB":
        copy_in_background(s, name, step, tiles)
    s.decompose_reduction("C", step)
    s.annotate(step, "stages", stages)
    return s


def _tiled(s: Schedule, name: str, t: Tiles) -> tuple[str, str, list[str]]:
    """(loop over blocks, loop over steps of the sum, those that are unrolled)."""
    summed = name == "C"
    own = s.loops(name)[-3 if summed else -2 :]
    outer: list[str] = []
    bi, wi, ii, li = s.split(own[0], (None, t.warps[0], t.own[0], t.lanes[0]))
    bj, wj, jj, lj, vj = s.split(own[1], (None, t.warps[1], t.own[1], t.lanes[1], t.vector))
    step, terms = "", list[str]()
    if summed:
        step, *terms = s.split(own[2], (None, t.depth // t.together, t.together))
        outer = [step]
    s.reorder(bi, bj, *outer, wi, wj, li, lj, *terms[:1], ii, *terms[1:], jj, vj)
    block = s.fuse(bi, bj)
    s.bind(s.fuse(wi, wj), "threadIdx.y")
    s.bind(s.fuse(li, lj), "threadIdx.x")
    s.vectorize(vj)
    for x in () if summed else (ii, jj):
        s.unroll(x)
    return block, step, [*terms, ii, jj]


def copy_in_background(s: Schedule, name: str, step: str, t: Tiles) -> str:
    """Copy an operand of C at a loop, by all threads, vectors of ``t.vector``. Returns the block."""
    copy = s.cache_read("C", name, "shared")
    s.compute_at(copy, step)
    flat = s.fuse(*[x for x in s.loops(copy) if x.startswith(copy)])
    warps, lanes = t.warps[0] * t.warps[1], t.lanes[0] * t.lanes[1]
    outer, y, x, v = s.split(flat, (None, warps, lanes, t.vector))
    s.reorder(y, x, outer, v)
    s.bind(y, "threadIdx.y")
    s.bind(x, "threadIdx.x")
    s.unroll(outer)
    s.vectorize(v)
    s.annotate(copy, "async", 1)
    return copy
