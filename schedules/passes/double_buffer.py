"""Loads the next iteration's part of shared memory into registers while this one computes: the hint
``prefetch`` of a loop on a GPU.

``for k: {S = G[k]}; {use S}`` becomes ``R = G[0]; for k: {S = R}; {R = G[k + 1]}; {use S}``. The loads are in
flight during the computation, so no thread waits for memory between two barriers (software pipelining through
registers, as in SGEMM kernels since MAGMA's).
"""

from __future__ import annotations

from dataclasses import replace

from schedules import expr as E
from schedules.expr import Const, Expr, Load, Var
from schedules.ir import (
    Alloc,
    Buffer,
    Guard,
    Loop,
    Stmt,
    Store,
    allocated,
    const,
    in_order,
    seq,
    walk,
    with_body,
)
from schedules.ir.exprs import substitute
from schedules.ir.nest import numbered_each
from schedules.passes.accesses import buffers


def double_buffer(s: Stmt) -> Stmt:
    """``s`` with every loop pipelined that has the hint and begins with copies into shared memory."""
    s = with_body(s, double_buffer)
    if not isinstance(s, Loop) or s.kind != "serial" or ("prefetch", 1) not in s.annotations:
        return s
    shared: list[Buffer] = []
    body = s.body
    while isinstance(body, Alloc) and body.buffer.scope == "shared":
        shared.append(body.buffer)
        body = body.body
    names = {b.name for b in shared}
    stmts = in_order(body)
    copies = []
    for x in stmts:
        copy = _copy(x, names)
        if copy is None:
            break
        copies.append(copy)
    if not copies or len(copies) == len(stmts):
        return s
    here: list[Stmt] = []
    ahead: list[Stmt] = []
    held = []
    named = numbered_each((f"{store.buffer}_next" for store, _ in copies), buffers(s))
    for x, name, (store, loops) in zip(stmts, named, copies, strict=False):
        register = Buffer(name, tuple(Const(n) for _, n in loops), _dtype(store, shared), "local")
        held.append(register)
        at: tuple[Expr, ...] = tuple(Var(v) for v, _ in loops)
        ahead.append(_with_store(x, Store(register.name, at, store.value)))
        here.append(
            _with_store(x, Store(store.buffer, store.indices, Load(register.name, at, register.dtype)))
        )
    after = Var(s.var) + 1
    first: list[Stmt] = [substitute(x, {s.var: Const(0)}) for x in ahead]
    if not isinstance(s.extent, Const):  # a piece of a loop, which may be empty
        first = [Guard(E.compare("<", Const(0), s.extent), seq(*first))]
    later = Guard(E.compare("<", after, s.extent), seq(*(substitute(x, {s.var: after}) for x in ahead)))
    inside = allocated(shared, seq(*here, later, *stmts[len(copies) :]))
    return allocated(held, seq(*first, replace(s, body=inside)))


def _copy(s: Stmt, shared: set[str]) -> tuple[Store, list[tuple[str, int]]] | None:
    """(the only store of a phase that fills a shared buffer from elsewhere, its loops); None for other
    phases."""
    every = walk(s)
    stores = [x for x in every if isinstance(x, Store)]
    loops = [(x.var, _most(x.extent)) for x in every if isinstance(x, Loop)]
    if len(stores) != 1 or stores[0].buffer not in shared or any(isinstance(x, Alloc) for x in every):
        return None
    if any(x.buffer in shared for x in E.loads(stores[0].value)):
        return None
    fixed = [(v, n) for v, n in loops if n is not None]
    return (stores[0], fixed) if len(fixed) == len(loops) and fixed else None


def _most(extent: Expr) -> int | None:
    """Most iterations of a loop whose tail is cut off, if known; else None."""
    if isinstance(extent, E.Binary) and extent.op == "min":
        known = [n for n in (_most(extent.a), _most(extent.b)) if n is not None]
        return min(known, default=None)
    return const(extent)


def _with_store(s: Stmt, store: Store) -> Stmt:
    return store if isinstance(s, Store) else with_body(s, lambda x: _with_store(x, store))


def _dtype(store: Store, shared: list[Buffer]) -> str:
    return next(b.dtype for b in shared if b.name == store.buffer)
