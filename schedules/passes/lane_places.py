"""Where a lane of a warp has an element of a fragment: in which of its registers.

An index of a fragment is a sum of loops' variables. A variable whose values lie within a tile is split into
parts, each of which is bits of the lane's number, or a loop over registers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from schedules import affine
from schedules import expr as E
from schedules.errors import ScheduleError
from schedules.expr import Const, Expr, Var
from schedules.ir import Buffer, Loop, Operand, Store, const
from schedules.ir.strides import known_strides
from schedules.layouts import LANES, Layout
from schedules.passes.simplify import Ranges

Indices = tuple[Expr, ...]
Source = tuple[str, int] | int  # of a bit of the lane's number: a bit of a loop's variable, or its value


@dataclass(frozen=True)
class Fragment:
    """A fragment and its layout. ``told``: the instruction that it is that of."""

    buffer: Buffer
    layout: Layout
    told: str

    def tile(self, d: int) -> int:
        """Elements of a tile along a dimension."""
        return 1 << self.layout.bits(d)

    @property
    def registers(self) -> Buffer:
        """What a lane has of it: for each tile its elements of that."""
        tiles = (-(-(const(n) or 0) // self.tile(d)) for d, n in enumerate(self.buffer.shape))
        shape = tuple(Const(n) for n in (*tiles, self.layout.size))
        return Buffer(self.buffer.name, shape, self.buffer.dtype, "local")


@dataclass(frozen=True)
class LanePart:
    """A part of the value of a loop's variable, ``bits`` from its bit ``first`` on: ``weight`` times
    ``value``. ``lane``: the first bit of the lane's number that it is; None: it is a loop's."""

    weight: int
    value: Expr
    bits: int = 1
    lane: int | None = None
    first: int = 0

    @property
    def lanes(self) -> list[int | None]:
        """The bit of the lane's number that each of its bits is."""
        return [None if self.lane is None else self.lane + n for n in range(self.bits)]


@dataclass(frozen=True)
class LaneSplit:
    """A loop's variable in parts, which add up to ``shift`` more than it."""

    parts: tuple[LanePart, ...]
    shift: int = 0

    @property
    def value(self) -> Expr:
        out: Expr = Const(-self.shift)
        for p in self.parts:
            out = out + p.value * p.weight
        return out


@dataclass(frozen=True)
class LaneScope:
    """What is known at a statement. ``lane``: the variable that is the lane's number. ``layouts``: {fragment:
    (the layout of its tiles, the instruction that says so)}. ``held``: the fragments around, ``buffers``: all
    that are; ``split``: the loops around that were. ``own``: {local array: loops around it}, for which a lane
    has one of its own."""

    lane: str
    layouts: Mapping[str, tuple[Layout, str]]
    held: Mapping[str, Fragment] = field(default_factory=dict)
    buffers: Mapping[str, Buffer] = field(default_factory=dict)
    split: Mapping[str, LaneSplit] = field(default_factory=dict)
    ranges: Ranges = field(default_factory=dict)
    own: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, Expr]:
        """{variable of a loop that is split: its value}."""
        return {v: x.value for v, x in self.split.items()}

    def with_local(self, b: Buffer, loops: Iterable[str]) -> LaneScope:
        """Inside of a local array that a lane has for each iteration of ``loops``."""
        own = {**self.own, b.name: frozenset(loops)}
        return replace(self, buffers={**self.buffers, b.name: b}, own=own)


@dataclass
class LanePlace:
    """Where a lane has an element. ``lanes``: what each bit of the number of that lane is."""

    indices: Indices
    lanes: dict[int, Source]


def dimensions(o: Operand, b: Buffer) -> tuple[int, ...]:
    """The dimension of a buffer that each dimension of an operand is."""
    steps = known_strides(b)
    found = []
    for step in o.strides:
        at = [d for d, n in enumerate(steps) if n == step and b.shape[d] != Const(1)]
        if not at:
            raise ScheduleError(
                f"operand {o.name} in {b.name}: neighbours are {step} elements apart, and no dimension of "
                f"{b.name} is; cut no dimension within a tile of the instruction"
            )
        found.append(at[0])
    return tuple(found)


def parts(lane: str, var: str, roles: list[int | None], rest: int) -> tuple[list[Loop], list[LanePart]]:
    """The loops, outermost first, and the parts of a variable, the least first. ``rest``: iterations over
    whole tiles."""
    loops: list[Loop] = []
    parts: list[LanePart] = []
    empty = Store("", (), Const(0))
    for b, q in enumerate(roles):
        last = parts[-1] if parts else None
        if q is None:
            loops.append(Loop(f"{var}_{b}", Const(2), empty))
            parts.append(LanePart(1 << b, Var(f"{var}_{b}")))
        elif last is not None and last.lane is not None and last.lane + last.bits == q:
            n = last.bits + 1
            parts[-1] = replace(last, bits=n, value=bits_of_lane(lane, last.lane, n))
        else:
            parts.append(LanePart(1 << b, bits_of_lane(lane, q, 1), 1, q, b))
    if rest > 1:
        loops.append(Loop(var, Const(rest), empty))
        parts.append(LanePart(1 << len(roles), Var(var)))
    return loops[::-1], parts


def bits_of_lane(lane: str, first: int, count: int) -> Expr:
    """Some bits of the lane's number."""
    e: Expr = Var(lane)
    if first:
        e = e // (1 << first)
    return e if 1 << first + count == LANES else e % (1 << count)


def place(f: Fragment, indices: Indices, at: LaneScope, own: Layout | None = None) -> LanePlace:
    """Where an element lies. ``own``: the layout of an operand that begins there, which is in all lanes."""
    tiles: list[Expr] = []
    register: Expr = Const(0)
    lanes: dict[int, Source] = {}
    for d, i in enumerate(indices):
        parts, first = pieces(f, i, at)
        tile, taken = f.tile(d), set[int]()
        whole: Expr = Const(first // tile)
        for p, source in parts:
            if p.weight % tile == 0:
                whole = whole + p.value * (p.weight // tile)
                continue
            low = p.weight.bit_length() - 1
            bits = {*range(low, low + p.bits)}
            if taken & bits or 1 << low != p.weight or max(bits) >= f.layout.bits(d):
                raise apart(f, indices, "loops overlap within a tile of it")
            taken |= bits
            if [lane_of(f.layout, d, b) for b in sorted(bits)] != p.lanes:
                raise apart(f, indices, "another lane has what is computed with it")
            if p.lane is None:
                register = register + p.value * (1 << register_of(f.layout, d, low))
            else:
                lanes |= {p.lane + n: (source, p.first + n) for n in range(p.bits)}
        for b in range(f.layout.bits(d)):
            value, q = first % tile >> b & 1, lane_of(f.layout, d, b)
            if value and (b in taken or (own is not None and own.has(d, b))):
                raise apart(f, indices, "it begins in the middle of a tile")
            if b in taken or (own is not None and own.has(d, b)):
                continue
            if q is None:
                register = register + (value << register_of(f.layout, d, b))
            else:
                lanes[q] = value
        tiles.append(affine.simplify(whole, at.ranges))
    return LanePlace((*tiles, affine.simplify(register, at.ranges)), lanes)


def pieces(f: Fragment, index: Expr, at: LaneScope) -> tuple[list[tuple[LanePart, str]], int]:
    """(the parts that add up to an index, each with the variable that it is of; a number to add)."""
    terms, rest = affine.linear(index)
    first = const(rest)
    out: list[tuple[LanePart, str]] = []
    for atom, c in terms.items():
        step = const(c)
        if step is None or first is None:
            break
        split = at.split.get(atom.name) if isinstance(atom, Var) else None
        if split is None:
            out.append((LanePart(step, atom), ""))
            continue
        first -= step * split.shift
        out += [(replace(p, weight=p.weight * step), E.show(atom)) for p in split.parts]
    else:
        if first is not None:
            return out, first
    raise apart(f, (index,), "where it lies is no sum of loops")


def apart(f: Fragment, indices: Indices, why: str) -> ScheduleError:
    at = ", ".join(map(E.show, indices))
    tile = " by ".join(str(f.tile(d)) for d in range(len(f.buffer.shape)))
    return ScheduleError(
        f"fragment {f.buffer.name} at [{at}]: {why}; its tiles of {tile} are in the lanes of a warp as "
        f"{f.told} has them: let loops go over whole tiles, each element by itself"
    )


def lane_of(layout: Layout, dimension: int, bit: int) -> int | None:
    """The bit of the lane's number that a bit of an index is; None: it is one of a register's."""
    return layout.lanes.index((dimension, bit)) if (dimension, bit) in layout.lanes else None


def register_of(layout: Layout, dimension: int, bit: int) -> int:
    return layout.registers.index((dimension, bit))
