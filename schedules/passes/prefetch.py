"""Software prefetching on a CPU: the hint ``prefetch`` of a loop asks for memory before it is read (ADR 14).

The processor's own prefetchers follow a stream within a page while it is read. A kernel that reads a row,
computes for a while and then reads the next leaves memory idle meanwhile. So the next row is requested during
the computation (Mowry, Lam and Gupta, 1992; `prefetch` of Halide and TVM).
"""

from __future__ import annotations

from schedules import expr as E
from schedules.expr import Load, Var
from schedules.ir import Loop, Prefetch, Stmt, Store, seq, walk, with_body


def prefetch(s: Stmt, arguments: tuple[str, ...]) -> Stmt:
    """``s`` in which every loop with the hint ``prefetch = n > 0`` requests the ``arguments`` that its n-th
    next iteration reads. Requests stand in the second of its stages that read an argument, or in the only
    one. The first stage waits for memory; during the second, memory is idle."""
    s = with_body(s, lambda x: prefetch(x, arguments))
    distance = dict(s.annotations).get("prefetch", 0) if isinstance(s, Loop) else 0
    if not isinstance(s, Loop) or not isinstance(distance, int) or distance < 1:
        return s
    stores = [x for x in walk(s.body) if isinstance(x, Store)]
    for name in arguments:
        # Stages are told apart by what they write: one may be several loops, of whole tiles and of a tail.
        stages = list(dict.fromkeys(x.buffer for x in stores if _access(x, name, s.var) is not None))
        if stages:
            cache = 2 if ("prefetch_cache", 2) in s.annotations else 1
            body = _ask(s.body, stages[:2][-1], name, s.var, distance, cache)
            s = Loop(s.var, s.extent, body, s.kind, s.annotations)
    return s


def _ask(s: Stmt, stage: str, name: str, var: str, distance: int, cache: int) -> Stmt:
    """``s`` with a request before every store to ``stage`` that reads the argument. ``distance``: iterations
    ahead; ``cache``: level that gets the data."""
    if isinstance(s, Store):
        access = _access(s, name, var) if s.buffer == stage else None
        if access is None:
            return s
        later = {var: Var(var) + distance}
        return seq(Prefetch(name, tuple(E.substitute(i, later) for i in access.indices), cache), s)
    return with_body(s, lambda x: _ask(x, stage, name, var, distance, cache))


def _access(s: Store, name: str, var: str) -> Load | None:
    """The first load of the argument at a place that moves with the loop; others lie near it. None if there
    is none. A place that is read from memory is not known ahead: behind the last iteration there may be
    none."""
    here = [x for x in E.loads(s.value) if x.buffer == name and not any(map(E.loads, x.indices))]
    return next((x for x in here if any(var in E.variables(i) for i in x.indices)), None)
