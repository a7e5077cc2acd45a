"""Rules that offer software prefetching (ADR 14).

Offered are: the next row where several stages pass over a row; vectors of a long walk through memory; the
next tiles of an operand that a product of few rows reads where it lies. In each case the first pass waits for
memory that was idle before, or reads more streams and pages than the processor's own prefetchers follow.
"""

from __future__ import annotations

from schedules.expr import variables
from schedules.ir import blocks
from schedules.ir.nest import bound, reads
from schedules.space.rules.cpu.streaming import beyond_caches, bytes_of_arguments
from schedules.space.rules.patterns import depends, is_gathered, operands, uses
from schedules.space.sketch_builder import SketchBuilder

# Fewest stages that read the same argument, for prefetching of rows.
STAGES = 2
# Distance of prefetching: rows, since memory answers later than a row of a few KB is computed.
ROWS = 2
# Distances of prefetching: groups of a reduction, of one or a few KB each.
GROUPS = (1, 2, 4)
# Distance of prefetching where weights of few bits are read: what memory gives until it answers (bytes).
ON_THE_WAY = 8 << 10
# Distance of prefetching: tiles.
TILES = 2
# The same, of a few rows of a state each.
STATE_ROWS = 4
# Most uses of an element: computing then takes little longer than fetching.
FEW_USES = 128
# Distance of prefetching: blocks of a transposition. Source: docs/measurements/memory-access.md.
FAR = 8
# Distance of prefetching: vectors. The processor's prefetchers stop at the end of a page.
VECTORS = 4


def prefetch_rows(d: SketchBuilder, row: str, rows: int, name: str) -> None:
    """Offer prefetching for the loop over ``rows`` rows, if its arguments come from memory. Of long rows,
    which the first cache would not hold until they are used, only the next is prefetched."""
    nest = d.s.nest
    stages = [
        {
            x.buffer
            for x in reads(b)
            if not is_gathered(x) and any(row in variables(bound(b, i)) for i in x.indices)
        }
        for b in blocks(nest.body)
    ]
    if any(sum(p in read for read in stages) >= STAGES for p in nest.params if p not in nest.outputs):
        held = (ROWS + 1) * bytes_of_arguments(nest) <= rows * d.target.limit("l1_bytes", 32 << 10)
        _offer(d, row, name, ROWS if held else 1)


def prefetch_vectors(d: SketchBuilder, loop: str, name: str) -> None:
    """Offer prefetching for the loop over vectors of a stage that walks memory in order. Data goes to the
    second cache, because the first waits for few lines at a time."""
    if _offer(d, loop, name, VECTORS):
        d.s.annotate(loop, "prefetch_cache", 2)


def prefetch_blocks(d: SketchBuilder, loop: str, name: str) -> None:
    """Offer prefetching for the loop over blocks of a transposition along its input's rows: the next block,
    or with small blocks one that lies a few KB further in each row."""
    _offer(d, loop, name, 1, FAR)


def prefetch_tiles(d: SketchBuilder, name: str, axis: str, loop: str) -> None:
    """Offer prefetching for the loop over tiles of ``axis``, if block ``name`` reads an argument along it and
    uses it a few times. Data that is used once is waited for in any case."""
    b = d.block(name)
    for x in operands(b):
        few = 1 < uses(b, x) <= FEW_USES
        if x.buffer in d.s.nest.params and depends(x, axis) and not is_gathered(x) and few:
            _offer(d, loop, name, TILES)
            return


def prefetch_groups(d: SketchBuilder, loop: str, name: str, stored: bool) -> None:
    """Offer prefetching for the loop over groups of a reduction, whose operands are used once or a few times
    and lie in the order in which they are read. ``stored``: whether they are weights of few bits. A model
    reads these from memory at every call, so they are always prefetched: a tuner, which times one product
    alone, has them in a cache, and would not see what it gains."""
    if stored:
        d.s.annotate(loop, "prefetch_bytes", ON_THE_WAY)
    else:
        _offer(d, loop, name, *GROUPS)


def prefetch_rows_of_state(d: SketchBuilder, loop: str) -> None:
    """Prefetch in the loop over rows of an operand of open extent, a few at a time, as those of a state. A
    call reads each of them once, from memory, and does little with it. A tuner, which times one state alone,
    has it in a cache, and would not see what it gains."""
    d.s.annotate(loop, "prefetch", STATE_ROWS)


def prefetch_tiles_of_scan(d: SketchBuilder, loop: str, name: str) -> None:
    """Offer prefetching for the loop over tiles of a scan that is read by rows: the next tile, whose rows are
    streams of their own, each of a few lines."""
    _offer(d, loop, name, 1)


def _offer(d: SketchBuilder, loop: str, name: str, *distances: int) -> bool:
    """Offer the choice if the arguments come from memory. Returns whether it was offered."""
    if not beyond_caches(d):
        return False
    d.s.annotate(loop, "prefetch", d.choice(f"{name}.ahead", (0, *distances)))
    return True
