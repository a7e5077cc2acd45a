"""Prefetching: a row that several stages pass over is asked for while the row before is computed with.

The first stage waits for memory and the others leave it idle, unless they ask for what comes next.
"""

from __future__ import annotations

from schedules.expr import variables
from schedules.ir import blocks
from schedules.nest import bound, reads
from schedules.space.rules.streaming import beyond_caches
from schedules.space.sketching import Draft

STAGES = 2  # of one argument, that make asking worth while


def prefetch_rows(d: Draft, row: str, name: str) -> None:
    """A choice for the loop over rows, where its arguments come from memory."""
    nest = d.s.nest
    if not beyond_caches(d):
        return
    stages = [
        {x.buffer for x in reads(b) if any(row in variables(bound(b, i)) for i in x.indices)}
        for b in blocks(nest.body)
    ]
    if any(sum(p in read for read in stages) >= STAGES for p in nest.params if p not in nest.outputs):
        d.s.annotate(row, "prefetch", d.choice(f"{name}.ahead", (0, 1)))
