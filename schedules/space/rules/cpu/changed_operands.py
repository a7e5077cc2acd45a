"""Operands of products that are changed while they are copied, as an instruction wants them (ADR 81).

Which operands would have to be changed follows from the expression (`schedules.instructions.match.fits`). For
another sign one is offset. What that adds to a sum is taken off it once, by a sum of the other operand
(`cache_read_offset`). For more bits they are widened (`widen`). So this costs copies and a sum, of which what
is known ahead is made ahead.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from schedules.dtypes import offset_to
from schedules.errors import ScheduleError
from schedules.expr import Load
from schedules.instructions.match import Fit
from schedules.ir import Block
from schedules.ir.nest import readers, writers
from schedules.primitives.base import Primitive
from schedules.primitives.cache_read import CacheRead
from schedules.primitives.cache_read_offset import CacheReadOffset
from schedules.space.rules.cpu.widened import may_be_wide
from schedules.space.rules.parts import copy_read
from schedules.space.rules.patterns import depends, extents, is_map, operands
from schedules.space.sketch_builder import SketchBuilder

# Elements that are copied in the time in which one is added to a sum of wider numbers.
SUMMED = 4


def can_change(d: SketchBuilder, p: Block, fit: Fit) -> bool:
    """Whether block ``p`` may read its operands as the instruction wants them. One gets another sign at most.
    What is widened in every call is used many times."""
    if not fit.changes:
        return True
    offsets = _offsets(p.name, fit)
    changed = [(fit.reads[name], dtype) for name, dtype in fit.changes.items()]
    widened = [x for x, dtype in changed if offset_to(x.dtype, dtype) is None]
    if sum(step.offset != 0 for step in offsets) > 1 or not all(may_be_wide(d, p, x) for x in widened):
        return False
    steps: list[Primitive[Any]] = [*offsets, *(CacheRead(p.name, x.buffer) for x in widened)]
    try:
        for step in steps:
            step.check(d.s.nest, d.target)
    except ScheduleError:
        return False
    return True


def is_known(d: SketchBuilder, x: Load) -> bool:
    """Whether an operand is known ahead, as it is or changed."""
    known, made = d.s.dag.constants, writers(d.s.nest, x.buffer)
    changed = x.buffer in d.copies and all(y.buffer in known for w in made for y in operands(w))
    return x.buffer in known or changed


def cost_of_change(d: SketchBuilder, p: Block, fit: Fit) -> int:
    """Elements that are copied, and about as many for those that are added up, in every call."""
    n, out, offsets = extents(p), 0, {step.buffer for step in _offsets(p.name, fit)}
    for name, x in fit.reads.items():
        if x.buffer not in d.s.dag.constants:
            size = math.prod(k for v, k in n.items() if depends(x, v))
            out += size * (name in fit.changes) + SUMMED * size * bool(offsets - {x.buffer})
    return out


def change_operands(d: SketchBuilder, producer: str, consumer: str, fit: Fit) -> tuple[str, Fit, list[str]]:
    """Let ``producer`` read changed operands. ``consumer``: what reads its results at its own iterations; ""
    for none. Returns the consumer, which then stores results as they are meant; how the product now is the
    instruction; and blocks that are still to be scheduled."""
    reads, apart = dict(fit.reads), list[str]()
    offsets = {step.buffer: step for step in _offsets(producer, fit)}
    for name, dtype in fit.changes.items():
        x, copy, step = reads[name], "", offsets.get(reads[name].buffer)
        if step is not None:
            copy, summed, result, _ = d.s.apply(step)
            apart.append(summed)
            if consumer:
                d.s.inline(result)
            else:
                consumer = result
            if step.offset == 0:  # it is read where it lies
                d.s.inline(copy)
                copy = ""
            else:
                x = replace(x, buffer=copy, dtype=dtype)
        if x.dtype != dtype:
            copy, x = _widened(d, producer, x, dtype)
        if copy:
            _copy_at_once(d, reads[name].buffer)
            d.copies.add(copy)
        reads[name] = x
    return consumer, replace(fit, reads=reads, added=frozenset()), apart


def _widened(d: SketchBuilder, producer: str, x: Load, dtype: str) -> tuple[str, Load]:
    """Let ``producer`` read an operand through a copy in another dtype. Returns the copy, and what it
    reads."""
    at = operands(d.block(producer)).index(x)
    copy = copy_read(d, producer, x)
    d.s.widen(copy, dtype)
    return copy, operands(d.block(producer))[at]


def _copy_at_once(d: SketchBuilder, source: str) -> None:
    """Let a copy make what it reads, if nothing else reads it, as of padding."""
    for w in writers(d.s.nest, source):
        alone = len(readers(d.s.nest, source)) == 1 and source not in d.s.nest.params
        if alone and is_map(w) and len(w.writes) == 1 and w.name not in d.done | d.roots:
            d.s.inline(w.name)


def _offsets(block: str, fit: Fit) -> list[CacheReadOffset]:
    """What gives operands another sign, and takes out of the sum what it adds to them."""
    out = []
    for name, dtype in fit.changes.items():
        x = fit.reads[name]
        offset = offset_to(x.dtype, dtype)
        if offset is not None or name in fit.added:
            out.append(CacheReadOffset(block, x.buffer, offset or 0))
    return out
