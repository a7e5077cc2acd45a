"""Loads of an expression replaced by others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from schedules import expr as E
from schedules.expr import Expr, Load

Indices = tuple[Expr, ...]


def with_loads(e: Expr, change: Callable[[Any], Expr | None]) -> Expr:
    """``e`` with loads replaced, those in indices before those around them. ``change`` returns None for a
    load that stays."""

    def visit(x: Expr) -> Expr | None:
        if not isinstance(x, Load):
            return None
        indices = tuple(E.rewrite(i, visit) for i in x.indices)
        load = Load(x.buffer, indices, x.dtype) if type(x) is Load else replace(x, indices=indices)
        made = change(load)
        return load if made is None else made

    return E.rewrite(e, visit)


def read_at(x: Load, axes: Mapping[str, Expr]) -> Load:
    """A load with axes in its indices replaced by name."""
    return replace(x, indices=tuple(E.substitute(i, axes) for i in x.indices))


def outside(e: Expr) -> Iterator[Expr]:
    """Every node of an expression, but those inside of loads, which are indices."""
    yield e
    for x in () if isinstance(e, Load) else E.children(e):
        yield from outside(x)


def relocated(e: Expr, old: str, new: str, at: Callable[[Indices], Indices]) -> Expr:
    """``e`` with every load ``old[i]`` as ``new[at(i)]``."""
    if all(x.buffer != old for x in E.loads(e)):
        return e
    return with_loads(e, lambda x: Load(new, at(x.indices), x.dtype) if x.buffer == old else None)
