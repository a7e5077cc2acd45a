"""Domains that are no boxes: the points of a stage for which all conditions of its ``where`` hold.

The conditions are affine, so a domain is a polytope: triangles, bands, and what remains of a box beside a
diagonal. A stage whose domain is a part of its box means what `masked` says: a stage over the whole box that
reduces its value inside the domain and the identity outside. Whoever knows boxes alone may take that one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.errors import WorkloadError
from schedules.expr import INDEX, Compare, Const, Expr, Var

if TYPE_CHECKING:
    from schedules.te.compute_dag import Axis, Stage
    from schedules.te.tensors import Op

# Most conditions of a stage.
MOST_CONDITIONS = 64
# Most points of a domain that are looked at one by one; of larger ones a part is.
MOST_POINTS = 1 << 22

# -- meaning -----------------------------------------------------------------------------------


def masked(stage: Stage) -> Stage:
    """The stage of the same meaning without ``where``: it reduces the identity outside of its domain."""
    if not stage.where:
        return stage
    assert stage.reducer is not None
    values = _masked(stage.values, stage.where, stage.reducer.identity)
    return replace(stage, values=values, where=())


def masked_op(op: Op) -> Op:
    """`masked` of a stage under construction."""
    if not op.where:
        return op
    assert op.reducer is not None
    return replace(op, values=_masked(op.values, op.where, op.reducer.identity), where=())


def _masked(values: Sequence[Expr], where: Sequence[Expr], identity: Sequence[Const]) -> tuple[Expr, ...]:
    return tuple(E.select(E.all_of(*where), v, c) for v, c in zip(values, identity, strict=True))


def axes_of(stage: Stage) -> tuple[Axis, ...]:
    """Its axes, then its reduction axes."""
    return (*stage.axes, *stage.reduce_axes)


def narrowed(stage: Stage) -> Stage | None:
    """The stage of the same meaning whose reduction axes have those points alone that conditions on one axis
    leave, without these conditions; None if no term is left."""
    if not stage.where:
        return stage
    ends = {a.var: (0, int(a.extent)) for a in stage.reduce_axes}
    others = list[Expr]()
    for c in stage.where:
        names = E.variables(c)
        v = next(iter(names), None)
        if E.loads(c) or E.holes(c) or len(names) > 1 or (v is not None and v not in ends):
            others.append(c)
        elif v is None:
            if not E.evaluate(c, {}):
                return None
        else:
            assert isinstance(c, Compare)
            ends[v] = _shared(ends[v], _ends_of(c, v, ends[v][1]))
            if ends[v][0] >= ends[v][1]:
                return None
    moved = {v: Var(v) + lo for v, (lo, _) in ends.items() if lo}

    def at(e: Expr) -> Expr:
        return E.substitute(e, moved) if moved else e

    return replace(
        stage,
        reduce_axes=tuple(replace(a, extent=ends[a.var][1] - ends[a.var][0]) for a in stage.reduce_axes),
        values=tuple(map(at, stage.values)),
        where=tuple(map(at, others)),
    )


def _shared(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return max(a[0], b[0]), min(a[1], b[1])


def _ends_of(c: Compare, var: str, extent: int) -> tuple[int, int]:
    """The half-open range of an axis of this extent for which a condition on it alone holds."""
    low, high = 0, extent
    for a, b in ((c.a, c.b), (c.b, c.a)) if c.op == "==" else ((c.a, c.b),):
        step, rest = affine.isolate(E.binary("-", a, b), var)
        n, most = 0 if step is None else int(E.evaluate(step, {})), int(E.evaluate(rest, {}))
        most = -most - (1 if c.op == "<" else 0)  # n * var <= most
        if n > 0:
            high = min(high, most // n + 1)
        elif n < 0:
            low = max(low, -(most // -n))
        elif most < 0:
            high = 0
    return low, high


# -- checks ------------------------------------------------------------------------------------


def flaw_of_condition(cond: Expr) -> str:
    """What is wrong with a condition of a domain; nothing if it compares two affine indices."""
    if not isinstance(cond, Compare) or cond.op not in ("<", "<=", "=="):
        if isinstance(cond, Compare) and cond.op == "!=":
            return "it leaves out a part in the middle; give two stages, or te.select"
        return "it is none of a < b, a <= b, te.equal(a, b), and te.all of these; use te.select for others"
    if E.dtype_of(cond.a) != INDEX or E.dtype_of(cond.b) != INDEX:
        return "it compares values, not axes; use te.select"
    if E.loads(cond):
        return "it depends on data; use te.select"
    terms, const = affine.linear(E.binary("-", cond.a, cond.b))
    every = [*terms.items()]
    if any(not isinstance(a, Var) or not affine.is_scalar(c) for a, c in every) or not affine.is_scalar(
        const
    ):
        return "it is not affine: axes may be added, and multiplied by integers; use te.select for others"
    return ""


def check_domain(stage: Stage) -> None:
    """Raise ValueError, which names the stage, unless its ``where`` are few affine conditions on its axes
    whose arithmetic stays within 64 bits, and the stage reduces."""
    if not stage.where:
        return
    what = f"stage {stage.name}"
    if stage.reducer is None:
        raise ValueError(
            f"{what}: it has a where and reduces nothing; only terms of reductions may be left out"
        )
    if len(stage.where) > MOST_CONDITIONS:
        raise ValueError(f"{what}: its where has more than {MOST_CONDITIONS} conditions")
    ranges = {a.var: (0, int(a.extent) - 1) for a in axes_of(stage)}
    for c in stage.where:
        if flaw := flaw_of_condition(c):
            raise ValueError(f"{what}: the where {E.show(c)[:120]}: {flaw}")
        if affine.leaves(c, ranges, DTYPES["int64"].range[-1]) is not None:
            raise ValueError(f"{what}: the where {E.show(c)[:120]} may leave 64 bits, the range of axes")


def require_plain(stage: Stage | Op, what: str, but: str = "") -> None:
    """Raise `WorkloadError` for a stage that has one of ``where``, ``places`` and ``scan``, apart from the
    one named ``but``. ``what``: who does not take it."""
    names = {"where": "a domain that is no box", "places": "scattered results", "scan": "axes in order"}
    for field, name in names.items():
        if field != but and getattr(stage, field):
            own = (stage.names[0] or "(unnamed)") if hasattr(stage, "names") else stage.name
            raise WorkloadError(f"{what}: stage {own} has {name}, which it does not take")


# -- points ------------------------------------------------------------------------------------


def points(stage: Stage) -> int:
    """Points of the domain of a stage: those of its box for which its ``where`` holds. Of domains of very
    many points it is an estimate.

    >>> points(a_sum_of_k_below_i_of_8)
    28
    """
    return points_inside({a.var: int(a.extent) for a in axes_of(stage)}, _closed(stage.where))


def points_inside(extents: Mapping[str, int], where: tuple[Expr, ...]) -> int:
    """Points of a box for which affine conditions on its axes hold."""
    return _points(tuple(extents.items()), where)


def _closed(where: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The conditions without those that speak of sizes that a call tells."""
    return tuple(c for c in where if not E.holes(c))


@lru_cache(maxsize=1 << 12)
def _points(extents: tuple[tuple[str, int], ...], where: tuple[Expr, ...]) -> int:
    sizes, total = dict(extents), 1
    for names, conds in _groups(sizes, where):
        total *= _counted({v: sizes[v] for v in names}, conds)
    return total


def _groups(sizes: Mapping[str, int], where: Sequence[Expr]) -> Iterator[tuple[list[str], list[Expr]]]:
    """Axes that conditions tie, together with these."""
    left = {v: {v} for v in sizes}
    for c in where:
        tied = set().union(*(left[v] for v in E.variables(c)), *())
        left |= dict.fromkeys(tied, tied)
    for names in {id(x): x for x in left.values()}.values():
        yield [v for v in sizes if v in names], [c for c in where if E.variables(c) & names]


def _counted(sizes: Mapping[str, int], conds: Sequence[Expr]) -> int:
    """Points of a box for which all conditions hold. The longest axis is not walked: how far it goes follows
    from the others."""
    if not conds:
        return math.prod(sizes.values())
    last = max(sizes, key=lambda v: (sizes[v], v))
    others = {v: n for v, n in sizes.items() if v != last}
    steps = dict.fromkeys(others, 1)
    while math.prod(-(-n // steps[v]) for v, n in others.items()) > MOST_POINTS:
        steps[max(others, key=lambda v: others[v] / steps[v])] *= 2
    axes = [np.arange(steps[v] // 2, n, steps[v], dtype=np.int64) for v, n in others.items()]
    at = dict(zip(others, np.meshgrid(*axes, indexing="ij", sparse=True), strict=True)) if axes else {}
    shape = tuple(map(len, axes))
    low, high = np.zeros(shape, np.int64), np.full(shape, sizes[last], np.int64)
    for c in conds:
        assert isinstance(c, Compare)
        for a, b, op in ((c.a, c.b, c.op), (c.b, c.a, c.op)) if c.op == "==" else ((c.a, c.b, c.op),):
            step, rest = affine.isolate(E.binary("-", a, b), last)
            # step * last + rest < 0, or <= 0
            most = -np.asarray(E.evaluate(rest, at)) - (1 if op == "<" else 0)
            n = 0 if step is None else int(E.evaluate(step, {}))
            if n > 0:
                high = np.minimum(high, most // n + 1)
            elif n < 0:
                low = np.maximum(low, -(most // -n))
            else:
                high = np.where(most >= 0, high, 0)
    found = int(np.maximum(high - low, 0).sum())
    walked = math.prod(shape)
    whole = math.prod(others.values())
    return found if walked == whole else round(found * (whole / walked))
