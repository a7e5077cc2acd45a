"""Stages whose terms go to places that are read from tensors, or computed: what a stage with ``places`` is.

Such a stage has an axis for each dimension of its output. A dimension is *free* where its place is its own
axis: there a term stays in its own row. Each other dimension is *scattered*: its place is any integer that
reduction axes, free axes and tensors tell. Its own axis stands nowhere in the terms. The terms are those of
all points of the free axes and the reduction axes. An element without terms has the identity of the reducer.

The order in which terms meet is free. So the reducer adds, or takes the largest or the least.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from schedules import expr as E
from schedules.expr import Var
from schedules.te.inside import decide

if TYPE_CHECKING:
    from schedules.te.compute_dag import Axis, Stage

OPERATIONS = ("+", "min", "max")


def free_axes(s: Stage) -> tuple[Axis, ...]:
    """The axes of dimensions in which a term stays at its own point."""
    return tuple(a for a, p in zip(s.axes, s.places, strict=True) if p == Var(a.var))


def term_axes(s: Stage) -> tuple[Axis, ...]:
    """The axes over whose points the terms of a stage go: the free ones, then the reduction axes."""
    return (*(free_axes(s) if s.places else s.axes), *s.reduce_axes)


def check_places(s: Stage, extents: Mapping[str, int]) -> None:
    """Raise ValueError, which names the stage, unless a stage with places is one: see the module. Every place
    must be proved inside its dimension. ``extents``: of all axes, at the largest sizes."""
    what = f"stage {s.name}: its terms go to places of their own"
    if len(s.places) != len(s.axes):
        raise ValueError(f"{what}, {len(s.places)} for {len(s.axes)} dimensions; give one for each")
    if s.scan:
        raise ValueError(f"{what} and its axes run in order; a scatter has no order: take one of the two")
    ops = () if s.reducer is None else [s.reducer.operation(n) for n in range(len(s.reducer.combine))]
    if not ops or any(op not in OPERATIONS for op in ops):
        raise ValueError(f"{what}, and several may meet at one; join them by a sum, a maximum or a minimum")
    if not s.reduce_axes:
        raise ValueError(f"{what}, and it has no reduction axis, so that none meet; give it one")
    own = {a.var: n for a, n in ((a, extents[a.var]) for a in term_axes(s))}
    apart = {a.var for a in s.axes} - own.keys()
    for e in (*s.values, *s.where, *s.places):
        if used := sorted(E.variables(e) & apart):
            raise ValueError(
                f"{what}: {E.show(e)} depends on {used[0]}, the axis of a dimension that is scattered; terms "
                "have the axes of other dimensions and reduction axes only"
            )
    for d, (a, p) in enumerate(zip(s.axes, s.places, strict=True)):
        n = extents[a.var]
        found = decide(p, n, tuple((v, k) for v, k in own.items() if v in E.variables(p)), ())
        if found is not None:
            raise ValueError(
                f"{what}: {E.show(p)}, that of dimension {d}, is not proved inside 0..{n - 1}; cut it off "
                "with te.minimum and te.maximum"
            )


def check_fixed(s: Stage, extents: Sequence[E.Expr]) -> None:
    """Raise ValueError where a size that a call tells stands in a stage with places. ``extents``: of its
    axes, and of what it reads."""
    if any(map(E.variables, extents)) or any(map(E.holes, (*s.values, *s.where, *s.places))):
        raise ValueError(
            f"stage {s.name}: its terms go to places of their own, and its sizes vary; scatters have fixed "
            "sizes: give numbers, or open=False for a kernel of each size"
        )


def guarded_terms(s: Stage) -> tuple[tuple[E.Expr, ...], tuple[E.Expr, ...], tuple[E.Expr, ...]]:
    """(values, conditions, places) of the terms: one that is the identity where a condition fails changes
    nothing there, and is left out. Under the conditions a place need not be cut off where they hold it."""
    assert s.reducer is not None
    pairs = zip(s.values, s.reducer.identity, strict=True)
    chosen = [v for v, nothing in pairs if isinstance(v, E.Select) and v.b == nothing]
    if len(chosen) < len(s.values) or len({v.cond for v in chosen}) > 1:
        return s.values, s.where, s.places
    conds = E.conjuncts(chosen[0].cond)
    places = tuple(E.rewrite(p, lambda e: _held(e, frozenset(conds))) for p in s.places)
    return tuple(v.a for v in chosen), (*s.where, *conds), places


def _held(e: E.Expr, known: frozenset[E.Expr]) -> E.Expr | None:
    """``x`` in place of ``min(max(x, 0), last)`` where conditions hold it between the two."""
    match e:
        case E.Binary(op="min", a=E.Binary(op="max", a=x, b=E.Const(value=0) as least), b=E.Const() as most):
            if {E.Compare("<=", least, x), E.Compare("<=", x, most)} <= known:
                return x
    return None
