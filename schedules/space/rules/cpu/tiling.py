"""Rule for multi-level tiling of a reduction inside its consumer, with accumulators in registers.

``for outer tiles (parallel): for inner tiles: { acc = 0; for reduction: acc += ...; out = epilogue(acc) }``
It is Ansor's multi-level tiling with fused consumer. The register tile follows Goto & van de Geijn (2008).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass, field, replace

from schedules import affine
from schedules import expr as E
from schedules.expr import Const, Hole, Load, Select, Var
from schedules.ir import Block
from schedules.ir.nest import behind, has_domain, readers, vars_bound, writers
from schedules.primitives.base import as_expr
from schedules.space.rules.cpu.copies import schedule_copy, schedule_packing, schedule_turned
from schedules.space.rules.cpu.packed_operands import is_streamed, pack_operand, pack_options, packed_read
from schedules.space.rules.cpu.prefetching import prefetch_rows_of_state, prefetch_tiles
from schedules.space.rules.cpu.widened import widen
from schedules.space.rules.parts import copy_read, lanes_last
from schedules.space.rules.patterns import (
    depends,
    ends_with_data,
    extents,
    is_chosen_along,
    is_gathered,
    is_guarded_copy,
    operands,
    reduction_length,
    skips_in_phases,
    spatial,
    unit_stride_vars,
    vector_axis,
)
from schedules.space.sketch_builder import SketchBuilder, extent

# Most rows of a register tile; most if its borders are peeled, as code is copied for each border.
MAX_ROWS = 16
MAX_PEELED = 4
# Longest reduction axis that is unrolled (steps), as of windows; longer ones stay loops.
UNROLL_REDUCTION = 64
# Fewest steps of a reduction that is cut into parts: shorter ones fit the first cache.
BLOCK_REDUCTION = 256
# The same if an operand is packed before, as longer ones then stream well.
BLOCK_PACKED = 1024
# Steps of a part that are offered.
REDUCTION_BLOCKS = (8, 16, 32, 64, 128, 192, 256, 384, 512)
# Vectors along the contiguous axis below which another axis may fill registers,
SHORT_VECTORS = 4
# if the reduction has so many steps that storing lane by lane costs little.
MANY_STEPS = 32
# Fewest elements along the vector axis for which copying the other operand's rows costs little.
REUSED = 256
# Fewest lanes of an axis that is used so that a larger operand need not be transposed.
FEWEST = 4
# Unit of tiles whose results are transposed in squares of up to 16; each of the row counts divides it.
SQUARES = 48
ROWS_OF_SQUARES = (4, 6, 8, 12, 16)
# Unrolled steps of the innermost reduction loop that are offered: they save instructions that only count.
STEPS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Tiling:
    """What is tiled. ``tile``: size of the register tile by axis of the consumer, with the vector axis ``v``.
    ``axis_of``: {axis of the consumer: axis of the producer}. ``n``: length of each axis. ``guarded``: axes
    whose last tile is cut off; others shift it inside. ``accumulate``: arranges the producer's loops in its
    register tile."""

    producer: str
    consumer: str
    v: str
    axis_of: dict[str, str]
    n: dict[str, int]
    tile: dict[str, int | Hole]
    along: str = ""  # axis in which results are contiguous, if they are transposed in squares
    guarded: frozenset[str] = frozenset()
    accumulate: Callable[[SketchBuilder, Tiling], None] = field(default=lambda d, t: _accumulate(d, t))


def schedule_tiled(d: SketchBuilder, producer: str, consumer: str, *, widens: bool = False) -> None:
    """Tile ``consumer`` (an epilogue, or the copy made by cache_write) and compute ``producer`` in its
    register tile. ``consumer`` must read ``producer`` at its own iterations. ``widens``: whether copies of
    operands may be widened."""
    if skips_in_phases(d.block(producer)) or ends_with_data(d.block(producer)):
        d.s.skip_zeros(producer)
    p, c = d.block(producer), d.block(consumer)
    axes, n = spatial(c), extents(c)
    d.done.add(producer)
    names = dict(zip(axes, spatial(p), strict=True))  # {axis of the consumer: axis of the producer}
    v = _lane_axis(d, p, c, names)
    steady = {x.buffer for x in operands(p) if _moves_evenly(x, names[v])}
    w = d.lanes_of(d.dtype(p))
    contiguous = vector_axis(c) or v
    along = contiguous if contiguous != v and n[contiguous] >= SHORT_VECTORS * w else ""
    packed = packed_read(d, p, names[v])
    # a short axis in which results are contiguous, if lanes go along another one
    across = contiguous if contiguous != v and n[contiguous] < w and packed is None else ""
    streamed = v == vector_axis(c) and is_streamed(d, p)
    turned = _turned(d, p, names[v], names[across], arguments=True) if across else None
    packed = turned[0] if turned else packed
    ways = ("turned",) if turned else ("none",) if streamed else _pack_ways(d, p, packed, names[v], along)
    mode = d.choose(f"{producer}.pack", ways) if packed is not None else "none"
    widens = widens and mode != "none" and d.choose(f"{producer}.copies", ("", "wide")) == "wide"
    lanes = lane_widths(n[v], w)
    vec = d.choice(f"{producer}.vec", lanes)
    pack_name, panel = "", 0
    if mode == "turned" and packed is not None:
        pack_name = copy_read(d, producer, packed)
    elif mode != "none" and packed is not None:
        pack_name, panel = pack_operand(d, producer, packed, names[v], vec)
        if widens:
            widen(d, producer, pack_name)
    rows_on = _row_axes(p, names, axes, v, n)
    counts = {x: ROWS_OF_SQUARES if x == along else _row_counts(p, names[x], n[x]) for x in rows_on}
    squares = across if across in rows_on and _fits_whole(p, names[across], n[across]) else ""
    counts |= {squares: [n[across]]} if squares else {}
    tile = {x: d.choice(f"{producer}.{x}", sizes) for x, sizes in counts.items()} | {v: vec}
    guarded = frozenset({v} if mode not in ("none", "turned") or n[v] < max(lanes) else ())
    plan = Tiling(producer, consumer, v, names, {x: n[x] for x in axes}, tile, along, guarded)
    place = ""  # where a copy is made that is not made before
    parts = not streamed and _blocks_reduction(p, mode)
    if along or (parts and d.choose(f"{producer}.k", ("whole", "blocks")) == "blocks"):
        outer, place = _block_for_caches(d, plan)
    else:
        outer = tile_for_registers(d, replace(plan, along=squares))
    tiles = d.fused(outer)
    place_producers(d, producer, tiles, [pack_name], steady)
    if mode == "at":
        d.s.compute_at(pack_name, place or tiles)
    if mode == "turned" and packed is not None:
        schedule_turned(d, pack_name, turned[1] if turned else packed.indices.index(Var(names[v])))
    elif pack_name:
        schedule_packing(d, pack_name, panel, parallel=mode == "root")
    if widens:
        widen(d, producer)
    d.parallel(tiles)


def _pack_ways(d: SketchBuilder, p: Block, x: Load | None, v: str, along: str) -> tuple[str, ...]:
    """How an operand may be packed. ``along``: as of `Tiling`."""
    ways = ("root",) if along else pack_options(d, x, v)
    return ("turned",) if (p.name, v) in d.open and "none" not in ways else ways


def _fits_whole(p: Block, axis: str, n: int) -> bool:
    """Whether a register tile may have all ``n`` points of an axis."""
    return n <= MAX_ROWS and not is_chosen_along(p, axis)


def _lane_axis(d: SketchBuilder, p: Block, c: Block, names: dict[str, str]) -> str:
    """The axis of ``c`` that fills vectors: the one in which its result is contiguous; one along which less
    must be packed; or, if the first is short, one along which an operand can be packed or a padded copy
    stored. Results of the other axes go to memory lane by lane."""
    v = vector_axis(c)
    assert v is not None
    n, w = extents(c), d.lanes_of(d.dtype(p))
    if n[v] >= SHORT_VECTORS * w:
        few = _fewer_to_pack(d, p, c, names, v)
        return (d.choose(f"{p.name}.lanes", ("", few)) if few else "") or v
    if reduction_length(p) < MANY_STEPS:
        return v
    long = [a for a in spatial(c) if a != v and n[a] >= 2 * w]
    packed = [a for a in long if (x := packed_read(d, p, names[a])) is not None and not depends(x, names[v])]
    turned = {a: copy for a in long if n[v] < w and (copy := _turned(d, p, names[a], names[v]))}
    others = packed[-1:] or list(turned)[-1:]
    if not others and n[v] < w:
        others = [a for a in long if _turned(d, p, names[a], names[v], arguments=True)][-1:]
    lanes = (d.choose(f"{p.name}.lanes", ("", *others)) if others else "") or v
    if lanes in turned and not packed:
        x, along = turned[lanes]
        d.s.reorder_storage(x.buffer, [*(k for k in range(len(x.indices)) if k != along), along])
    return lanes


def _fewer_to_pack(d: SketchBuilder, p: Block, c: Block, names: dict[str, str], v: str) -> str:
    """The axis of the other operand, if that is smaller and the operand along ``v`` would have to be
    transposed for packing in every call, as in A times B transposed. The larger operand is then read where it
    lies, and results are transposed. Else ""."""
    n, read = extents(c), packed_read(d, p, names[v])
    if read is None or names[v] in unit_stride_vars(d.s.nest, read) or read.buffer in d.s.dag.constants:
        return ""
    rows = _row_axes(p, names, spatial(c), "", n)
    others = [a for a in rows if a != v and FEWEST <= n[a] <= n[v] // 2]
    if v not in rows or len(others) != 1 or n[v] < SQUARES or not _has_parts(p, BLOCK_REDUCTION):
        return ""
    other = packed_read(d, p, names[others[0]])
    return "" if other is None or depends(other, names[v]) else others[0]


def _turned(
    d: SketchBuilder, p: Block, a: str, v: str, *, arguments: bool = False
) -> tuple[Load, int] | None:
    """(load, dimension) of a padded copy that ``p`` reads and that could be stored with axis ``a`` innermost:
    it moves by one with ``a`` and does not depend on ``v``. None if there is none. ``arguments``: of an
    argument instead, which could be copied so, if no padding guards it."""
    if arguments and _is_guarded(p):
        return None
    for x in operands(p):
        if (x.buffer in d.s.nest.params) != arguments or depends(x, v) or is_gathered(x):
            continue
        if not all(is_guarded_copy(b) for b in writers(d.s.nest, x.buffer)):
            continue
        along = [k for k, i in enumerate(x.indices) if a in E.variables(i)]
        if len(along) == 1 and affine.linear(x.indices[along[0]])[0].get(Var(a)) == Const(1):
            return None if arguments and (p.name, a) in d.open else (x, along[0])
    return None


def tile_for_registers(d: SketchBuilder, t: Tiling) -> list[str]:
    """Tile for registers only, with the whole reduction in every register tile. Returns the outer loops."""
    loops = zip(t.n, [x.var for x in d.loops(t.consumer)], strict=True)
    outer, middle, inner = [], [], []
    for axis, loop in loops:
        if t.n[axis] == 1:
            outer.append(loop)
            continue
        tile = t.tile.get(axis, 1)
        count = E.ceildiv(t.n[axis], as_expr(tile))
        guard = axis in t.guarded
        name = f"{t.producer}.{axis}.mid"
        chosen = is_chosen_along(d.block(t.producer), t.axis_of[axis])
        # A loop over a single tile has no ends to peel. Tiles along vectors are few, and all are at the ends.
        least = 2 if chosen and axis != t.v else 1
        mid = d.divisor(name, count, least=least) if chosen or guard else d.even(name, count)
        o, m, i = d.s.split(loop, (None, mid, tile), "guard" if guard else "shift")
        outer.append(o)
        middle.append(m)
        inner.append((i, axis))
    _arrange(d, t, outer, middle, inner)
    d.s.compute_at(t.producer, middle[-1] if middle else outer[-1])
    lanes_last(d, t.producer, t.axis_of[t.v])
    t.accumulate(d, t)
    _peel_borders(d, t, dict(zip((a for a in t.n if t.n[a] > 1), middle, strict=True)))
    return outer


def _peel_borders(d: SketchBuilder, t: Tiling, middle: dict[str, str]) -> None:
    """Peel tiles at the borders, so that other tiles need no select for padding that is not copied."""
    for axis, loop in middle.items():
        if is_chosen_along(d.block(t.producer), t.axis_of[axis]):
            d.s.partition(loop)


def _row_counts(p: Block, axis: str, n: int) -> list[int]:
    """Sizes of the register tile along an axis of ``n`` points. Tiles with peeled borders are copied for each
    border, so they are small. They must divide the axis, because peeling needs tiles that begin where loops
    say."""
    if is_chosen_along(p, axis):
        return [k for k in range(1, MAX_PEELED + 1) if n % k == 0]
    return list(range(1, min(MAX_ROWS, n) + 1))


def split_in_blocks(d: SketchBuilder, t: Tiling) -> list[str]:
    """Split the consumer in blocks of register tiles, and compute the producer in a block. Returns the outer
    loops."""
    loops = zip(t.n, [x.var for x in d.loops(t.consumer)], strict=True)
    w = d.lanes_of(d.dtype(d.block(t.producer)))
    outer, middle, inner = [], [], []
    for axis, loop in loops:
        if axis not in t.tile:
            outer.append(loop)
            continue
        unit = SQUARES if axis == t.along else t.tile[axis]
        block = d.even(f"{t.producer}.{axis}.block", Const(t.n[axis]), unit)
        o, x = d.s.split(loop, (None, block), "guard" if axis in t.guarded else "shift")
        m, i = d.s.split(x, (None, w if t.along and axis in (t.v, t.along) else t.tile[axis]))
        outer.append(o)
        middle.append(m)
        inner.append((i, axis))
    _arrange(d, t, outer, middle, inner)
    d.s.compute_at(t.producer, outer[-1])
    lanes_last(d, t.producer, t.axis_of[t.v])
    return outer


def _block_for_caches(d: SketchBuilder, t: Tiling) -> tuple[list[str], str]:
    """Tile for caches: parts of the reduction in turn, each over a block of register tiles whose accumulators
    stay in the caches. A panel of the packed operand stays in the first cache (Goto & van de Geijn, 2008).
    Returns (outer loops, loop over the parts)."""
    outer = split_in_blocks(d, t)
    row_copies = _copy_rows(d, t)
    p = d.block(t.producer)
    rest: list[str] = []  # axes that are not tiled
    parts: list[str] = []  # outer and inner loops of the reduction,
    part: list[str] = []
    tiles: dict[str, tuple[str, str]] = {}  # and of the block, by axis
    for own in d.own_loops(t.producer):
        if own.var in vars_bound(p, "reduce"):
            sizes = [k for k in REDUCTION_BLOCKS if k < extent(own)]
            if sizes:
                o, i = d.s.split(own.var, (None, d.choice(f"{own.var}.block", sizes)))
                parts.append(o)
                part.append(i)
            else:
                part.append(own.var)
            continue
        tiled = next((a for a in t.tile if own.var in behind(p, t.axis_of[a])), None)
        if tiled is None:
            rest.append(own.var)
        else:
            o, i = d.s.split(own.var, (None, t.tile[tiled]))
            tiles[tiled] = o, i
    (panels, lanes), rows = tiles[t.v], [tiles[a] for a in t.tile if a != t.v]
    part += reduction_steps(d, t.producer, part.pop())
    d.s.reorder(*rest, *parts, panels, *(o for o, _ in rows), *part, *(i for _, i in rows), lanes)
    for _, i in rows:
        d.s.unroll(i)
    d.s.vectorize(lanes)
    for x in parts:
        d.s.partition(x)
    d.s.decompose_reduction(t.producer, parts[0])
    if _is_open_sum(d, t.producer, part[0]):
        prefetch_rows_of_state(d, part[-1 - (len(part) > 1)])
    else:
        prefetch_tiles(d, t.producer, t.axis_of[t.v], panels)
    for name in row_copies:
        d.s.compute_at(name, parts[-1])
        schedule_copy(d, name, parallel=False)
    return outer, parts[-1]


def _copy_rows(d: SketchBuilder, t: Tiling) -> list[str]:
    """Copy the inputs that the rows of a register tile read, for a part of the reduction, so that they lie
    close together while the tile moves along the vector axis."""
    v = t.axis_of[t.v]
    rows = {t.axis_of[a] for a in t.tile if a != t.v}
    if t.n[t.v] < REUSED:
        return []
    p = d.block(t.producer)
    reads = dict.fromkeys(
        x
        for x in operands(p)
        if x.buffer in d.s.nest.params and not is_gathered(x)
        if not depends(x, v) and any(depends(x, r) for r in rows)
    )
    return [copy_read(d, t.producer, x, moved=True) for x in sorted(reads, key=lambda x: x.buffer)]


def reduction_steps(d: SketchBuilder, producer: str, loop: str, unit: int = 0) -> list[str]:
    """Unroll several steps of a reduction loop: returns [outer, inner], or [loop] if it is short. The
    remainder is peeled, except in a part of a reduction, where ``unit`` divides its length."""
    n = extent(next(x for x in d.loops(producer) if x.var == loop))
    if 0 < n < 2 * STEPS[-1]:
        return [loop]
    outer, inner = d.s.split(loop, (None, d.choice(f"{producer}.steps", [k for k in STEPS if unit % k == 0])))
    d.s.unroll(inner)
    if n % STEPS[-1] and not unit:
        d.s.partition(outer)
    return [outer, inner]


def _arrange(
    d: SketchBuilder, t: Tiling, outer: list[str], middle: list[str], inner: list[tuple[str, str]]
) -> None:
    """Order and annotate the loops of the consumer. Lanes are innermost."""
    lanes = t.along or t.v
    inner = sorted(inner, key=lambda x: x[1] == lanes)
    if len(outer) + len(middle) + len(inner) > 1:
        d.s.reorder(*outer, *middle, *(i for i, _ in inner))
    for i, axis in inner:
        if axis == lanes:
            d.s.vectorize(i)
        elif axis in t.tile:
            d.s.unroll(i)


def _blocks_reduction(p: Block, mode: str) -> bool:
    """Whether the reduction is long enough for parts, and unguarded. ``mode``: where an operand is packed."""
    if _is_guarded(p):
        return False
    return _has_parts(p, BLOCK_PACKED if mode == "root" else BLOCK_REDUCTION)


def _is_guarded(p: Block) -> bool:
    """Whether a sum leaves out terms, as of padding that is not copied."""
    return any(isinstance(x, Select) for e in p.values for x in E.walk(e))


def _has_parts(p: Block, least: int) -> bool:
    """Whether the reduction has ``least`` steps or more, and an axis that can be cut into parts."""
    longest = max(extents(p)[i.var] for i in p.iters if i.kind == "reduce")
    return reduction_length(p) >= least and longest > REDUCTION_BLOCKS[0]


def lane_widths(n: int, w: int) -> list[int]:
    """Widths of the register tile along a vector axis of ``n`` elements. ``w``: elements of a vector."""
    out = [w * k for k in (1, 2, 3, 4, 6, 8) if w * k <= n]
    if not out or (n < 4 * w and n not in out):
        out.append(n)
    return out


def _row_axes(p: Block, names: dict[str, str], axes: list[str], v: str, n: dict[str, int]) -> list[str]:
    """Up to two axes next to the vector axis along which some input is reused. Of more, those that are too
    short to be a side of a tile, as phases are, are none, and one is an axis along which vectors are reused,
    if there is one: that of channels, where lanes are columns of a volume."""
    # Tiles of a domain are whole but at its border (`schedules.passes.follow_domains`).
    guarded = set() if has_domain(p) else {v for w in p.where for v in E.variables(w)}
    found = [
        axis
        for axis in axes
        if axis != v and n[axis] > 1 and names[axis] not in guarded
        if any(not depends(x, names[axis]) for x in operands(p)) or _slides(p, names[axis])
    ]
    long = [axis for axis in found if n[axis] >= FEWEST]
    if len(found) <= 2 or len(long) < 2:
        return found[-2:]
    vectors = [x for x in operands(p) if v and depends(x, names[v])]
    reusing = [a for a in long if any(not depends(x, names[a]) for x in vectors)]
    near = long[-2:]
    return near if not reusing or set(reusing) & set(near) else [reusing[-1], near[-1]]


def _slides(p: Block, var: str) -> bool:
    """Whether a window moves along the axis, so that neighbouring points read overlapping elements."""
    return any(var in E.variables(i) and len(E.variables(i)) > 1 for x in operands(p) for i in x.indices)


def _accumulate(d: SketchBuilder, t: Tiling) -> None:
    """Put reduction loops outside the register tile, which is unrolled and vectorized."""
    producer, v = t.producer, t.axis_of[t.v]
    p = d.block(producer)
    own = d.own_loops(producer)
    red = [x for x in own if x.var in vars_bound(p, "reduce")]
    ax = [x for x in own if x not in red]
    vec = next(x for x in ax if x.var in behind(p, v))
    rows = [x for x in ax if x is not vec]
    steps = reduction_steps(d, producer, red[-1].var)
    outer = [x.var for x in red[:-1]]
    d.s.reorder(*outer, *steps, *(x.var for x in (*rows, vec)))
    lengths = [extent(x) for x in red]
    if 1 < math.prod(lengths) <= UNROLL_REDUCTION and d.choose(f"{producer}.unroll", ("yes", "no")) == "yes":
        for name in (*outer, steps[0]):
            d.s.unroll(name)
    for x in rows:
        if extent(x) <= MAX_ROWS:
            d.s.unroll(x.var)
    d.s.vectorize(vec.var)
    d.s.decompose_reduction(producer, [*outer, *steps][0])
    if _is_open_sum(d, producer, steps[0]):
        prefetch_rows_of_state(d, steps[0])


def _is_open_sum(d: SketchBuilder, producer: str, loop: str) -> bool:
    """Whether a loop of a reduction goes along an axis of open extent."""
    b = d.block(producer)
    return any((producer, a) in d.open and loop in behind(b, a) for a in extents(b))


def _moves_evenly(x: Load, v: str) -> bool:
    """Whether every step of an axis moves the access equally, so that a tile reads the same extent wherever
    it lies. Digits of the vector axis, such as channels of a group, do not count."""
    atoms = [a for i in x.indices for a in affine.linear(i)[0]]
    return all(isinstance(a, Var) or E.variables(a) <= {v} for a in atoms)


def place_producers(
    d: SketchBuilder, producer: str, tiles: str, placed: Container[str], steady: Container[str] = ()
) -> None:
    """Place padded and changed copies that are not ``placed``: whole before the loops, or a tile's part of a
    padded one inside them if its size is ``steady``."""
    for x in operands(d.block(producer)):
        if x.buffer in d.s.nest.params:
            continue
        for b in writers(d.s.nest, x.buffer):
            changed = b.name in d.copies
            if not (is_guarded_copy(b) or changed) or b.name in placed or b.name in d.done:
                continue
            d.done.add(b.name)
            alone = len(readers(d.s.nest, x.buffer)) == 1  # what others read too is made once
            places = ("root", "tile") if x.buffer in steady and alone and not changed else ("root",)
            if d.choose(f"{b.name}.at", places) == "tile":
                d.s.compute_at(b.name, tiles)
                schedule_copy(d, b.name, parallel=False)
            else:
                schedule_copy(d, b.name, parallel=True)
