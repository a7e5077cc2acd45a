"""Takes tests of a size out of the loops that hold the sums of an instruction (ADR 92).

A tile is several instructions high, and a small size has rows for fewer of them. A test inside of the sum
keeps the sums out of registers. So the tile is there twice: for sizes at which all of it has work, and for
those below.
"""

from __future__ import annotations

from collections.abc import Iterator

from schedules import affine
from schedules import expr as E
from schedules.expr import Binary, Const, Expr
from schedules.ir import Alloc, Guard, Loop, Stmt, const, seq, walk, with_body
from schedules.ir.exprs import rewrite
from schedules.passes.simplify import Ranges, inside, simplify

# Sizes that are tried for the first at which all of a tile has work.
TRIED_SIZES = 1024


def by_sizes(s: Stmt, ranges: Ranges) -> Stmt:
    """``alloc c: for k: for u in unroll(2): if u < ceildiv(n, 16): instruction(c[u])`` becomes ``if 17 <= n:
    alloc c: for k: for u in unroll(2): instruction(c[u])`` and ``if n < 17: alloc c: for k:
    instruction(c[0])``. ``ranges``: of the variables of sizes."""
    within = inside(s, ranges) if isinstance(s, Loop) else ranges
    new = with_body(s, lambda x: by_sizes(x, within))
    if not isinstance(s, Alloc) or new is not s:
        return new
    conditions = list(_on_sizes(s))
    sizes = {v for c in conditions for v in E.variables(c)}
    if len(sizes) != 1:
        return s
    (size,) = sizes
    least, most = ranges[size]
    few = range(least, min(most, least + TRIED_SIZES) + 1)
    first = next((n for n in few if all(E.evaluate(c, {size: n}) for c in conditions)), least)
    if first == least:
        return s
    n = E.Var(size)
    whole = Guard(E.compare("<=", first, n), _told(s, {**ranges, size: (first, most)}))
    below = Guard(E.compare("<", n, first), _told(s, {**ranges, size: (least, first - 1)}))
    return seq(whole, below)


def _told(s: Stmt, ranges: Ranges) -> Stmt:
    """A statement with what the range of a size tells of it, also of how many tiles there are."""

    def number(e: Expr) -> Expr | None:
        if not isinstance(e, Binary) or e.op != "ceildiv" or not affine.has_size(e):
            return None
        r = affine.bounds(e, ranges)
        return Const(r[0]) if r is not None and r[0] == r[1] else None

    return simplify(rewrite(s, lambda e: E.rewrite(e, number)), ranges)


def _on_sizes(s: Stmt) -> Iterator[Expr]:
    """Conditions on a size alone under which instructions run, in the last iteration of unrolled loops."""
    last = {
        x.var: E.wrap(n - 1)
        for x in walk(s)
        if isinstance(x, Loop) and x.kind == "unroll" and (n := const(x.extent)) is not None
    }
    for x in walk(s):
        if isinstance(x, Guard) and any(isinstance(y, Loop) and y.instruction is not None for y in walk(x)):
            for c in E.conjuncts(x.cond):
                names = E.variables(c) - last.keys()
                if not E.loads(c) and names and all(v.endswith(".size") for v in names):
                    yield E.substitute(c, last)
