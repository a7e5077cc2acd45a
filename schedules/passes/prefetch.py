"""Software prefetching on a CPU: the hint ``prefetch`` of a loop asks for memory before it is read (ADR 14).

The processor's own prefetchers follow a stream within a page while it is read. A kernel that reads a row,
computes for a while and then reads the next leaves memory idle meanwhile. So the next row is requested during
the computation (Mowry, Lam and Gupta, 1992; `prefetch` of Halide and TVM).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Const, Load, Var
from schedules.ir import Buffer, Loop, Prefetch, Stmt, Store, loop_nest, nbytes, seq, walk, with_body
from schedules.ir.strides import known_strides
from schedules.model import LINE

# An argument of so many bytes at most, which a loop further out reads again, stays in a cache near by.
NEAR = 64 << 10


def prefetch(s: Stmt, arguments: tuple[Buffer, ...], around: tuple[str, ...] = ()) -> Stmt:
    """``s`` in which every loop with the hint ``prefetch = n > 0`` requests the ``arguments`` that its n-th
    next iteration reads; with the hint ``prefetch_bytes``, those of the iteration that is so far away in what
    it reads most of. Requests stand in the second of its stages that read an argument, or in the only
    one. The first stage waits for memory; during the second, memory is idle. Loops that are one instruction
    stay whole: requests stand before them. ``around``: variables of the loops around ``s``."""
    inner = (*around, s.var) if isinstance(s, Loop) and s.extent != Const(1) else around
    s = with_body(s, lambda x: prefetch(x, arguments, inner))
    if not isinstance(s, Loop) or not {"prefetch", "prefetch_bytes"} & {key for key, _ in s.annotations}:
        return s
    stores = [x for x in walk(s.body) if isinstance(x, Store)]
    arguments = tuple(b for b in arguments if not _stays_near(b, stores, s.var, around))
    distance = _distance(s, stores, arguments)
    if distance < 1:
        return s
    for b in arguments:
        # Stages are told apart by what they write: one may be several loops, of whole tiles and of a tail.
        stages = list(dict.fromkeys(x.buffer for x in stores if _access(x, b.name, s.var) is not None))
        if stages:
            cache = 2 if ("prefetch_cache", 2) in s.annotations else 1
            body = _ask(s.body, stages[:2][-1], partial(_request, b, s.var, distance, cache))
            s = Loop(s.var, s.extent, body, s.kind, s.annotations)
    return s


def _distance(s: Loop, stores: Sequence[Store], arguments: tuple[Buffer, ...]) -> int:
    """Iterations of a loop that requests go ahead. 0: nothing is requested."""
    hints = dict(s.annotations)
    if (told := hints.get("prefetch", 0)) or "prefetch_bytes" not in hints:
        return told if isinstance(told, int) else 0
    steps = [
        abs(affine.steps_of(affine.offset(access.indices, known_strides(b)))[0].get(s.var, 0))
        * DTYPES[b.dtype].itemsize
        for b in arguments
        for x in stores
        if (access := _access(x, b.name, s.var)) is not None
    ]
    most, far = max(steps, default=0), hints["prefetch_bytes"]
    return -(-far // most) if most and isinstance(far, int) else 0


def _stays_near(b: Buffer, stores: Sequence[Store], var: str, around: tuple[str, ...]) -> bool:
    """Whether an argument is small, and a loop around reads all of it again in its next iteration."""
    read = [x for s in stores if (x := _access(s, b.name, var)) is not None]
    moving = {v for x in read for i in x.indices for v in E.variables(i)}
    return nbytes(b) <= NEAR and not moving.issuperset(around)


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
