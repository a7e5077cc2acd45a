"""Turns guards into loop bounds, or moves them out of loops that they do not depend on."""

from __future__ import annotations

from dataclasses import replace

from schedules import affine
from schedules import expr as E
from schedules.expr import Compare, Const, Expr
from schedules.ir import Guard, Loop, Seq, Stmt, Store, bound_to, const, seq, walk, with_body


def tighten_bounds(s: Stmt) -> Stmt:
    """``for i in range(8): if j * 8 + i < n: S`` becomes ``for i in range(min(8, n - j * 8)): S``. Only
    serial loops get such extents. In other loops a guard that does not fold remains; in lanes it is a
    mask."""
    s = with_body(s, tighten_bounds)
    match s:
        case Guard(cond=c, body=Guard(cond=d, body=b)):
            return Guard(E.all_of(c, d), b)
        case Guard(body=Seq(stmts=())):
            return Seq(())
        case Loop(body=Seq(stmts=xs)) if len(xs) > 1 and _same_guard(xs):
            first = xs[0]
            assert isinstance(first, Guard)
            bodies = tuple(x.body for x in xs if isinstance(x, Guard))
            return tighten_bounds(replace(s, body=Guard(first.cond, seq(*bodies))))
        case Loop(body=Guard() as g):
            return _trim_loop(s, g)
    return s


def _same_guard(xs: tuple[Stmt, ...]) -> bool:
    first = xs[0]
    return isinstance(first, Guard) and all(isinstance(x, Guard) and x.cond == first.cond for x in xs)


def _trim_loop(loop: Loop, g: Guard) -> Stmt:
    extent, keep, out = loop.extent, list[Expr](), list[Expr]()
    stored = {x.buffer for x in walk(loop.body) if isinstance(x, Store)}
    for c in E.conjuncts(g.cond):
        if any(x.buffer in stored for x in E.loads(c)):
            keep.append(c)
        elif E.loads(c) and bound_to(loop, "blockIdx"):  # a kernel begins with its blocks
            keep.append(c)
        elif loop.var not in E.variables(c):
            # what reads data stays behind the conditions before it, which say that it reads inside
            (keep if keep and E.loads(c) else out).append(c)
        else:
            bound = bound_of(c, loop.var)
            new = affine.simplify(E.minimum(extent, bound), {}) if bound is not None else None
            if new is None or (loop.kind != "serial" and const(new) is None):
                keep.append(c)
            else:
                extent = new
    body: Stmt = Guard(E.all_of(*keep), g.body) if keep else g.body
    new_loop: Stmt = replace(loop, extent=extent, body=body)
    if any(map(E.loads, out)) and (const(extent) or 0) < 1:  # nothing is read where the loop does not run
        out.insert(next(n for n, c in enumerate(out) if E.loads(c)), E.compare("<", 0, extent))
    return Guard(E.all_of(*out), new_loop) if out else new_loop


def bound_of(c: Expr, var: str) -> Expr | None:
    """The exclusive upper bound on ``var`` that ``c`` states; None if it states none."""
    if not isinstance(c, Compare) or c.op not in ("<", "<="):
        return None
    step, rest = affine.isolate(c.b - c.a, var)  # > 0, or >= 0
    if not isinstance(step, Const) or int(step.value) >= 0 or var in E.variables(rest):
        return None
    if c.op == "<=":
        rest = rest + 1
    a = -int(step.value)  # a * var < rest
    return rest if a == 1 else (rest + (a - 1)) // a
