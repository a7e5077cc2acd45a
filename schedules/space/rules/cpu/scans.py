"""Rules for scans: what runs outside of the steps, what inside, and where states lie.

A scan of one stage that reads its own points only, as most linear recurrences do, has its other axes in
tiles *outside* of the steps: tiles are independent, so threads share them, and the states of a tile stay in
registers. Readers of the history are computed in the step that makes it, so that it need not be kept.
Where memory goes on along the steps, as in blocks of a long scan, a tile of as many steps as vectors have
lanes is read and written by rows, and turned in registers.

Where a step reads all of the step before, as a recurrent layer does, the steps are outermost, and the stages
of a step follow each other in vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from schedules.errors import ScheduleError
from schedules.expr import Load, Var
from schedules.ir import Block
from schedules.ir.nest import find_loop, readers, reads, vars_bound
from schedules.primitives.compute_ahead import parts
from schedules.space.rules.cpu.parts_of_steps import in_order, schedule_in_step
from schedules.space.rules.parts import copy_read, lanes_last
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
from schedules.te.scans import groups

# Vectors in a tile of states, and rows of these.
VECTORS = (1, 2, 4)
ROWS = (1, 2, 4, 8)
# Most points along the axes of a tile that are written out.
MOST_UNROLLED = 64


def scan_groups(d: SketchBuilder) -> list[list[Stage]]:
    """The stages of each group of the scans of an expression."""
    stages = d.s.dag.stages
    return [list(stages[a : b + 1]) for a, b in groups(d.s.dag)]


def schedule_scans(d: SketchBuilder) -> None:
    """Schedule every scan. Readers that are computed in a step are done then too."""
    for group in scan_groups(d):
        with d.scheduling(group[-1].name):
            if (
                len(group) == 1
                and group[0].reducer is None
                and _is_pointwise(d.block(group[0].name), group[0])
            ):
                _schedule_tiles(d, group[0])
            else:
                _schedule_steps(d, group)


def _is_pointwise(b: Block, s: Stage) -> bool:
    """Whether a step reads of the steps before what is at its own point of the other axes, so that these are
    independent."""
    own = {w.buffer for w in b.writes}
    scanned = {v for v, _ in s.scan}
    others = [n for n, v in enumerate(spatial(b)) if v not in scanned]
    at = [Var(v) for v in spatial(b)]
    return all(x.indices[n] == at[n] for x in reads(b) if x.buffer in own for n in others)


def _schedule_tiles(d: SketchBuilder, s: Stage) -> None:
    name = s.name
    b, n = d.block(name), extents(d.block(name))
    scanned = [v for v, _ in s.scan]
    loop = _loops_of(d, b)
    others = [v for v in spatial(b) if v not in scanned]
    made = [w.buffer for w in b.writes]
    users = _readers_in_step(d, b)
    summed = {v for u in users for v in _reduced_along(u, made, spatial(b))}
    w = d.lanes_of(d.dtype(b))
    turned = [v for v in others if v not in summed and _is_turned(d, b, v, scanned[-1], w)]
    if turned:
        _schedule_turned(d, s, turned[-1], [u.name for u in users])
        return
    lanes_of = [v for v in others if n[v] > 1 and _may_be_lanes(d, b, v)]
    lanes = d.choose(f"{name}.lanes", tuple(reversed(lanes_of))) if lanes_of else ""
    kept = d.choose(f"{name}.in", ("registers", "memory")) if any(w in d.s.nest.params for w in made) else ""
    ahead = _compute_ahead(d, name, loop[scanned[-1]]) if not lanes else ""
    copy = d.s.cache_write(name, "local") if kept == "registers" else ""
    outer, inner = list[str](), list[str]()
    for v in others:
        if v in summed and v != lanes:
            inner.append(loop[v])  # whole, as readers in the step sum over it
        elif v == lanes:
            if v in summed:
                if n[v] > MOST_UNROLLED:
                    raise ScheduleError(f"readers sum over {v}, which has more points than vectors hold")
                last = loop[v]
                continue
            fits = [w * k for k in VECTORS if w * k <= n[v]] or [n[v]]
            o, i = d.s.split(loop[v], (None, d.choice(f"{name}.vec", fits)), "guard" if users else "shift")
            outer.append(o)
            last = i
        elif v == next((x for x in reversed(others) if x != lanes and x not in summed), ""):
            rows = [k for k in ROWS if n[v] % k == 0]
            o, i = d.s.split(loop[v], (None, d.choice(f"{name}.rows", rows)))
            outer.append(o)
            inner.append(i)
        else:
            outer.append(loop[v])
    steps = [loop[v] for v in scanned]
    in_order(d, name, [*outer, *steps, *inner, *([last] if lanes else [])])
    if ahead:
        steps[-1:] = _cut_into_tiles(d, name, ahead, steps[-1])
    if lanes and not any(w in d.s.nest.params for w in made):
        lanes_last(d, name, lanes)
    if lanes:
        _turn_operands(d, name, lanes, scanned)
    for reader in [copy] if copy else [u.name for u in users]:
        d.s.reverse_compute_at(reader, steps[-1])
        d.done.add(reader)
        schedule_in_step(d, reader, steps[-1], lanes=bool(lanes))
    if prod(n[v] for v in others if loop[v] in inner) <= MOST_UNROLLED:
        for i in inner:
            d.s.unroll(i)
    if lanes:
        d.s.vectorize(last)
    d.s.partition(steps[-1 - bool(ahead)])
    if outer:
        d.parallel(*outer)
    d.done.add(name)


def _compute_ahead(d: SketchBuilder, name: str, step: str) -> str:
    """Compute what the steps of a loop do not wait for in a block ahead of it, if there is such and it is
    chosen. Returns the name of the block."""
    w = d.lanes_of(d.dtype(d.block(name)))
    if not parts(d.s.nest, name, step) or extent(find_loop(d.s.nest, step)) < w:
        return ""
    return d.s.compute_ahead(name, step) if d.choose(f"{name}.ahead", ("tiles", "")) else ""


def _cut_into_tiles(d: SketchBuilder, name: str, ahead: str, step: str) -> list[str]:
    """Tiles of steps: what they do not wait for in vectors, and then one step after another. Returns the loop
    of tiles, and that of their steps."""
    w, n = d.lanes_of(d.dtype(d.block(name))), extent(find_loop(d.s.nest, step))
    tiles, steps = d.s.split(step, (None, d.choice(f"{name}.tile", [w * k for k in VECTORS if w * k <= n])))
    d.s.compute_at(ahead, tiles)
    d.s.set_scope(ahead, "local")
    d.s.vectorize(d.loops(ahead)[-1].var)
    d.s.unroll(steps)
    d.done.add(ahead)
    return [tiles, steps]


def _turn_operands(d: SketchBuilder, name: str, lanes: str, scanned: Sequence[str]) -> None:
    """Let a scan read copies, with the lanes side by side, of what is the same at all steps and lies
    otherwise."""
    b = d.block(name)
    for x in dict.fromkeys(operands(b)):
        along = [n for n, i in enumerate(x.indices) if i == Var(lanes)]
        if lanes in unit_stride_vars(d.s.nest, x) or len(along) != 1 or is_gathered(x):
            continue
        if any(depends(x, v) for v in scanned) or len(x.indices) < 2:
            continue
        copy = copy_read(d, name, x)
        d.s.reorder_storage(
            d.block(copy).writes[0].buffer, [*(n for n in range(len(x.indices)) if n != along[0]), along[0]]
        )
        d.done.add(copy)


def _loops_of(d: SketchBuilder, b: Block) -> dict[str, str]:
    """{axis of a block: its loop}, of a block whose loops are its axes."""
    found = {}
    for x in d.loops(b.name):
        for i, e in zip(b.iters, b.binds, strict=True):
            if x.var in vars_bound(b, i.kind) and Var(x.var) in _terms(e):
                found[i.var] = x.var
    return found


def _terms(e: object) -> list[object]:
    from schedules import expr as E

    return [x for x in E.walk(e) if isinstance(x, Var)]  # type: ignore[arg-type]


def _may_be_lanes(d: SketchBuilder, b: Block, axis: str) -> bool:
    """Whether neighbours along an axis lie side by side in something that a step reads or returns."""
    made = [Load(w.buffer, w.indices, "float32") for w in b.writes if w.buffer in d.s.nest.params]
    if made:
        return all(axis in unit_stride_vars(d.s.nest, x) for x in made)
    return any(axis in unit_stride_vars(d.s.nest, x) for x in operands(b))


def _is_turned(d: SketchBuilder, b: Block, axis: str, step: str, w: int) -> bool:
    """Whether what a step reads at each point of an axis, and what is returned, goes on in memory along the
    steps, and both are as long as tiles of ``w`` lanes."""
    n = extents(b)
    if n[axis] < w or n[step] == 0 or n[step] % w:
        return False
    made = [Load(x.buffer, x.indices, "float32") for x in b.writes]
    own = {x.buffer for x in b.writes}
    given = [x for x in operands(b) if x.buffer not in own and depends(x, axis) and depends(x, step)]
    if any(x.buffer in d.s.nest.params for x in made):
        given += made
    return bool(given) and all(step in unit_stride_vars(d.s.nest, x) and not is_gathered(x) for x in given)


def _schedule_turned(d: SketchBuilder, s: Stage, lanes: str, users: Sequence[str]) -> None:
    """Tiles of as many steps as there are lanes along an axis, read and written by rows. Several of them take
    turns, as each step waits for the one before."""
    name, b = s.name, d.block(s.name)
    loop, n, w = _loops_of(d, b), extents(b), d.lanes_of(d.dtype(b))
    scanned = [v for v, _ in s.scan]
    outer = [loop[v] for v in spatial(b) if v not in scanned and v != lanes]
    returned = any(x.buffer in d.s.nest.params for x in b.writes)
    readers = [d.s.cache_write(name, "local")] if returned else users
    # lanes of a step are computed once, as later steps take the place of earlier ones in memory
    tiles = [k for k in VECTORS if k == 1 or n[lanes] % (w * k) == 0]
    tail = "guard" if readers else "shift"
    tile, row, lane = d.s.split(loop[lanes], (None, d.choice(f"{name}.rows", tiles), w), tail)
    *steps, last = (loop[v] for v in scanned)
    step, column = d.s.split(last, (None, w))
    in_order(d, name, [*outer, tile, *steps, step, row, column, lane])
    if not returned:
        lanes_last(d, name, lanes)
    for reader in readers:
        d.s.reverse_compute_at(reader, step)
        d.done.add(reader)
        schedule_in_step(d, reader, step, lanes=True)
        d.s.unroll(d.loops(reader)[-2].var)
    d.s.unroll(row)
    d.s.unroll(column)
    d.s.vectorize(lane)
    d.s.partition(step)
    d.parallel(*outer, tile)
    d.done.add(name)


def _readers_in_step(d: SketchBuilder, b: Block) -> list[Block]:
    """Stages that read what a scan makes at their own points, and that alone of it: they can be computed in
    the step that makes it. None where the history is returned, or something else reads it."""
    nest = d.s.nest
    if any(w.buffer in nest.params for w in b.writes):
        return []
    users = [u for w in b.writes for u in readers(nest, w.buffer) if u is not b]
    users = list({u.name: u for u in users}.values())
    if any(u.name == s.name for group in scan_groups(d) for s in group for u in users):
        return []  # another scan, in loops of its own
    for u in users:
        for x in reads(u):
            if any(x.buffer == w.buffer for w in b.writes) and not all(isinstance(i, Var) for i in x.indices):
                return []
    return users


def _reduced_along(u: Block, made: Sequence[str], axes: Sequence[str]) -> set[str]:
    """The axes of a scan that a reader sums over."""
    reduced = {i.var for i in u.iters if i.kind == "reduce"}
    return {
        a
        for x in reads(u)
        if x.buffer in made
        for a, i in zip(axes, x.indices, strict=True)
        if isinstance(i, Var) and i.name in reduced
    }


def _schedule_steps(d: SketchBuilder, group: Sequence[Stage]) -> None:
    """The steps outermost, and in each the stages one after another."""
    steps = [x.var for x in d.loops(group[0].name)][: len(group[0].scan)]
    for s in group:
        if s.name in d.s.blocks():
            schedule_in_step(d, s.name, steps[-1], lanes=True)
            d.done.add(s.name)
    d.s.partition(steps[-1])  # the first step reads what was given, the others do not ask
