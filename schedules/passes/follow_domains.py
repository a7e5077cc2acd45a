"""Has loops run where the conditions of a domain let something happen, and no further.

The conditions of a block (`Block.where`) stand innermost, around its update. For loops of a triangle::

    for ko: for i in unroll: if i0 + i < ko * 4: S        (i: 0 to 7)

what any iteration of the inner loops needs is ``i0 < ko * 4``, and what lets all of them run is ``i0 + 7 < ko
* 4``. So ``ko`` begins at ``i0 // 4 + 1`` (`follow_domains`), and `partition` takes the part apart in which
all run, without a condition. `mark_domains` marks such loops for it. What does not depend on the loop, as
whether a tile lies above the diagonal, is asked once before it: a tile inside the domain has no conditions,
one that crosses its border has them, and one outside does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from schedules import affine
from schedules import expr as E
from schedules.expr import Compare, Const, Expr, Logic, Var
from schedules.ir import Alloc, Guard, Loop, Nest, Seq, Stmt, Store, blocks, const, seq, walk, with_body
from schedules.ir.exprs import substitute
from schedules.ir.nest import has_domain
from schedules.passes.partition import given
from schedules.passes.simplify import Ranges, inside

# An index that is at most 0 where a condition holds.
Gap = Expr


def has_domains(nest: Nest) -> bool:
    """Whether a block of a nest is that of a stage whose domain is no box."""
    return any(has_domain(b) for b in blocks(nest.body))


def mark_domains(s: Stmt) -> Stmt:
    """``s`` with the serial loops marked for `partition` that conditions around everything in them bound.
    What only the first iteration of a loop does, as the start of a sum is, comes before the loop."""
    s = with_body(s, mark_domains)
    if isinstance(s, Loop) and s.kind == "serial" and (const(s.extent) or 0) > 0:
        first, s = _first_apart(s)
        if first is not None:
            return seq(first, mark_domains(s))
        bounded = any(s.var in E.variables(g) for g in needed(s.body))
        if bounded and ("partition", 1) not in s.annotations:
            return replace(s, annotations=(*s.annotations, ("partition", 1)))
    return s


def _first_apart(loop: Loop) -> tuple[Stmt | None, Loop]:
    """(What the first iteration of a loop does before all else, and others do not; the loop without it)."""
    match loop.body:
        case Seq(stmts=(Guard(cond=c, body=b), *rest)):
            mine = [x for x in E.conjuncts(c) if loop.var in E.variables(x)]
            if len(mine) != 1 or not _is_first(mine[0]):
                return None, loop
            others = [x for x in E.conjuncts(c) if x is not mine[0]]
            left = affine.simplify(E.substitute(mine[0], {loop.var: Const(0)}), {})
            conds = [x for x in (left, *others) if x != E.TRUE]
            start = substitute(b, {loop.var: Const(0)})
            return _if(E.all_of(*conds), start), replace(loop, body=seq(*rest))
    return None, loop


def _is_first(c: Expr) -> bool:
    """Whether a condition says that variables of loops, which begin at 0, are all 0."""
    if not isinstance(c, Compare) or c.op != "==" or E.dtype_of(c.a) != E.INDEX:
        return False
    terms, rest = affine.linear(c.a - c.b)
    steps = [(isinstance(x, Var), k) for x, k in terms.items()]
    return rest == Const(0) and all(v and isinstance(k, Const) and k.value > 0 for v, k in steps)


def follow_domains(s: Stmt, ranges: Ranges | None = None) -> Stmt:
    """``s`` with its loops cut to where something happens, and tiles that lie inside or outside of a domain
    told apart from those that cross its border."""
    ranges = ranges or {}
    if isinstance(s, Loop):
        return _apart(s, ranges) if needed(s) else _bounded(s, ranges, follow_domains)
    return with_body(s, lambda x: follow_domains(x, ranges))


# -- what is needed ----------------------------------------------------------------------------


def needed(s: Stmt) -> list[Gap]:
    """Indices by the variables around ``s`` that are at most 0 wherever ``s`` does anything."""
    match s:
        case Guard(cond=c, body=b):
            return list(dict.fromkeys([*gaps(c), *needed(b)]))
        case Loop(var=v, extent=n, body=b):
            found = (_over(g, v, n, 0) for g in needed(b))
            return list(dict.fromkeys(g for g in found if g is not None))
        case Alloc(body=b):
            return needed(b)
        case Seq(stmts=xs):
            each = [needed(x) for x in xs]
            return [g for g in each[0] if all(g in other for other in each[1:])] if each else []
    return []


def gaps(cond: Expr) -> list[Gap]:
    """The conditions on indices among the conjuncts of ``cond``."""
    found = []
    for c in E.conjuncts(cond):
        if not isinstance(c, Compare) or c.op not in ("<", "<=", "==") or E.dtype_of(c.a) != E.INDEX:
            continue
        if E.loads(c):
            continue
        found.append(affine.simplify(c.a - c.b + (1 if c.op == "<" else 0), {}))
        if c.op == "==":
            found.append(affine.simplify(c.b - c.a, {}))
    return found


def _over(g: Gap, var: str, extent: Expr, which: int) -> Gap | None:
    """The least (0) or largest (1) value of ``g`` while a loop runs; None if that is not known."""
    if var not in E.variables(g):
        return g
    step, rest = affine.isolate(g, var)
    if isinstance(step, Const) and var not in E.variables(rest):
        last = affine.simplify(rest + step * (extent - 1), {})
        return last if (int(step.value) > 0) == bool(which) else rest
    n = const(extent)
    return None if n is None else affine.extreme(g, {var: (0, n - 1)}, which)


# -- loops -------------------------------------------------------------------------------------


def _cut(s: Stmt, ranges: Ranges) -> Stmt:
    """`follow_domains` at the border of a domain, where tiles were told apart before. Steps of a sum are not
    unrolled there: each would ask for itself."""
    if isinstance(s, Loop):
        if s.kind == "unroll" and needed(s.body) and not _is_place(s.var, s.body):
            s = replace(s, kind="serial")
        return _bounded(s, ranges, _cut)
    return with_body(s, lambda x: _cut(x, ranges))


def _is_place(var: str, s: Stmt) -> bool:
    """Whether a loop goes from place to place in what is written."""
    return any(var in E.variables(i) for x in walk(s) if isinstance(x, Store) for i in x.indices)


def _bounded(loop: Loop, ranges: Ranges, within: Callable[[Stmt, Ranges], Stmt]) -> Stmt:
    """A loop that begins and ends where its body does something. ``within``: what is done to that."""
    low: list[Expr] = [Const(0)]
    high: list[Expr] = [loop.extent]
    if loop.kind == "serial":
        for g in needed(loop.body):
            step, rest = affine.isolate(g, loop.var)
            if not isinstance(step, Const) or loop.var in E.variables(rest):
                continue
            k = int(step.value)
            if k > 0:
                high.append((rest * -1) // k + 1)
            else:
                low.append(((rest * -1) // -k) * -1)
    body, start, end = loop.body, low[0], high[0]
    for x in low[1:]:
        start = affine.simplify(E.maximum(start, affine.simplify(x, ranges)), ranges)
    for x in high[1:]:
        end = affine.simplify(E.minimum(end, affine.simplify(x, ranges)), ranges)
    if len(low) + len(high) > 2 and isinstance(body, Guard):
        body = _without(body, loop.var)
    if start != Const(0):
        body = substitute(body, {loop.var: Var(loop.var) + start})
    new = replace(loop, extent=affine.simplify(end - start, ranges), body=body)
    return replace(new, body=within(new.body, inside(new, ranges)))


def _without(g: Guard, var: str) -> Stmt:
    """A guard that stands in a loop by itself, without the conditions that are now ends of the loop."""
    left = []
    for c in E.conjuncts(g.cond):
        told = gaps(c)
        steps = [affine.isolate(x, var) for x in told]
        if not told or any(not isinstance(k, Const) or var in E.variables(r) for k, r in steps):
            left.append(c)
    return replace(g, cond=E.all_of(*left)) if left else g.body


def _apart(s: Loop, ranges: Ranges) -> Stmt:
    """Loops all of whose iterations ask conditions: without them where all hold, with them where some may."""
    runs = {x.var: x.extent for x in walk(s) if isinstance(x, Loop)}
    all_hold: list[Expr] = []
    holding: set[Expr] = set()
    for c in dict.fromkeys(c for x in walk(s) if isinstance(x, Guard) for c in E.conjuncts(x.cond)):
        most = gaps(c)
        if not most or any(const(runs[v]) is None for v in E.variables(c) & runs.keys()):
            continue
        for v, n in runs.items():
            most = [x for g in most if (x := _over(g, v, n, 1)) is not None]
        if len(most) != len(gaps(c)):
            continue
        conds = [affine.simplify(E.compare("<=", g, 0), ranges) for g in most]
        if E.FALSE not in conds:
            all_hold += conds
            holding.add(c)
    some = [affine.simplify(E.compare("<=", g, 0), ranges) for g in needed(s)]
    if E.FALSE in some:
        return Seq(())
    whole, possible = E.all_of(*dict.fromkeys(all_hold)), E.all_of(*dict.fromkeys(some))
    if not holding:
        return _if(possible, _bounded(s, ranges, _cut))
    free = given(s, frozenset(holding))
    assert isinstance(free, Loop)
    inner = follow_domains(free, ranges)
    if whole in (possible, E.TRUE):
        return _if(whole, inner)
    border = E.all_of(*(x for x in (possible, Logic("not", (whole,))) if x != E.TRUE))
    return seq(Guard(whole, inner), Guard(border, _bounded(s, ranges, _cut)))


def _if(cond: Expr, s: Stmt) -> Stmt:
    return s if cond == E.TRUE else Guard(cond, s)
