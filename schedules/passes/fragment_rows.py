"""Rows of fragments: numbers of which a warp has one for each row, and reductions along rows.

``r[i]`` beside ``S[i, j]`` in a statement lies as ``S`` lies along ``i``: lanes that have different columns
of a row have the same ``r[i]``. A reduction along ``j`` is done by each lane over its own columns, then by
the lanes that have the others of the row, which are neighbours, together.

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
    """Nested ``loops``, outermost first, around ``store``, ``r[i] = op(r[i], value)``, along which ``r``
    stands still."""

    loops: tuple[Loop, ...]
    store: Store
    op: str
    value: Expr

    @staticmethod
    def of(s: Loop, held: Collection[str]) -> RowReduction | None:
        """The reduction that a loop is; None if it is none. ``held``: fragments."""
        loops: list[Loop] = []
        x: Stmt = s
        while isinstance(x, (Loop, Guard)):
            loops += [x] if isinstance(x, Loop) else []
            x = x.body
        if not isinstance(x, Store) or x.buffer not in held or not isinstance(x.value, Binary):
            return None
        moving = frozenset().union(*map(E.variables, x.indices))
        if x.value.op not in OPS or not moving.isdisjoint(y.var for y in loops):
            return None
        here = Load(x.buffer, x.indices, E.dtype_of(x.value))
        a, b = x.value.a, x.value.b
        other = b if a == here else a if b == here else None
        if other is None or any(y.buffer == x.buffer for y in E.loads(other)):
            return None
        return RowReduction(tuple(loops), x, x.value.op, other)

    @property
    def part(self) -> Buffer:
        """What a lane reduces by itself."""
        return Buffer(f"{self.loops[0].var}_part", (), E.dtype_of(self.store.value), "local")

    @property
    def own(self) -> Loop:
        """The loops of a lane by itself."""
        part = self.part

        def f(s: Stmt) -> Stmt:
            if s is self.store:
                value = Binary(self.op, Load(part.name, (), part.dtype), self.value)
                return Store(part.name, (), value, True)
            return with_body(s, f)

        out = f(self.loops[0])
        assert isinstance(out, Loop)
        return out

    def together(self, own: Stmt, indices: tuple[Expr, ...], lane: str, near: int) -> Stmt:
        """What lanes do by themselves, ``own``, and then ``near`` neighbours together."""
        part = self.part
        first = Store(part.name, (), Const(identity(self.op, part.dtype), part.dtype))
        value = Load(part.name, (), part.dtype)
        last = AllReduce(self.store.buffer, indices, self.op, value, lane, LANES, near)
        return Alloc(part, seq(first, own, last))
