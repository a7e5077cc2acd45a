"""Rule for parts of rows: a maximum and the sums relative to it in one pass over the columns of a block of
rows.

Only a part of the columns is held at a time, so that memory does not grow with the length of rows
(FlashAttention: Dao et al., 2022). The primitive decides which sums may be rescaled. Reasons: ADR 16.
"""

from __future__ import annotations

from schedules.dtypes import DTYPES
from schedules.errors import ScheduleError
from schedules.expr import Hole
from schedules.ir import Block, blocks
from schedules.ir.nest import find_loop, reads
from schedules.primitives.online import Online
from schedules.space.rules.patterns import is_map, is_row_reduction, read_only_inside, reduction_length
from schedules.space.sketch_builder import SketchBuilder

# Columns held at a time that are offered (vectors); the first divides the others.
PARTS = (8, 16, 32, 64)
# Vectors of a sum that are offered.
LANES = (1, 2, 4, 8)
# Fewest rows that are held: those of a register tile, before and after a map.
TILE = 8 * 2


def rows_outgrow_cache(d: SketchBuilder) -> bool:
    """Whether the rows of one register tile exceed the second cache. Shorter rows are read again from there,
    which costs less than rescaling."""
    longest = max((reduction_length(b) * DTYPES[d.dtype(b)].itemsize for b in _row_reductions(d)), default=0)
    return TILE * longest >= d.target.limit("l2_bytes", 512 << 10)


def row_lengths(d: SketchBuilder) -> set[int]:
    """Lengths of rows that unscheduled row-wise stages reduce to one element."""
    return {reduction_length(b) for b in _row_reductions(d)}


def _row_reductions(d: SketchBuilder) -> list[Block]:
    return [b for b in blocks(d.s.nest.body) if b.name not in d.done and is_row_reduction(d.s.nest, b)]


def reduce_in_parts(d: SketchBuilder, block: str) -> dict[str, int]:
    """Reduce the stages in loop ``block`` in parts, and compute there what only they read. Returns {hole for
    the size of a part: its unit}, empty if there is no hole. Raises ScheduleError if no maximum has sums
    relative to it."""
    for name in [b.name for b in blocks(find_loop(d.s.nest, block).body) if is_row_reduction(d.s.nest, b)]:
        sums = _relative(d, block, name)
        if not sums:
            continue
        try:
            Online(name, tuple(sums), 1).check(d.s.nest)
        except ScheduleError:
            continue
        columns, sizes = reduction_length(d.block(name)), _sizes(d, d.block(name))
        size = d.choice(f"{name}.part", sizes)
        part = d.s.online(name, sums, size)
        if columns % sizes[0]:
            d.s.partition(part)
        for x in reversed(blocks(find_loop(d.s.nest, block).body)):
            try:
                if read_only_inside(d.s.nest, x, part):
                    d.s.compute_at(x.name, part)
            except ScheduleError:
                continue  # it is computed there already
        return {size.name: part_unit(d)} if isinstance(size, Hole) else {}
    raise ScheduleError(f"nothing in {block} can be reduced in parts")


def part_unit(d: SketchBuilder) -> int:
    """The unit of all sizes of parts, even where some stage computes in float64."""
    return PARTS[0] * d.lanes_of("float32")


def add_lanes(d: SketchBuilder, name: str) -> None:
    """Keep a sum that parts are added to in the lanes of several vectors."""
    b = d.block(name)
    widths = [d.lanes_of(d.dtype(b)) * k for k in LANES]
    sizes = [k for k in widths if k <= part_unit(d)]
    _, lanes = d.s.split(d.own_loops(name)[-1].var, (None, d.choice(f"{name}.lanes", sizes)))
    d.s.vectorize(lanes)


def _sizes(d: SketchBuilder, b: Block) -> list[int]:
    """Columns of a part that are offered: sizes without a tail if there are some."""
    n = reduction_length(b)
    sizes = [k * d.lanes_of("float32") for k in PARTS]
    sizes = [k for k in sizes if k < n]
    if not sizes:
        raise ScheduleError(f"the rows of {b.name} are no longer than a part")
    return [k for k in sizes if n % k == 0] or sizes


def _relative(d: SketchBuilder, block: str, name: str) -> list[str]:
    """Reductions that read the result of ``name``, directly or through elementwise stages."""
    seen = {w.buffer for w in d.block(name).writes}
    out = []
    for b in blocks(find_loop(d.s.nest, block).body):
        if b.name != name and any(x.buffer in seen for x in reads(b)):
            if is_map(b):
                seen |= {w.buffer for w in b.writes}
            else:
                out.append(b.name)
    return out
