"""Proves that conditions over axes cannot hold together.

Conditions are split into cases of linear inequalities over integers. ``or``, ``!=``, ``min``, ``max`` and
``select`` are two cases each. ``q = x // c`` is a new unknown with ``0 <= x - c q < c``, and ``x % c`` is ``x
- c q``. What is not linear is an unknown within its bounds. A case is impossible if eliminating its unknowns
one by one (Fourier and Motzkin's method, with constants rounded to integers) ends in ``0 <= -1``.

The method is sound but not complete: False means that no proof was found. Arithmetic that may leave 64 bits
is an unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from schedules import affine
from schedules import expr as E
from schedules.expr import INDEX, Binary, Cast, Compare, Const, Expr, Logic, Select, Var

# (least, largest), both included.
Range = tuple[int, int]
Ranges = Mapping[str, Range]
# ({unknown: coefficient}, constant): their sum is >= 0.
Row = tuple[dict[Expr, int], int]

# The range of an index of which nothing is known: 64 bits.
ANY: Range = (-(2**63), 2**63 - 1)
# Most cases, and most rows of a case, before the proof is given up.
MAX_CASES = 128
MAX_ROWS = 256


def interval(e: Expr, ranges: Ranges) -> Range:
    """Bounds of an index, from those of each operation's operands. `ANY` if it is unknown or may leave 64
    bits."""
    r = _interval(e, ranges)
    return r if r is not None and ANY[0] <= r[0] and r[1] <= ANY[1] else ANY


def _interval(e: Expr, ranges: Ranges) -> Range | None:
    match e:
        case Const(value=int(v), dtype=E.INDEX):
            return int(v), int(v)
        case Var(name=n):
            return ranges.get(n)
        case Cast(dtype=E.INDEX, a=a):
            return affine.value_bounds(a, ranges)
        case Select(a=a, b=b):
            return affine.hull(interval(a, ranges), interval(b, ranges))
        case Binary(op=op, a=a, b=b) if E.dtype_of(e) == INDEX:
            (al, ah), (bl, bh) = interval(a, ranges), interval(b, ranges)
            match op:
                case "+":
                    return al + bl, ah + bh
                case "-":
                    return al - bh, ah - bl
                case "*":
                    ends = (al * bl, al * bh, ah * bl, ah * bh)
                    return min(ends), max(ends)
                case "min" | "max":
                    f = min if op == "min" else max
                    return f(al, bl), f(ah, bh)
                case "//" if bl > 0:
                    return min(al // bl, al // bh), max(ah // bl, ah // bh)
                case "ceildiv" if bl > 0:
                    return min(-(-al // bl), -(-al // bh)), max(-(-ah // bl), -(-ah // bh))
                case "%" if bl > 0:
                    if bl == bh and al // bl == ah // bl:
                        return al % bl, ah % bl
                    return 0, bh - 1 if al < 0 else min(ah, bh - 1)
    return None


def negation(cond: Expr) -> Expr:
    """The negation of ``cond``."""
    match cond:
        case Const(value=v):
            return Const(not v, "bool")
        case Logic(op="not", args=args):
            return args[0]
        case Logic(op=op, args=args):
            return (E.any_of if op == "and" else E.all_of)(*map(negation, args))
        case Compare(op=op, a=a, b=b) if E.dtype_of(a) == INDEX:
            if op in ("<", "<="):
                return E.compare("<=" if op == "<" else "<", b, a)
            return E.compare("!=" if op == "==" else "==", a, b)
    return Logic("not", (cond,))


def impossible(conds: Sequence[Expr], ranges: Ranges) -> bool:
    """Whether the conditions are proved to hold together nowhere in ``ranges``."""
    return _Proof(ranges).impossible(conds, _System())


class _System:
    """Rows that hold together, and the unknowns whose bounds are among them."""

    def __init__(self, rows: Iterable[Row] = (), known: Iterable[Expr] = ()):
        self.rows, self.known = list(rows), set(known)

    def copy(self) -> _System:
        return _System(self.rows, self.known)


class _Proof:
    def __init__(self, ranges: Ranges):
        self.ranges = ranges
        self.cases = 0
        self._exact: dict[Expr, bool] = {}

    def impossible(self, conds: Sequence[Expr], system: _System) -> bool:
        """Whether no point satisfies ``conds`` and the system, to which they are added."""
        self.cases += 1
        if self.cases > MAX_CASES:
            return False
        todo, splits = list(conds), list[tuple[Expr, Expr]]()
        while todo:
            c = todo.pop()
            match c:
                case Const(value=v):
                    if not v:
                        return True
                case Logic(op="and", args=args):
                    todo += args
                case Logic(op="or", args=args):
                    splits.append((args[0], E.any_of(*args[1:])))
                case Logic(op="not", args=args):
                    meant = negation(args[0])
                    if meant != c:
                        todo.append(meant)
                case Compare(op="!=", a=a, b=b) if E.dtype_of(a) == INDEX:
                    splits.append((a < b, b < a))
                case Compare(op=op, a=a, b=b) if E.dtype_of(a) == INDEX:
                    choice = next((x for x in E.walk(c) if _chooses(x)), None)
                    if choice is not None:
                        splits.append(_ways(c, choice))
                        continue
                    self._state(b, a, -1 if op == "<" else 0, system)
                    if op == "==":
                        self._state(a, b, 0, system)
        if _no_solution(system.rows):
            return True
        if not splits:
            return False
        first, *later = splits
        rest = [E.any_of(*s) for s in later]
        return all(self.impossible([way, *rest], system.copy()) for way in first)

    def _state(self, a: Expr, b: Expr, const: int, system: _System) -> None:
        """Add ``a - b + const >= 0``, and the definitions of its unknowns."""
        terms: dict[Expr, int] = {}
        const += self._add(a, 1, terms, system) + self._add(b, -1, terms, system)
        system.rows.append((terms, const))

    def _add(self, e: Expr, times: int, terms: dict[Expr, int], system: _System) -> int:
        """Add ``times * e`` to ``terms``; returns the constant part."""
        if isinstance(e, Const) and type(e.value) is int:
            return times * e.value
        if isinstance(e, Binary) and self._is_exact(e):
            a, b = e.a, e.b
            c = int(b.value) if isinstance(b, Const) else 0
            match e.op:
                case "+" | "-":
                    sign = 1 if e.op == "+" else -1
                    return self._add(a, times, terms, system) + self._add(b, sign * times, terms, system)
                case "*" if isinstance(b, Const):
                    return self._add(a, times * c, terms, system)
                case "*" if isinstance(a, Const):
                    return self._add(b, times * int(a.value), terms, system)
                case "//" if c > 0:
                    self._divide(a, c, system)
                case "%" if c > 0:
                    self._divide(a, c, system)
                    quotient = Binary("//", a, Const(c))
                    terms[quotient] = terms.get(quotient, 0) - times * c
                    return self._add(a, times, terms, system)
                case "ceildiv" if c > 0 and self._is_exact(up := Binary("+", a, Const(c - 1))):
                    return self._add(Binary("//", up, Const(c)), times, terms, system)
                case "*" if affine.has_size(e) and e not in system.known:
                    system.known.add(e)
                    self._bound(e, system)
                    self._enclose(e, system)
                case "%" if e not in system.known and interval(b, self.ranges)[0] > 0:
                    system.known.add(e)
                    self._bound(e, system)
                    self._state(b, e, -1, system)
        terms[e] = terms.get(e, 0) + times
        if e not in system.known:
            system.known.add(e)
            self._bound(e, system)
        return 0

    def _is_exact(self, e: Binary) -> bool:
        """Whether the operation stays within 64 bits, and so equals that of the integers."""
        if e not in self._exact:
            r = _interval(e, self.ranges)
            self._exact[e] = r is not None and ANY[0] <= r[0] and r[1] <= ANY[1]
        return self._exact[e]

    def _divide(self, x: Expr, c: int, system: _System) -> None:
        """Define ``q = x // c``: 0 <= x - c q <= c - 1."""
        q = Binary("//", x, Const(c))
        if q in system.known:
            return
        system.known.add(q)
        self._bound(q, system)
        terms: dict[Expr, int] = {q: -c}
        const = self._add(x, 1, terms, system)
        system.rows += [(terms, const), ({a: -k for a, k in terms.items()}, c - 1 - const)]

    def _enclose(self, e: Binary, system: _System) -> None:
        """Bound a product of two unknowns by linear forms, from the ends of both: ``j * n <= 2 * n`` where
        ``j`` is at most 2 (McCormick, *Computability of global solutions to factorable nonconvex programs*,
        1976)."""
        (al, ah), (bl, bh) = interval(e.a, self.ranges), interval(e.b, self.ranges)
        for x, y in ((al, bl), (ah, bh)):
            self._state(e, e.b * x + e.a * y, x * y, system)
        for x, y in ((ah, bl), (al, bh)):
            self._state(e.b * x + e.a * y, e, -x * y, system)

    def _bound(self, e: Expr, system: _System) -> None:
        lo, hi = interval(e, self.ranges)
        system.rows += [({e: 1}, -lo), ({e: -1}, hi)]


def _chooses(e: Expr) -> bool:
    return isinstance(e, Select) or (isinstance(e, Binary) and e.op in ("min", "max"))


def _ways(c: Expr, choice: Expr) -> tuple[Expr, Expr]:
    """(``c`` with the choice replaced by one operand, under the condition that it is that one; the same with
    the other)."""
    if isinstance(choice, Select):
        one, two, first = choice.a, choice.b, choice.cond
        second = negation(first)
    else:
        assert isinstance(choice, Binary)
        one, two = choice.a, choice.b
        low, high = (one, two) if choice.op == "min" else (two, one)
        first, second = E.compare("<=", low, high), E.compare("<", high, low)

    def put(x: Expr) -> Expr:
        return E.rewrite(c, lambda e: x if e == choice else None)

    return E.all_of(first, put(one)), E.all_of(second, put(two))


def _no_solution(rows: list[Row]) -> bool:
    """Whether eliminating the unknowns one by one ends in a contradiction."""
    tight: dict[frozenset[tuple[Expr, int]], int] = {}
    if not _tighten(rows, tight):
        return True
    while (solved := _solved(tight)) is not None:
        tight = {}
        if not _tighten(solved, tight):
            return True
    while tight and len(tight) <= MAX_ROWS:
        count: dict[Expr, list[int]] = {}
        for terms in tight:
            for e, k in terms:
                count.setdefault(e, [0, 0])[k > 0] += 1
        gone = min(count, key=lambda e: count[e][0] * count[e][1] - sum(count[e]))
        split: tuple[list[Row], list[Row], list[Row]] = ([], [], [])
        for key, const in tight.items():
            terms_ = dict(key)
            k = terms_.get(gone, 0)
            split[0 if k == 0 else 1 if k > 0 else 2].append((terms_, const))
        rest, above, below = split
        if len(rest) + len(above) * len(below) > 4 * MAX_ROWS:
            return False
        tight = {}
        if not _tighten([*rest, *(_join(p, n, gone) for p in above for n in below)], tight):
            return True
    return False


def _solved(tight: Mapping[frozenset[tuple[Expr, int]], int]) -> list[Row] | None:
    """The rows with an unknown replaced by what an equation says of it. An equation is two opposite rows, and
    has a coefficient of 1 or -1; None if there is none. Integers lose nothing by that, and may by a join."""
    for key, const in tight.items():
        other = frozenset((e, -k) for e, k in key)
        single = [(e, k) for e, k in key if abs(k) == 1]
        if not single or tight.get(other) != -const:
            continue
        gone, k = min(single, key=lambda x: E.show(x[0]))
        rows = [(dict(r), c) for r, c in tight.items() if r not in (key, other)]
        return [_plus(r, (dict(key), const), -k * r[0].get(gone, 0)) for r in rows]
    return None


def _plus(r: Row, by: Row, times: int) -> Row:
    """``r + times * by``."""
    if not times:
        return r
    terms = dict(r[0])
    for e, k in by[0].items():
        terms[e] = terms.get(e, 0) + times * k
    return {e: k for e, k in terms.items() if k}, r[1] + times * by[1]


def _join(p: Row, n: Row, gone: Expr) -> Row:
    """The sum of two rows in which an unknown cancels out."""
    a, b = -n[0][gone], p[0][gone]
    terms = {e: a * k for e, k in p[0].items()}
    for e, k in n[0].items():
        terms[e] = terms.get(e, 0) + b * k
    return terms, a * p[1] + b * n[1]


def _tighten(rows: list[Row], out: dict[frozenset[tuple[Expr, int]], int]) -> bool:
    """Divide each row by the common divisor of its coefficients, round its constant down, and keep the
    tightest of rows with the same terms. False if a row is a contradiction."""
    for terms, const in rows:
        g = math.gcd(*terms.values())
        if g == 0:
            if const < 0:
                return False
            continue
        key = frozenset((e, k // g) for e, k in terms.items() if k)
        out[key] = min(out.get(key, const // g), const // g)
    return True
