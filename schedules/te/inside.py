"""Checks that every load of a stage stays inside its tensor (ADR 38).

An index is proved inside, or found outside at a point, or neither. Only proved ones are accepted, as memory
behind an array does not belong to the program. The conditions of selects around a load narrow its index.
Conditions on data count as holding everywhere.

Stores need no proof: a stage writes ``out[axes]``, each axis within the extent of the output. Nor do reads
that a schedule adds (caches, packed copies, partial sums): they follow from accesses that are inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.errors import WorkloadError
from schedules.expr import INDEX, Binary, Call, Cast, Const, Expr, Fma, Hole, Load, Logic, Select
from schedules.te.infeasible import impossible, interval, negation

# Largest domain (points) that is searched exhaustively for a bad index.
MAX_POINTS = 2**22
# Points that are evaluated together.
_BLOCK = 2**18
# Sets of conditions under which a shared expression is looked at.
_MOST_GUARDS = 8
# Range of literals in index arithmetic: 64 bits.
_LITERALS = DTYPES["int64"].range


@dataclass(frozen=True)
class Escape:
    """An index that may leave its tensor. ``value``: at the point ``where`` that shows it; None if no point
    is known but none is excluded."""

    value: int | None = None
    where: str = ""


def check_loads(
    stage: str, values: Sequence[Expr], extents: Mapping[str, int],
    shape: Callable[[Load], tuple[int, ...]], where: tuple[Expr, ...] = (),
) -> None:  # fmt: skip
    """Raise `WorkloadError` unless every load of ``values`` is proved inside its tensor, for all points of
    ``extents`` that the conditions of selects around it, and those of ``where``, allow. ``shape``: the shape
    of a load's tensor. Also raised if arithmetic on axes may leave 64 bits, because backends would differ
    there."""
    ranges = {v: (0, n - 1) for v, n in extents.items()}
    inside = _Inside(ranges, shape)
    for v in values:
        wide = affine.leaves(v, ranges, _LITERALS[-1])
        if wide is not None:
            raise WorkloadError(
                f"stage {stage}: {E.show(wide)} may leave 64 bits, the range of axis arithmetic; compute "
                'with te.cast(axis, "int64"), which wraps, or with te.cast(axis, "float64")'
            )
        inside.note(v)
        _check(v, where, f"stage {stage}", extents, shape, inside)


class _Inside:
    """Nodes whose loads are inside by the ranges of their indices alone, whatever conditions stand around
    them. So most of an expression is visited once, however often it is shared."""

    def __init__(self, ranges: affine.Ranges, shape: Callable[[Load], tuple[int, ...]]) -> None:
        self._ranges, self._shape = ranges, shape
        self._known: dict[int, bool] = {}

    def note(self, root: Expr) -> None:
        """Look at an expression, which must live on."""
        for x in E.distinct(root):
            self._known[id(x)] = self._own(x) and all(self._known[id(k)] for k in E.children(x))

    def __contains__(self, e: Expr) -> bool:
        return self._known[id(e)]

    def _own(self, e: Expr) -> bool:
        match e:
            case Load(indices=indices):
                return all(map(self._index, indices, self._shape(e)))
            case Const(value=int(v), dtype=E.INDEX):
                return v in _LITERALS
        return True

    def _index(self, ix: Expr, n: int) -> bool:
        if E.dtype_of(ix) != INDEX:
            return False
        low, high = interval(ix, self._ranges)
        return low >= 0 and high < n


def _check(
    e: Expr, guards: tuple[Expr, ...], what: str, extents: Mapping[str, int],
    shape: Callable[[Load], tuple[int, ...]], inside: _Inside,
) -> None:  # fmt: skip
    if e in inside:
        return
    match e:
        case Select(cond=c, a=a, b=b):
            _check(c, guards, what, extents, shape, inside)
            _check(a, (*guards, c), what, extents, shape, inside)
            _check(b, (*guards, Logic("not", (c,))), what, extents, shape, inside)
            return
        case Load(indices=indices):
            for d, (ix, n) in enumerate(zip(indices, shape(e), strict=True)):
                _check_index(e, d, ix, n, guards, what, extents, shape(e))
        case Const(value=int(v), dtype=E.INDEX) if v not in _LITERALS:
            raise WorkloadError(
                f"{what}: the literal {v} is out of the range of an axis, 64 bits; compute with "
                'te.cast(axis, "float64")'
            )
    for k in E.children(e):
        _check(k, guards, what, extents, shape, inside)


def _check_index(
    e: Load, d: int, ix: Expr, n: int, guards: tuple[Expr, ...], what: str, extents: Mapping[str, int],
    shape: tuple[int, ...],
) -> None:  # fmt: skip
    known = tuple(w for g in guards for w in E.conjuncts(weaker(g)))
    names = E.variables(ix).union(*map(E.variables, known))
    found = decide(ix, n, tuple((v, m) for v, m in extents.items() if v in names), known)
    if found is None:
        return
    where = f"0..{n - 1} of {e.buffer}{list(shape)} {e.dtype}"
    ignored = [g for g in guards if not told_by_axes(g)]
    value = f"{found.value}{f' at {found.where}' if found.where else ''}"
    if found.value is not None and not ignored:
        raise WorkloadError(
            f"{what}: index {d} of {E.show(e)} is {value}, outside {where}; "
            "correct the index or guard it with te.select"
        )
    because = f"; {E.show(ignored[0])} depends on more than axes, and may hold anywhere" if ignored else ""
    at = f": it would be {value}" if found.value is not None else ""
    test = E.show(E.all_of(E.compare("<=", 0, ix), E.compare("<", ix, n)))
    raise WorkloadError(
        f"{what}: index {d} of {E.show(e)} cannot be proved inside {where}{at}{because}; test it in the "
        f"condition too, te.select(te.all(..., {test}), ...), or cut it off with te.minimum and te.maximum"
    )


# --- conditions -------------------------------------------------------------------------------


def weaker(cond: Expr, holds: bool = True) -> Expr:
    """A condition on axes only that follows from ``cond``, or from its negation if not ``holds``."""
    match cond:
        case Logic(op="not", args=args):
            return weaker(args[0], not holds)
        case Logic(op=op, args=args):
            parts = [weaker(x, holds) for x in args]
            return E.all_of(*parts) if (op == "and") == holds else E.any_of(*parts)
    if not told_by_axes(cond):
        return E.TRUE
    return cond if holds else negation(cond)


def told_by_axes(e: Expr) -> bool:
    """Whether axes alone decide ``e``, and alike in every backend: no tensors, no functions, no floating
    point that may be rounded once or twice or converted to a dtype that cannot hold it."""
    for x in E.walk(e):
        if isinstance(x, (Load, Call, Fma, Hole)):
            return False
        if isinstance(x, Cast) and not E.is_float(x.dtype) and E.is_float(E.dtype_of(x.a)):
            return False
        if isinstance(x, Binary) and E.is_float(E.dtype_of(x)):
            product = any(isinstance(k, Binary) and k.op == "*" for k in (x.a, x.b))
            if x.op == "/" or (x.op in "+-" and product):
                return False
    return True


def guarded_loads(root: Expr, guards: tuple[Expr, ...] = ()) -> Iterator[tuple[Load, tuple[Expr, ...]]]:
    """Each load of an expression, with conditions on axes that hold where it is read: those that follow from
    selects around it, and ``guards``, which hold everywhere. What several selects share comes once for
    each of few sets of conditions, and then under ``guards`` alone: a proof from fewer conditions is one."""
    seen: dict[int, list[frozenset[Expr]]] = {}
    stack = [(root, guards)]
    while stack:
        e, known = stack.pop()
        before = seen.setdefault(id(e), [])
        if len(before) == _MOST_GUARDS:
            known = guards
        if any(x.issubset(known) for x in before):
            continue
        before.append(frozenset(known))
        if isinstance(e, Load):
            yield e, known
        kids = [(k, known) for k in E.children(e)]
        if isinstance(e, Select):
            sides = ((e.a, True), (e.b, False))
            kids[1:] = [(x, (*known, *E.conjuncts(weaker(e.cond, holds)))) for x, holds in sides]
        stack += kids[::-1]


# --- the decision -----------------------------------------------------------------------------


@lru_cache(maxsize=1 << 12)
def decide(
    ix: Expr, size: int, extents: tuple[tuple[str, int], ...], guards: tuple[Expr, ...]
) -> Escape | None:
    """None if ``0 <= ix < size`` is proved for all points of ``extents`` at which the ``guards`` (conditions
    on axes) hold; else how it may escape."""
    if E.dtype_of(ix) != INDEX:
        return Escape()
    ranges = {v: (0, n - 1) for v, n in extents}
    lo, hi = interval(ix, ranges)
    if (lo >= 0 or E.compare("<=", 0, ix) in guards) and (hi < size or E.compare("<", ix, size) in guards):
        return None
    if impossible((*guards, ix < 0), ranges) and impossible((*guards, E.compare("<=", size, ix)), ranges):
        return None
    if not told_by_axes(ix) or any(_may_trap(x, ranges) for e in (ix, *guards) for x in E.walk(e)):
        return Escape()
    for tied in (guards, _tied(ix, guards)):
        domain = _domain(ix, tied, dict(extents))
        if math.prod(domain.values()) <= MAX_POINTS:
            return _search(ix, size, tied, {v: np.arange(n) for v, n in domain.items()})
    width = int(_BLOCK ** (1 / len(domain))) // 2 or 1
    return _search(ix, size, tied, {v: _ends(n, width) for v, n in domain.items()}) or Escape()


def _may_trap(e: Expr, ranges: Mapping[str, tuple[int, int]]) -> bool:
    """Whether an integer division may have divisor 0. No value is known then."""
    if not isinstance(e, Binary) or e.op not in ("//", "%", "ceildiv"):
        return False
    if E.dtype_of(e) != INDEX:
        return not (isinstance(e.b, Const) and e.b.value > 0)
    lo, hi = interval(e.b, ranges)
    return lo <= 0 <= hi


def _tied(ix: Expr, guards: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The guards that share axes with the index, directly or through other guards. The rest say nothing about
    it and are assumed to hold somewhere."""
    names, used, grown = E.variables(ix), list[Expr](), True
    while grown:
        new = [g for g in guards if g not in used and (E.variables(g) & names or not E.variables(g))]
        grown = bool(new)
        used += new
        names = names.union(*map(E.variables, new))
    return tuple(used)


def _domain(ix: Expr, guards: tuple[Expr, ...], extents: Mapping[str, int]) -> dict[str, int]:
    names = E.variables(ix).union(*map(E.variables, guards))
    return {v: n for v, n in extents.items() if v in names}


def _search(ix: Expr, size: int, guards: tuple[Expr, ...], points: Mapping[str, np.ndarray]) -> Escape | None:
    """A point, of all combinations of ``points``, at which the guards hold and the index is outside; else
    None."""
    for block in _blocks(list(points.values())):
        env = dict(zip(points, np.meshgrid(*block, indexing="ij", sparse=True), strict=True))
        with np.errstate(all="ignore"):
            value = np.asarray(E.evaluate(ix, env))
            bad = (value < 0) | (value >= size)
            for g in guards:
                bad = bad & np.asarray(E.evaluate(g, env), dtype=bool)
        if bad.any():
            full = tuple(map(len, block))
            at = tuple(int(i) for i in np.argwhere(np.broadcast_to(bad, full))[-1])
            named = {v: p[i] for v, p, i in zip(points, block, at, strict=True) if v in E.variables(ix)}
            where = ", ".join(f"{v}={i}" for v, i in named.items())
            return Escape(int(np.broadcast_to(value, full)[at]), where)
    return None


def _blocks(points: list[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """The points in blocks of limited size. The first axis is cut first."""
    if math.prod(map(len, points)) <= _BLOCK:
        yield points
        return
    n = max(1, _BLOCK // math.prod(map(len, points[1:])))
    for start in range(0, len(points[0]), n):
        head = points[0][start : start + n]
        for rest in _blocks(points[1:]) if n == 1 else [points[1:]]:
            yield [head, *rest]


def _ends(extent: int, width: int) -> np.ndarray:
    """0..extent-1, or the first and the last ``width`` numbers of a longer range."""
    if extent <= 2 * width:
        return np.arange(extent)
    return np.r_[0:width, extent - width : extent]
