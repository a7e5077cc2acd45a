"""Rule for blocks of rows: products and row-wise stages that feed each other, such as attention (ADR 7).

A block of rows goes through all stages while its intermediate results are in the cache. The rows of a block
share the other operand of the products, which single rows (`rows.py`) would fetch again each.
"""

from __future__ import annotations

from schedules.errors import ScheduleError
from schedules.expr import Hole, Load
from schedules.instructions.match import Fit
from schedules.ir import Block, Nest, nbytes
from schedules.ir.nest import behind, vars_bound
from schedules.primitives.base import as_expr
from schedules.space.rules.cpu.copies import schedule_packing
from schedules.space.rules.cpu.instructed import (
    VECTORS,
    copied_operands,
    instruction_fits,
    most_lanes,
    run_by_instruction,
)
from schedules.space.rules.cpu.instructed_operands import lane_axis, pack_whole, units_of
from schedules.space.rules.cpu.packed_operands import pack_operand, packed_read
from schedules.space.rules.cpu.prefetching import prefetch_rows_of_state
from schedules.space.rules.cpu.row_parts import add_lanes, part_unit, reduce_in_parts, row_lengths
from schedules.space.rules.cpu.rows import (
    compute_stages_at,
    reduce_row,
    row_rank,
    vectorize_last,
)
from schedules.space.rules.cpu.tiling import lane_widths, reduction_steps
from schedules.space.rules.patterns import (
    depends,
    extents,
    is_map,
    is_row_reduction,
    operands,
    spatial,
    unit_stride_vars,
    vector_axis,
)
from schedules.space.sketch_builder import SketchBuilder, extent

# Rows of a block that are offered.
ROWS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
# Most rows of a register tile.
TILE_ROWS = 8


def is_product(nest: Nest, b: Block) -> bool:
    """Whether a block is a reduction to one value that reads an operand again for every row."""
    if b.reducer is None or len(b.writes) != 1 or is_row_reduction(nest, b):
        return False
    row = _row_axis(b)
    return row is not None and any(not depends(x, row) for x in operands(b))


def reads_once_from_memory(d: SketchBuilder, b: Block) -> bool:
    """Whether an operand of a product is beyond the second cache, and one register tile has all rows that
    read it, such as weights of few rows. Then blocks of rows share nothing."""
    v, row = vector_axis(b), _row_axis(b)
    if v is None or row is None or extents(b)[row] > TILE_ROWS:
        return False
    room, given = d.target.limit("l2_bytes", 512 << 10), d.s.nest.params
    large = [x for x in operands(b) if x.buffer in given and nbytes(d.s.nest.buffer(x.buffer)) > room]
    return any(v in unit_stride_vars(d.s.nest, x) and not depends(x, row) for x in large)


def schedule_row_blocks(d: SketchBuilder, root: str, *, in_parts: bool = False) -> None:
    """Schedule ``root``, an elementwise stage, with all that it reads and that can be computed by blocks of
    its rows. ``in_parts``: also by parts of what rows reduce. Raises ScheduleError if the stages have no
    common rows, or none that can be reduced in parts."""
    b = d.block(root)
    rank = row_rank(d, b)
    loops = d.loops(root)
    if not 0 < rank < len(loops) or extent(loops[rank - 1]) < 2:
        raise ScheduleError(f"{root} has no rows to make blocks of")
    ways = {} if in_parts else _instructions(d, rank, extent(loops[rank - 1]))
    unit = max((_row_unit(d.block(name), fit) for name, fit in ways.items()), default=1)
    rows = d.choice(f"{root}.rows", [r for r in ROWS if r <= extent(loops[rank - 1]) and r % unit == 0])
    outer, _ = d.s.split(loops[rank - 1].var, (None, rows), "shift")
    block = d.fused([*(x.var for x in loops[: rank - 1]), outer])
    wider = [x for x in d.s.blocks() if _is_wider(d, x, rank)]
    packed = {name: _pack_instructed(d, name, fit) for name, fit in ways.items()}
    packed |= {
        name: p
        for name in wider
        if name not in {*ways, *d.done} and (p := pack_product(d, name, in_parts)) is not None
    }
    compute_stages_at(d, root, block)
    units = reduce_in_parts(d, block) if in_parts else {}
    inside = [x for x in d.s.blocks() if x != root and block in {y.var for y in d.loops(x)}]
    maps = [x for x in inside if is_map(d.block(x))]
    for name in [x for x in inside if x not in maps]:
        if name in wider and is_product(d.s.nest, d.block(name)):
            tile_product(d, name, packed.get(name), rows, ways.get(name))
        elif d.block(name).init:
            maps = reduce_row(d, name, maps, part_unit(d))
        elif d.own_loops(name)[-1].var in vars_bound(d.block(name), "reduce"):
            add_lanes(d, name)
        else:
            vectorize_last(d, name, units=units)
    for name in maps:
        vectorize_last(d, name, units=units)
    vectorize_last(d, root, skip=1)
    d.parallel(block)


def _is_wider(d: SketchBuilder, name: str, rank: int) -> bool:
    """Whether a stage has an axis beyond the ``rank`` axes of rows, which its lanes can be. What makes one
    element of a row is no product of blocks, even if it reads numbers that all rows share, such as a
    mask."""
    return len(spatial(d.block(name))) > rank


def _row_axis(b: Block) -> str | None:
    """The spatial axis before the vector axis."""
    v, n = vector_axis(b), extents(b)
    before = [a for a in spatial(b) if a != v and n[a] != 1]
    return before[-1] if v is not None and before else None


def pack_product(d: SketchBuilder, name: str, in_parts: bool = False) -> int | Hole | None:
    """Pack the operand that a product reads across the vector axis. Returns the width of its panels, None if
    there is none."""
    b = d.block(name)
    if not is_product(d.s.nest, b):
        return None
    v = vector_axis(b)
    assert v is not None
    operand = packed_read(d, b, v)
    if operand is None or _is_read_in_place(d, b, v, operand):
        return None
    n = extents(b)[v]
    width = _width(d, b, v, part_unit(d) if in_parts and n in row_lengths(d) else n)
    copy, panel = pack_operand(d, name, operand, v, width)
    schedule_packing(d, copy, panel, parallel=True)
    d.roots.add(copy)
    return width


def _is_read_in_place(d: SketchBuilder, b: Block, v: str, operand: Load) -> bool:
    """Whether an operand of open extent lies along the lanes ``v``, and one register tile has all rows that
    read it. A copy of it would be read once. So are the values of attention of one token, where some heads
    share them."""
    row = _row_axis(b)
    is_open = any(depends(operand, i.var) and (b.name, i.var) in d.open for i in b.iters)
    once = row is not None and extents(b)[row] <= TILE_ROWS
    return is_open and once and v in unit_stride_vars(d.s.nest, operand)


def _instructions(d: SketchBuilder, rank: int, most: int) -> dict[str, Fit]:
    """{product: the instruction that it runs by}, of those for which one is chosen. Its lanes are the vector
    axis, its rows at most the ``most`` rows of a block, and it reads all but packed arguments in place."""
    out = {}
    for name in d.s.blocks():
        b = d.block(name)
        if name in d.done or not _is_wider(d, name, rank) or not is_product(d.s.nest, b):
            continue
        found, v = {}, vector_axis(b)
        for way, fit in instruction_fits(d, b, b).items():
            if fit.changes or fit.merged or lane_axis(fit) != v:  # changed copies are made for all rows
                continue
            units, away = units_of(fit), copied_operands(d, d.s.nest, b, fit)
            whole = extents(b)[v] % units[v] == 0 and _row_unit(b, fit) <= most
            if whole and units.keys() <= {v, _row_axis(b)} and all(x.panels() == [v] for x in away):
                found[way] = fit
        if found and (way := d.choose(f"{name}.with", (*found, ""))):
            out[name] = found[way]
    return out


def _row_unit(b: Block, fit: Fit) -> int:
    """Rows of one run of the instruction."""
    return units_of(fit).get(_row_axis(b) or "", 1)


def _pack_instructed(d: SketchBuilder, name: str, fit: Fit) -> int | Hole:
    """Pack what does not lie as the instruction reads it. Returns the width of a register tile."""
    b, v = d.block(name), lane_axis(fit)
    wide = units_of(fit)[v]
    counts = [k for k in VECTORS if k <= most_lanes(fit, 1) and extents(b)[v] % (wide * k) == 0]
    width = d.choice(f"{name}.vec", [wide * k for k in counts])
    for x in copied_operands(d, d.s.nest, b, fit):
        d.roots.add(pack_whole(d, name, x, {v: width}))
    return width


def _width(d: SketchBuilder, b: Block, v: str, n: int) -> int | Hole:
    """Lanes of the register tile: divisors of ``n`` if there are some, as others need masks."""
    widths = lane_widths(extents(b)[v], d.lanes_of(d.dtype(b)))
    return d.choice(f"{b.name}.vec", [k for k in widths if n % k == 0] or widths)


def tile_product(
    d: SketchBuilder, name: str, width: int | Hole | None, rows: int | Hole, fit: Fit | None = None
) -> None:
    """Cut register tiles over the block, with the reduction innermost around them."""
    b = d.block(name)
    v, row = vector_axis(b), _row_axis(b)
    assert v is not None and row is not None
    in_place = width is None and any(_is_read_in_place(d, b, v, x) for x in operands(b))
    own = d.own_loops(name)
    red = [x.var for x in own if x.var in vars_bound(b, "reduce")]
    lane = next(x for x in own if x.var in behind(b, v))
    inner = next(x.var for x in own if x.var in behind(b, row))
    rest = [x.var for x in own if x.var not in (*red, lane.var, inner)]
    unit = _row_unit(b, fit) if fit is not None else 1
    tile = unit if unit > 1 else d.divisor(f"{name}.tile", as_expr(rows), TILE_ROWS)
    if width is None:
        whole = extent(lane) == extents(b)[v]
        width = _width(d, b, v, extents(b)[v] if whole else part_unit(d))
    panels, lanes = d.s.split(lane.var, (None, width))
    blocks, tiled = d.s.split(inner, (None, tile))
    if fit is not None:
        run_by_instruction(d, name, fit, [tiled, lanes], [*rest, panels, blocks])
        return
    steps = reduction_steps(d, name, red[-1], 0 if b.init else part_unit(d))
    d.s.reorder(*rest, panels, blocks, *red[:-1], *steps, tiled, lanes)
    d.s.unroll(tiled)
    d.s.vectorize(lanes)
    if b.init:
        d.s.decompose_reduction(name, [*red[:-1], *steps][0])
    if in_place:
        prefetch_rows_of_state(d, steps[0])
