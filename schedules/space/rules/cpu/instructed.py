"""Rule for sums of products that an instruction of the target does.

Which instructions a block is follows from its expression (`schedules.instructions.match.fits`). Which of its
axes become theirs, and which operands are copied, follows from how they lie. Tiles are those of `tiling`: a
tile of a result has whole runs of the instruction along its axes (ADR 74).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

from schedules import expr as E
from schedules.errors import ScheduleError
from schedules.expr import Const, Hole
from schedules.instructions import INSTRUCTIONS
from schedules.instructions.match import Fit, fits
from schedules.ir import Block, Nest, nbytes
from schedules.ir.nest import behind, bound, find_block, reads
from schedules.space.rules.cpu.changed_operands import can_change, cost_of_change, is_known
from schedules.space.rules.cpu.instructed_operands import (
    OperandRead,
    PackedCopy,
    copied_runs,
    lane_axis,
    pack,
    schedule_packing,
    term_axis,
    units_of,
)
from schedules.space.rules.cpu.merged_sums import Sum, merged_fits, merged_sums
from schedules.space.rules.cpu.tiling import (
    Tiling,
    place_producers,
    split_in_blocks,
    tile_for_registers,
)
from schedules.space.rules.patterns import depends, extents, operands, spatial, uses, vector_axis
from schedules.space.sketch_builder import SketchBuilder, extent

# Runs of an instruction along the axis of its lanes, and along another one, that are offered.
VECTORS = (1, 2, 3, 4, 6)
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14)
# Most runs along a sum that are unrolled.
MOST_STEPS = 8
# Most times the work of a block that an instruction may do, as its tails are run whole.
MOST_WASTE = 4.0
# Fewest uses of an operand that is copied in every call: copying it costs about as much as using it so often.
FEWEST_USES = 3
# First caches that what one run reads over a whole sum fills, from which on the sum is offered in parts.
PARTS_OF_CACHE = 1
# Multiply-adds of vectors that take as long as copying a short row, and most times the work of a block that
# copies of windows may take.
COPY, MOST_COPIED = 30.0, 2.0
# Second caches that a copy fills, from which on it may be made inside the loops instead.
SHARE_OF_SECOND = 0.5
# Times that a result costs which lies across the lanes.
TURNED = 1.5


def instruction_fits(d: SketchBuilder, p: Block, c: Block) -> dict[str, Fit]:
    """{name: the best way in which block ``p``, whose results ``c`` stores, is an instruction of the
    target}. Operands are changed for one that is faster than all that take them as they are."""
    out: dict[object, tuple[tuple[float, ...], str, Fit]] = {}
    sums: list[Sum] = []  # found where an instruction needs them
    for ins in INSTRUCTIONS.values():
        if not ins.features or not d.runs(ins) or len(ins.meaning.inputs) > len(operands(p)):
            continue
        if any((ins.result.name, k) not in ins.free for k in range(len(ins.result.shape) - 1)):
            continue  # rows of results would have to lie side by side
        kind = ins.features, tuple(ins.iterations.values())  # one with its operands turned is no other
        ways = fits(p, ins, changed=True)
        if any(extents(p)[term_axis(fit)] % ins.terms for fit in ways):
            sums = sums or merged_sums(d.s.nest, p)
            ways += [fit for merged in sums for fit in merged_fits(p, merged, ins)]
        for fit in ways:
            cost = _cost(d, dict(sums).get(fit.merged, d.s.nest), p.name, c, fit)
            if cost is not None and (kind not in out or cost < out[kind][0]):
                out[kind] = cost, ins.name, fit
    found = {name: fit for _, name, fit in out.values()}
    usual = min((x.instruction.cost_each for x in found.values() if not x.changes), default=math.inf)
    least = min((x.instruction.cost_each for x in found.values()), default=math.inf)
    return {k: x for k, x in found.items() if not x.changes or x.instruction.cost_each == least < usual}


def _cost(d: SketchBuilder, nest: Nest, name: str, c: Block, fit: Fit) -> tuple[float, ...] | None:
    """What a fit costs beyond the work of the block, to compare fits by: work in tails; a result that does
    not lie along its lanes; operands that are copied. None if it cannot be scheduled. ``nest``: with block
    ``name`` as it is then."""
    p = find_block(nest, name)
    n, ins = extents(p), fit.instruction
    sizes = units_of(fit) | {term_axis(fit): ins.terms}
    if n[term_axis(fit)] <= ins.terms and _is_open_sum(d, p, fit):
        return None  # it is a tail
    waste = math.prod(-(-n[v] // size) * size / n[v] for v, size in sizes.items())
    away = copied_operands(d, nest, p, fit)
    if any(v in open_axes(d, p, x) and v not in x.panels() for x in away for v in units_of(fit)):
        return None  # a run may be longer than the axis
    if waste > MOST_WASTE or not all(x.can_be_packed(d, nest, p) for x in away) or not can_change(d, p, fit):
        return None
    copies = [x for x in away if x.read.buffer not in d.s.dag.constants]
    # Operands beside one that is changed are added up, or changed too.
    made = [x for x in fit.reads.values() if fit.changes and x.buffer not in d.s.dag.constants]
    if any(uses(p, x) < FEWEST_USES for x in (*made, *(x.read for x in copies))):
        return None
    runs = math.prod(n.values()) / math.prod(ins.iterations.values())
    copied = sum(copied_runs(d, nest, p, x) for x in copies) * COPY / (runs * ins.cost)
    if copied > MOST_COPIED and any(x.opened for x in copies):
        return None
    last = dict(zip(spatial(p), spatial(c), strict=True))[lane_axis(fit)]
    turned = 1.0 if last == vector_axis(c) else TURNED
    return waste * turned + copied, float(len(copies)), float(cost_of_change(d, p, fit))


def schedule_instructed(d: SketchBuilder, producer: str, consumer: str, fit: Fit) -> None:
    """Tile ``consumer``, which reads ``producer`` at its own iterations, and compute ``producer`` in its
    register tile by runs of an instruction."""
    p, c = d.block(producer), d.block(consumer)
    d.done.add(producer)
    n, axes = extents(c), spatial(c)
    names = dict(zip(axes, spatial(p), strict=True))  # {axis of the consumer: axis of the producer}
    own = {b: a for a, b in names.items()}
    away = _copied(d, p, fit)
    panelled = {v for x in away for v in x.panels()}
    tile: dict[str, int | Hole] = {}
    most = _most_runs(fit, extents(p))
    for v, unit in units_of(fit).items():
        end = n[own[v]] + (unit if v in panelled else 1)
        wide = [unit * k for k in VECTORS if k <= most[v] and unit * k < end]
        tile[own[v]] = d.choice(f"{producer}.{'vec' if v == lane_axis(fit) else own[v]}", wide)
    if len(tile) == 1 and (rows := _row_axis(d, p, fit, names)):
        tile[rows] = d.choice(f"{producer}.{rows}", [k for k in ROWS if k <= n[rows]])
    outgrows = _outgrows_cache(d, p, fit) and not _is_open_sum(d, p, fit)
    blocked = outgrows and d.choose(f"{producer}.k", ("", "blocks")) == "blocks"
    within = [] if blocked else _copied_inside(d, producer, fit, away)
    copies = {x.name: pack(d, producer, x, {names[a]: size for a, size in tile.items()}) for x in away}
    inside = [copies.pop(x.name) for x in within]
    for copy in copies.values():
        schedule_packing(d, copy)
    plan = Tiling(
        producer, consumer, own[lane_axis(fit)], names, {x: n[x] for x in axes}, tile,
        guarded=frozenset(own[v] for v in panelled), accumulate=partial(_accumulate, fit, inside),
    )  # fmt: skip
    tiles = d.fused(_tile_for_caches(d, plan, fit) if blocked else tile_for_registers(d, plan))
    place_producers(d, producer, tiles, [x.name for x in (*copies.values(), *inside)])
    d.parallel(tiles)


def _most_runs(fit: Fit, n: Mapping[str, int]) -> dict[str, int]:
    """Most runs of an instruction along each axis of a register tile. ``n``: extents of the block's axes."""
    units, held = units_of(fit), fit.instruction.registers
    if held is None or len(units) != 2:
        return dict.fromkeys(units, VECTORS[-1])
    rows, lanes = units
    count = min(math.isqrt(held.count + 1) - 1, -(-n[rows] // units[rows]))  # a square, with a side each
    return {rows: count, lanes: most_lanes(fit, count)}


def most_lanes(fit: Fit, rows: int) -> int:
    """Most runs along the lanes beside ``rows`` runs along rows. If an instruction has registers of its own,
    what is read twice in a step of the sum is held there beside the results."""
    held = fit.instruction.registers
    if held is None:
        return VECTORS[-1]
    return held.count - 2 if rows == 1 else (held.count - rows) // (rows + 1)


def _row_axis(d: SketchBuilder, p: Block, fit: Fit, names: dict[str, str]) -> str:
    """The last axis of the consumer along which what lanes read is used again. ``names``: {axis of the
    consumer: axis of the producer}. Empty if there is none."""
    n, lanes = extents(p), _of_lanes(fit).read
    found = [a for a, b in names.items() if n[b] > 1 and not depends(lanes, b)]
    return found[-1] if found else ""


def _of_lanes(fit: Fit) -> OperandRead:
    """The operand of which an instruction reads something else for every lane."""
    lane = fit.instruction.meaning.stages[0].axes[-1].var
    return next(x for name in fit.reads if lane in (x := OperandRead.of(fit, name)).dims)


def copied_operands(d: SketchBuilder, nest: Nest, p: Block, fit: Fit) -> list[OperandRead]:
    """Operands of block ``p`` of ``nest`` that do not lie as the instruction wants them. One along an axis
    whose extent a call tells is such a one, as that may be shorter than a run: its copy is padded."""
    every = (OperandRead.of(fit, name) for name in fit.reads)
    return [x.copied(p) for x in every if open_axes(d, p, x) or not x.lies(nest, extents(p))]


def open_axes(d: SketchBuilder, p: Block, x: OperandRead) -> list[str]:
    """Spatial axes of the block along which an instruction reads an operand, and whose extent a call
    tells."""
    own = [x.fit.axes[a] for a in x.dims if not x.is_term(a)]
    return [v for v in own if (p.name, v) in d.open]


def _is_open_sum(d: SketchBuilder, p: Block, fit: Fit) -> bool:
    """Whether a call tells how many terms block ``p`` adds up. Whole runs alone are by the instruction
    then. ``p``: with merged axes, if ``fit`` is of such."""
    now = {i.var for i in p.iters}
    own = [v for name, v in d.open if name == p.name]
    return any(v == term_axis(fit) or (fit.merged and v not in now) for v in own)


def _copied(d: SketchBuilder, p: Block, fit: Fit) -> list[OperandRead]:
    """Operands that are copied. Rows that lie far apart may be copied too, so that what one instruction reads
    is in few pages and sets of a cache."""
    away = copied_operands(d, d.s.nest, p, fit)
    others = [name for name in fit.reads if name not in {x.name for x in away}]
    every = [OperandRead.of(fit, name) for name in others]
    rest = [x for x in every if x.copied(p) == x and x.panels() and x.can_be_packed(d, d.s.nest, p)]
    return away + rest if rest and d.choose(f"{p.name}.pack", ("", "all")) else away


def _copied_inside(
    d: SketchBuilder, producer: str, fit: Fit, copied: Sequence[OperandRead]
) -> list[OperandRead]:
    """Operands that are copied inside the loops: those of which a whole copy would leave the second cache
    before it is read, if that is chosen. One that could be read where it lies is not copied whole then."""
    p, room = d.block(producer), SHARE_OF_SECOND * d.target.limit("l2_bytes", 512 << 10)
    n = extents(p)
    whole = [x for x in copied if x.opened or x.turns_terms(n) or x.has_rows_of_terms(d.s.nest, n)]
    given = [x for x in copied if x not in whole and not is_known(d, x.read)]
    large = [x for x in given if nbytes(d.s.nest.buffer(x.read.buffer)) > room]
    more = len(copied) > len(copied_operands(d, d.s.nest, p, fit))
    return large if large and d.choose(f"{producer}.at", ("tile",) if more else ("", "tile")) else []


def _place_copy(d: SketchBuilder, t: Tiling, copy: PackedCopy) -> None:
    """Copy just before the first of the middle loops that reads the same again in each iteration."""
    p, own = d.block(t.producer), {x.var for x in d.own_loops(t.producer)}
    (read,) = (x for x in reads(p) if x.buffer == copy.name)
    moving = {v for i in read.indices for v in E.variables(bound(p, i))}
    around = [x.var for x in d.loops(t.producer) if x.var not in own]
    again = next((k for k, x in enumerate(around) if k >= len(t.n) and x not in moving), 0)
    if not again:
        raise ScheduleError(f"no loop around {t.producer} reads {copy.name} again")
    d.s.compute_at(copy.name, around[again - 1])
    schedule_packing(d, copy, inside=True)


def _outgrows_cache(d: SketchBuilder, p: Block, fit: Fit) -> bool:
    """Whether what one run reads over the whole sum takes a good part of the first cache."""
    name = _of_lanes(fit).name
    read = next(x.nbytes for x in fit.instruction.meaning.inputs if x.name == name)
    runs = -(-extents(p)[term_axis(fit)] // fit.instruction.terms)
    return runs > 1 and runs * read >= PARTS_OF_CACHE * d.target.limit("l1_bytes", 32 << 10)


def _tile_for_caches(d: SketchBuilder, t: Tiling, fit: Fit) -> list[str]:
    """Tile for caches: parts of the sum in turn, each over a block of register tiles whose results stay in
    the caches. Returns the outer loops."""
    outer = split_in_blocks(d, t)
    p = d.block(t.producer)
    around, points = [], []
    tiles: dict[str, str] = {}
    for x in d.own_apart(t.producer)[1]:
        own = [a for a in t.tile if x in behind(p, t.axis_of[a])]
        if own:
            tiles[own[0]], i = d.s.split(x, (None, t.tile[own[0]]))
            points.append(i)
        else:
            around.append(x)
    panels = [tiles[t.v], *(x for a, x in tiles.items() if a != t.v)]
    run_by_instruction(d, t.producer, fit, points, around, panels)
    return outer


def _accumulate(fit: Fit, inside: Sequence[PackedCopy], d: SketchBuilder, t: Tiling) -> None:
    for copy in inside:
        _place_copy(d, t, copy)
    run_by_instruction(d, t.producer, fit, d.own_apart(t.producer)[1])


def run_by_instruction(
    d: SketchBuilder,
    producer: str,
    fit: Fit,
    points: Sequence[str],
    around: Sequence[str] = (),
    tiles: Sequence[str] = (),
) -> None:
    """Put the sum outside a register tile, whose innermost loops are the instruction. ``points``: the loops
    over the tile. ``around``: loops outside of the sum. ``tiles``: loops over tiles for which a part of the
    sum is added at a time."""
    p, ins = d.block(producer), fit.instruction
    r, units = term_axis(fit), units_of(fit)
    reduce, _ = d.own_apart(producer)
    steps = next(x for x in reduce if x in behind(p, r))
    counts, runs = [], {}
    for x in sorted(points, key=lambda x: x in behind(p, lane_axis(fit))):
        v = next((v for v in units if x in behind(p, v)), None)
        if v is None:
            counts.append(x)
        else:
            o, runs[v] = d.s.split(x, (None, units[v]))
            counts.append(o)
    step, *terms = d.s.split(steps, (None, *(a.extent for a in ins.meaning.stages[0].reduce_axes)))
    parts: list[str] = []
    part: int | Hole = 0
    if tiles:
        part = d.divisor(f"{producer}.k.runs", Const(-(-extents(p)[r] // ins.terms)))
        outer, step = d.s.split(step, (None, part))
        parts = [outer]
    fewest = 2 if _is_open_sum(d, p, fit) else 1  # loops of an open sum are cut into whole runs and the rest
    outers = [*(x for x in reduce if x != steps), *_unrolled_steps(d, producer, step, part, fewest)]
    inner = [runs[fit.axes[a.var]] for a in ins.meaning.stages[0].axes]
    d.s.reorder(*around, *parts, *tiles, *outers, *counts, *inner, *terms)
    for x in counts:
        d.s.unroll(x)
    init = d.s.decompose_reduction(producer, [*parts, *outers][0])
    d.done.add(init)
    started = [x.var for x in d.own_loops(init)]
    if ins.start is None:
        d.s.vectorize(started[-1])
    else:
        d.s.tensorize(started[-len(inner)], ins.start)
    d.s.tensorize(inner[0], ins)


def _unrolled_steps(d: SketchBuilder, producer: str, loop: str, part: int | Hole, fewest: int) -> list[str]:
    """Unroll several runs along the sum: [outer, inner], or [loop] if it is one. ``part``: runs of a part of
    it; 0: the loop is the whole. ``fewest``: iterations of the outer loop at the largest sizes."""
    name = f"{producer}.steps"
    if isinstance(part, Hole):
        steps = d.divisor(name, part, MOST_STEPS)
    else:
        count = part or extent(next(x for x in d.loops(producer) if x.var == loop))
        if count == 1:
            return [loop]
        most = min(MOST_STEPS, count // fewest)
        steps = d.choice(name, [k for k in range(1, most + 1) if count % k == 0])
    outer, inner = d.s.split(loop, (None, steps))
    d.s.unroll(inner)
    return [outer, inner]
