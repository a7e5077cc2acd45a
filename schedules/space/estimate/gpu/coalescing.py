"""How many sectors of global memory a warp touches in a request: an estimate of what `schedules.ir.warps`
counts.

Threads of a warp and lanes of a vector access side by side. How their places differ is told by moves: a step,
in elements, and how many places it leads to. Moves of the smallest steps fill sectors; larger ones lead to
other sectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from schedules import affine
from schedules import expr as E
from schedules.expr import Const, Expr, Var
from schedules.ir import Block, Loop
from schedules.ir.nest import bound
from schedules.ir.nodes import Buffer
from schedules.ir.warps import SECTOR
from schedules.space.estimate.counting import Number, number, product
from schedules.space.estimate.gpu.rates import WARP
from schedules.space.holes import Columns

ONE, TWO = Const(1), Const(2)
AXES = ("threadIdx.x", "threadIdx.y", "threadIdx.z")  # in the order in which threads are numbered


@dataclass(frozen=True, slots=True)
class Move:
    """Places ``step`` elements apart, ``times`` of them."""

    step: Expr
    times: Expr


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """What the threads of a warp, with the lanes of their vectors, access at once. ``first``: the place of
    the first thread in the first request. ``moves``: how their places differ. ``others``: by how much
    requests lie apart. ``together``: accesses that are one request."""

    first: Expr
    moves: tuple[Move, ...]
    others: tuple[Move, ...]
    together: Expr


def request(b: Block, buffer: Buffer, indices: Sequence[Expr], loops: Sequence[Loop]) -> MemoryRequest:
    """The request of an access to a row-major buffer. ``loops``: those around the block, outermost first."""
    place: Expr = Const(0)
    for index, extent in zip(indices, buffer.shape, strict=True):
        place = place * extent + bound(b, index)
    side: dict[str, Expr] = {}
    room: Expr = Const(WARP)
    for axis in AXES:
        for x in loops:
            if x.kind == axis:
                side[x.var] = E.minimum(x.extent, room)
                room = E.maximum(ONE, room // x.extent)
    used = E.variables(place)
    side |= {x.var: x.extent for x in loops if x.kind == "vectorize" and x.var in used}
    terms, const = affine.linear(place)
    extents: dict[Expr, Expr] = {Var(x.var): x.extent for x in loops}
    others = [Move(c, extents.get(atom, TWO)) for atom, c in terms.items() if not _varies(atom, side)]
    for var, n in side.items():  # the block's other warps
        if (c := terms.get(Var(var))) is not None and n != extents[Var(var)]:
            others.append(Move(c * n, E.ceildiv(extents[Var(var)], n)))
    return MemoryRequest(const, tuple(_moves(place, side)), tuple(others), product(list(side.values())))


def _moves(e: Expr, side: Mapping[str, Expr]) -> list[Move]:
    terms, _ = affine.linear(e)
    return [
        Move(c * m.step, m.times)
        for atom, c in terms.items()
        if _varies(atom, side)
        for m in _of_atom(atom, side)
    ]


def _varies(e: Expr, side: Mapping[str, Expr]) -> bool:
    return bool(E.variables(e) & side.keys())


def _of_atom(e: Expr, side: Mapping[str, Expr]) -> list[Move]:
    if isinstance(e, Var):
        return [Move(ONE, side[e.name])]
    if isinstance(e, E.Binary) and e.op in ("//", "%") and affine.is_scalar(e.b):
        change = _divided if e.op == "//" else _wrapped
        return [change(Move(_size(m.step), m.times), e.b) for m in _moves(e.a, side)]
    if isinstance(e, E.Binary) and e.op in ("min", "max"):
        return [*_moves(e.a, side), *_moves(e.b, side)]
    if isinstance(e, E.Select):
        return _moves(e.a, side) or _moves(e.b, side)
    return [Move(Const(SECTOR), product([side[v] for v in sorted(E.variables(e) & side.keys())]))]  # data


def _divided(m: Move, by: Expr) -> Move:
    reached = E.maximum(ONE, (m.step * m.times + by - 1) // by)
    return Move(E.maximum(ONE, m.step // by), E.minimum(m.times, reached))


def _wrapped(m: Move, by: Expr) -> Move:
    if m.step == Const(0):
        return m
    if isinstance(m.step, Const) and isinstance(by, Const):
        step = m.step.value % by.value
        if not step:
            return Move(Const(0), ONE)
        if m.step.value > by.value:
            return Move(Const(step), m.times)
    return Move(m.step, E.minimum(m.times, E.maximum(ONE, by // m.step)))


def _size(e: Expr) -> Expr:
    return Const(abs(e.value)) if isinstance(e, Const) else e


def sectors(r: MemoryRequest, item: int, env: Columns) -> tuple[Number, Number]:
    """(sectors that a request touches, those that its bytes would fill), of elements of ``item`` bytes."""
    begins = _Begins(item)
    begins.first = number(r.first, env) * item
    for m in (*r.moves, *r.others):
        step, times = number(m.step, env) * item, number(m.times, env)
        begins.first = begins.first + np.minimum(step, 0.0) * (times - 1.0)  # backwards
    for m in r.others:
        begins.add(*_bytes(m, item, env))
    near: Number = np.float64(item)  # bytes that lie together
    reach: Number = np.float64(item)  # bytes from the first to the last
    pieces = different = np.ones(())
    before: Number = np.zeros(())
    unit: Number = np.zeros(())
    for step, times in _sorted([_bytes(m, item, env) for m in r.moves]):
        more = times - 1.0
        again = (step == before) & (step > 0)  # as the last move: places coincide
        fills = step <= np.maximum(near, SECTOR)
        near = np.where(fills, near + step * more, near)
        pieces = np.where(fills, pieces, np.where(again, pieces + more, pieces * times))
        different = np.where(again, different + more, different * times)
        begins.add(np.where(fills, 0.0, step), times)
        reach = reach + step * more
        odd = np.where(step % np.maximum(unit, 1.0) == 0, unit, float(item))
        unit = np.where(times > 1, np.where(unit == 0, step, odd), unit)
        before = step
    different = np.minimum(different, (reach - item) / np.maximum(unit, 1.0) + 1)
    least = np.ceil(different * item / SECTOR)
    touched = np.minimum(pieces * begins.sectors(near), begins.sectors(reach))
    return np.maximum(touched, least), least


def is_aligned(r: MemoryRequest, lanes: Number, env: Columns) -> Number:
    """Whether vectors of so many elements begin at multiples of their length in every request, as far as the
    loops tell that the threads of a warp do not share: otherwise each lane is accessed alone."""
    ok: Number = number(r.first, env) % lanes == 0
    for m in r.others:
        ok = ok & ((number(m.step, env) % lanes == 0) | (number(m.times, env) <= 1))
    return ok


def _bytes(m: Move, item: int, env: Columns) -> tuple[Number, Number]:
    """(step, times) of a move, in whatever direction it goes."""
    return np.abs(number(m.step, env)) * item, number(m.times, env)


class _Begins:
    """Where requests and their pieces begin: ``first``, and multiples of ``align`` bytes after it in a
    sector, up to ``last``. All are multiples of an element's bytes, ``item``."""

    def __init__(self, item: int) -> None:
        self.levels = [n for n in (16.0, 8.0, 4.0, 2.0, 1.0) if n >= item]
        self.align: Number = np.float64(SECTOR)
        self.first: Number = np.float64(0)
        self.last: Number = np.float64(0)

    def add(self, step: Number, times: Number) -> None:
        """They also begin ``step`` bytes later, ``times`` places in all."""
        if _known(step) and step % SECTOR == 0:
            return
        align: Number = np.float64(SECTOR)
        for n in self.levels:
            align = np.where(step % align == 0, align, n)
        self.align = np.where(times > 1, np.minimum(self.align, align), self.align)
        self.last = self.last + step % SECTOR * (times - 1.0)

    def sectors(self, size: Number) -> Number:
        """Sectors that ``size`` bytes touch, on average over these places."""
        first = self.first % SECTOR
        everywhere = first + self.last >= SECTOR
        first, last = np.where(everywhere, 0.0, first), np.where(everywhere, SECTOR - self.align, self.last)
        over = (size - 1) % SECTOR  # beginning this far before a sector's end, they touch another one
        places = np.floor(last / self.align) + 1
        late = np.clip(np.floor((first + last + over - SECTOR) / self.align) + 1, 0.0, places)
        return np.floor((size - 1) / SECTOR) + 1 + late / places


def _known(x: Number) -> bool:
    """Whether it is the same in every row."""
    return isinstance(x, (np.floating, np.ndarray)) and x.ndim == 0


def _sorted(moves: list[tuple[Number, Number]]) -> list[tuple[Number, Number]]:
    """By steps, the smallest first; where holes decide these, each row on its own."""
    if all(_known(step) for step, _ in moves):
        return sorted(moves, key=lambda m: float(m[0]))
    found = list(moves)
    for end in range(len(found) - 1, 0, -1):
        for n in range(end):
            (a, s), (b, t) = found[n], found[n + 1]
            swap = a > b
            found[n] = np.where(swap, b, a), np.where(swap, t, s)
            found[n + 1] = np.where(swap, a, b), np.where(swap, s, t)
    return found
