"""Reduction axes whose ends change from point to point: ``te.reduce_axis((0, i + 1))``.

An axis of a stage is a box: it starts at 0 and has one extent. So a bounded axis is the smallest box that
holds all its ranges, and conditions that leave out the rest (`Stage.where`). Its points are ``start + var``.
``start`` is the least lower end of all ranges. Where one range is at most half as long as that box, as those
of a band are, the start is the lower end of the range itself, and moves with it: a band of 5 diagonals has
5 points then, not n.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from schedules import affine
from schedules import expr as E
from schedules.errors import WorkloadError
from schedules.expr import INDEX, Binary, Const, Expr, Logic, Var
from schedules.te.dims import Dim
from schedules.te.domains import flaw_of_condition
from schedules.te.extent import written
from schedules.te.tensors import IterVar

# A box that begins this near to 0, by its points, begins at 0.
NEAR = 4
# Ends of an axis at one side: the greatest of the lower ones, or the least of the upper ones, counts.
Ends = tuple[Expr, ...]


@dataclass(frozen=True)
class AxisBox:
    """The box of a bounded axis. ``start``: where it begins. ``extent``: its points. ``lows``, ``highs``: the
    ends that it does not tell. ``least``, ``most``: of all its points."""

    start: Expr
    extent: Any
    lows: Ends
    highs: Ends
    least: Expr
    most: Expr


def bounded(lo: Any, hi: Any, label: str) -> AxisBox:
    """The box of the ranges from ``lo`` to below ``hi``. Raises `WorkloadError`."""
    lows, highs = _ends(lo, "max", label), _ends(hi, "min", label)
    least = _greatest([_reach(e, 0) for e in lows], label)
    most = _least([_reach(e, 1) for e in highs], label)
    whole = _number(E.binary("-", most, least))
    spans = [(_number(_reach(E.binary("-", h, lo_), 1)), lo_, h) for lo_ in lows for h in highs]
    fixed = [x for x in spans if isinstance(x[0], int)]
    if fixed and not _is_number(lows):
        length, start, end = min(fixed, key=lambda x: x[0])
        if length >= 1 and (not isinstance(whole, int) or 2 * length <= whole):
            told = _number(_reach(E.binary("-", end, start), 0)) == length
            rest = tuple(h for h in highs if not (told and h is end))
            return AxisBox(start, length, tuple(x for x in lows if x is not start), rest, least, most - 1)
    if isinstance(least, Const) and isinstance(whole, int) and not _is_number(lows):
        if 0 < NEAR * int(least.value) <= whole:  # tiles then begin where those of other axes do
            least = Const(0)
            whole = _number(most)
    if isinstance(whole, int):
        if whole < 1 and all(map(_is_fixed, (*lows, *highs))):
            raise WorkloadError(f"{label}: it has no points from {E.show(least)} to below {E.show(most)}")
        extent: Any = max(whole, 1)
    else:
        extent = whole if _at_least(whole) >= 1 else _number(whole + (1 - _at_least(whole)))
    lows = tuple(x for x in lows if x != least)
    # what is always below the end of the box needs no condition
    highs = tuple(h for h in highs if not (_is_fixed(h) and extent == _number(E.binary("-", h, least))))
    return AxisBox(least, extent, lows, highs, least, E.binary("-", most, 1))


def conditions(k: Expr, box: AxisBox) -> tuple[Expr, ...]:
    """What holds of the value ``k`` of an axis inside its ranges, as far as the box does not say so."""
    lows = (E.compare("<=", x, k) for x in box.lows)
    return (*lows, *(E.compare("<", k, h) for h in box.highs))


def conjuncts(where: Any, k: Expr, label: str) -> tuple[Expr, ...]:
    """The conditions of ``where``: one, several, or a function of the axis that gives them. Raises
    `WorkloadError` for those that no domain has."""
    if callable(where) and not isinstance(where, Expr):
        where = where(k)
    every = list(where) if isinstance(where, (tuple, list)) else [where]
    found = [c for x in every for c in _split(x, label)]
    for c in found:
        if flaw := flaw_of_condition(c):
            raise WorkloadError(f"{label}: where {E.show(c)}: {flaw}")
    return tuple(found)


def check_order(axes: Sequence[IterVar], name: str) -> None:
    """Raise `WorkloadError` unless each axis is bounded by axes that stand before it."""
    for n, a in enumerate(axes):
        named = {x for c in (*a.where, E.wrap(a.start)) for x in E.walk(c) if isinstance(x, IterVar)}
        late = next((b for b in axes[n + 1 :] if b in named), None)
        if late is not None:
            raise WorkloadError(
                f"te.{name}: the ends of axis {a.name} depend on {late.name}, which stands after it in "
                f"axis=; put {late.name} first"
            )


def _split(x: Any, label: str) -> Iterable[Expr]:
    if isinstance(x, Logic) and x.op == "and":
        return [c for y in x.args for c in _split(y, label)]
    if isinstance(x, Const) and x.dtype == "bool":
        return [] if x.value else [E.compare("<", Const(0), Const(0))]
    if not isinstance(x, Expr) or E.dtype_of(x) != "bool":
        raise WorkloadError(
            f"{label}: where {x!r} is no condition; give e.g. j <= i, te.equal(i, j), or te.all of several"
        )
    return [x]


def _ends(e: Any, op: str, label: str) -> Ends:
    """The ends of which the greatest (``max``) or the least (``min``) counts. Raises `WorkloadError`."""
    e = written(e)
    if isinstance(e, bool) or not (isinstance(e, Expr) or hasattr(e, "__index__")):
        raise WorkloadError(f"{label}: the end {e!r} is no integer and no index of axes")
    e = e if isinstance(e, Expr) else Const(int(e))
    if E.loads(e):
        raise WorkloadError(
            f"{label}: the end {E.show(e)} depends on data, and axes are bounded by axes and sizes; reduce "
            "over the largest range, and leave out the rest with te.select"
        )
    if E.dtype_of(e) != INDEX:
        raise WorkloadError(f"{label}: the end {E.show(e)} is {E.dtype_of(e)}, no index; compute it of axes")
    if isinstance(e, Binary) and e.op == op:
        return (*_ends(e.a, op, label), *_ends(e.b, op, label))
    terms, const = affine.linear(e)
    if any(not isinstance(a, Var) or not isinstance(c, Const) for a, c in terms.items()) or not isinstance(
        const, Const
    ):
        other = "te.maximum" if op == "max" else "te.minimum"
        raise WorkloadError(
            f"{label}: the end {E.show(e)} is not affine: axes may be added, multiplied by integers, and "
            f"joined by {other}; reduce over the largest range, and leave out the rest with te.select"
        )
    return (affine.from_linear(terms, const),)


def _reach(e: Expr, which: int) -> Expr:
    """The least (0) or largest (1) value of an index over all points of its axes, by sizes alone."""
    terms, total = affine.linear(e)
    for a, c in terms.items():
        if isinstance(a, IterVar):
            up = isinstance(c, Const) and (int(c.value) > 0) == bool(which)
            a = written(a.most if up else a.least)
        total = E.binary("+", total, E.binary("*", E.wrap(a), c))
    return affine.simplify(total, {})


def _number(e: Expr) -> Any:
    """An index as an integer, or as an expression of sizes."""
    e = affine.simplify(e, {})
    return int(e.value) if isinstance(e, Const) else e


def _is_fixed(e: Expr) -> bool:
    """Whether an end is the same at all points."""
    return not any(isinstance(x, IterVar) for x in E.walk(e))


def _is_number(ends: Ends) -> bool:
    return all(map(_is_fixed, ends))


def _at_least(e: Expr) -> int:
    """The least value of an expression of sizes."""
    ends = {x: (x.lo, x.hi) for x in E.walk(e) if isinstance(x, Dim)}
    terms, const = affine.linear(e)
    total = int(const.value) if isinstance(const, Const) else 0
    for a, c in terms.items():
        lo, hi = ends.get(a, (0, 0))  # type: ignore[call-overload]
        n = int(c.value) if isinstance(c, Const) else 0
        total += n * (lo if n > 0 else hi)
    return total


def _greatest(every: list[Expr], label: str) -> Expr:
    return _one(every, max)


def _least(every: list[Expr], label: str) -> Expr:
    return _one(every, min)


def _one(every: list[Expr], pick: Callable[..., Any]) -> Expr:
    """The greatest or least of integers; where sizes are among them, the first of these."""
    numbers = [int(e.value) for e in every if isinstance(e, Const)]
    if len(numbers) == len(every):
        return Const(pick(numbers))
    return next(e for e in every if not isinstance(e, Const))
