"""Inline: elementwise stages disappear into their readers. Arithmetic is cheaper than memory here."""

from __future__ import annotations

from schedules.ir.nest import readers
from schedules.space.rules.patterns import (
    computed_again,
    is_costly,
    is_guarded_copy,
    is_map,
    is_row_reduction,
    outgrows,
)
from schedules.space.sketching import Draft


def inline_stages(d: Draft) -> None:
    """Inline every elementwise stage but what is costly and read several times, and paddings that a
    reduction reads: the tiling rule inlines these into copies in shared memory. Stages whose values are
    then computed several times may stay kernels of their own, all of them or none: a choice."""
    again: str | None = None
    for name in d.s.blocks():
        nest, b = d.s.nest, d.block(name)
        if not is_map(b) or len(b.writes) != 1 or b.writes[0].buffer in nest.params:
            continue
        if outgrows(nest, b):
            continue
        users = readers(nest, b.writes[0].buffer)
        reducing = [u for u in users if u.reducer is not None]
        if is_guarded_copy(b) and reducing and not any(is_row_reduction(nest, u) for u in reducing):
            continue
        rank = len(b.iters)
        wider = any(len([i for i in u.iters if i.kind == "spatial"]) > rank for u in users)
        if is_costly(b) and (wider or len(users) > 1):
            continue
        if users and computed_again(nest, b):
            again = d.choose("stages", ("", "kept")) if again is None else again
            if again:
                continue
        if users:
            d.s.inline(name)
