"""Copies to shared memory in the background: what a thread stores there from global memory it begins as a
`Copy`, and goes on.

``S[i] = G[j]`` is such a copy, ``S[i] = select(c, G[j], 0)`` one that writes zeros where ``c`` does not hold.
4, 8 or 16 neighbouring bytes are copied at a time, which lie at a multiple of their number on either side
(PTX ISA, "cp.async"). What is computed on the way, or lies otherwise, cannot be copied so.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Const, Expr, Load, Select
from schedules.ir import Buffer, Copy, Guard, Loop, Nest, Seq, Stmt, Store, blocks, const, seq, walk
from schedules.ir.exprs import beside, loads, substitute
from schedules.ir.nest import is_scatter
from schedules.ir.strides import known_extents, known_strides
from schedules.passes.expand_blocks import is_apart
from schedules.passes.simplify import Ranges, inside

# Bytes of a copy.
WIDTHS = (16, 8, 4)


def in_background(nest: Nest) -> frozenset[str]:
    """The buffers that blocks with the hint ``async`` write, each element in one place."""
    return frozenset(
        b.writes[0].buffer
        for b in blocks(nest.body)
        if ("async", 1) in b.annotations
        and (b.reducer is None and len(b.writes) == 1 and not is_scatter(b))
        and all(is_apart(b, i.var) for i in b.iters)
    )


@dataclass(frozen=True)
class CopyArrays:
    """What copies are made of and to. ``background``: shared buffers that may be copied to. ``lies``: how
    the elements of each global and shared buffer lie, by its name."""

    background: Collection[str]
    lies: Mapping[str, Buffer]

    def place(self, x: Store | Load) -> Expr:
        """Elements from the first of a buffer to one of it."""
        return affine.offset(x.indices, known_strides(self.lies[x.buffer]))


@dataclass(frozen=True)
class _Around:
    """What stands around a statement: ranges of variables, and conditions that are not written yet.
    ``alone``: there is no other store to its buffer, so that what a condition leaves out may be 0."""

    arrays: CopyArrays
    ranges: Ranges
    alone: bool
    conds: tuple[Expr, ...] = ()

    def under(self, cond: Expr) -> _Around:
        return replace(self, conds=(*self.conds, *E.conjuncts(cond)))

    def at(self, env: dict[str, Expr]) -> _Around:
        return replace(self, conds=tuple(E.substitute(c, env) for c in self.conds))


def begun(s: Stmt, arrays: CopyArrays, ranges: Ranges) -> Stmt | None:
    """``s``, all of whose stores copy to shared memory, with these begun in the background; None for other
    statements. ``ranges``: of the variables around it."""
    every = walk(s)
    stores = [x for x in every if isinstance(x, Store)]
    if not stores or any(x.buffer not in arrays.background for x in stores):
        return None
    if not all(isinstance(x, (Store, Seq, Loop, Guard)) for x in every):
        return None
    read = {arrays.lies[x.buffer].scope for y in every for x in loads(y)}
    if read != {"global"} or any(arrays.lies[x.buffer].scope != "shared" for x in stores):
        return None
    return _begun(s, _Around(arrays, ranges, len(stores) == 1))


def _begun(s: Stmt, around: _Around) -> Stmt | None:
    match s:
        case Seq(stmts=xs):
            return _all([_begun(x, around) for x in xs])
        case Guard(cond=c, body=b):
            return _begun(b, around.under(c))
        case Loop(kind="vectorize"):
            return _vectors(s, around)
        case Loop(body=b):
            body = _begun(b, replace(around, ranges=inside(s, around.ranges)))
            return None if body is None else replace(s, body=body)
        case Store():
            return _copy(s, around, 1)
    return None


def _all(parts: Sequence[Stmt | None]) -> Stmt | None:
    found = [x for x in parts if x is not None]
    return seq(*found) if len(found) == len(parts) else None


def _vectors(s: Loop, around: _Around) -> Stmt | None:
    """A loop over lanes as the widest copies that it allows."""
    store = s.body
    while isinstance(store, Guard):
        around, store = around.under(store.cond), store.body
    n = const(s.extent)
    if not isinstance(store, Store) or n is None:
        return None
    value, asked = _chosen(store.value)
    size = DTYPES[around.arrays.lies[store.buffer].dtype].itemsize
    within = replace(around, ranges=inside(s, around.ranges))
    for width in (w // size for w in WIDTHS if w >= size):
        if n % width or not all(_is_vector(x, s.var, width, within) for x in (store, value)):
            continue
        if all(affine.is_uniform(c, s.var, width, within.ranges) for c in (*around.conds, *asked)):
            lanes: list[dict[str, Expr]] = [{s.var: Const(first)} for first in range(0, n, width)]
            # the same statement again, at other places
            return _all([_copy(substitute(store, x), around.at(x), width) for x in lanes])  # type: ignore[arg-type]
    return None


def _is_vector(x: Store | Expr, var: str, width: int, around: _Around) -> bool:
    """Whether the lanes of every vector lie side by side, from a multiple of their number on."""
    if width == 1 or not isinstance(x, (Store, Load)):
        return width == 1
    at = affine.simplify(around.arrays.place(x), around.ranges)
    step, rest = affine.isolate(at, var)
    return step == Const(1) and var not in E.variables(rest) and affine.multiple(rest) % width == 0


def _copy(s: Store, around: _Around, count: int) -> Stmt | None:
    """A store, and those of its neighbours, as a copy."""
    value, asked = _chosen(s.value)
    to = around.arrays.lies[s.buffer]
    if not isinstance(value, Load) or count * DTYPES[to.dtype].itemsize not in WIDTHS:
        return None
    last = beside(s.indices, count - 1)
    fits = all(_within(i, n, around.ranges) for i, n in zip(last, known_extents(to), strict=True))
    if around.alone and fits:
        return Copy(s.buffer, s.indices, value, count, E.all_of(*around.conds, *asked))
    copy = Copy(s.buffer, s.indices, value, count, E.all_of(*asked))
    return Guard(E.all_of(*around.conds), copy) if around.conds else copy


def _chosen(e: Expr) -> tuple[Expr, list[Expr]]:
    """(what an expression chooses, conditions without which it is 0 instead)."""
    match e:
        case Select(cond=c, a=a, b=Const() as b) if _is_zero(b):
            value, more = _chosen(a)
            return value, [*E.conjuncts(c), *more]
        case Select(cond=c, a=Const() as a, b=b) if _is_zero(a):
            value, more = _chosen(b)
            return value, [E.Logic("not", (c,)), *more]
    return e, []


def _is_zero(e: Const) -> bool:
    return e.value == 0 and math.copysign(1, e.value) > 0


def _within(index: Expr, extent: int, ranges: Ranges) -> bool:
    span = affine.bounds(affine.simplify(index, ranges), ranges)
    return span is not None and span[0] >= 0 and span[1] < extent
