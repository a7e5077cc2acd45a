"""Quasi-affine index arithmetic: linear forms, integer bounds, simplification.

Only index expressions are touched; floating-point arithmetic keeps its order. Bounds and
simplification want concrete integers; linear forms allow holes in coefficients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from types import MappingProxyType

from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import INDEX, Binary, Cast, Compare, Const, Expr, Hole, Load, Logic, Select, Var

Range = tuple[int, int]  # both ends included
Ranges = Mapping[str, Range]
# Minima and maxima in a sum whose sides are tried.
MOST_SIDES = 6
ZERO, ONE, MINUS = Const(0), Const(1), Const(-1)


def hull(a: Range, b: Range) -> Range:
    """The least range that holds both."""
    return min(a[0], b[0]), max(a[1], b[1])


def is_scalar(e: Expr) -> bool:
    """Index arithmetic of literals and holes: an integer once the holes are filled."""
    t = E.kind(e)
    if t is Const or t is Hole:
        return True
    return t is Binary and all(map(is_scalar, E.children(e)))


@lru_cache(maxsize=1 << 14)
def linear(e: Expr) -> tuple[Mapping[Expr, Expr], Expr]:
    """``e`` as a sum of ``coefficient * atom`` plus a constant; atoms are variables or opaque
    sub-expressions (``//``, ``%``, ``min``, loads), coefficients integers or scalars over holes."""
    terms: dict[Expr, Expr] = {}
    const = _collect(e, ONE, terms)
    return MappingProxyType({a: c for a, c in terms.items() if c != ZERO}), const


def _collect(e: Expr, times: Expr, terms: dict[Expr, Expr]) -> Expr:
    """Add ``times * e`` to ``terms``; returns the constant part."""
    t = E.kind(e)
    if t is Const or t is Hole:
        return _mul(e, times)
    if t is Binary:
        op, a, b = e.op, e.a, e.b  # type: ignore[attr-defined]
        if op == "+":
            return _add(_collect(a, times, terms), _collect(b, times, terms))
        if op == "-":
            return _add(_collect(a, times, terms), _collect(b, _mul(MINUS, times), terms))
        if op == "*":
            if is_scalar(b):
                return _collect(a, _mul(b, times), terms)
            if is_scalar(a):
                return _collect(b, _mul(a, times), terms)
    if t is Binary and is_scalar(e):
        return _mul(e if E.holes(e) else Const(int(E.evaluate(e, {}))), times)
    old = terms.get(e)
    terms[e] = times if old is None else _add(old, times)
    return ZERO


def _add(a: Expr, b: Expr) -> Expr:
    if type(a) is Const and type(b) is Const:
        return Const(a.value + b.value)
    return E.binary("+", a, b)


def _mul(a: Expr, b: Expr) -> Expr:
    if type(a) is Const and type(b) is Const:
        return Const(a.value * b.value)
    return E.binary("*", a, b)


def from_linear(terms: Mapping[Expr, Expr], const: Expr) -> Expr:
    """Inverse of `linear`, terms in their order."""
    out: Expr | None = None
    for atom, c in terms.items():
        if type(c) is Const and type(c.value) is int:
            k = c.value
            if k == 0:
                continue
            if k < 0 and out is not None:
                out = Binary("-", out, atom if k == -1 else Binary("*", atom, Const(-k)))
                continue
            term = atom if k == 1 else Binary("*", atom, c)
        else:
            term = E.binary("*", atom, c)
        out = term if out is None else Binary("+", out, term)
    if out is None:
        return const
    if type(const) is Const and type(const.value) is int:
        if const.value == 0:
            return out
        return Binary("+", out, const) if const.value > 0 else Binary("-", out, Const(-const.value))
    return E.binary("+", out, const)


def rejoined(e: Expr) -> tuple[Mapping[Expr, Expr], Expr]:
    """`linear`, where the digits of a number are put together again: ``n * (x // n) + x % n`` is ``x``. So a
    fused loop over neighbouring dimensions is a step through memory."""
    terms, const = linear(e)
    for low, c in terms.items():
        if not (isinstance(low, Binary) and low.op == "%" and isinstance(low.b, Const)):
            continue
        high = Binary("//", low.a, low.b)
        if isinstance(c, Const) and terms.get(high) == Const(c.value * low.b.value):
            rest = from_linear({a: k for a, k in terms.items() if a not in (low, high)}, const)
            return rejoined(rest + low.a * c)
    return terms, const


def offset(at: Sequence[Expr], strides: Sequence[int]) -> Expr:
    """Elements from the first of a buffer to the one at these indices."""
    return sum((i * step for i, step in zip(at, strides, strict=True)), start=E.wrap(0))


def steps_of(e: Expr) -> tuple[dict[str, int], frozenset[str]]:
    """({variable: how much more ``e`` is with each step of it}, the variables with which it moves unevenly,
    as those of a quotient). Variables whose step is not known yet, or 0, are in neither."""
    terms, _ = linear(e)
    even = {a.name: int(c.value) for a, c in terms.items() if isinstance(a, Var) and isinstance(c, Const)}
    return even, frozenset(v for a in terms if not isinstance(a, Var) for v in E.variables(a))


def isolate(e: Expr, var: str) -> tuple[Expr | None, Expr]:
    """``e`` as ``step * var + rest``: (step, rest); step is None where ``e`` has no such term. ``rest`` may
    still hold ``var`` inside an opaque atom."""
    terms, const = linear(e)
    v = Var(var)
    return terms.get(v), from_linear({a: c for a, c in terms.items() if a != v}, const)


def bounds(e: Expr, ranges: Ranges) -> Range | None:
    """Smallest and largest value ``e`` can take, or None where nothing is known. Sound, and exact
    for linear forms over independent variables."""
    match e:
        case Const(value=v):
            return (int(v), int(v))
        case Var(name=n):
            return ranges.get(n)
        case Cast(dtype=E.INDEX, a=a):
            return value_bounds(a, ranges)
        case Binary(op="//" | "%" | "ceildiv" as op, a=a, b=b):
            if op == "//" and isinstance(a, Var) and has_size(b) and (known := ranges.get(E.show(e))):
                return known
            return _divided(op, bounds(a, ranges), bounds(b, ranges))
        case Binary(op="min" | "max", a=a, b=b) | Select(a=a, b=b):
            ra, rb = bounds(a, ranges), bounds(b, ranges)
            if ra is None or rb is None:
                return None
            low, high = _OF_BOTH[getattr(e, "op", "select")]
            return low(ra[0], rb[0]), high(ra[1], rb[1])
        case Binary():
            return _of_terms(e, ranges)
    return None


def most(e: Expr, ranges: Ranges) -> int | None:
    """The largest value of an index that grows with each of its minima, as `bounds` has it, where one side of
    a minimum may be unknown. None where nothing is known."""

    def known(x: Expr) -> Expr | None:
        if isinstance(x, Binary) and x.op == "min":
            sides = [r for y in (x.a, x.b) if (r := bounds(simplify(y, ranges), ranges)) is not None]
            return Const(min(r[1] for r in sides)) if len(sides) == 1 else None
        return None

    r = bounds(simplify(E.rewrite(e, known), ranges), ranges)
    return None if r is None else r[1]


# How the lower ends of two ranges make one, and the upper ends.
_OF_BOTH: dict[str, tuple[Callable[[int, int], int], Callable[[int, int], int]]] = {
    "min": (min, min),
    "max": (max, max),
    "select": (min, max),
}


def _divided(op: str, a: Range | None, b: Range | None) -> Range | None:
    """The range of a quotient or remainder, where the divisor is above 0."""
    if b is None or b[0] <= 0:
        return None
    c = b[0]
    if c != b[1]:
        return _divided_by_some(op, a, b)
    if op == "%":
        return (a[0] % c, a[1] % c) if a is not None and a[0] // c == a[1] // c else (0, c - 1)
    if a is None:
        return None
    return (a[0] // c, a[1] // c) if op == "//" else (-(-a[0] // c), -(-a[1] // c))


def _divided_by_some(op: str, a: Range | None, b: Range) -> Range | None:
    """The same, where the divisor is one of several numbers, as an extent that a call tells is."""
    if op == "%":
        return 0, min(a[1], b[1] - 1) if a is not None and a[0] >= 0 else b[1] - 1
    if a is None:
        return None
    ends = [x // y if op == "//" else -(-x // y) for x in a for y in b]
    return min(ends), max(ends)


def _of_terms(e: Expr, ranges: Ranges) -> Range | None:
    """The range of a sum, from those of its terms."""
    terms, const = linear(e)
    if len(terms) == 1 and e in terms:
        return _of_factors(e, ranges)
    if not isinstance(const, Const):
        return None
    lo = hi = int(const.value)
    for atom, coef in terms.items():
        r = bounds(atom, ranges)
        if r is None or not isinstance(coef, Const):
            return None
        c = int(coef.value)
        lo += c * (r[0] if c >= 0 else r[1])
        hi += c * (r[1] if c >= 0 else r[0])
    return _of_sides(e, (lo, hi), tuple(ranges.items())) if has_size(e) else (lo, hi)


def _of_factors(e: Expr, ranges: Ranges) -> Range | None:
    """The range of a product of two extents that a call tells."""
    if not (isinstance(e, Binary) and e.op == "*" and has_size(e)):
        return None
    a, b = bounds(e.a, ranges), bounds(e.b, ranges)
    if a is None or b is None:
        return None
    ends = [x * y for x in a for y in b]
    return min(ends), max(ends)


def has_size(e: Expr) -> bool:
    """Whether an index depends on a size that a call tells (`schedules.te.open_sizes.variable`)."""
    return any(map(is_size, E.variables(e)))


def is_size(name: str) -> bool:
    """Whether a variable is that of a size, or the hole that stands for it while a nest is scheduled."""
    return name.endswith(".size")


def quotients(var: str, extent: Expr, ranges: Ranges) -> dict[str, Range]:
    """What is known of quotients of a variable from 0 to below an extent, by how they are shown: ``i // n``
    is below 4 where ``i`` is below ``n * 4``, which ranges of ``i`` and of a size ``n`` do not tell."""
    terms, const = linear(extent)
    if len(terms) != 1 or const != ZERO:
        return {}
    ((atom, times),) = terms.items()
    pairs = [(atom, times)]
    if isinstance(atom, Binary) and atom.op == "*":
        pairs = [(atom.a, atom.b * times), (atom.b, atom.a * times)]
    found = ((by, bounds(n, ranges)) for by, n in pairs if has_size(by))
    return {E.show(Binary("//", Var(var), by)): (0, max(r[1] - 1, 0)) for by, r in found if r is not None}


@lru_cache(maxsize=1 << 14)
def _of_sides(e: Expr, r: Range, known: tuple[tuple[str, Range], ...]) -> Range:
    """The range of a sum, tightened by that of the sum with one side of a minimum or maximum in its place:
    ``min(i, n - 8) - n`` is -8 at most, whatever is known of ``i`` and ``n``. Each side of each is tried with
    each of the others, so that a sum of more than `MOST_SIDES` stays as it is. ``known``: the ranges."""
    lo, hi = r
    if sum(isinstance(x, Binary) and x.op in ("min", "max") for x in E.walk(e)) > MOST_SIDES:
        return r
    ranges, (terms, _) = dict(known), linear(e)
    for atom, coef in terms.items():
        if not (isinstance(atom, Binary) and atom.op in ("min", "max") and isinstance(coef, Const)):
            continue
        for side in (atom.a, atom.b):
            found = bounds(simplify(e - atom * coef + side * coef, {}), ranges)
            if found is not None and (atom.op == "min") == (coef.value > 0):
                hi = min(hi, found[1])
            elif found is not None:
                lo = max(lo, found[0])
    return lo, hi


def value_bounds(e: Expr, ranges: Ranges) -> Range | None:
    """Bounds of an integer that is computed in the dtype of a tensor, as an index that is read from one is.
    Whatever a tensor holds is within its dtype, and arithmetic wraps. None for floats and conditions."""
    d = E.dtype_of(e)
    if d == INDEX:
        return bounds(e, ranges)
    if d not in DTYPES or E.is_float(d):
        return None
    whole = DTYPES[d].range[0], DTYPES[d].range[-1]
    found: Range | None = None
    match e:
        case Const(value=v):
            found = int(v), int(v)
        case Cast(a=a):
            found = value_bounds(a, ranges)
        case Binary(op="min" | "max" as op, a=a, b=b):
            ra, rb = value_bounds(a, ranges) or whole, value_bounds(b, ranges) or whole
            f = min if op == "min" else max
            found = f(ra[0], rb[0]), f(ra[1], rb[1])
        case Binary(op="&", a=a, b=b):
            ends = [value_bounds(x, ranges) or whole for x in (a, b)]
            most = [hi for lo, hi in ends if lo >= 0]  # one that is not negative has no more bits to give
            found = (0, min(most)) if most else None
        case Binary(op=">>", a=a, b=b):
            (lo, hi), (few, many) = (value_bounds(x, ranges) or whole for x in (a, b))
            many = min(many, 64)  # by as many, all bits are gone
            found = (lo >> (few if lo < 0 else many), hi >> (many if hi < 0 else few)) if few >= 0 else None
        case Select(a=a, b=b):
            found = hull(value_bounds(a, ranges) or whole, value_bounds(b, ranges) or whole)
    inside = found is not None and whole[0] <= found[0] and found[1] <= whole[1]
    return found if inside else whole


def extreme(e: Expr, inside: Ranges, which: int) -> Expr | None:
    """The least (0) or the largest (1) value of an index while the variables ``inside`` run over their
    ranges, by the other variables; None where that can't be told."""
    terms, end = linear(e)
    for atom, factor in terms.items():
        term: Expr = atom * factor
        if E.variables(atom) & inside.keys():
            ends = bounds(term, inside)
            if ends is None:
                return None
            term = Const(ends[which])
        end = end + term
    return simplify(end, {})


def leaves(e: Expr, ranges: Ranges, most: int) -> Expr | None:
    """An operation on indices within ``e`` that may get further than ``most`` from 0: its result, or what is
    added up on the way to it, in whatever order; or a value that is read as an index. Of what has no known
    bounds none is told."""
    reach: dict[Expr, int | None] = {}
    for x in E.distinct(e):
        match x:
            case Const(value=k, dtype=E.INDEX):
                known = k in DTYPES["int64"].range  # others are refused as literals
                reach[x] = abs(int(k)) if known else None
            case Var(name=v):
                reach[x] = max(map(abs, ranges[v])) if v in ranges else None
            case Cast(dtype=E.INDEX):
                r = bounds(x, ranges)
                far = 0 if r is None else max(-r[0] - 1, r[1])  # -2**63 is no further than 2**63 - 1
                if far > most:
                    return x
                reach[x] = None if r is None else far
            case Binary(op=op, a=a, b=b) if E.dtype_of(x) == INDEX:
                m, n = reach.get(a), reach.get(b)
                if m is None or n is None:
                    continue
                far = m * n if op == "*" else max(m, n) if op in ("min", "max") else m + n
                if far > most:
                    return x
                reach[x] = _rest(a, m, n, ranges) if op == "%" else m if op in ("//", "ceildiv") else far
            case Select(a=a, b=b) if E.dtype_of(x) == INDEX:
                m, n = reach.get(a), reach.get(b)
                reach[x] = None if m is None or n is None else max(m, n)
    return None


def _rest(a: Expr, reach: int, divisor: int, ranges: Ranges) -> int:
    """How far from 0 the remainder of ``a`` is."""
    r = bounds(a, ranges)
    below = max(divisor - 1, 0)
    return min(reach, below) if r is not None and r[0] >= 0 else below


def multiple(e: Expr) -> int:
    """An integer that divides ``e`` whatever its variables are; 0 where it is always 0."""
    terms, const = linear(e)
    out = const.value if type(const) is Const and type(const.value) is int else 1
    for atom, c in terms.items():
        if type(c) is not Const or type(c.value) is not int:
            return 1
        both = E.kind(atom) is Binary and atom.op in ("min", "max")  # type: ignore[attr-defined]
        inner = math.gcd(multiple(atom.a), multiple(atom.b)) if both else 1  # type: ignore[attr-defined]
        out = math.gcd(out, c.value * inner)
    return abs(out)


def is_uniform(cond: Expr, var: str, width: int, ranges: Ranges) -> bool:
    """Whether a condition holds for all lanes of every vector of ``width`` lanes, which ``var`` counts, or
    for none."""
    if var not in E.variables(cond):
        return True
    if isinstance(cond, Logic):
        return all(is_uniform(c, var, width, ranges) for c in cond.args)
    if not isinstance(cond, Compare) or cond.op != "<" or var in E.variables(cond.b):
        return False
    terms, _ = linear(cond.a)
    if terms.get(Var(var)) != ONE or any(var in E.variables(a) and a != Var(var) for a in terms):
        return False
    before = simplify(E.substitute(cond.a, {var: ZERO}), ranges)
    return multiple(before) % width == 0 and multiple(cond.b) % width == 0


def decide(cond: Expr, ranges: Ranges) -> bool | None:
    """Whether ``cond`` always (True) or never (False) holds; None when it depends."""
    match cond:
        case Const(value=v):
            return bool(v)
        case Compare(op="<", a=Binary(op="%", b=by), b=end) if by == end and has_size(end):
            r = bounds(end, ranges)  # a rest is below its divisor, which is above 0 as an extent is
            return True if r is not None and r[0] > 0 else None
        case Compare(op=op, a=a, b=b):
            if E.dtype_of(a) != INDEX:
                return None
            r = bounds(simplify(a - b, ranges), ranges)
            if r is None:
                return None
            lo, hi = r
            match op:
                case "<":
                    return True if hi < 0 else False if lo >= 0 else None
                case "<=":
                    return True if hi <= 0 else False if lo > 0 else None
                case "==":
                    return True if lo == hi == 0 else False if lo > 0 or hi < 0 else None
                case "!=":
                    return False if lo == hi == 0 else True if lo > 0 or hi < 0 else None
    return None


def simplify(e: Expr, ranges: Ranges, known: dict[int, Expr] | None = None) -> Expr:
    """An equal expression, simpler where the ranges prove it. ``known``: what was made of values of the same
    tree, by identity: what is shared is looked at once."""
    t = type(e)
    if t is Const:
        return e
    if t is Var:
        return _simplify(e, ranges, {})
    if E.dtype_of(e) == INDEX:
        own = [(v, ranges[v]) for v in sorted(E.variables(e)) if v in ranges]
        if has_size(e):
            own += [(v, r) for v, r in ranges.items() if "//" in v]  # of `quotients`
        return _simplify_index(e, tuple(own))
    if known is None:
        known = {}
    made = known.get(id(e))
    if made is None:
        made = known[id(e)] = _simplify(e, ranges, known)
    return made


@lru_cache(maxsize=1 << 14)
def _simplify_index(e: Expr, ranges: tuple[tuple[str, Range], ...]) -> Expr:
    """Remembered: passes, and candidates, meet the same indices again and again."""
    return _simplify(e, dict(ranges), {})


def _simplify(e: Expr, ranges: Ranges, known: dict[int, Expr]) -> Expr:
    if E.kind(e) is Binary and E.dtype_of(e) == INDEX:
        return _simplify_arithmetic(e, ranges)
    match e:
        case Const() | Hole():
            return e
        case Var(name=n):
            r = ranges.get(n)
            return Const(r[0]) if r is not None and r[0] == r[1] else e
        case Load(buffer=b, indices=ix, dtype=d):
            return Load(b, tuple(simplify(i, ranges, known) for i in ix), d)
        case Compare():
            holds = decide(e, ranges)
            if holds is not None:
                return Const(holds, "bool")
            return _undivided(E.rebuild(e, tuple(simplify(k, ranges, known) for k in E.children(e))))
        case Logic(op="and" | "or" as op, args=args):
            parts = [simplify(x, ranges, known) for x in args]
            return E.all_of(*parts) if op == "and" else E.any_of(*parts)
        case Select(cond=c, a=a, b=b):
            c = simplify(c, ranges, known)
            if isinstance(c, Const):
                return simplify(a if c.value else b, ranges, known)
            return Select(c, simplify(a, ranges, known), simplify(b, ranges, known))
    new = tuple(
        map(simplify, E.children(e), repeat(ranges), repeat(known))
    )  # (`map` nests no frame of its own)
    return E.rebuild(e, new)


def _undivided(e: Expr) -> Expr:
    """``x < n * m`` for ``x // n < m``: of the outer one of fused loops, a test of their common number."""
    match e:
        case Compare(op="<", a=Binary(op="//", a=x, b=Const(value=n)), b=Const(value=m)):
            if n > 0 and E.dtype_of(x) == INDEX:
                return Compare("<", x, Const(int(n * m)))
    return e


def _simplify_arithmetic(e: Expr, ranges: Ranges) -> Expr:
    """`_simplify` for a `Binary` of indices."""
    assert isinstance(e, Binary)
    op = e.op
    if op in ("+", "-", "*"):
        terms, const = linear(e)
        atoms = {a: simplify(a, ranges) for a in terms if a is not e and a != e}
        if any(new is not a and new != a for a, new in atoms.items()):
            whole: Expr = const
            for a, c in terms.items():
                whole = whole + atoms.get(a, a) * c
            terms, const = linear(whole)
        return from_linear(terms, const)
    x, y = simplify(e.a, ranges), simplify(e.b, ranges)
    if op in ("min", "max"):
        gap = bounds(x - y, ranges)
        if gap is not None and (gap[1] <= 0 or gap[0] >= 0):
            return x if (gap[1] <= 0) == (op == "min") else y
        return _of_quotients(op, x, y)
    if op in ("//", "%") and isinstance(y, Const) and y.value > 0:
        return _divide(op, x, int(y.value), ranges)
    if op in ("//", "%") and has_size(y) and bounds(Binary("//", x, y), ranges) == (0, 0):
        return x if op == "%" else ZERO
    terms, const = linear(E.rebuild(e, (x, y)))
    return from_linear(terms, const)


def _of_quotients(op: str, x: Expr, y: Expr) -> Expr:
    """The minimum or maximum of two, told where they are whole tiles and all tiles of a size: ``n // 8`` and
    ``ceildiv(n, 8)``."""
    for whole, every in ((x, y), (y, x)):
        match whole, every:
            case Binary(op="//", a=n, b=Const() as c), Binary(op="ceildiv", a=m, b=d):
                if (n, c) == (m, d) and has_size(n) and c.value > 0:
                    return whole if op == "min" else every
    return E.binary(op, x, y)


def _divide(op: str, x: Expr, c: int, ranges: Ranges) -> Expr:
    """``x // c`` or ``x % c`` with the multiples of ``c`` taken out of ``x``."""
    terms, const = linear(x)
    whole: dict[Expr, Expr] = {}
    rest: dict[Expr, Expr] = {}
    for atom, coef in terms.items():
        if isinstance(coef, Const) and coef.value % c == 0:
            whole[atom] = Const(int(coef.value) // c)
        else:
            rest[atom] = coef
    k = int(const.value) if isinstance(const, Const) else None
    if k is None:
        return E.binary(op, x, c)
    r = from_linear(rest, Const(k % c))
    br = bounds(r, ranges)
    if br is not None and br[0] // c == br[1] // c:
        q = br[0] // c
        if op == "%":
            return simplify(r - q * c, {}) if q else r
        return from_linear(whole, Const(k // c + q))
    unit, high, low = _units(rest, k % c, c, ranges)
    if op == "%":
        return E.binary("%", high, c // unit) * unit + low
    return from_linear(whole, Const(k // c)) + E.binary("//", high, c // unit)


def _units(terms: Mapping[Expr, Expr], const: int, c: int, ranges: Ranges) -> tuple[int, Expr, Expr]:
    """The sum as ``unit * high + low``, 0 <= ``low`` < ``unit``. ``unit`` divides ``c``, so ``low`` has no
    part in the quotient by ``c``. (1, all of it, 0) where there is no larger unit."""
    factors = {math.gcd(int(k.value), c) for k in terms.values() if isinstance(k, Const)}
    for unit in sorted(factors - {1}, reverse=True):
        high = {a: k for a, k in terms.items() if isinstance(k, Const) and k.value % unit == 0}
        low = {a: k for a, k in terms.items() if a not in high}
        within = bounds(from_linear(low, Const(const)), ranges)
        if within is not None and within[0] // unit == within[1] // unit:
            times = within[0] // unit
            scaled = {a: Const(int(k.value) // unit) for a, k in high.items()}
            return unit, from_linear(scaled, Const(times)), from_linear(low, Const(const - times * unit))
    return 1, from_linear(terms, Const(const)), ZERO


def refine(conds: tuple[Expr, ...], e: Expr, r: Range | None, ranges: Ranges) -> Range | None:
    """The bounds ``r`` of ``e`` tightened by conjuncts of the form ``e + c < d`` or ``c <= e``."""
    terms, const = linear(e)
    k = int(const.value) if isinstance(const, Const) else 0
    for c in conds:
        if not isinstance(c, Compare) or c.op not in ("<", "<="):
            continue
        if E.dtype_of(c.a) != INDEX:
            continue
        td, cd = linear(simplify(c.b - c.a, ranges))  # td + cd > 0 (or >= 0)
        if not isinstance(cd, Const):
            continue
        slack = int(cd.value) - (1 if c.op == "<" else 0)  # td + slack >= 0
        if td == terms:  # e = td + k >= k - slack
            if r is not None:
                r = (max(r[0], k - slack), r[1])
        elif td == {a: ZERO - v for a, v in terms.items()} and r is not None:
            r = (r[0], min(r[1], k + slack))
    return r
