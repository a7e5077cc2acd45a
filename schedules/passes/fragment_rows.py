"""Rows of fragments: numbers of which a warp has one for each row, and reductions along rows.

``r[i]`` beside ``S[i, j]`` in a statement lies as ``S`` lies along ``i``: lanes that have different columns of
a row have the same ``r[i]``. A reduction along ``j`` is done by each lane over its own columns, then by the
lanes that have the others of the row, which are neighbours, together.

Source: PTX ISA, "Matrix Fragments for mma.m16n8k16": 4 neighbouring lanes have a row of the sums.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from schedules import expr as E
from schedules.expr import Binary, Const, Expr, Load
from schedules.ir import Alloc, AllReduce, Buffer, Guard, Loop, Stmt, Store, seq, walk, with_body
from schedules.ir.exprs import accesses
from schedules.layouts import LANES, Layout
from schedules.passes.cross_thread import OPS, identity

Told = tuple[Layout, str]  # a layout, and the instruction that it is of


def layouts_of_rows(s: Stmt, told: Mapping[str, Told], fragments: Collection[str]) -> dict[str, Told]:
    """The layouts of all ``fragments``: those that are ``told``, and those of others, as far as statements
    that use both say what they are."""
    out = dict(told)
    stores = [x for x in walk(s) if isinstance(x, Store)]
    before = -1
    while before != len(out):
        before = len(out)
        for x in stores:
            used = [(a.buffer, a.indices) for a in accesses(x) if a.buffer in fragments]
            for name, indices in used:
                if name in out:
                    continue
                along = ((_projected(out[f][0], ix, indices), f) for f, ix in used if f in out)
                found = next(((layout, out[f][1]) for layout, f in along if layout is not None), None)
                if found is not None:
                    out[name] = found
    return out


def _projected(layout: Layout, have: tuple[Expr, ...], want: tuple[Expr, ...]) -> Layout | None:
    """The layout of a fragment at ``want``, beside one at ``have``: its bits along the dimensions that move
    as those of the other. None if one moves otherwise."""
    moving = {d: E.variables(i) for d, i in enumerate(want) if E.variables(i)}
    at = {p: d for d, v in moving.items() for p, i in enumerate(have) if E.variables(i) == v}
    if set(at.values()) != set(moving) or not moving:
        return None
    lanes = tuple(None if x is None or x[0] not in at else (at[x[0]], x[1]) for x in layout.lanes)
    return Layout(lanes, tuple((at[d], b) for d, b in layout.registers if d in at))


@dataclass(frozen=True)
class RowReduction:
    """``store`` in a loop, ``r[i] = op(r[i], value)``, along which ``r`` stands still. ``loops``: the
    variables of that loop and those in it."""

    store: Store
    op: str
    value: Expr
    loops: tuple[str, ...]

    @staticmethod
    def of(s: Loop, held: Collection[str]) -> RowReduction | None:
        """The reduction that a loop is; None if it is none. ``held``: fragments."""
        loops: list[str] = []
        x: Stmt = s
        while isinstance(x, (Loop, Guard)):
            loops += [x.var] if isinstance(x, Loop) else []
            x = x.body
        if not isinstance(x, Store) or x.buffer not in held or not isinstance(x.value, Binary):
            return None
        if any(not E.variables(i).isdisjoint(loops) for i in x.indices) or x.value.op not in OPS:
            return None
        here = Load(x.buffer, x.indices, E.dtype_of(x.value))
        a, b = x.value.a, x.value.b
        other = b if a == here else a if b == here else None
        if other is None or any(y.buffer == x.buffer for y in E.loads(other)):
            return None
        return RowReduction(x, x.value.op, other, tuple(loops))

    @property
    def dtype(self) -> str:
        return E.dtype_of(self.store.value)

    def own(self, s: Stmt, part: str) -> Stmt:
        """The loop, with what a lane reduces by itself in ``part``."""
        if s is self.store:
            return Store(part, (), Binary(self.op, Load(part, (), self.dtype), self.value), True)
        return with_body(s, lambda x: self.own(x, part))

    def together(self, own: Stmt, part: str, indices: tuple[Expr, ...], lane: str, near: int) -> Stmt:
        """What a lane reduces by itself, ``own``, and then with its neighbours."""
        dtype = self.dtype
        first = Store(part, (), Const(identity(self.op, dtype), dtype))
        last = AllReduce(self.store.buffer, indices, self.op, Load(part, (), dtype), lane, LANES, near)
        return Alloc(Buffer(part, (), dtype, "local"), seq(first, own, last))
