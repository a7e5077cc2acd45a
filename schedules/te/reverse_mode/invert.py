"""Which points of a stage read an element: indices solved for axes.

A load ``T[f(x), g(x)]`` of a stage over axes ``x`` reads element ``(i0, i1)`` where ``f(x) = i0`` and
``g(x) = i1``. These are linear equations in integers. Quotients and remainders by a constant m become linear
too: x = m q + t with 0 <= t < m. Each equation is solved for one axis, or for several that are the digits of
a number, such as the rows and columns of what was flattened; the other axes remain, to be summed over. Axes
of the output are solved for first, then the longest: what the stage reduced stays reduced. What a solution
asks of the element, to be a multiple or to lie in a range, becomes conditions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from schedules import affine
from schedules import expr as E
from schedules.affine import Range
from schedules.expr import Binary, Const, Expr, Load, Var
from schedules.te.reverse_mode.graph import placed


@dataclass(frozen=True, slots=True)
class Inverse:
    """The points that read an element. ``places``: each axis of the stage by the element's indices and the
    axes that remain. ``free``: {axis that remains: (least, largest)}. ``conditions``: those under which the
    points exist."""

    places: Mapping[str, Expr]
    free: Mapping[str, Range]
    conditions: tuple[Expr, ...]


def invert(
    indices: Sequence[Expr], axes: Mapping[str, int], outer: Collection[str], element: Mapping[str, int]
) -> Inverse | None:
    """The points of ``axes`` (extents) where ``indices`` are those of ``element`` ({its index: extent}); None
    if there are none. ``outer``: the axes of the stage's output. No name may be in both."""
    s = _Solver({v: (0, n - 1) for v, n in axes.items()}, frozenset(outer), element)
    for target, index in zip(element, indices, strict=True):
        s.equations.append(s.linear(index) - Var(target))
    return s.solve()


class _Solver:
    """The equations (each is an expression that is 0), and what is solved so far."""

    def __init__(self, unknown: Mapping[str, Range], outer: frozenset[str], element: Mapping[str, int]):
        self.unknown = dict(unknown)  # ranges of axes, and of quotients and remainders
        self.axes = tuple(unknown)
        self.outer = outer
        self.element: dict[str, Range] = {v: (0, n - 1) for v, n in element.items()}
        self.equations: list[Expr] = []
        self.conditions: list[Expr] = []
        self.places: dict[str, Expr] = {}
        self.parts: dict[tuple[Expr, int], tuple[Var, Var]] = {}

    def linear(self, e: Expr) -> Expr:
        """``e`` with unknowns for quotients and remainders."""
        if isinstance(e, Load) or not E.variables(e) & self.unknown.keys():
            return e
        kids = tuple(map(self.linear, E.children(e)))
        e = E.rebuild(e, kids) if kids else e
        if not (isinstance(e, Binary) and e.op in ("//", "%") and isinstance(e.b, Const) and e.b.value > 0):
            return e
        m = int(e.b.value)
        reach = affine.bounds(e.a, self.unknown)
        if reach is None:
            return e
        if (e.a, m) not in self.parts:
            q, t = Var(f"_q{len(self.parts)}"), Var(f"_t{len(self.parts)}")
            self.unknown |= {q.name: (reach[0] // m, reach[1] // m), t.name: (0, m - 1)}
            self.parts[e.a, m] = q, t
            self.equations.append(e.a - q * m - t)
        return self.parts[e.a, m][e.op == "%"]

    def solve(self) -> Inverse | None:
        """Solve equation after equation, those with the fewest unknowns first."""
        while self.equations:
            self.equations = [self.known(e) for e in self.equations]
            eq = min(self.equations, key=lambda e: len(self.left(e)))
            self.equations.remove(eq)
            self.one(eq)
        free = {v: r for v, r in self.unknown.items() if v not in self.places}
        places = {v: self.known(Var(v)) for v in self.axes}
        while any(E.variables(p) & self.places.keys() for p in places.values()):
            places = {v: self.known(p) for v, p in places.items()}
        ranges = free | self.element
        for v in self.axes:
            low, high = self.unknown[v]
            if v in self.places:
                self.conditions += [Const(low) <= places[v], places[v] <= Const(high)]
        for v in self.unknown:
            # (Of a quotient the axes' own ranges tell.)
            if v in self.places and v not in self.axes and v.startswith("_t"):
                place = self.known(Var(v))
                self.conditions += [Const(0) <= place, place <= Const(self.unknown[v][1])]
        found: list[Expr] = []
        for c in self.conditions:
            while E.variables(c) & self.places.keys():
                c = self.known(c)
            c = affine.simplify(c, ranges) if not E.loads(c) else c
            if c == E.FALSE:
                return None
            if c != E.TRUE and c not in found:
                found.append(c)
        # (A lone axis of one point stays itself: that a stage goes along it is of use to those that
        # schedule.)
        simple = {v: p if isinstance(p, Var) else affine.simplify(p, ranges) for v, p in places.items()}
        return Inverse(simple, free, tuple(found))

    def known(self, e: Expr) -> Expr:
        """``e`` with what is solved in the place of unknowns."""
        return placed(e, {v: p for v, p in self.places.items() if v in E.variables(e)})

    def left(self, e: Expr) -> dict[str, int]:
        """{unknown that may be solved for: its factor}."""
        terms, _ = affine.linear(e)
        hidden = frozenset().union(*(E.variables(a) for a in terms if not isinstance(a, Var)))
        return {
            a.name: int(c.value)
            for a, c in terms.items()
            if isinstance(a, Var) and a.name in self.unknown and a.name not in hidden and isinstance(c, Const)
        }

    def one(self, eq: Expr) -> None:
        """Solve one equation, or make it a condition."""
        left = self.left(eq)
        for v in [v for v in left if self.unknown[v][0] == self.unknown[v][1]]:
            if len(left) > 1:  # such as the only tap of a window
                self.places[v] = Const(self.unknown[v][0])
                del left[v]
        eq = self.known(eq)
        if not left:
            self.conditions.append(E.compare("==", eq, 0))
            return
        rest = Const(0) - eq
        for v, c in left.items():
            rest = rest + Var(v) * c
        rest = affine.simplify(rest, {})  # the sum of factor * unknown
        if not self.digits(left, rest):
            v = max(
                left,
                key=lambda v: (v in self.outer, v in self.axes, self.unknown[v][1] - self.unknown[v][0]),
            )
            for u, c in left.items():
                if u != v:
                    rest = rest - Var(u) * c
            self.quotient(v, left[v], rest)

    def quotient(self, v: str, factor: int, e: Expr) -> None:
        """``v`` is ``e / factor``."""
        if factor < 0:
            e, factor = affine.simplify(Const(0) - e, {}), -factor
        if factor > 1:
            self.conditions.append(E.compare("==", e % factor, 0))
        self.places[v] = e // factor

    def digits(self, factors: Mapping[str, int], e: Expr) -> bool:
        """Solve for all unknowns if they are the digits of a number."""
        order = sorted(factors, key=lambda v: abs(factors[v]))
        size = [abs(factors[v]) for v in order]
        count = [self.unknown[v][1] - self.unknown[v][0] + 1 for v in order]
        for k in range(len(order) - 1):
            if size[k + 1] % size[k] or size[k] * count[k] > size[k + 1]:
                return False
        if len(order) == 1:
            self.quotient(order[0], factors[order[0]], e)
            return True
        # Count each digit up from 0.
        for v in order:
            e = e - factors[v] * self.unknown[v][0 if factors[v] > 0 else 1]
        if size[0] > 1:
            self.conditions.append(E.compare("==", e % size[0], 0))
            e = e // size[0]
        for k, v in enumerate(order):
            digit = e
            if k + 1 < len(order):
                base = size[k + 1] // size[k]
                digit, e = e % base, e // base
            low, high = self.unknown[v]
            self.places[v] = digit + low if factors[v] > 0 else Const(high) - digit
        return True
