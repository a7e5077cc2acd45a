"""Rule for elementwise stages: loops fused, vectorized and parallel."""

from __future__ import annotations

from itertools import accumulate
from math import prod
from operator import mul

from schedules.expr import Var
from schedules.ir import Block, Nest
from schedules.ir.nest import reads
from schedules.space.rules.cpu.neighbours import ROWS, keeps_vectors, near_axes
from schedules.space.rules.cpu.prefetching import prefetch_blocks, prefetch_vectors
from schedules.space.rules.patterns import (
    extents,
    is_chosen_along,
    is_joined_along,
    operands,
    spatial,
    unit_stride_vars,
    vector_axis,
)
from schedules.space.sketch_builder import SketchBuilder, extent

# Most elements that one thread makes in less time than others need to begin (docs/measurements/threads.md).
ALONE = 2048
# Tiles in a block of a transposition, along each axis.
BLOCKS = (1, 4, 16, 64)


def schedule_elementwise(d: SketchBuilder, name: str) -> None:
    """Schedule a stage on its own. If every access walks memory in order, its loops are fused into one. Else
    each output row keeps its loop, and the axis in which the input is contiguous gets a tile."""
    b = d.block(name)
    loops = [x.var for x in d.loops(name)]
    if not loops:
        return
    if _walks_in_order(d.s.nest, b):
        flat = d.fused(loops)
        _tile_flat(d, name, flat)
    elif vector_axis(b) and not _across(d.s.nest, b) and (near := near_axes(b)):
        _tile_neighbours(d, name, loops, near)
    else:
        _tile_axes(d, name, loops)


def _walks_in_order(nest: Nest, b: Block) -> bool:
    """Whether the axes are the indices of every access, and neighbours in them are neighbours in memory: axes
    whose rows go on from each other were merged before."""
    at = tuple(Var(v) for v in spatial(b))
    places = [*((x.buffer, x.indices) for x in reads(b)), *((w.buffer, w.indices) for w in b.writes)]
    whole = len(at) < 2 or all(nest.buffer(name).strides is None for name, _ in places)
    return whole and all(indices == at for _, indices in places)


def _tile_flat(d: SketchBuilder, name: str, flat: str) -> None:
    n = extent(next(x for x in d.loops(name) if x.var == flat))
    w = d.lanes_of(d.dtype(d.block(name)))
    lanes = [w * k for k in (1, 2, 4) if w * k <= n] or [n]
    vec = d.choice(f"{name}.vec", lanes)
    body = d.choice(f"{name}.body", [k for k in (1, 8, 64, 256, 1024) if k * min(lanes) <= n] or [1])
    outer, middle, inner = d.s.split(flat, (None, body, vec), "shift")
    d.s.vectorize(inner)
    prefetch_vectors(d, middle, name)
    d.parallel(outer)


def _across(nest: Nest, b: Block) -> list[str]:
    """Axes in which an input is contiguous and the output is not."""
    n, along = extents(b), {v for x in operands(b) for v in unit_stride_vars(nest, x)} - {vector_axis(b)}
    return [v for v in spatial(b) if v in along and n[v] > 1]


def _tile_neighbours(d: SketchBuilder, name: str, loops: list[str], near: set[str]) -> None:
    """Tile a stage that reads neighbours along the axes ``near``: the vector axis, and the rows above each
    other. Loops are cut where a border ends, in which points choose otherwise."""
    b = d.block(name)
    n, axes, last = extents(b), spatial(b), vector_axis(b)
    w = d.lanes_of(d.dtype(b))
    above = axes[axes.index(last) - 1] if last in axes[1:] else None
    assert last is not None
    lanes = [w * m for m in (1, 2, 4) if w * m <= n[last]] or [n[last]]
    sliding = keeps_vectors(d, b, last, near)
    cut = sliding or (last in near and is_chosen_along(b, last)) or is_joined_along(b, last)
    vec = d.choice(f"{name}.vec", lanes)
    tiles, lane = d.s.split(loops[axes.index(last)], (None, vec), "guard" if cut else "shift")
    if sliding:
        d.s.annotate(tiles, "slide", 1)
    outer: dict[str, int] = {}  # {loop: most iterations}
    inner: list[str] = []
    ends = [tiles] if cut else []
    for axis, loop in zip(axes, loops, strict=True):
        if axis == last:
            continue
        chosen = axis in near and is_chosen_along(b, axis)
        if axis == above and axis in near:
            loop, row = d.s.split(loop, (None, d.choice(f"{name}.rows", ROWS)))
            inner.append(row)
            chosen = True
        outer[loop] = n[axis]
        ends += [loop] if chosen else []
    outer[tiles] = n[last] // min(lanes)
    d.s.reorder(*outer, *inner, lane)
    for row in inner:
        d.s.unroll(row)
    d.s.vectorize(lane)
    shared = _share(d, b, outer)
    for loop in ends:  # loops around each side of a border, not selects within one
        if loop not in shared or len(shared) == 1:
            d.s.partition(loop)


def _share(d: SketchBuilder, b: Block, outer: dict[str, int]) -> list[str]:
    """Share the outermost loops among threads, until there may be enough iterations. ``outer``: {loop: most
    iterations}. Returns those that are shared."""
    n = extents(b)
    if d.threads < 2 or prod(n[axis] for axis in spatial(b)) <= ALONE:
        return []
    count = list(accumulate(outer.values(), mul))
    taken = list(outer)[: 1 + sum(c < 16 * d.threads for c in count[:-1])]
    d.parallel(*taken)
    return taken


def _tile_axes(d: SketchBuilder, name: str, loops: list[str]) -> None:
    """Tile the axis in which an input is contiguous and the vector axis of the output. If these differ (a
    transposition), tiles go by blocks of both, so that what is read for one is still in the caches for the
    next."""
    b = d.block(name)
    n = extents(b)
    axes = spatial(b)
    w = d.lanes_of(d.dtype(b))
    last = vector_axis(b)
    across = _across(d.s.nest, b)
    joined = last is not None and not across and is_joined_along(b, last)
    whole: list[str] = []
    outer: list[str] = []
    middle: list[str] = []
    inner: list[str] = []
    most = {}  # iterations of each outer loop with the smallest tiles
    for axis, loop in zip(axes, loops, strict=True):
        if axis == last:
            lanes = [w * m for m in (1, 2, 4) if w * m <= n[axis]] or [n[axis]]
            tile, least = d.choice(f"{name}.vec", lanes), min(lanes)
        elif axis in across:
            rows = [r for r in (1, 2, 4, 8, 16) if r <= n[axis]]
            tile, least = d.choice(f"{name}.rows", rows), min(w, n[axis])
        else:
            whole.append(loop)
            most[loop] = n[axis]
            continue
        if across:
            blocks = [k for k in BLOCKS if k * least <= n[axis]] or [1]
            o, m, i = d.s.split(loop, (None, d.choice(f"{name}.{axis}.block", blocks), tile), "shift")
            middle.append(m)
        else:
            o, i = d.s.split(loop, (None, tile), "guard" if joined else "shift")
        most[o] = n[axis] // least
        outer.append(o)
        inner.append(i)
    outer = [*whole, *reversed(outer)]  # columns of blocks one after the other
    d.s.reorder(*outer, *middle, *inner)
    for i in inner[:-1]:
        d.s.unroll(i)
    d.s.vectorize(inner[-1])
    # A column's blocks stay in one thread.
    take = len(_share(d, b, {v: most[v] for v in outer}))
    if joined and take < len(outer):  # loops around each array, not selects within one
        d.s.partition(outer[-1])
    if across and take < len(outer):
        prefetch_blocks(d, outer[-1], name)
