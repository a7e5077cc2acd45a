"""Peels the iterations of marked loops that need a guard or a border case."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from itertools import pairwise

from schedules import affine
from schedules import expr as E
from schedules.expr import Compare, Const, Expr, Select, Var
from schedules.ir import Guard, Loop, Stmt, Store, const, seq, walk, with_body
from schedules.ir.exprs import expressions, substitute
from schedules.passes.simplify import Ranges, inside, loop_range, simplify

# Most places at which a loop is cut where loads are chosen.
MOST_CUTS = 8


def partition(s: Stmt, ranges: Ranges | None = None) -> Stmt:
    """Split loops marked ``partition`` into prologue, middle and epilogue, so that every condition on the
    loop variable holds in the middle. Outer loops come first; inside a peeled part inner loops are split
    again. Where a condition chooses between loads, as where arrays are joined, the loop is first cut into
    the parts of each."""
    ranges = ranges or {}
    if not isinstance(s, Loop):
        return with_body(s, lambda k: partition(k, ranges))
    n = const(s.extent)
    if n is None and s.kind == "serial" and affine.has_size(s.extent):
        return _of_open_extent(s, ranges)
    if ("partition", 1) not in s.annotations or n is None:
        return replace(s, body=partition(s.body, inside(s, ranges)))
    marks = tuple(a for a in s.annotations if a[0] != "partition")

    def part_of(first: Expr, end: Expr, body: Stmt, marks: tuple[tuple[str, int], ...]) -> Stmt:
        body = substitute(body, {s.var: Var(s.var) + first})
        piece = simplify(Loop(s.var, affine.simplify(end - first, ranges), body, s.kind, marks), ranges)
        return partition(piece, ranges)

    if cuts := _cuts(s, n):
        ends = [Const(k) for k in (0, *cuts, n)]
        return seq(*(part_of(a, b, s.body, s.annotations) for a, b in pairwise(ends)))
    lo, hi, holding = _middle(s, n)
    pieces = [(Const(0), lo, s.body), (lo, hi, given(s.body, holding)), (hi, Const(n), s.body)]
    if (beyond := _beyond(s, n, hi)) is not None:
        far, other = beyond
        pieces[2:] = [(hi, far, s.body), (far, Const(n), other)]
    return seq(*(part_of(*piece, marks) for piece in pieces))


def _beyond(loop: Loop, n: int, end: Expr) -> tuple[Expr, Stmt] | None:
    """(the first iteration, from ``end`` on, in which no iteration of inner loops chooses the first side of a
    select that a vector stores, the body as it is from there on): what lies behind a diagonal. None if there
    is none, or ``end`` is a number."""
    match loop.body:
        case Loop(kind="vectorize", extent=Const(value=lanes), body=Store() | Guard(body=Store())):
            pass
        case _:
            return None
    if isinstance(end, Const):
        return None
    store = next(x for x in walk(loop.body) if isinstance(x, Store))
    match store.value:
        case Select(cond=Compare(op="<") as c, b=b) if E.dtype_of(c.a) == E.INDEX and not E.loads(c):
            step, others = affine.isolate(affine.simplify(c.a - c.b, {}), loop.var)
            least = affine.extreme(others, {loop.body.var: (0, int(lanes) - 1)}, 0)
            if not isinstance(step, Const) or int(step.value) <= 0 or least is None:
                return None
            # step * v + least >= 0 from here on
            first = E.minimum(E.maximum(E.ceildiv(E.Const(0) - least, step), end), Const(n))
            return affine.simplify(first, {}), _with_value(loop.body, b)
    return None


def _with_value(s: Stmt, value: Expr) -> Stmt:
    return replace(s, value=value) if isinstance(s, Store) else with_body(s, lambda k: _with_value(k, value))


def _of_open_extent(s: Loop, ranges: Ranges) -> Stmt:
    """A loop whose end a call tells: the iterations in which every condition on the loop and a size holds, as
    those of whole tiles, and the others. All such loops are cut, marked or not: of which a fixed size has a
    tail is not known before the call."""
    marks = tuple(a for a in s.annotations if a[0] != "partition")
    r = affine.bounds(s.extent, ranges)
    lo, hi, holding = _middle(s, r[1]) if r is not None else (Const(0), Const(0), frozenset[Expr]())
    if not holding:
        return replace(s, body=partition(s.body, inside(s, ranges)), annotations=marks)
    hi = affine.simplify(E.minimum(hi, s.extent), ranges)
    lo = lo if lo == Const(0) else E.minimum(lo, hi)

    def part_of(first: Expr, end: Expr, body: Stmt) -> Stmt:
        body = substitute(body, {s.var: Var(s.var) + first})
        piece = simplify(Loop(s.var, affine.simplify(end - first, ranges), body, s.kind, marks), ranges)
        if isinstance(piece, Loop) and piece.var == s.var:
            within = _where_it_runs(end, inside(piece, ranges))
            return replace(piece, body=partition(simplify(piece.body, within), within))
        return partition(piece, ranges)

    pieces = [(Const(0), lo, s.body), (lo, hi, given(s.body, holding)), (hi, s.extent, s.body)]
    return seq(*(part_of(*piece) for piece in pieces))


def _where_it_runs(end: Expr, ranges: Ranges) -> Ranges:
    """Ranges in a loop that ends there, after some first iterations: n is 8 at least before ``n // 8``, and
    before ``n // 8 - i * 4``."""
    names = [v for v in E.variables(end) if affine.has_size(Var(v))]
    if len(names) != 1 or names[0] not in ranges:
        return ranges
    (size,) = names
    low, high = ranges[size]

    def never(n: int) -> bool:
        """Whether it does not run at any size up to this one."""
        r = affine.bounds(end, {**ranges, size: (ranges[size][0], n)})
        return r is not None and r[1] <= 0

    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if never(middle) else (low, middle)
    return {**ranges, size: (low, ranges[size][1])}


def _middle(loop: Loop, n: int) -> tuple[Expr, Expr, frozenset[Expr]]:
    """(begin, end, conditions that hold) of the middle: the iterations in which every condition holds that
    peeling can make hold; the whole loop if there is none. The range depends on outer loops where a condition
    does, and may be empty."""
    loops = [x for x in walk(loop.body) if isinstance(x, Loop)]
    inner = {x.var: r for x in loops if (r := loop_range(x.extent, {}))}
    unknown = {x.var for x in loops} - inner.keys()
    lo, hi = 0, n
    firsts: list[Expr] = []
    ends: list[Expr] = []
    holding: set[Expr] = set()
    beside: set[Expr] = set()  # those of the whole loop, which ranges do not tell once its ends move
    for c in _conditions(loop.body):
        if not isinstance(c, Compare) or c.op not in ("<", "<=") or loop.var not in E.variables(c):
            continue
        if E.dtype_of(c.a) != E.INDEX:  # a comparison of values
            continue
        gap = affine.simplify(c.a - c.b, inner | {loop.var: (0, n - 1)})
        step, others = affine.isolate(gap, loop.var)
        rest = affine.extreme(others, inner, 1)
        if rest is None or not isinstance(step, Const) or E.variables(rest) & {loop.var, *unknown}:
            continue
        if E.loads(rest):  # the loaded value may be stored in the loop or its buffer allocated there
            continue
        # step * v + rest < 0 (or <= 0) for the largest rest
        most = affine.simplify(-rest - (1 if c.op == "<" else 0), {})
        a = int(step.value)
        if isinstance(most, Const):
            k = int(most.value)
            first, last = (0, k // a + 1) if a > 0 else (-(k // -a), n)
            if max(lo, first) < min(hi, last):
                lo, hi = max(lo, first), min(hi, last)
                beside.add(c)
        elif loop.kind == "serial":
            holding.add(c)
            (ends if a > 0 else firsts).append(most // a + 1 if a > 0 else -(most // -a))
    start: Expr = reduce(E.maximum, [Const(lo), *firsts])
    end: Expr = reduce(E.minimum, [Const(hi), *ends])
    if holding:
        start = E.minimum(start, hi)
        end = E.maximum(end, start)
        holding |= beside
    return start, end, frozenset(holding)


def _cuts(loop: Loop, n: int) -> list[int]:
    """Where conditions that choose between loads begin or cease to hold for all iterations of inner loops, in
    order; none if there are more than `MOST_CUTS`, as code grows with each."""
    inner = {x.var: r for x in walk(loop.body) if isinstance(x, Loop) and (r := loop_range(x.extent, {}))}
    found: set[int] = set()
    every = (y for x in walk(loop.body) for e in expressions(x) for y in E.walk(e))
    for y in every:
        if not isinstance(y, Select) or not (E.loads(y.a) and E.loads(y.b)):
            continue
        for c in E.conjuncts(y.cond):
            if not isinstance(c, Compare) or c.op not in ("<", "<=") or E.dtype_of(c.a) != E.INDEX:
                continue
            gap = affine.simplify(c.a - c.b + (0 if c.op == "<" else -1), inner | {loop.var: (0, n - 1)})
            step, others = affine.isolate(gap, loop.var)
            least, most = (affine.extreme(others, inner, which) for which in (0, 1))
            rests = [int(x.value) for x in (least, most) if isinstance(x, Const)]
            if isinstance(step, Const) and step.value and len(rests) == 2:
                # step * v + rest < 0 holds for all rests up to one of these, and for none beyond the other
                a = int(step.value)
                found |= {-(x // a) if a > 0 else -x // a + 1 for x in rests}
    cuts = sorted(x for x in found if 0 < x < n)
    return cuts if len(cuts) <= MOST_CUTS else []


def given(s: Stmt, holding: frozenset[Expr]) -> Stmt:
    """``s`` simplified under these conditions."""
    if not holding:
        return s

    def rest(cond: Expr) -> Expr:
        return E.all_of(*(c for c in E.conjuncts(cond) if c not in holding))

    def f(e: Expr) -> Expr | None:
        if isinstance(e, Select) and holding & set(E.conjuncts(e.cond)):
            left = rest(e.cond)
            a = E.rewrite(e.a, f)
            return a if left == E.TRUE else Select(left, a, E.rewrite(e.b, f))
        return None

    def go(x: Stmt) -> Stmt:
        if isinstance(x, Store):
            return replace(x, value=E.rewrite(x.value, f), indices=tuple(E.rewrite(i, f) for i in x.indices))
        if isinstance(x, Guard):
            return replace(x, cond=rest(x.cond), body=go(x.body))
        return with_body(x, go)

    return go(s)


def _conditions(s: Stmt) -> list[Expr]:
    out: list[Expr] = []
    for x in walk(s):
        if isinstance(x, Guard):
            out += E.conjuncts(x.cond)
        for e in expressions(x):
            for y in E.walk(e):
                if isinstance(y, Select):
                    out += E.conjuncts(y.cond)
    return out
