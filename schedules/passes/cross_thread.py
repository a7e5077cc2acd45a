"""Makes reductions over the threads of a block: a loop of threads that reduces into one element becomes an
`AllReduce`, after which every thread has the result."""

from __future__ import annotations

from dataclasses import replace

from schedules import expr as E
from schedules.errors import ScheduleError
from schedules.expr import Binary, Const, Expr, Load
from schedules.ir import AllReduce, Guard, Loop, Stmt, Store, bound_to, const, in_order, seq, walk, with_body
from schedules.te.scalars import limit

# Operations by which threads can reduce together.
OPS = ("+", "*", "min", "max")


def cross_thread(s: Stmt, threads: frozenset[str] = frozenset()) -> Stmt:
    """``s``, in loops over ``threads``, with every such loop replaced. All threads of a block take part;
    those with nothing to add contribute the identity. Raises ScheduleError if threads would race, or wait for
    others that do not arrive."""
    if isinstance(s, Loop) and s.kind == "threadIdx.x":
        body, conds = s.body, []
        while isinstance(body, Guard):
            conds.append(body.cond)
            body = body.body
        sums = [x for x in in_order(body) if isinstance(x, Store)]
        if sums and all(s.var not in _variables(x.indices) and _accumulates(x) for x in sums):
            if len(sums) == len(in_order(body)) and _independent(sums):
                return seq(*(_reduction(s, x, E.all_of(*conds)) for x in sums))
    if bound_to(s, "threadIdx"):
        threads |= {s.var}
    s = with_body(s, lambda x: cross_thread(x, threads))
    if isinstance(s, Guard) and E.variables(s.cond) & threads and _together(s):
        if E.loads(s.cond):  # the loaded value may be stored before the reduction
            raise _apart(s, f"where {E.show(s.cond)}")
        return _within(s.cond, s.body)
    if isinstance(s, Loop) and E.variables(s.extent) & threads and _together(s):
        raise _apart(s, f"in loop {s.var}, which runs {E.show(s.extent)} times; unroll it")
    return s


def _together(s: Stmt) -> list[AllReduce]:
    return [x for x in walk(s) if isinstance(x, AllReduce)]


def _within(cond: Expr, s: Stmt) -> Stmt:
    """``s`` under a condition that does not hold for all threads."""
    match s:
        case AllReduce(op=op, value=v):
            dtype = E.dtype_of(v)
            return replace(s, value=E.select(cond, v, Const(identity(op, dtype), dtype)))
    return with_body(s, lambda x: _within(cond, x)) if _together(s) else Guard(cond, s)


def _apart(s: Stmt, where: str) -> ScheduleError:
    return ScheduleError(
        f"threads reduce into {_together(s)[0].buffer} together, but not all threads get there, and the "
        f"others would wait: they reduce {where}"
    )


def _accumulates(s: Store) -> bool:
    return any(x.buffer == s.buffer for x in E.loads(s.value))


def _independent(sums: list[Store]) -> bool:
    """Whether no sum of several reads another."""
    return all(x is y or all(z.buffer != y.buffer for z in E.loads(x.value)) for x in sums for y in sums)


def _variables(indices: tuple[Expr, ...]) -> frozenset[str]:
    return frozenset().union(*(E.variables(i) for i in indices))


def _reduction(loop: Loop, s: Store, cond: Expr) -> AllReduce:
    v, extent = s.value, const(loop.extent)
    here = Load(s.buffer, s.indices, E.dtype_of(v))
    other = None
    if isinstance(v, Binary) and v.op in OPS:
        other = v.b if v.a == here else v.a if v.b == here else None
    if other is None or extent is None or any(x.buffer == s.buffer for x in E.loads(other)):
        raise ScheduleError(
            f"bind {loop.var}: threads can only reduce into {s.buffer} together by {', '.join(OPS)}; keep "
            "partial results in shared memory and reduce them in a serial loop"
        )
    assert isinstance(v, Binary)
    if cond != E.TRUE:
        other = E.select(cond, other, Const(identity(v.op, here.dtype), here.dtype))
    return AllReduce(s.buffer, s.indices, v.op, other, loop.var, extent)


def identity(op: str, dtype: str) -> float | int:
    """The identity of a reduction. For min and max of integers, which have no infinity, their largest or
    least value."""
    if op in ("+", "*"):
        return (float if E.is_float(dtype) else int)(op == "*")
    return limit(dtype, 1 if op == "min" else -1).value
