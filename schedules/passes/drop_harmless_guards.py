"""Drops guards whose absence does no harm.

A block that computes a tile of an intermediate buffer may run outside its domain if it writes only elements
that nobody reads, and reads only what is allocated: the padding of the tile. The values there are garbage,
and stay outside the domain. Guards on reductions are never dropped, as garbage would be summed. Where zeros
would be, `schedules.passes.sums_of_zeros` leaves none to drop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from schedules import affine
from schedules import expr as E
from schedules.expr import Expr, Load, Select
from schedules.ir import Alloc, Buffer, Guard, Loop, Stmt, Store, const, with_body
from schedules.passes.simplify import Ranges, inside


def drop_harmless_guards(
    s: Stmt, params: tuple[Buffer, ...], ranges: Ranges | None = None, wide: int = 0
) -> Stmt:
    """``s`` without the speculative guards that are harmless to drop. ``ranges``: of the variables of sizes.
    An argument has as many rows as the call says, not as the largest size. ``wide``: guards on vectors of
    more lanes stay where a call tells their end, as most of the lanes may have no work."""
    shapes = {b.name: _extents(b) for b in params}
    return _go(s, _Around(frozenset(b.name for b in params), shapes, ranges or {}, wide=wide))


def _extents(b: Buffer) -> tuple[int | Expr, ...]:
    return tuple(n if affine.has_size(n) else int(E.evaluate(n, {})) for n in b.shape)


@dataclass(frozen=True)
class _Around:
    """What is known at a statement: buffers of the caller, shapes of all buffers, ranges of the loops,
    conditions that hold, and ``lanes`` of vectors of more than ``wide``."""

    params: frozenset[str]
    shapes: Mapping[str, tuple[int | Expr, ...]]
    ranges: Ranges = field(default_factory=dict)
    conds: tuple[Expr, ...] = ()
    lanes: frozenset[str] = frozenset()
    wide: int = 0

    def inside(self, s: Loop) -> _Around:
        """In a loop."""
        n = const(s.extent) if self.wide and s.kind == "vectorize" else None
        more = {s.var} if n is not None and n > self.wide else set()
        return replace(self, ranges=inside(s, self.ranges), lanes=self.lanes | more)

    def stays(self, c: Expr) -> bool:
        """Whether a condition is on lanes of which most may have no work."""
        return bool(E.variables(c) & self.lanes) and affine.has_size(c)

    def allocated(self, b: Buffer) -> _Around:
        """Inside of an allocation."""
        return replace(self, shapes={**self.shapes, b.name: _extents(b)})

    def where(self, cond: Expr) -> _Around:
        """Where a condition holds too."""
        return replace(self, conds=(*self.conds, *E.conjuncts(cond)))


def _go(s: Stmt, at: _Around) -> Stmt:
    match s:
        case Loop(body=b):
            return replace(s, body=_go(b, at.inside(s)))
        case Alloc(buffer=buf, body=b):
            return Alloc(buf, _go(b, at.allocated(buf)))
        case Guard(body=b) if s.speculative:
            inner = _go(b, at)
            keep = E.conjuncts(s.cond)
            for c in keep:
                others = tuple(x for x in keep if x is not c)
                if not at.stays(c) and _harmless(inner, replace(at, conds=others)):
                    keep = others
            return replace(s, cond=E.all_of(*keep), body=inner) if keep else inner
    return with_body(s, lambda k: _go(k, at))


def _harmless(s: Stmt, at: _Around) -> bool:
    match s:
        case Store(buffer=name, indices=ix, value=v):
            return name not in at.params and _inside(name, ix, at) and all(_safe(e, at) for e in (*ix, v))
        case Guard(cond=c, body=b):
            return _safe(c, at) and _harmless(b, at.where(c))
        case Alloc(buffer=buf, body=b):
            return _harmless(b, at.allocated(buf))
        case Loop():
            return False
    return all(_harmless(k, at) for k in getattr(s, "stmts", ()))


def _safe(e: Expr, at: _Around) -> bool:
    """Whether no load of ``e`` can leave its buffer and no integer division can trap."""
    match e:
        case Select(cond=c, a=a, b=b):
            return _safe(c, at) and _safe(a, at.where(c)) and _safe(b, at)
        case Load(buffer=name, indices=ix):
            # Garbage that is read as an index may be another value at each use, so no clamp holds it.
            if any(map(E.loads, ix)) or not _inside(name, ix, at):
                return False
        case E.Binary(op="//" | "%", b=b) if not (isinstance(b, E.Const) and b.value != 0):
            r = affine.bounds(b, at.ranges) if affine.has_size(b) else None
            if r is None or r[0] <= 0:
                return False
    return all(_safe(k, at) for k in E.children(e))


def _inside(name: str, ix: tuple[Expr, ...], at: _Around) -> bool:
    for i, n in zip(ix, at.shapes[name], strict=True):
        r = affine.refine(at.conds, i, affine.bounds(affine.simplify(i, at.ranges), at.ranges), at.ranges)
        if r is None or r[0] < 0:
            return False
        if isinstance(n, int):
            if r[1] >= n:
                return False
        elif not _below(i, n, at):
            return False
    return True


def _below(i: Expr, n: Expr, at: _Around) -> bool:
    """Whether an index is below an extent that a call tells."""
    gap = affine.simplify(i - n, at.ranges)
    r = affine.refine(at.conds, gap, affine.bounds(gap, at.ranges), at.ranges)
    return r is not None and r[1] < 0
