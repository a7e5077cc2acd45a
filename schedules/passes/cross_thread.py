"""Reductions over the threads of a block: a loop of threads that reduces into one element becomes an
`AllReduce`, after which every thread has the result."""

from __future__ import annotations

from schedules import expr as E
from schedules.errors import ScheduleError
from schedules.expr import Binary, Const, Expr, Load
from schedules.ir import AllReduce, Guard, Loop, Stmt, Store, const, with_body

OPS = ("+", "*", "min", "max")


def cross_thread(s: Stmt) -> Stmt:
    """``s`` with every such loop replaced. Raises ScheduleError where threads would race instead."""
    if isinstance(s, Loop) and s.kind == "threadIdx.x":
        body, conds = s.body, []
        while isinstance(body, Guard):
            conds.append(body.cond)
            body = body.body
        if isinstance(body, Store) and s.var not in _variables(body.indices) and _accumulates(body):
            return _reduction(s, body, E.all_of(*conds))
    return with_body(s, cross_thread)


def _accumulates(s: Store) -> bool:
    return any(x.buffer == s.buffer for x in E.loads(s.value))


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
    """The value that changes nothing. Integers have no infinity: their least or largest."""
    if op in ("+", "*"):
        return (float if E.is_float(dtype) else int)(op == "*")
    if E.is_float(dtype):
        return float("inf") if op == "min" else float("-inf")
    half = 1 << (int(dtype[3:]) - 1)
    return half - 1 if op == "min" else -half
