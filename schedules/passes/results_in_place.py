"""Stores results of instructions where they are copied to, if a unit has registers of its own for them.

Tiles of sums are held in registers over a sum (ADR 43). Where a tile is only copied afterwards, it is stored
to the result itself, row by row, and no copy goes through memory::

    alloc c_local: float32[16, 16]
    ...tdpbf16ps(a=..., b=..., c=c_local[0, 0])...
    for i: for j: c[16 * x + i, y + j] = c_local[i, j]

becomes ``tdpbf16ps(a=..., b=..., c=c[16 * x, y])``. The copy must be all of the buffer, once, and the buffer
must be what registers can hold. No two iterations may write one element: threads would add to it together,
where a machine has no such registers.

Where something is computed of a tile, the lines of the result are asked for before the sum. A store to a line
that is not in a cache waits for it, and a unit that is this fast waits for its stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod

from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Const, Expr, Load, Select, Var
from schedules.ir import (
    Alloc,
    Buffer,
    Loop,
    Prefetch,
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
from schedules.ir.strides import known_strides
from schedules.model import LINE
from schedules.passes.accesses import moved, uses


def results_in_place(s: Stmt, results: tuple[Buffer, ...]) -> Stmt:
    """``s`` with tiles of sums stored in ``results`` that they were copied to, and lines of results that are
    made of them asked for. Marked loops are not yet instructions."""
    s = with_body(s, lambda x: results_in_place(x, results))
    if not isinstance(s, Alloc):
        return s
    buffers, body = allocations(s)
    *before, last = in_order(body)
    loops, store = loop_nest(last)
    result = next((x for x in results if isinstance(store, Store) and x.name == store.buffer), None)
    if not isinstance(store, Store) or result is None:
        return s
    inside = [x for y in before for x in walk(y)]
    read = {x.buffer for x in E.loads(store.value)}
    tile = next((x for x in buffers if x.name in read and _held(inside, x)), None)
    inner = {x.var for x in inside if isinstance(x, Loop)}
    if tile is None or any(E.variables(i) & inner or E.loads(i) for i in store.indices):
        return s
    apart = not any(uses(x, result.name) for x in inside)
    if apart and result.dtype == tile.dtype and _is_copy(tile, loops, store):
        rest = [x for x in buffers if x is not tile]
        return allocated(rest, moved(seq(*before), tile.name, result.name, partial(_at, store)))
    return allocated(buffers, seq(_request(result, loops, store), body))


def _request(result: Buffer, loops: list[Loop], store: Store) -> Stmt:
    """Asks for each line that a store in ``loops`` writes to."""
    steps, _ = affine.steps_of(affine.offset(store.indices, known_strides(result)))
    lines: list[Loop] = []
    at: dict[str, Expr] = {}
    for x in loops:
        step = abs(steps.get(x.var, 0)) * DTYPES[result.dtype].itemsize
        each = LINE // step if 0 < step < LINE else 1  # iterations that share a line
        at[x.var] = Var(x.var) * each if step else Const(0)
        count = affine.simplify(E.ceildiv(x.extent, Const(each)), {}) if step else Const(1)
        lines.append(Loop(x.var, count, store, "serial" if x.kind == "serial" else "unroll"))
    first = (affine.simplify(E.substitute(i, at), {}) for i in store.indices)
    asked: Stmt = Prefetch(result.name, tuple(first))
    for x in reversed(lines):
        asked = replace(x, body=asked)
    return asked


def _at(copy: Store, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Where an element of the buffer is copied to."""
    assert isinstance(copy.value, Load)
    of = {v.name: i for v, i in zip(copy.value.indices, indices, strict=True) if isinstance(v, Var)}
    return tuple(E.substitute(i, of) for i in copy.indices)


def _is_copy(b: Buffer, loops: list[Loop], copy: Store) -> bool:
    """Whether a store in ``loops`` copies every element of a buffer once, each to a place of its own."""
    if not isinstance(copy.value, Load):
        return False
    extents = {x.var: const(x.extent) for x in loops}
    for v, n in zip(copy.value.indices, b.shape, strict=True):
        whole = isinstance(v, Var) and extents.pop(v.name, None) == const(n)
        if not whole and not (v == Const(0) and n == Const(1)):
            return False
    moving = {x.var for x in loops}
    for i in copy.indices:
        own = moving & E.variables(i)
        if any(isinstance(x, Select) or _is_cut(x) for x in E.walk(i)):
            return False
        if len(own) > 1 or any(affine.linear(i)[0].get(Var(v)) != Const(1) for v in own):
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
