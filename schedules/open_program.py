"""Lowers a schedule whose sizes a call tells: one program for all of them (ADR 79).

A tile that is shifted inside needs as many elements as it has. So the program has two parts, and one test at
its entry: the schedule as it is from the size on at which every tile fits, and the same schedule with guards
in place of shifts below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from schedules import expr as E
from schedules.errors import ScheduleError
from schedules.expr import Expr
from schedules.ir import Alloc, Guard, LoweredFunc, Nest, Seq, Stmt, seq, size_variable
from schedules.ir.nest import find_loop
from schedules.ir.verify import verify
from schedules.model import Target, Trace
from schedules.passes.lower import lower
from schedules.passes.open_sizes import close_sizes, whole_from
from schedules.primitives import PRIMITIVES
from schedules.primitives.base import extent_of
from schedules.primitives.split import Split
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG
from schedules.te.open_sizes import OpenSize, at

# From the least and the largest size, those at which a trace must be legal: what tiles divide at one of these
# they divide at all.
CHECKED: tuple[Callable[[int, int], int], ...] = (
    lambda least, most: least,
    lambda least, most: (least + most) // 2 | 1,
    lambda least, most: most - 1,
    lambda least, most: most,
)


def parts_of(dag: ComputeDAG, trace: Trace, target: Target | None = None) -> list[Nest]:
    """The nests of a trace: one for all sizes, or where some tile needs more elements than the least size
    has, one for sizes at which all tiles fit and one for those below. Each has the sizes that it is for;
    where several are open, the second is for all. Raises ScheduleError."""
    nest = Schedule.replay(dag, trace, target).nest
    if not nest.sizes:
        return [nest]
    fit = _fitting(nest)
    _check_at(dag, trace, target, fit)
    if fit == nest.sizes:
        return [nest]
    below = nest.sizes
    if len(below) == 1:
        below = (OpenSize(below[0].name, below[0].least, fit[0].least - 1),)
    guarded = _guarded(dag, trace, target)
    _check_at(dag, guarded.trace, target, below)
    return [replace(nest, sizes=fit), replace(guarded.nest, sizes=below)]


def _check_at(dag: ComputeDAG, trace: Trace, target: Target | None, sizes: tuple[OpenSize, ...]) -> None:
    """Raise ScheduleError where a trace is not legal at one of some sizes. Of what a hole decides primitives
    ask nothing, and a size is a hole to them: that tiles divide what they must, that what is read is
    computed."""
    for pick in CHECKED:
        here = {s.name: max(s.least, min(pick(s.least, s.most), s.most)) for s in sizes}
        try:
            Schedule.replay(at(dag, here), trace, target)
        except ScheduleError as err:
            said = ", ".join(f"{name}={n}" for name, n in here.items())
            raise ScheduleError(f"at {said}: {err}") from None


def lower_parts(parts: list[Nest], sizes: tuple[OpenSize, ...]) -> LoweredFunc:
    """The program of `parts_of`. ``sizes``: those of the DAG. Raises VerifyError."""
    if len(parts) == 1:
        return lower(parts[0])
    # Below the tile, an instruction may have no whole run at any size: its loops stay loops.
    whole, below = lower(parts[0]), lower(parts[1], tails=True)
    raised = [a for a, b in zip(parts[0].sizes, sizes, strict=True) if a.least > b.least]
    fits = E.all_of(*(E.compare("<=", a.least, size_variable(a.name)) for a in raised))
    other = E.any_of(*(E.compare("<", size_variable(a.name), a.least) for a in raised))
    body = _joined(fits, whole.body, other, below.body)
    open_ = close_sizes(replace(parts[0], sizes=sizes, body=seq()))
    params = tuple(map(open_.buffer, open_.params))  # those of a part may have the number of its only size
    verify(body, params, "joining", sizes)
    return replace(
        whole,
        params=params,
        body=body,
        streamed=tuple(n for n in whole.streamed if n in below.streamed),
        skewed=tuple(p.name for p in params if p.name in {*whole.skewed, *below.skewed}),
        sizes=sizes,
    )


def _joined(fits: Expr, whole: Stmt, other: Expr, below: Stmt) -> Stmt:
    """``whole`` where a size fits, else ``below``. What both begin or end with is there once, as a copy of
    weights."""
    if whole == below:
        return whole
    if isinstance(whole, Alloc) and isinstance(below, Alloc) and whole.buffer == below.buffer:
        return Alloc(whole.buffer, _joined(fits, whole.body, other, below.body))
    a, b = (x.stmts if isinstance(x, Seq) else (x,) for x in (whole, below))
    first = _alike(a, b)
    last = min(_alike(a[::-1], b[::-1]), len(a) - first, len(b) - first)
    if first == last == 0:
        return seq(*(Guard(c, x) for c, x in ((fits, whole), (other, below)) if x != seq()))
    ends = (seq(*x[first : len(x) - last]) for x in (a, b))
    return seq(*a[:first], _joined(fits, next(ends), other, next(ends)), *a[len(a) - last :])


def _alike(a: Sequence[Stmt], b: Sequence[Stmt]) -> int:
    """How many first statements are the same."""
    return sum(1 for _ in takewhile(lambda x: x[0] == x[1], zip(a, b, strict=False)))


def _fitting(nest: Nest) -> tuple[OpenSize, ...]:
    """The sizes at which every tile fits, each with the least one from which on it does."""
    conditions = E.conjuncts(whole_from(nest))
    out = []
    for s in nest.sizes:
        own = [c for c in conditions if size_variable(s.name).name in E.variables(c)]
        others = {size_variable(x.name).name: x.least for x in nest.sizes if x is not s}
        out.append(replace(s, least=_first(own, s, others)))
    return tuple(out)


def _first(conditions: list[Expr], s: OpenSize, others: Mapping[str, int]) -> int:
    """The least size at which conditions hold that hold from there on. ``others``: the variables of the other
    sizes, at their least. Raises ScheduleError if there is none."""

    def holds(n: int) -> bool:
        return all(E.evaluate(c, {**others, size_variable(s.name).name: n}) for c in conditions)

    low, high = s.least, s.most
    if not holds(high):
        raise ScheduleError(
            f"a shifted tile is larger than the largest size {s.name}={high}; use smaller tiles"
        )
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _guarded(dag: ComputeDAG, trace: Trace, target: Target | None) -> Schedule:
    """The schedule of a trace, with guards in place of shifts along loops whose extent a call tells."""
    s = Schedule(dag, target)
    for n, step in enumerate(trace.steps):
        try:
            p = PRIMITIVES[step.primitive].from_step(step)
            if isinstance(p, Split) and p.tail == "shift" and extent_of(find_loop(s.nest, p.loop)) is None:
                p = replace(p, tail="guard")
            s.apply(p)
        except ScheduleError as err:
            raise ScheduleError(f"step {n}, with a guard for sizes below the tile: {err}") from None
    return s
