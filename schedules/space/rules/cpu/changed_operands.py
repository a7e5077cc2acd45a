"""Operands of integer products that are offset while they are copied, as an instruction wants another sign.

Which operand would have to be changed follows from the expression (`schedules.instructions.match.fits`). What
the offset adds to a sum is taken off it once, by a sum of the other operand (`cache_read_offset`, ADR 78). So
this costs a copy and a sum, of which what is known ahead is made ahead.
"""

from __future__ import annotations

import math
from dataclasses import replace

from schedules.dtypes import offset_to
from schedules.errors import ScheduleError
from schedules.instructions.match import Fit
from schedules.ir import Block
from schedules.ir.nest import readers, writers
from schedules.primitives.cache_read_offset import CacheReadOffset
from schedules.space.rules.patterns import depends, extents, is_map
from schedules.space.sketch_builder import SketchBuilder

# Elements that are copied in the time in which one is added to a sum of wider numbers.
SUMMED = 4


def can_change(d: SketchBuilder, p: Block, fit: Fit) -> bool:
    """Whether block ``p`` may read its operands as the instruction wants them. One of them is changed at
    most."""
    if len(fit.changes) > 1:
        return False
    try:
        for step in _steps(p.name, fit):
            step.check(d.s.nest, d.target)
    except ScheduleError:
        return False
    return True


def cost_of_change(d: SketchBuilder, p: Block, fit: Fit) -> int:
    """Elements that are copied, and about as many for those that are added up, in every call."""
    n, known, out = extents(p), d.s.dag.constants, 0
    for name, x in fit.reads.items():
        if x.buffer not in known and fit.changes:
            size = math.prod(k for v, k in n.items() if depends(x, v))
            out += size if name in fit.changes else SUMMED * size
    return out


def change_operands(d: SketchBuilder, producer: str, consumer: str, fit: Fit) -> tuple[str, Fit, list[str]]:
    """Let ``producer`` read changed operands. ``consumer``: what reads its results at its own iterations; ""
    for none. Returns the consumer, which then stores results as they are meant; how the product now is the
    instruction; and blocks that are still to be scheduled."""
    reads, apart = dict(fit.reads), list[str]()
    for (name, dtype), step in zip(fit.changes.items(), _steps(producer, fit), strict=True):
        source = reads[name].buffer
        copy, summed, result, _ = d.s.apply(step)
        for w in writers(d.s.nest, source):
            alone = len(readers(d.s.nest, source)) == 1 and source not in d.s.nest.params
            if alone and is_map(w) and len(w.writes) == 1 and w.name not in d.done | d.roots:
                d.s.inline(w.name)
        reads[name] = replace(reads[name], buffer=copy, dtype=dtype)
        d.copies.add(copy)
        apart.append(summed)
        if consumer:
            d.s.inline(result)
        else:
            consumer = result
    return consumer, replace(fit, reads=reads), apart


def _steps(block: str, fit: Fit) -> list[CacheReadOffset]:
    """What changes each of the operands that have to be changed."""
    found = [(fit.reads[name], dtype) for name, dtype in fit.changes.items()]
    return [CacheReadOffset(block, x.buffer, offset_to(x.dtype, dtype) or 0) for x, dtype in found]
