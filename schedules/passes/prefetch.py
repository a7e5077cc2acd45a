"""Software prefetching on a CPU: the hint ``prefetch`` of a loop asks for memory before it is read (ADR 14).

The processor's own prefetchers follow a stream within a page while it is read. A kernel that reads a row,
computes for a while and then reads the next leaves memory idle meanwhile. So the next row is requested during
the computation (Mowry, Lam and Gupta, 1992; `prefetch` of Halide and TVM).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Const, Load, Var
from schedules.ir import Buffer, Loop, Prefetch, Stmt, Store, loop_nest, seq, walk, with_body
from schedules.ir.strides import known_strides
from schedules.model import LINE


def prefetch(s: Stmt, arguments: tuple[Buffer, ...]) -> Stmt:
    """``s`` in which every loop with the hint ``prefetch = n > 0`` requests the ``arguments`` that its n-th
    next iteration reads. Requests stand in the second of its stages that read an argument, or in the only
    one. The first stage waits for memory; during the second, memory is idle. Loops that are one instruction
    stay whole: requests stand before them."""
    s = with_body(s, lambda x: prefetch(x, arguments))
    distance = dict(s.annotations).get("prefetch", 0) if isinstance(s, Loop) else 0
    if not isinstance(s, Loop) or not isinstance(distance, int) or distance < 1:
        return s
    stores = [x for x in walk(s.body) if isinstance(x, Store)]
    for b in arguments:
        # Stages are told apart by what they write: one may be several loops, of whole tiles and of a tail.
        stages = list(dict.fromkeys(x.buffer for x in stores if _access(x, b.name, s.var) is not None))
        if stages:
            cache = 2 if ("prefetch_cache", 2) in s.annotations else 1
            body = _ask(s.body, stages[:2][-1], partial(_request, b, s.var, distance, cache))
            s = Loop(s.var, s.extent, body, s.kind, s.annotations)
    return s


def _ask(s: Stmt, stage: str, request: Callable[[Store, list[Loop]], Stmt | None]) -> Stmt:
    """``s`` with a request before every store to ``stage``."""
    if isinstance(s, Loop) and s.instruction is not None:
        loops, store = loop_nest(s)
    else:
        loops, store = [], s
    if isinstance(store, Store):
        asked = request(store, loops) if store.buffer == stage else None
        return s if asked is None else seq(asked, s)
    return with_body(s, lambda x: _ask(x, stage, request))


def _request(b: Buffer, var: str, distance: int, cache: int, s: Store, inside: list[Loop]) -> Stmt | None:
    """The request for what a store reads of an argument ``distance`` iterations ahead. None if it reads
    nothing. ``inside``: the loops of an instruction around the store. Those that go on by a line of memory or
    more are loops of the request too."""
    access = _access(s, b.name, var)
    if access is None:
        return None
    steps, _ = affine.steps_of(affine.offset(access.indices, known_strides(b)))
    far = [x for x in inside if abs(steps.get(x.var, 0)) * DTYPES[b.dtype].itemsize >= LINE]
    near: dict[str, E.Expr] = {x.var: Const(0) for x in inside if x not in far}
    later = {var: Var(var) + distance, **near}
    asked: Stmt = Prefetch(b.name, tuple(E.substitute(i, later) for i in access.indices), cache)
    for x in reversed(far):
        asked = Loop(x.var, x.extent, asked, "unroll")
    return asked


def _access(s: Store, name: str, var: str) -> Load | None:
    """The first load of the argument at a place that moves with the loop; others lie near it. None if there
    is none. A place that is read from memory is not known ahead: behind the last iteration there may be
    none."""
    here = [x for x in E.loads(s.value) if x.buffer == name and not any(map(E.loads, x.indices))]
    return next((x for x in here if any(var in E.variables(i) for i in x.indices)), None)
