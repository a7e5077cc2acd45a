"""Tiles of the steps of a scan: what is computed ahead of them, what is turned, and scans in the tiles of
another.

What a step does not wait for is computed ahead of a tile of steps, in vectors along the steps. Where memory
goes on along the steps, a tile of as many steps as vectors have lanes is read and written by rows, and turned
in registers. A scan that only a later one reads is computed in the tiles of that one, so that what it makes
stays in a cache near by.
"""

from __future__ import annotations

from collections.abc import Sequence

from schedules import expr as E
from schedules.expr import Load, Var
from schedules.ir import Block
from schedules.ir.nest import find_loop, readers, reads, vars_bound
from schedules.primitives.compute_ahead import parts
from schedules.space.rules.cpu.parts_of_steps import in_order, schedule_in_step
from schedules.space.rules.cpu.prefetching import prefetch_tiles_of_scan
from schedules.space.rules.parts import lanes_last
from schedules.space.rules.patterns import (
    depends,
    extents,
    is_gathered,
    operands,
    spatial,
    unit_stride_vars,
)
from schedules.space.sketch_builder import SketchBuilder, extent
from schedules.te.compute_dag import Stage
from schedules.te.scans import groups, scan_positions

# Vectors in a tile.
VECTORS = (1, 2, 4)


def scan_groups(d: SketchBuilder) -> list[list[Stage]]:
    """The stages of each group of the scans of an expression."""
    stages = d.s.dag.stages
    return [list(stages[a : b + 1]) for a, b in groups(d.s.dag)]


def is_pointwise(d: SketchBuilder, group: Sequence[Stage]) -> bool:
    """Whether a group is one stage without a sum, of which a step reads of the steps before what is at its
    own point of the other axes, so that these are independent."""
    s, b = group[0], d.block(group[0].name)
    if len(group) > 1 or s.reducer is not None:
        return False
    own = {w.buffer for w in b.writes}
    scanned = {v for v, _ in s.scan}
    others = [n for n, v in enumerate(spatial(b)) if v not in scanned]
    at = [Var(v) for v in spatial(b)]
    return all(x.indices[n] == at[n] for x in reads(b) if x.buffer in own for n in others)


def loops_of_axes(d: SketchBuilder, b: Block) -> dict[str, str]:
    """{axis of a block: its loop}, of a block whose loops are its axes."""
    found = dict[str, str]()
    for x in d.loops(b.name):
        for i, e in zip(b.iters, b.binds, strict=True):
            if x.var in vars_bound(b, i.kind) and Var(x.var) in E.walk(e):
                found[i.var] = x.var
    return found


def compute_ahead(d: SketchBuilder, name: str, step: str) -> str:
    """Compute what the steps of a loop do not wait for in a block ahead of it, if there is such and it is
    chosen. Returns the name of the block."""
    w = d.lanes_of(d.dtype(d.block(name)))
    if w == 1 or extent(find_loop(d.s.nest, step)) < w or not parts(d.s.nest, name, step):
        return ""
    return d.s.compute_ahead(name, step) if d.choose_once("scans.parts", ("ahead", "")) else ""


def cut_into_tiles(d: SketchBuilder, name: str, ahead: str, step: str) -> list[str]:
    """Tiles of steps: what they do not wait for in vectors, and then one step after another. Returns the loop
    of tiles, and that of their steps."""
    w, n = d.lanes_of(d.dtype(d.block(name))), extent(find_loop(d.s.nest, step))
    tiles, steps = d.s.split(step, (None, d.choice(f"{name}.tile", [w * k for k in VECTORS if w * k <= n])))
    _compute_at(d, ahead, tiles)
    d.s.vectorize(d.loops(ahead)[-1].var)
    d.s.unroll(steps)
    return [tiles, steps]


def _compute_at(d: SketchBuilder, ahead: str, loop: str) -> None:
    d.s.compute_at(ahead, loop)
    for x in d.block(ahead).writes:
        d.s.set_scope(x.buffer, "local")
    d.done.add(ahead)


def is_turned(d: SketchBuilder, s: Stage, axis: str, users: Sequence[Block]) -> bool:
    """Whether what the steps of a scan and readers in them read at each point of an axis, and what they make
    beside the scans' own tensors, goes on in memory along the steps, and both are as long as vectors."""
    b = d.block(s.name)
    n, step, w = extents(b), s.scan[-1][0], d.lanes_of(d.dtype(b))
    if n[axis] < w or n[step] == 0 or n[step] % w:
        return False
    placed = {o.name for g in scan_groups(d) for x in g for o in x.outputs} - set(d.s.nest.params)
    found = list[bool]()
    for u in (b, *users):
        own = {axis_of: v for v, axis_of in _axes_of(u, b).items()}
        made = [Load(x.buffer, x.indices, "float32") for x in u.writes]
        for x in (*operands(u), *made):
            if x.buffer not in placed and depends(x, own[axis]) and depends(x, own[step]):
                found.append(own[step] in unit_stride_vars(d.s.nest, x) and not is_gathered(x))
    return bool(found) and all(found)


def _axes_of(u: Block, b: Block) -> dict[str, str]:
    """{axis of a block: the axis of a scan that it is}, of the scan itself, or of a reader at its own
    points."""
    if u is b:
        return {v: v for v in spatial(b)}
    made = {w.buffer for w in b.writes}
    read = next(x for x in reads(u) if x.buffer in made)
    return {i.name: v for i, v in zip(read.indices, spatial(b), strict=True) if isinstance(i, Var)}


def schedule_turned(d: SketchBuilder, s: Stage, lanes: str, users: Sequence[str]) -> set[str]:
    """Tiles of as many steps as there are lanes along an axis, read and written by rows. Several of them take
    turns, as each step waits for the one before. Returns the scans that are computed in the tiles."""
    name, b = s.name, d.block(s.name)
    loop, n, w = loops_of_axes(d, b), extents(b), d.lanes_of(d.dtype(b))
    scanned = [v for v, _ in s.scan]
    outer = [loop[v] for v in spatial(b) if v not in scanned and v != lanes]
    before = scans_before(d, s, users)
    returned = any(x.buffer in d.s.nest.params for x in b.writes)
    ahead = compute_ahead(d, name, loop[scanned[-1]])
    readers = [d.s.cache_write(name, "local")] if returned else users
    if n[lanes] % w and not returned:
        tile, lane = d.s.split(loop[lanes], (None, w), "shift")
        row = list[str]()
    else:  # what is kept in registers is not computed again
        tiles = [k for k in VECTORS if k == 1 or n[lanes] % (w * k) == 0]
        tile, *row, lane = d.s.split(loop[lanes], (None, d.choice(f"{name}.rows", tiles), w))
    *steps, last = (loop[v] for v in scanned)
    step, column = d.s.split(last, (None, w))
    in_order(d, name, [*outer, tile, *steps, step, *row, column, lane])
    if not returned:
        lanes_last(d, name, lanes)
    for reader in readers:
        d.s.reverse_compute_at(reader, step)
        d.done.add(reader)
        schedule_in_step(d, reader, step, lanes=True)
        d.s.unroll(d.loops(reader)[-2].var)
    for before_it in before:
        schedule_in_tile(d, before_it, s, lanes, tile)
    if ahead:
        _by_rows(d, ahead, lanes, scanned[-1], step)
    for x in (*row, column):
        d.s.unroll(x)
    d.s.vectorize(lane)
    d.s.partition(step)
    d.parallel(*outer, tile)
    prefetch_tiles_of_scan(d, tile, name)
    d.done.add(name)
    return {x.name for x in before}


def _by_rows(d: SketchBuilder, ahead: str, lanes: str, last: str, step: str) -> None:
    """Compute what steps do not wait for in a tile of them: in vectors along the steps, a row for each
    lane."""
    _compute_at(d, ahead, step)
    loop = loops_of_axes(d, d.block(ahead))
    in_order(d, ahead, [loop[lanes], loop[last]])
    d.s.unroll(loop[lanes])
    d.s.vectorize(loop[last])


def scans_before(d: SketchBuilder, s: Stage, users: Sequence[str]) -> list[Stage]:
    """Earlier scans over the same points that a scan and readers in its steps alone read, at their own points
    of the other axes, if these are to be computed in its tiles."""
    inside, at = {s.name, *users}, scan_positions(s)
    own = {o.name for o in s.outputs}
    others = [n for n in range(len(s.axes)) if n not in at]
    found = list[Stage]()
    for group in scan_groups(d):
        x = group[0]
        made = {o.name for o in x.outputs}
        if x.name not in d.s.blocks() or x.name in inside or made & set(d.s.nest.params):
            continue
        if not is_pointwise(d, group) or scan_positions(x) != at:
            continue
        if [a.extent for a in x.axes] != [a.extent for a in s.axes]:
            continue
        using = [u for o in made for u in readers(d.s.nest, o) if u.name != x.name]
        if all(u.name in inside and _at_own_points(u, made, own, others) for u in using):
            found.append(x)
    if not found or not others or not d.choose_once("scans.in", ("tiles", "")):
        return []
    return found


def _at_own_points(u: Block, made: set[str], own: set[str], others: Sequence[int]) -> bool:
    """Whether a block reads some tensors at the places of some dimensions at which it makes or reads its
    own."""
    at = [w.indices for w in u.writes if w.buffer in own] + [x.indices for x in reads(u) if x.buffer in own]
    return all(x.indices[n] == at[0][n] for x in reads(u) if x.buffer in made for n in others)


def schedule_in_tile(d: SketchBuilder, x: Stage, s: Stage, lanes: str, tile: str) -> None:
    """Compute a scan in a tile of lanes of another one, for all steps."""
    name, axis = x.name, x.axes[[a.var for a in s.axes].index(lanes)].var
    last = x.scan[-1][0]
    turned = is_turned(d, x, axis, ())
    ahead = compute_ahead(d, name, loops_of_axes(d, d.block(name))[last]) if turned else ""
    d.s.compute_at(name, tile)
    lanes_last(d, name, axis)
    loop = loops_of_axes(d, d.block(name))
    *steps, step = (loop[v] for v, _ in x.scan)
    others = [loop[a.var] for a in x.axes if a.var != axis and a.var not in dict(x.scan)]
    if not turned:
        in_order(d, name, [*steps, step, *others, loop[axis]])
        for o in others:
            d.s.unroll(o)
        d.s.vectorize(loop[axis])
        d.s.partition(step)
    else:
        w = d.lanes_of(d.dtype(d.block(name)))
        row, lane = d.s.split(loop[axis], (None, w))
        step, column = d.s.split(step, (None, w))
        in_order(d, name, [*others, *steps, step, row, column, lane])
        if ahead:
            _by_rows(d, ahead, axis, last, step)
        d.s.unroll(row)
        d.s.unroll(column)
        d.s.vectorize(lane)
        d.s.partition(step)
    d.done.add(name)
