"""Rule for a depthwise convolution and the product that sums its channels, by blocks of points.

``for blocks of points: { windows of all channels, in registers; tiles of the product over the block }``
What lies between stays in the first caches. Each point of it is computed once, as the product reads it at its
own points.
"""

from __future__ import annotations

from schedules.expr import Const, Hole, Var
from schedules.ir import Block, Nest
from schedules.ir.nest import writers
from schedules.primitives.base import as_expr
from schedules.space.rules.cpu.row_blocks import pack_product, tile_product
from schedules.space.rules.cpu.rows import vectorize_last
from schedules.space.rules.cpu.tiling import lane_widths
from schedules.space.rules.patterns import (
    extents,
    is_chosen_along,
    is_map,
    is_short_window,
    operands,
    reads_identity,
    sole_reader,
    spatial,
)
from schedules.space.sketch_builder import SketchBuilder

# Most points of a block, blocks of a row that are offered, and most points of a tile of windows, which is
# copied for each border.
MOST_POINTS, PARTS, MOST_ROWS = 128, (1, 2, 4), 4


def find_window_products(d: SketchBuilder) -> dict[str, tuple[str, str]]:
    """{product: (what it reads, the windows of which that is made)} where blocks of points may be made."""
    found = {name: _behind(d.s.nest, d.block(name)) for name in d.s.blocks()}
    return {name: x for name, x in found.items() if x is not None}


def _behind(nest: Nest, p: Block) -> tuple[str, str] | None:
    """What a product reads, and the windows of which that is made, or a map of them, point by point."""
    reduce = [i.var for i in p.iters if i.kind == "reduce"]
    if p.reducer is None or len(reduce) != 1 or len(p.writes) != 1 or len(spatial(p)) < 2:
        return None
    *points, _ = map(Var, spatial(p))
    for x in operands(p):
        made = [b for b in writers(nest, x.buffer) if x.indices == (*points, Var(reduce[0]))]
        if len(made) != 1 or sole_reader(nest, made[0]) is not p:
            continue
        window = _window(nest, made[0])
        if window is not None:
            return made[0].name, window.name
    return None


def _window(nest: Nest, made: Block) -> Block | None:
    """The windows of which a block is made, each channel of its own."""
    if is_map(made):
        found = [b for x in operands(made) for b in writers(nest, x.buffer) if b.reducer is not None]
        if len(found) != 1 or sole_reader(nest, found[0]) is not made:
            return None
        if not reads_identity(made, found[0].writes[0].buffer):
            return None
        (made,) = found
    own = operands(made)
    channel = spatial(made)[-1] if spatial(made) else ""
    apart = bool(own) and all(x.indices and x.indices[-1] == Var(channel) for x in own)
    return made if apart and is_short_window(nest, made) else None


def schedule_window_blocks(d: SketchBuilder, product: str, consumer: str) -> None:
    """Schedule ``consumer``, which stores a product, with the product and the windows behind it. Padding was
    inlined."""
    made, window = d.window_products[product]
    if made == window:
        made = d.s.cache_write(window, "local")
    d.done |= {product, made, window}
    w = d.block(window)
    packed = pack_product(d, product)
    loops = [y.var for y in d.loops(consumer)]
    *outer, points, _ = loops
    n = extents(d.block(consumer))[spatial(d.block(consumer))[-2]]
    parts = [n // k for k in PARTS if n % k == 0 and n // k >= MOST_ROWS]
    least = min(k for k in range(1, n + 1) if n % k == 0 and n // k <= MOST_POINTS)
    rows = d.choice(f"{product}.points", [x for x in parts if x <= MOST_POINTS] or [n // least])
    block, _ = d.s.split(points, (None, rows), "shift")
    for name in dict.fromkeys((product, made, window)):
        d.s.compute_at(name, block)
    tile_product(d, product, packed, rows)
    borders = [_tile_windows(d, made, window, rows)]
    borders += [v for a, v in zip(spatial(w), (*outer, block), strict=False) if is_chosen_along(w, a)]
    vectorize_last(d, consumer, skip=len(outer) + 1)
    if not outer:
        d.parallel(block)
    elif d.threads > 1:
        axis = extents(w)[spatial(w)[0]]
        first, inner = d.s.split(outer[0], (None, d.divisor(f"{product}.mid", Const(axis))))
        d.s.parallel(first)
        borders = [inner if v == outer[0] else v for v in borders]
    for v in borders:
        d.s.partition(v)


def _tile_windows(d: SketchBuilder, made: str, window: str, rows: int | Hole) -> str:
    """Compute the windows of a block in registers: some points, and vectors of channels. Returns the loop
    over points, at whose ends padding is."""
    *rest, points, channels = [x.var for x in d.own_loops(made)]
    b = d.block(made)
    lanes = lane_widths(extents(b)[spatial(b)[-1]], d.lanes_of(d.dtype(b)))
    vec = d.choice(f"{window}.vec", lanes[:3])
    tile = d.divisor(f"{window}.rows", as_expr(rows), MOST_ROWS)
    across, lane = d.s.split(channels, (None, vec), "shift")
    tiles, row = d.s.split(points, (None, tile))
    d.s.reorder(*rest, across, tiles, row, lane)
    d.s.compute_at(window, tiles)
    d.s.unroll(row)
    d.s.vectorize(lane)
    reduce, axes = d.own_apart(window)
    d.s.reorder(*reduce, *axes)
    for v in (*reduce, *axes[:-1]):
        d.s.unroll(v)
    d.s.vectorize(axes[-1])
    d.s.decompose_reduction(window, reduce[0])
    return tiles
