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
from schedules.ir.nest import readers, reads
from schedules.space.rules.cpu.parts_of_steps import in_order, schedule_in_step
from schedules.space.rules.cpu.scan_tiles import (
    VECTORS,
    compute_ahead,
    cut_into_tiles,
    is_pointwise,
    is_turned,
    loops_of_axes,
    scan_groups,
    scans_before,
    schedule_in_tile,
    schedule_turned,
)
from schedules.space.rules.cpu.sums_ahead import split_in_panels
from schedules.space.rules.parts import copy_read, lanes_last
from schedules.space.rules.patterns import (
    depends,
    extents,
    is_gathered,
    operands,
    spatial,
    unit_stride_vars,
)
from schedules.space.sketch_builder import SketchBuilder
from schedules.te.compute_dag import Stage

# Rows of vectors in a tile of states.
ROWS = (1, 2, 4, 8)
# Most points along the axes of a tile that are written out.
MOST_UNROLLED = 64


def schedule_scans(d: SketchBuilder) -> None:
    """Schedule every scan, the last first. Readers that are computed in a step are done then too, and scans
    that are computed in a tile."""
    fused = set[str]()
    for group in reversed(scan_groups(d)):
        if group[-1].name in fused:
            continue
        with d.scheduling(group[-1].name):
            if is_pointwise(d, group):
                fused |= _schedule_tiles(d, group[0])
            else:
                _schedule_steps(d, group)


def _schedule_tiles(d: SketchBuilder, s: Stage) -> set[str]:
    """Tiles of the other axes outside of the steps. Returns other scans that are computed in them."""
    name = s.name
    b, n = d.block(name), extents(d.block(name))
    scanned = [v for v, _ in s.scan]
    loop = loops_of_axes(d, b)
    others = [v for v in spatial(b) if v not in scanned]
    made = [w.buffer for w in b.writes]
    users = _readers_in_step(d, b)
    summed = {v for u in users for v in _reduced_along(u, made, spatial(b))}
    turned = [v for v in others if v not in summed and is_turned(d, s, v, users)]
    if turned:
        return schedule_turned(d, s, turned[-1], [u.name for u in users])
    lanes_of = [v for v in others if n[v] > 1 and _may_be_lanes(d, b, v)]
    lanes = d.choose(f"{name}.lanes", tuple(reversed(lanes_of))) if lanes_of else ""
    kept = d.choose(f"{name}.in", ("registers", "memory")) if any(w in d.s.nest.params for w in made) else ""
    ahead = compute_ahead(d, name, loop[scanned[-1]]) if not lanes else ""
    copy = d.s.cache_write(name, "local") if kept == "registers" else ""
    before = [] if summed or not lanes else scans_before(d, s, [u.name for u in users])
    outer, inner, last = _cut_axes(d, s, lanes, summed, "guard" if users else "shift")
    steps = [loop[v] for v in scanned]
    in_order(d, name, [*outer, *steps, *inner, *([last] if lanes else [])])
    if ahead:
        steps[-1:] = cut_into_tiles(d, name, ahead, steps[-1])
    if lanes and not any(w in d.s.nest.params for w in made):
        lanes_last(d, name, lanes)
    if lanes:
        _turn_operands(d, name, lanes, scanned)
    for reader in [copy] if copy else [u.name for u in users]:
        d.s.reverse_compute_at(reader, steps[-1])
        d.done.add(reader)
        schedule_in_step(d, reader, steps[-1], lanes=bool(lanes))
    for x in before:
        schedule_in_tile(d, x, s, lanes, outer[-1])
    if prod(n[v] for v in others if loop[v] in inner) <= MOST_UNROLLED:
        for i in inner:
            d.s.unroll(i)
    if lanes:
        d.s.vectorize(last)
    d.s.partition(steps[-1 - bool(ahead)])
    if outer:
        d.parallel(*outer)
    d.done.add(name)
    return {x.name for x in before}


def _cut_axes(
    d: SketchBuilder, s: Stage, lanes: str, summed: set[str], tail: str
) -> tuple[list[str], list[str], str]:
    """Cut the axes that are not the scan's own into tiles. Returns the loops outside of the steps, those
    inside, and that of the lanes."""
    name, b = s.name, d.block(s.name)
    n, w, loop = extents(b), d.lanes_of(d.dtype(b)), loops_of_axes(d, b)
    others = [v for v in spatial(b) if v not in dict(s.scan)]
    last = loop.get(lanes, "")
    outer, inner = list[str](), list[str]()
    for v in others:
        if v in summed and v != lanes:
            inner.append(loop[v])  # whole, as readers in the step sum over it
        elif v == lanes:
            if v in summed:
                if n[v] > MOST_UNROLLED:
                    raise ScheduleError(f"readers sum over {v}, which has more points than vectors hold")
                continue
            fits = [w * k for k in VECTORS if w * k <= n[v]] or [n[v]]
            o, i = d.s.split(loop[v], (None, d.choice(f"{name}.vec", fits)), tail)
            outer.append(o)
            last = i
        elif v == next((x for x in reversed(others) if x != lanes and x not in summed), ""):
            rows = [k for k in ROWS if n[v] % k == 0]
            o, i = d.s.split(loop[v], (None, d.choice(f"{name}.rows", rows)))
            outer.append(o)
            inner.append(i)
        else:
            outer.append(loop[v])
    return outer, inner, last


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


def _may_be_lanes(d: SketchBuilder, b: Block, axis: str) -> bool:
    """Whether neighbours along an axis lie side by side in something that a step reads or returns."""
    made = [Load(w.buffer, w.indices, "float32") for w in b.writes if w.buffer in d.s.nest.params]
    if made:
        return all(axis in unit_stride_vars(d.s.nest, x) for x in made)
    return any(axis in unit_stride_vars(d.s.nest, x) for x in operands(b))


def _readers_in_step(d: SketchBuilder, b: Block) -> list[Block]:
    """Stages that read what a scan makes at their own points, and that alone of it: they can be computed in
    the step that makes it. None where the history is returned, or something else reads it."""
    nest = d.s.nest
    if any(w.buffer in nest.params for w in b.writes):
        return []
    users = [u for w in b.writes for u in readers(nest, w.buffer) if u is not b]
    users = list({u.name: u for u in users}.values())
    if any(u.name in d.done for u in users):
        return []  # another scan, in loops of its own, or what is computed in the steps of one
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
    step = split_in_panels(d, group, steps[-1])
    for s in group:
        if s.name in d.s.blocks():
            schedule_in_step(d, s.name, step, lanes=True)
            d.done.add(s.name)
    d.s.partition(step)  # the first step reads what was given, the others do not ask
