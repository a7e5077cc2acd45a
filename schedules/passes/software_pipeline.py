"""Runs the last stage of an iteration together with a stage of the next one: the hint ``software_pipeline``
of a loop (ADR 18).

A row of softmax is read, computed and written. While it is written the arithmetic units wait for memory, and
before that memory waits for them. The last stage runs with the stage of the next row that computes most,
vector by vector, so that both are busy (Lam, 1988; the annotation of this name in TVM)::

    for i: s0(i); for t: s1(i, t); s2(i); for t: last(i, t)

becomes::

    s0(0); for t: s1(0, t); s2(0)
    for i in range(n - 1): s0(i + 1); for t: {last(i, t); s1(i + 1, t)}; s2(i + 1)
    for t: last(n - 1, t)

Large arrays begin at the same place of a page, so an iteration would write and read addresses with the same
lowest twelve bits. A processor first compares only these, and lets the load wait for the store (ADR 25). So
the next row lags by some iterations::

    for t: {last(i, t); if t >= lag: s1(i + 1, t - lag)}; for t in range(lag): s1(i + 1, n - lag + t)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Call, Const, Expr, Var
from schedules.ir import (
    Alloc,
    Guard,
    Loop,
    Seq,
    Stmt,
    Store,
    allocated,
    allocations,
    const,
    in_order,
    seq,
    walk,
    with_body,
)
from schedules.ir.exprs import expressions, loads, substitute
from schedules.ir.nest import numbered
from schedules.ir.regions import Span, span

# Name of the hint.
HINT = "software_pipeline"
# Distance by which the next row lags (bytes). At 256 loads still wait. Source: ADR 25.
LAG = 1024


def software_pipeline(s: Stmt) -> Stmt:
    """``s`` with every serial loop that has the hint pipelined, if dependences allow it and numbers of
    iterations are known. Other loops stay."""
    s = with_body(s, software_pipeline)
    if not isinstance(s, Loop) or s.kind != "serial" or (HINT, 1) not in s.annotations:
        return s
    s = replace(s, annotations=tuple(x for x in s.annotations if x[0] != HINT))
    return _pipelined(s) or s


def _pipelined(loop: Loop) -> Stmt | None:
    count = const(loop.extent)
    made, body = allocations(loop.body)
    *stages, late = in_order(body)
    if count is None or count < 2 or not isinstance(late, Loop):
        return None
    carried = [b for b in made if any(x.buffer == b.name for k in walk(late) for x in loads(k))]
    own = [b for b in made if b not in carried]
    for j in sorted(range(len(stages)), key=lambda j: (-_special(stages[j]), -j)):
        both = _merged(stages[j], late, loop.var)
        if both is not None and all(_independent(late, x, loop.var) for x in stages[:j]):
            break
    else:
        return None
    partner, last = both
    following = {loop.var: Var(loop.var) + 1}

    turns = _lagging(last, replace(partner, body=substitute(partner.body, following)))
    every = (*(substitute(x, following) for x in stages[:j]), turns)
    rest = (substitute(x, following) for x in stages[j + 1 :])
    main = replace(loop, extent=Const(count - 1), body=allocated(own, seq(*every, *rest)))
    first = allocated(own, substitute(seq(*stages), {loop.var: Const(0)}))
    return allocated(carried, seq(first, main, substitute(late, {loop.var: Const(count - 1)})))


def _lagging(last: Loop, partner: Loop) -> Stmt:
    """Iterations of both loops together, with ``partner`` behind by `LAG` bytes, at most by half of its
    iterations."""
    count, turn = const(last.extent), Var(last.var)
    assert count is not None
    lag = min(-(-LAG // max(1, _bytes_written(last.body))), count // 2)
    if lag < 1:
        return replace(partner, body=seq(last.body, partner.body))
    behind = substitute(partner.body, {turn.name: turn - lag})
    both = replace(last, body=seq(last.body, Guard(E.compare("<=", Const(lag), turn), behind)))
    rest = substitute(partner.body, {turn.name: turn + (count - lag)})
    return seq(both, replace(partner, extent=Const(lag), body=rest))


def _bytes_written(s: Stmt) -> int:
    match s:
        case Store(value=v):
            return DTYPES[E.dtype_of(v)].itemsize
        case Loop(extent=n, body=body):
            return (const(n) or 1) * _bytes_written(body)
        case Seq(stmts=parts):
            return sum(_bytes_written(x) for x in parts)
        case Guard(body=body) | Alloc(body=body):
            return _bytes_written(body)
    return 0


def _special(s: Stmt) -> int:
    """Number of special functions in a stage, which take time without memory."""
    return sum(isinstance(y, Call) for x in walk(s) for e in expressions(x) for y in E.walk(e))


def _merged(stage: Stmt, late: Loop, row: str) -> tuple[Loop, Loop] | None:
    """Both as loops over the same variable and range, if an iteration of ``late`` for a row may come before
    that of ``stage`` for the next row; else None."""
    if not isinstance(stage, Loop) or stage.kind != "serial" or late.kind != "serial":
        return None
    ours, theirs = const(stage.extent), const(late.extent)
    if ours is None or theirs is None or max(ours, theirs) % min(ours, theirs):
        return None
    count = min(ours, theirs)
    turn = stage.var if ours == count else late.var
    a, b = _turns(stage, turn, count, ours // count), _turns(late, turn, count, theirs // count)
    return (a, b) if _interleave(b, a, row) else None


def _turns(loop: Loop, turn: str, count: int, each: int) -> Loop:
    """The loop as ``count`` iterations of ``turn``, each of ``each`` of its own iterations."""
    if each == 1:
        return replace(loop, var=turn, body=substitute(loop.body, {loop.var: Var(turn)}))
    part = numbered(f"{loop.var}_of_turn", {turn, *_variables(loop)})
    body = substitute(loop.body, {loop.var: Var(turn) * each + Var(part)})
    return replace(loop, var=turn, extent=Const(count), body=Loop(part, Const(each), body, "unroll"))


def _variables(s: Stmt) -> set[str]:
    """Every variable of the statement, used or bound."""
    used = (E.variables(e) for x in walk(s) for e in expressions(x))
    return {x.var for x in walk(s) if isinstance(x, Loop)}.union(*used)


# (buffer, indices, whether it is written).
Access = tuple[str, tuple[Expr, ...], bool]


def _independent(late: Stmt, stage: Stmt, row: str) -> bool:
    """Whether all of ``late`` for a row may run after ``stage`` for the next row."""
    a, b = _loops(late), _loops(stage)
    return all(_apart(x, a, y, b, row) for x, y in _conflicts(late, stage))


def _interleave(late: Loop, stage: Loop, row: str) -> bool:
    """Whether iterations of ``late`` for a row and of ``stage`` for the next may alternate. Accesses must be
    apart for two rows, or for an iteration of ``late`` and an earlier one of ``stage`` for any rows."""
    a, b = _loops(late), _loops(stage)
    turn = late.var
    ours, theirs = ({k: n for k, n in x.items() if k != turn} for x in (a, b))

    def fine(x: Access, y: Access) -> bool:
        if _apart(x, a, y, b, row):
            return True
        fixed = all(row not in E.variables(i) for i in (*x[1], *y[1]))
        return fixed and _apart(x, ours, y, theirs, turn)

    return all(fine(x, y) for x, y in _conflicts(late, stage))


def _loops(s: Stmt) -> dict[str, Expr]:
    return {x.var: x.extent for x in walk(s) if isinstance(x, Loop)}


def _conflicts(a: Stmt, b: Stmt) -> Iterator[tuple[Access, Access]]:
    """Pairs of accesses to the same buffer of which one writes."""
    theirs = list(_accesses(b))
    for x in _accesses(a):
        for y in theirs:
            if x[0] == y[0] and (x[2] or y[2]):
                yield x, y


def _accesses(s: Stmt) -> Iterator[Access]:
    for x in walk(s):
        if isinstance(x, Store):
            yield x.buffer, x.indices, True
        for y in loads(x):
            yield y.buffer, y.indices, False


def _apart(x: Access, ours: Mapping[str, Expr], y: Access, theirs: Mapping[str, Expr], var: str) -> bool:
    """Whether two accesses, while these loops run, have no element in common for two different values of
    ``var``: in some dimension they move by as much as either touches."""
    return any(_moves_on(span(i, ours), span(j, theirs), var) for i, j in zip(x[1], y[1], strict=True))


def _moves_on(a: Span | None, b: Span | None, var: str) -> bool:
    if a is None or b is None or affine.linear(a[0] - b[0]) != ({}, Const(0)):
        return False
    terms, _ = affine.linear(a[0])
    step, wide = terms.get(Var(var)), [const(a[1]), const(b[1])]
    if not isinstance(step, Const) or any(var in E.variables(x) for x in terms if x != Var(var)):
        return False
    return all(n is not None and n <= int(step.value) for n in wide)
