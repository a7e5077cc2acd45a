"""Checks that every load of a stage stays inside its tensor at all open sizes."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

from schedules import expr as E
from schedules.expr import Const, Expr, Load, Var
from schedules.te.infeasible import impossible
from schedules.te.inside import MAX_POINTS, decide, guarded_loads
from schedules.te.sizes_in_values import flaw_of_arithmetic, variable, with_sizes, without_holes

if TYPE_CHECKING:
    from schedules.te.open_sizes import OpenSize
    from schedules.te.very_stage import VeryStage

# Sizes that are looked at one by one: extents that are not linear, and loads of which no proof is found.
TRIED_SIZES = 1024


@lru_cache(maxsize=1 << 13)  # each rewrite of a model makes a DAG of almost the same stages
def check_open_loads(
    very: VeryStage,
    extents: tuple[Expr, ...],
    read: tuple[tuple[str, tuple[Expr, ...]], ...],
    opened: tuple[OpenSize, ...],
) -> None:
    """Raise ValueError unless every load of a stage is inside at all sizes, and no arithmetic leaves its
    range. Where neither an index nor what guards it speaks of a size, a load is inside dimensions that are
    not open, as it is at the largest sizes, where every axis is longest; and none is below 0. ``extents``: of
    its axes. ``read``: those of the tensors that it reads, by name."""
    s, shapes = very.stage, dict(read)
    sizes = {variable(x.name): x.range for x in opened}
    every = (*s.axes, *s.reduce_axes)
    axes = tuple((a.var, n) for a, n in zip(every, extents, strict=True))
    whole = sizes | {a.var: (0, a.extent - 1) for a in every}
    where = tuple(map(without_holes, s.where))
    for v in where:
        if wrong := flaw_of_arithmetic(v, whole):
            raise ValueError(f"stage {s.name}: {_unmarked(wrong)}")
    for v in map(without_holes, s.values):
        spoken = not E.variables(v).union(*map(E.variables, where)).isdisjoint(sizes)
        if spoken and (wrong := flaw_of_arithmetic(v, whole)):
            raise ValueError(f"stage {s.name}: {_unmarked(wrong)}")
        for load, guards in guarded_loads(v, where):
            own = spoken and any(not E.variables(e).isdisjoint(sizes) for e in (*load.indices, *guards))
            for d, n in enumerate(shapes[load.buffer]):
                asked = own or E.variables(n)
                if asked and not _inside(load.indices[d], n, axes, guards, opened):
                    raise ValueError(
                        f"stage {s.name}: index {d} of {shown(load)} cannot be proved below "
                        f"{shown(n)}, and at least 0, at every size; correct the index or guard it with "
                        "te.select"
                    )


def shown(e: Expr) -> str:
    """An expression with the names of sizes, not of their variables."""
    return _unmarked(E.show(e))


def _unmarked(text: str) -> str:
    return text.replace(variable(""), "")


def _of_any_data(ix: Expr) -> Expr:
    """An index whose loads do not say where they read. As data may be anything, no axis there matters."""
    numbers: dict[Expr, int] = {}

    def visit(x: Expr) -> Expr | None:
        if not isinstance(x, Load):
            return None
        return replace(x, indices=(Const(numbers.setdefault(x, len(numbers))),))

    return E.rewrite(ix, visit)


@lru_cache(maxsize=1 << 12)  # each rewrite of a model makes a DAG with almost the same loads
def _inside(
    ix: Expr,
    extent: Expr,
    extents: tuple[tuple[str, Expr], ...],
    guards: tuple[Expr, ...],
    opened: tuple[OpenSize, ...],
) -> bool:
    """Whether an index is inside an extent at every size. ``extents``: of the axes."""
    axes, ix = dict(extents), _of_any_data(ix)
    spoken = E.variables(ix).union(*map(E.variables, guards))
    names = spoken & axes.keys()
    sizes = spoken.union(E.variables(extent), *(E.variables(axes[v]) for v in names)) - names
    ranges = {variable(s.name): s.range for s in opened if variable(s.name) in sizes}
    longest = {v: int(E.evaluate(axes[v], {n: r[1] for n, r in ranges.items()})) for v in names}
    ends = tuple(E.compare("<", Var(v), axes[v]) for v in sorted(names) if E.variables(axes[v]))
    whole = {**ranges, **{v: (0, n - 1) for v, n in longest.items()}}
    outside = (E.compare("<", ix, 0), E.compare("<=", extent, ix))
    if all(impossible((*ends, *guards, x), whole) for x in outside):
        return True
    if len(ranges) != 1:
        return False
    ((size, (least, most)),) = ranges.items()
    count = most - least + 1
    if count > TRIED_SIZES or count * prod(longest.values()) > MAX_POINTS:
        return False
    for n in range(least, most + 1):
        here = tuple((v, int(E.evaluate(axes[v], {size: n}))) for v in sorted(names))
        now, at_n = with_sizes(ix, {size: n}), tuple(with_sizes(k, {size: n}) for k in guards)
        if decide(now, int(E.evaluate(extent, {size: n})), here, at_n) is not None:
            return False
    return True
