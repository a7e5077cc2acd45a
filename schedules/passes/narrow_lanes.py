"""Vectors of many lanes, of which a call tells how many have work, in fewer at a time (ADR 92).

The last tile of an open extent is seldom full. So it runs in vectors of `LANES`, as many as have work.
"""

from __future__ import annotations

from dataclasses import replace

from schedules import affine
from schedules import expr as E
from schedules.expr import Expr, Var
from schedules.ir import Guard, Loop, Stmt, Store, const, walk, with_body
from schedules.ir.exprs import substitute
from schedules.ir.nest import numbered
from schedules.passes.tighten_bounds import bound_of

# Lanes of a vector: 64 bytes of float32.
LANES = 16


def narrow_lanes(s: Stmt) -> Stmt:
    """``for j in lanes of 128: if i * 128 + j < n: S(j)`` becomes ``for p in range(min(8, ceildiv(n - i *
    128, 16))): for j in lanes of 16: if i * 128 + p * 16 + j < n: S(p * 16 + j)``. Where S adds up, p is
    unrolled, so that sums stay in registers. Whole tiles have no such guard after `partition`."""
    return _go(s, {x.var for x in walk(s) if isinstance(x, Loop)})


def _go(s: Stmt, taken: set[str]) -> Stmt:
    if not isinstance(s, Loop) or s.kind != "vectorize" or not isinstance(s.body, Guard):
        return with_body(s, lambda x: _go(x, taken))
    n = const(s.extent)
    ends = [_end(c, s.var) for c in E.conjuncts(s.body.cond)]
    least = [x for x in ends if x is not None]
    if n is None or n <= LANES or n % LANES or not least:
        return s
    part = numbered(f"{s.var}_part", taken)
    body = substitute(s.body, {s.var: Var(part) * LANES + Var(s.var)})
    few = replace(s, extent=E.wrap(LANES), body=body)
    if any(isinstance(x, Store) and x.update for x in walk(s)):
        some = Guard(E.compare("<", Var(part) * LANES, least[0]), few)
        return Loop(part, E.wrap(n // LANES), some, "unroll")
    return Loop(part, affine.simplify(E.minimum(n // LANES, E.ceildiv(least[0], LANES)), {}), few)


def _end(c: Expr, var: str) -> Expr | None:
    """The exclusive upper bound on a lane that a condition on a size states; None if it states none."""
    return bound_of(c, var) if affine.has_size(c) and not E.loads(c) else None
