"""Prefetching: a row that several stages pass over is asked for while the row before is computed with,
vectors of a long walk through memory a little before they are read, and tiles of an operand that a product
reads where it lies while the tiles before are multiplied.

The first stage waits for memory and the others leave it idle, unless they ask for what comes next. So does a
product of few rows: the steps of a tile's reduction lie in as many pages, more than the processor's own
prefetchers follow.
"""

from __future__ import annotations

import math

from schedules.expr import variables
from schedules.ir import blocks
from schedules.ir.nest import bound, reads
from schedules.space.rules.cpu.streaming import beyond_caches, bytes_of_arguments
from schedules.space.rules.patterns import depends, extents, operands, spatial
from schedules.space.sketch_builder import SketchBuilder

STAGES = 2  # of one argument, that make asking worth while
ROWS = 2  # ahead: memory is slower to answer than a row of a few KB is computed with
TILES = 2
FEW_USES = 128  # of an element: computing with it takes little longer than fetching it from memory
FAR = 8  # blocks; by hand, of 256 bytes of 32 rows, a Zen 5 had 0.74 of a copy's speed, 0.70 with the next
VECTORS = 4  # ahead: the processor's prefetchers stop at the end of a page, and follow few streams well


def prefetch_rows(d: SketchBuilder, row: str, rows: int, name: str) -> None:
    """A choice for the loop over so many rows, where its arguments come from memory. Of long ones, which
    would not all stay in the first cache until they are used, only the next is asked for."""
    nest = d.s.nest
    stages = [
        {x.buffer for x in reads(b) if any(row in variables(bound(b, i)) for i in x.indices)}
        for b in blocks(nest.body)
    ]
    if any(sum(p in read for read in stages) >= STAGES for p in nest.params if p not in nest.outputs):
        held = (ROWS + 1) * bytes_of_arguments(nest) <= rows * d.target.limit("l1_bytes", 32 << 10)
        _offer(d, row, name, ROWS if held else 1)


def prefetch_vectors(d: SketchBuilder, loop: str, name: str) -> None:
    """A choice for the loop over vectors of a stage that walks through memory in order. What is asked for
    goes to the second cache: the first waits for few lines at a time, for those that are read now."""
    if _offer(d, loop, name, VECTORS):
        d.s.annotate(loop, "prefetch_cache", 2)


def prefetch_blocks(d: SketchBuilder, loop: str, name: str) -> None:
    """A choice for the loop over blocks of a transposition along its input's rows: the next, or where blocks
    are small one that lies a few KB on in each row."""
    _offer(d, loop, name, 1, FAR)


def prefetch_tiles(d: SketchBuilder, name: str, axis: str, loop: str) -> None:
    """A choice for the loop over tiles of ``axis``, where block ``name`` reads an argument along it that it
    uses a few times. What is used once is waited for in any case."""
    b = d.block(name)
    n = extents(b)
    for x in operands(b):
        uses = math.prod(n[a] for a in spatial(b) if not depends(x, a))
        if x.buffer in d.s.nest.params and depends(x, axis) and 1 < uses <= FEW_USES:
            _offer(d, loop, name, TILES)
            return


def _offer(d: SketchBuilder, loop: str, name: str, *distances: int) -> bool:
    """Whether the arguments come from memory, so that there is the choice."""
    if not beyond_caches(d):
        return False
    d.s.annotate(loop, "prefetch", d.choice(f"{name}.ahead", (0, *distances)))
    return True
