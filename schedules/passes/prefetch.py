"""Ask for memory before it is read: software prefetching, by the hint ``prefetch`` of a loop.

The processor's own prefetchers follow a stream within a page while it is read. A kernel that reads a row,
computes for a while and then reads the next leaves memory idle meanwhile: the row that comes after is asked
for during the computation (Mowry, Lam and Gupta, 1992; `prefetch` of Halide and TVM).
"""

from __future__ import annotations

from schedules import expr as E
from schedules.expr import Load, Var
from schedules.ir import Loop, Prefetch, Stmt, Store, seq, walk, with_body


def prefetch(s: Stmt, arguments: tuple[str, ...]) -> Stmt:
    """``s`` where every loop with the hint ``prefetch = n > 0`` asks for what its iteration ``n`` later reads
    of the ``arguments``: in the second of its stages that read an argument, if there are more than one. The
    first waits for memory; from the second on the caches have it, and memory has nothing else to do."""
    s = with_body(s, lambda x: prefetch(x, arguments))
    distance = dict(s.annotations).get("prefetch", 0) if isinstance(s, Loop) else 0
    if not isinstance(s, Loop) or not isinstance(distance, int) or distance < 1:
        return s
    stores = [x for x in walk(s.body) if isinstance(x, Store)]
    for name in arguments:
        # by what they write: a stage may be several loops, of whole tiles and of a tail
        stages = list(dict.fromkeys(x.buffer for x in stores if _access(x, name, s.var) is not None))
        if stages:
            cache = 2 if ("prefetch_cache", 2) in s.annotations else 1
            body = _ask(s.body, stages[:2][-1], name, s.var, distance, cache)
            s = Loop(s.var, s.extent, body, s.kind, s.annotations)
    return s


def _ask(s: Stmt, stage: str, name: str, var: str, distance: int, cache: int) -> Stmt:
    """``s`` with a request before every store to ``stage`` that reads the argument."""
    if isinstance(s, Store):
        access = _access(s, name, var) if s.buffer == stage else None
        if access is None:
            return s
        later = {var: Var(var) + distance}
        return seq(Prefetch(name, tuple(E.substitute(i, later) for i in access.indices), cache), s)
    return with_body(s, lambda x: _ask(x, stage, name, var, distance, cache))


def _access(s: Store, name: str, var: str) -> Load | None:
    """The first read of the argument, at a place that the loop moves; others are near."""
    here = [x for x in E.loads(s.value) if x.buffer == name]
    return next((x for x in here if any(var in E.variables(i) for i in x.indices)), None)
