"""Access footprints: which part of a buffer a set of loops touches.

A footprint is a base and an extent per dimension: the elements ``base <= x < base + extent``. Both
are expressions, so that one definition serves a concrete nest and a sketch whose tile sizes are
still holes. Extents are exact for linear indices with non-negative coefficients and never too
small otherwise (Halide calls this bounds inference).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import mul

from schedules import affine
from schedules import expr as E
from schedules.expr import Binary, Const, Expr, Load

ONE = Const(1)
Span = tuple[Expr, Expr]  # base, extent


def span(e: Expr, inner: Mapping[str, Expr]) -> Span | None:
    """Base and extent of the values of ``e`` while the variables of ``inner`` run over
    ``range(extent)`` and all others stand still; None when nothing is known, as of what is read from a
    buffer: it may change between two accesses."""
    if E.loads(e):
        return None
    if not (E.variables(e) & inner.keys()):
        return e, ONE
    terms, const = affine.linear(e)
    if e not in terms:
        base: Expr = const
        extent: Expr = ONE
        for atom, coef in terms.items():
            s = span(atom, inner)
            if s is None:
                return None
            b, n = s
            sign = _sign(coef)
            if sign == 0:
                return None
            base = base + (b if sign > 0 else b + n - 1) * coef
            extent = extent + (n - 1) * (coef if sign > 0 else coef * -1)
        return base, extent
    match e:
        case E.Var(name=name):
            return Const(0), inner[name]
        case Binary(op="//" | "%" | "min" | "max" as op, a=a, b=b) if affine.is_scalar(b):
            s = span(a, inner)
            if s is None:
                return None
            base, n = s
            if op == "//":
                return base // b, (n - 1 + (b - 1) * _misaligned(base, b)) // b + 1
            if op == "%":
                return Const(0), E.maximum(E.minimum(n, b), b * _misaligned(base, b))
            # min(x, c) moves no faster than x: it stays within x's extent from its own start
            return E.binary(op, base, b), n
    return None


def _sign(e: Expr) -> int:
    """1 for what is never below 0, -1 for what is never above it, 0 if that is not known. Holes are
    positive."""
    match e:
        case Const(value=n):
            return 1 if n >= 0 else -1
        case E.Hole():
            return 1
        case Binary(op="*", a=a, b=b):
            return _sign(a) * _sign(b)
        case Binary(op="+" | "min" | "max", a=a, b=b):
            return _sign(a) if _sign(a) == _sign(b) else 0
        case Binary(op="//" | "ceildiv" | "%", a=a, b=b):
            return _sign(a) if _sign(b) > 0 else 0
    return 0


def values_at_most(e: Expr, inner: Mapping[str, Expr]) -> Expr:
    """How many values an index that is read from buffers takes at most while ``inner`` runs: as many as
    there are places that it is read from."""
    if not E.variables(e) & inner.keys():
        return ONE
    if isinstance(e, Load):
        out: Expr = ONE
        for i in e.indices:
            s = span(i, inner)
            out = out * (values_at_most(i, inner) if s is None else s[1])
        return out
    if isinstance(e, E.Var):
        return inner[e.name]
    return reduce(mul, (values_at_most(x, inner) for x in _operands(e)), ONE)


def _operands(e: Expr) -> list[Expr]:
    """The loads and variables that an expression is made of, each once."""
    if isinstance(e, (Load, E.Var)):
        return [e]
    return list(dict.fromkeys(x for k in E.children(e) for x in _operands(k)))


def _misaligned(e: Expr, of: Expr) -> Expr:
    """1 where ``e`` may be no multiple of ``of``, else 0: over holes, decided when they are filled."""
    terms, const = affine.linear(e)
    rest: Expr = Const(0)
    for atom, c in (*terms.items(), (None, const)):
        if _multiple(c, of):
            continue
        odd = c % of
        if isinstance(atom, Binary) and atom.op in ("min", "max"):
            odd = E.minimum(odd, _misaligned(atom.a, of) + _misaligned(atom.b, of))
        rest = rest + odd
    return E.minimum(rest, ONE)


def _multiple(c: Expr, of: Expr) -> bool:
    """Whether ``c`` is provably a multiple of ``of``."""
    if c == Const(0) or c == of:
        return True
    if isinstance(c, Const) and isinstance(of, Const):
        return int(c.value) % int(of.value) == 0
    return isinstance(c, Binary) and c.op == "*" and (_multiple(c.a, of) or _multiple(c.b, of))


def dense(indices: tuple[Expr, ...], inner: Mapping[str, Expr]) -> bool:
    """Whether an access touches every point of the box of its spans while ``inner`` runs, as far as integers
    tell: what depends on holes is taken to be dense, and checked again once they are filled."""
    seen: set[str] = set()
    for e in indices:
        steps: list[tuple[Expr, Expr]] = []
        mine: set[str] = set()
        for atom, coef in affine.linear(e)[0].items():
            used = E.variables(atom) & inner.keys()
            if not used:
                continue
            if isinstance(atom, E.Var):
                steps.append((coef, inner[atom.name]))
                mine |= used
            elif not _digit(atom, inner) or coef != ONE or len(affine.linear(e)[0]) > 1:
                return False
        if mine & seen:
            return False
        seen |= mine
        if all(isinstance(x, Const) for pair in steps for x in pair):
            covered = 1
            for c, n in sorted((abs(int(c.value)), int(n.value)) for c, n in steps if isinstance(c, Const)
                               and isinstance(n, Const)):  # fmt: skip
                if n > 1 and not 0 < c <= covered:
                    return False
                covered += (n - 1) * c
    return True


def _digit(e: Expr, inner: Mapping[str, Expr]) -> bool:
    """``v // c``, ``v % c`` or digits of these: what `Fuse` makes of the loops of a fused loop ``v``."""
    while isinstance(e, Binary) and e.op in ("//", "%") and affine.is_scalar(e.b):
        e = e.a
    return isinstance(e, E.Var) and e.name in inner


def _at_most(atom: Expr, c: Expr) -> int | None:
    """The farthest from 0 that a remainder times a constant gets; None for what is no remainder."""
    if not isinstance(atom, Binary) or atom.op != "%" or not isinstance(atom.b, Const) or atom.b.value <= 0:
        return None
    return int(c.value) * (int(atom.b.value) - 1) if isinstance(c, Const) else None


def union(a: Span, b: Span) -> Span | None:
    """A span that covers both; None when the bases are not a constant apart, or one is not further than the
    other by remainders, which are bounded."""
    if a[0] == b[0]:
        return a[0], E.maximum(a[1], b[1])
    terms, d = affine.linear(b[0] - a[0])
    if not isinstance(d, Const):
        return None
    k = int(d.value)
    if terms:
        far = [_at_most(atom, c) for atom, c in terms.items()]
        if all(n is not None and n >= 0 for n in far) and k >= 0:
            return a[0], E.maximum(a[1], b[1] + (k + sum(n or 0 for n in far)))
        if all(n is not None and n <= 0 for n in far) and k <= 0:
            return b[0], E.maximum(a[1] + (-k - sum(n or 0 for n in far)), b[1])
        return None
    if k >= 0:
        return a[0], E.maximum(a[1], b[1] + k)
    return b[0], E.maximum(a[1] + (-k), b[1])


def covers(have: Span, need: Span) -> bool:
    """Whether ``need`` lies within ``have``; extents with holes are taken to be enough."""
    (at, n), (start, m) = have, need
    terms, before = ({}, Const(0)) if at == start else affine.linear(start - at)
    if at == start and (m == n or E.holes(n) | E.holes(m)):
        return True
    after = n - m - before
    ends = [int(e.value) for e in (before, after) if isinstance(e, Const)]
    return not terms and len(ends) == 2 and min(ends) >= 0


def footprint(
    accesses: list[tuple[Expr, ...]], inner: Mapping[str, Expr], shape: tuple[Expr, ...], *, clip: bool
) -> list[Span]:
    """The span of each dimension over all ``accesses`` (index tuples in loop variables). What
    can't be told is the whole dimension. With ``clip``, no extent exceeds the dimension's."""
    out: list[Span] = []
    for d, size in enumerate(shape):
        acc: Span | None = None
        for n, ix in enumerate(accesses):
            s = span(ix[d], inner)
            acc = s if n == 0 or s is None else (None if acc is None else union(acc, s))
            if acc is None:
                break
        if acc is None or (clip and covers(acc, (Const(0), size)) and not E.holes(acc[1])):
            acc = (Const(0), size)
        elif clip and not may_be_negative(acc[0]):
            acc = (Const(0), size) if acc[1] == size else (acc[0], E.minimum(acc[1], size))
        out.append(acc)
    return out


def may_be_negative(base: Expr) -> bool:
    """A base below 0 (a guarded read) must keep its extent: clipping it would cut the far end. So may be one
    that is counted from a size: ``?n.size - 8``."""
    terms, const = affine.linear(base)
    return any(_sign(c) < 0 for c in (*terms.values(), const)) or (
        _sign(const) == 0 and any(map(affine.is_size, E.holes(const)))
    )
