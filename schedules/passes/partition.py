"""Peel the iterations of marked loops that need a guard or a border case."""

from __future__ import annotations

from dataclasses import replace

from schedules import affine
from schedules import expr as E
from schedules.expr import Compare, Const, Expr, Select, Var
from schedules.ir import Guard, Loop, Stmt, const, seq, walk, with_body
from schedules.passes.simplify import Ranges, expressions, loop_range, simplify, substitute


def partition(s: Stmt, ranges: Ranges | None = None) -> Stmt:
    """Loops marked ``partition`` become prologue, middle and epilogue, so that in the middle every
    condition on the loop variable holds. Outer loops first: a peeled part partitions again inside."""
    ranges = ranges or {}
    if not isinstance(s, Loop):
        return with_body(s, lambda k: partition(k, ranges))
    r = loop_range(s.extent, ranges)
    n = const(s.extent)
    inner = ranges | ({s.var: r} if r is not None else {})
    if ("partition", 1) not in s.annotations or n is None:
        return replace(s, body=partition(s.body, inner))
    lo, hi = _middle(s, n)
    pieces = [(0, lo), (lo, hi), (hi, n)]
    marks = tuple(a for a in s.annotations if a[0] != "partition")
    out: list[Stmt] = []
    for a, b in pieces:
        if b <= a:
            continue
        body = substitute(s.body, {s.var: Var(s.var) + a})
        piece = simplify(Loop(s.var, Const(b - a), body, s.kind, marks), ranges)
        out.append(partition(piece, ranges))
    return seq(*out)


def _middle(loop: Loop, n: int) -> tuple[int, int]:
    """The range of iterations where every condition that can be made true by peeling is; the whole
    loop if there is none such."""
    inner = {x.var: r for x in walk(loop.body) if isinstance(x, Loop) and (r := loop_range(x.extent, {}))}
    lo, hi = 0, n
    for c in _conditions(loop.body):
        if not isinstance(c, Compare) or c.op not in ("<", "<=") or loop.var not in E.variables(c):
            continue
        if E.dtype_of(c.a) != E.INDEX:  # a comparison of values
            continue
        gap = affine.simplify(c.a - c.b, inner | {loop.var: (0, n - 1)})
        step, others = affine.isolate(gap, loop.var)
        rest = affine.bounds(others, inner)
        if step is None or rest is None or not isinstance(step, Const):
            continue
        # step * v + rest < 0 (or <= 0) for the largest rest
        most = -rest[1] - (1 if c.op == "<" else 0)
        a = int(step.value)
        first, last = (0, most // a + 1) if a > 0 else (-(most // -a), n)
        if max(lo, first) < min(hi, last):
            lo, hi = max(lo, first), min(hi, last)
    return lo, hi


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
