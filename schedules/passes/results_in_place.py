"""Stores results of instructions where they are copied to, if a unit has registers of its own for them.

Tiles of sums are held in registers over a sum (ADR 43). Where a tile is only copied afterwards, it is stored
to the result itself, row by row, and no copy goes through memory::

    alloc c_local: float32[16, 16]
    ...tdpbf16ps(a=..., b=..., c=c_local[0, 0])...
    for i: for j: c[16 * x + i, y + j] = c_local[i, j]

becomes ``tdpbf16ps(a=..., b=..., c=c[16 * x, y])``. The copy must be all of the buffer, once, and the buffer
must be what registers can hold. No two iterations may write one element: threads would add to it together,
where a machine has no such registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Const, Expr, Load, Select, Var
from schedules.ir import (
    Buffer,
    Loop,
    Stmt,
    Store,
    allocated,
    allocations,
    const,
    in_order,
    loop_nest,
    seq,
    walk,
    with_body,
)
from schedules.passes.accesses import moved, uses


def results_in_place(s: Stmt, results: tuple[Buffer, ...]) -> Stmt:
    """``s`` with tiles of sums stored in ``results`` that they were copied to. Marked loops are not yet
    instructions."""
    s = with_body(s, lambda x: results_in_place(x, results))
    buffers, body = allocations(s)
    *before, copy = in_order(body)
    loops, store = loop_nest(copy)
    if not isinstance(store, Store) or not isinstance(store.value, Load):
        return s
    b = next((x for x in buffers if x.name == store.value.buffer), None)
    if b is None or not any(x.name == store.buffer and x.dtype == b.dtype for x in results):
        return s
    inside = [x for y in before for x in walk(y)]
    inner = {x.var for x in inside if isinstance(x, Loop)}
    apart = not any(uses(x, store.buffer) for x in inside)
    if not (apart and _held(inside, b) and _is_whole(b, loops, store, inner)):
        return s
    rest = [x for x in buffers if x is not b]
    return allocated(rest, moved(seq(*before), b.name, store.buffer, partial(_at, store)))


def _at(copy: Store, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Where an element of the buffer is copied to."""
    assert isinstance(copy.value, Load)
    of = {v.name: i for v, i in zip(copy.value.indices, indices, strict=True) if isinstance(v, Var)}
    return tuple(E.substitute(i, of) for i in copy.indices)


def _is_whole(b: Buffer, loops: list[Loop], copy: Store, inner: set[str]) -> bool:
    """Whether every element of a buffer is copied once, each to a place of its own. ``inner``: variables that
    places may not depend on."""
    assert isinstance(copy.value, Load)
    extents = {x.var: const(x.extent) for x in loops}
    for v, n in zip(copy.value.indices, b.shape, strict=True):
        whole = isinstance(v, Var) and extents.pop(v.name, None) == const(n)
        if not whole and not (v == Const(0) and n == Const(1)):
            return False
    moving = {x.var for x in loops}
    for i in copy.indices:
        terms, _ = affine.linear(i)
        own = moving & E.variables(i)
        if E.variables(i) & inner or any(isinstance(x, (Load, Select)) or _is_cut(x) for x in E.walk(i)):
            return False
        if len(own) > 1 or any(terms.get(Var(v)) != Const(1) for v in own):
            return False
        moving -= own
    return not moving and not extents


def _is_cut(e: Expr) -> bool:
    """Whether iterations may share a value, as tiles that are moved inwards at an end do."""
    return isinstance(e, E.Binary) and e.op in ("min", "max")


def _held(inside: Sequence[Stmt], b: Buffer) -> bool:
    """Whether statements, with those in them, use a buffer only as the result of instructions, in registers
    that hold all of it."""
    size = prod(const(n) or 0 for n in b.shape) * DTYPES[b.dtype].itemsize
    marked = [x for x in inside if isinstance(x, Loop) and x.instruction is not None]
    units = [(x, x.instruction.registers) for x in marked if x.instruction is not None]
    room = [x for x, unit in units if unit is not None and size <= unit.count * unit.bytes]
    added = {id(y) for x in room for y in walk(x) if isinstance(y, Store) and y.buffer == b.name}
    return all(id(x) in added for x in inside if uses(x, b.name))
