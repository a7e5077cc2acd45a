"""Inline: elementwise stages disappear into their readers (Ansor: AlwaysInline)."""

from __future__ import annotations

from schedules.ir.nest import readers
from schedules.space.rules.patterns import (
    computed_again,
    is_costly,
    is_guarded_copy,
    is_map,
    is_row_reduction,
    outgrows,
    reduction_length,
)
from schedules.space.sketching import Draft

SHORT_REDUCTION = 64


def inline_stages(d: Draft) -> None:
    """Inline every elementwise stage that is cheap or read once. A padding stage that feeds a
    reduction may be inlined as a guard, or kept as a copy: a choice. So may stages whose values are then
    computed several times, all of them or none."""
    again: str | None = None
    for name in d.s.blocks():
        nest = d.s.nest
        b = d.block(name)
        if not is_map(b) or len(b.writes) != 1 or b.writes[0].buffer in nest.params:
            continue
        if outgrows(nest, b):
            continue
        users = readers(nest, b.writes[0].buffer)
        if not users:
            continue
        rank = len(b.iters)
        wider = any(len([i for i in u.iters if i.kind == "spatial"]) > rank for u in users)
        reducing = [u for u in users if u.reducer is not None]
        if is_guarded_copy(b) and reducing:
            # kept (here) means: the tiling rule places the copy. A guard costs at every step: it is worth
            # a try where a reduction is short.
            short = all(reduction_length(u) <= SHORT_REDUCTION for u in reducing)
            if d.choose(name, ("copy", "inline") if short else ("copy",)) == "inline":
                d.s.inline(name)
            continue
        if is_costly(b) and (wider or len(users) > 1 or any(not is_row_reduction(nest, u) for u in reducing)):
            continue
        if computed_again(nest, b):
            again = d.choose("stages", ("", "kept")) if again is None else again
            if again:
                continue
        d.s.inline(name)


