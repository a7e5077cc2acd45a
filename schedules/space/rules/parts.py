"""Copies of operands, each read of a product its own, also where others are in the same buffer; and how
results lie."""

from __future__ import annotations

from schedules import expr as E
from schedules.expr import Binary, Const, Load, Var
from schedules.ir.nest import writers
from schedules.primitives.cache_read import CacheRead
from schedules.primitives.cache_read_part import CacheReadPart, places_read
from schedules.space.rules.patterns import extents, is_copied, operands
from schedules.space.sketch_builder import SketchBuilder


def copy_read(d: SketchBuilder, name: str, x: Load, scope: str = "global", *, moved: bool = False) -> str:
    """Let a block read one of its operands through a copy of what it reads. ``moved``: the copy is moved into
    a loop, where it holds no more than the loop reads anyway. Returns the name of the copy."""
    places = places_read(d.block(name), x.buffer)
    part = CacheReadPart(name, x.buffer, places.index(x), scope)
    whole = CacheRead(name, x.buffer, scope)
    free = all(b.name != whole.result() for b in d.s.nest.buffers)  # else another block has its copy
    if len(places) == 1 and free and (moved or part.is_whole(d.s.nest)):
        return d.s.cache_read(name, x.buffer, scope)
    return d.s.apply(part)


def inline_copies(d: SketchBuilder, name: str, buffer: str) -> None:
    """Let copy ``name`` read through the stages behind ``buffer`` that only copy, with or without padding.
    Those that are scheduled already stay."""
    for b in writers(d.s.nest, buffer):
        if is_copied(b) and b.name not in (name, *d.done) and buffer not in d.s.nest.params:
            behind = E.loads(b.values[0])
            d.s.inline(b.name)
            for x in behind:
                inline_copies(d, name, x.buffer)


def side_by_side(d: SketchBuilder, name: str) -> int:
    """How many neighbouring elements that a copy makes are neighbours where it reads them too: those of a
    row, or of a part of it where windows read rows."""
    b = d.block(name)
    for x in operands(b):
        match x.indices[-1]:
            case Var(name=v):
                return extents(b)[v]
            case Binary(op="%", a=Var(), b=Const(value=n)):
                return int(n)
    return 1


def lanes_last(d: SketchBuilder, name: str, axis: str) -> None:
    """Store results of a block with those along an axis of it side by side."""
    for w in d.block(name).writes:
        at, rank = w.indices.index(Var(axis)), len(w.indices)
        if at != rank - 1:
            d.s.reorder_storage(w.buffer, [*(k for k in range(rank) if k != at), at])
