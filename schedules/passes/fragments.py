"""Makes of a fragment, which a warp has in its registers together, the registers of one lane.

A fragment is a tile for each warp. Instructions say which lane has which element (`schedules.layouts`). What
stands elementwise over a fragment becomes the work of one lane: of the bits of a loop's variable some are
bits of the lane's number, for which no loop is needed, and some of a register's, which are unrolled loops. A
loop whose end is not that of a tile gets a condition.

What is behind this pass sees local arrays of one lane, and instructions in a loop over the lanes of a warp,
``threadIdx.x``. An operand of these begins where the lane's own elements do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.errors import ScheduleError
from schedules.expr import Const, Expr, Load, Var
from schedules.ir import (
    Access,
    Alloc,
    Buffer,
    Guard,
    Intrinsic,
    Loop,
    Operand,
    Stmt,
    Store,
    bound_to,
    const,
    kids,
    walk,
    with_body,
)
from schedules.ir.exprs import accesses, expressions, substitute
from schedules.ir.nest import numbered
from schedules.ir.strides import known_strides
from schedules.layouts import LANES, Layout
from schedules.passes.simplify import Ranges, inside, loop_range

Indices = tuple[Expr, ...]
Source = tuple[str, int] | int  # of a bit of the lane's number: a bit of a loop's variable, or its value


def fragments(s: Stmt, ranges: Ranges) -> Stmt:
    """The body of a kernel with its fragments as registers of one lane. ``ranges``: of the variables around.
    Raises ScheduleError for what lanes cannot do each for itself."""
    names = frozenset(x.buffer.name for x in walk(s) if isinstance(x, Alloc) and is_fragment(x.buffer))
    if not names:
        return s
    lane = numbered("lane", {x.var for x in walk(s) if isinstance(x, Loop)})
    out = _Lanes(lane, _layouts(s)).stmt(s, _Scope(ranges=ranges))
    return _with_lanes(out, lane, names)


def is_fragment(b: Buffer) -> bool:
    """Whether a warp has the buffer in its registers."""
    return b.scope == "fragment"


def _layouts(s: Stmt) -> dict[str, tuple[Layout, str]]:
    """{fragment: (the layout of its tiles, the instruction that says so)}: the largest tile that any
    instruction has, of which those of others are parts."""
    out: dict[str, tuple[Layout, str]] = {}

    def go(x: Stmt, buffers: Mapping[str, Buffer]) -> None:
        if isinstance(x, Alloc):
            buffers = {**buffers, x.buffer.name: x.buffer}
        if not isinstance(x, Intrinsic):
            for k in kids(x):
                go(k, buffers)
            return
        for o in x.operands:
            b, ins = buffers.get(o.buffer), x.instruction
            if b is None or not is_fragment(b):
                continue
            new = ins.layouts[o.name].along(_dimensions(o, b))
            old, first = out.get(b.name, (new, ins.name))
            if old.begins(new):
                out[b.name] = new, ins.name
            elif not new.begins(old):
                raise ScheduleError(
                    f"fragment {b.name}: {first} and {ins.name} have its elements in different lanes; copy it "
                    "for one of them through shared memory"
                )

    go(s, {})
    return out


def _dimensions(o: Operand, b: Buffer) -> tuple[int, ...]:
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


@dataclass(frozen=True)
class _Fragment:
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
class _Part:
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
class _Split:
    """A loop's variable in parts, which add up to ``shift`` more than it."""

    parts: tuple[_Part, ...]
    shift: int = 0

    @property
    def value(self) -> Expr:
        out: Expr = Const(-self.shift)
        for p in self.parts:
            out = out + p.value * p.weight
        return out


@dataclass(frozen=True)
class _Scope:
    """What is known at a statement: fragments and other buffers around it, loops that were split."""

    held: Mapping[str, _Fragment] = field(default_factory=dict)
    buffers: Mapping[str, Buffer] = field(default_factory=dict)
    split: Mapping[str, _Split] = field(default_factory=dict)
    ranges: Ranges = field(default_factory=dict)


@dataclass
class _Place:
    """Where a lane has an element. ``lanes``: what each bit of the number of that lane is."""

    indices: Indices
    lanes: dict[int, Source]


class _Lanes:
    """``lane``: the variable that is the lane's number."""

    def __init__(self, lane: str, layouts: Mapping[str, tuple[Layout, str]]) -> None:
        self.lane, self.layouts = lane, layouts

    def stmt(self, s: Stmt, at: _Scope) -> Stmt:
        match s:
            case Alloc(buffer=b) if is_fragment(b):
                if b.name not in self.layouts:
                    raise ScheduleError(
                        f"fragment {b.name}: no instruction says which lane has which element; tensorize the "
                        "loops that use it, or give it the scope local"
                    )
                f = _Fragment(b, *self.layouts[b.name])
                inner = replace(at, held={**at.held, b.name: f}, buffers={**at.buffers, b.name: f.registers})
                return Alloc(f.registers, self.stmt(s.body, inner))
            case Alloc(buffer=b):
                inner = replace(at, buffers={**at.buffers, b.name: b})
                return Alloc(b, self.stmt(s.body, inner))
            case Loop() if not self.uses(s, at):
                return s if not at.split else substitute(s, {v: x.value for v, x in at.split.items()})
            case Loop() if bound_to(s, "threadIdx"):
                if s.kind == "threadIdx.x":
                    raise ScheduleError(
                        f"loop {s.var} is {s.kind} and uses a fragment; these are the lanes of a warp, which "
                        "have it together: bind a loop over warps to threadIdx.y, and none inside of it"
                    )
                return replace(s, body=self.stmt(s.body, replace(at, ranges=inside(s, at.ranges))))
            case Loop():
                return self.loop(s, at)
            case Guard(cond=c, body=b, speculative=may):
                cond, lanes = self.expr(c, at)
                if lanes:
                    raise ScheduleError(f"a condition reads a fragment: {E.show(c)}; compute it in shared memory")
                return Guard(cond, self.stmt(b, at), may)
            case Store():
                return self.store(s, at)
            case Intrinsic():
                return self.intrinsic(s, at)
        if not kids(s):
            used = [x.buffer for x in accesses(s) if x.buffer in at.held]
            if used:
                raise ScheduleError(f"fragment {used[0]}: {type(s).__name__} cannot use it; copy it out first")
            return substitute(s, {v: x.value for v, x in at.split.items()})
        return with_body(s, lambda x: self.stmt(x, at))

    def uses(self, s: Stmt, at: _Scope) -> bool:
        """Whether a statement, or one in it, uses a fragment."""
        return any(
            x.buffer in at.held for y in walk(s) for x in accesses(y)
        ) or any(isinstance(y, Alloc) and is_fragment(y.buffer) for y in walk(s))

    # -- loops ---------------------------------------------------------------------------------

    def loop(self, s: Loop, at: _Scope) -> Stmt:
        """The loop over what is no lane of its variable, in place of it."""
        roles, shift = self.roles(s, at)
        span = loop_range(s.extent, at.ranges)
        if span is None:
            raise ScheduleError(f"loop {s.var} indexes a fragment and has no known end: {E.show(s.extent)}")
        count = span[1] + 1 + shift
        if not roles:
            inner = replace(at, ranges=inside(s, at.ranges))
            kind = "unroll" if s.kind in ("serial", "vectorize") and self.indexes(s, at) else s.kind
            return replace(s, kind=kind, body=self.stmt(s.body, inner))
        loops, parts = self.parts(s.var, roles, -(-count // (1 << len(roles))))
        split = _Split(tuple(parts), shift)
        ranges = {**at.ranges, **{x.var: (0, (const(x.extent) or 1) - 1) for x in loops}}
        ranges |= {s.var: (0, count - 1 - shift), self.lane: (0, LANES - 1)}
        inner = replace(at, split={**at.split, s.var: split}, ranges=ranges)
        body = self.stmt(s.body, inner)
        conds = [E.compare("<=", Const(0), split.value)] if shift else []
        if const(s.extent) is None or (count % (1 << len(roles))):
            conds.append(E.compare("<", split.value, s.extent))
        if conds:
            body = Guard(E.all_of(*conds), body)
        for n, x in enumerate(reversed(loops)):
            lanes = n == 0 and isinstance(x.extent, Const) and parts[0].lane is None
            vector = lanes and all(isinstance(y, (Guard, Store)) for y in walk(body))
            body = replace(x, body=body, kind="vectorize" if vector else "unroll")
        return body

    def parts(self, var: str, roles: list[int | None], rest: int) -> tuple[list[Loop], list[_Part]]:
        """The loops, outermost first, and the parts of a variable, the least first. ``rest``: iterations over
        whole tiles."""
        loops: list[Loop] = []
        parts: list[_Part] = []
        empty = Store("", (), Const(0))
        for b, q in enumerate(roles):
            last = parts[-1] if parts else None
            if q is None:
                loops.append(Loop(f"{var}_{b}", Const(2), empty))
                parts.append(_Part(1 << b, Var(f"{var}_{b}")))
            elif last is not None and last.lane is not None and last.lane + last.bits == q:
                n = last.bits + 1
                parts[-1] = replace(last, bits=n, value=self.bits_of_lane(last.lane, n))
            else:
                parts.append(_Part(1 << b, self.bits_of_lane(q, 1), 1, q, b))
        if rest > 1:
            loops.append(Loop(var, Const(rest), empty))
            parts.append(_Part(1 << len(roles), Var(var)))
        return loops[::-1], parts

    def bits_of_lane(self, first: int, count: int) -> Expr:
        """Some bits of the lane's number."""
        e: Expr = Var(self.lane)
        if first:
            e = e // (1 << first)
        return e if 1 << first + count == LANES else e % (1 << count)

    def roles(self, s: Loop, at: _Scope) -> tuple[list[int | None], int]:
        """(what bits of a loop's variable are, the least first: a bit of the lane's number, None: of a
        register's; what the variable has to be shifted by to begin with a tile)."""
        told: list[tuple[list[int | None], int, str]] = []
        for f, indices in self.used(s.body, at):
            for d, i in enumerate(indices):
                terms, rest = affine.linear(i)
                for atom, c in terms.items():
                    if s.var not in E.variables(atom):
                        continue
                    step, tile = const(c) or 0, f.tile(d)
                    if atom != Var(s.var) or step < 1 or (step % tile and step & (step - 1)):
                        raise self.apart(f, indices, f"loop {s.var} moves over a tile of it unevenly")
                    if step % tile == 0:
                        continue
                    low = step.bit_length() - 1
                    roles = [_lane_of(f.layout, d, b) for b in range(low, f.layout.bits(d))]
                    shift = (const(rest) or 0) % tile if step == 1 else 0
                    told.append((roles, shift, f.buffer.name))
        if not told:
            return [], 0
        most = max((x for x, _, _ in told), key=len)
        for roles, shift, name in told:
            padded = [*roles, *[None] * (len(most) - len(roles))]
            if padded != most or shift != told[0][1]:
                raise ScheduleError(
                    f"fragments {told[0][2]} and {name} lie in different lanes along loop {s.var}; copy one "
                    "of them through shared memory"
                )
        return most, told[0][1]

    def used(self, s: Stmt, at: _Scope) -> list[tuple[_Fragment, Indices]]:
        """The fragments that a statement and those in it use, where. Of instructions, where their operands
        begin."""
        every: list[Load | Access] = list(accesses(s))
        out = [(f, x.indices) for x in every if (f := at.held.get(x.buffer))]
        if not isinstance(s, Intrinsic):
            inner = self.into(s, at)
            out += [y for k in kids(s) for y in self.used(k, inner)]
        return out

    def into(self, s: Stmt, at: _Scope) -> _Scope:
        """What is known inside of a statement that is not rewritten yet."""
        if isinstance(s, Alloc) and is_fragment(s.buffer) and s.buffer.name in self.layouts:
            f = _Fragment(s.buffer, *self.layouts[s.buffer.name])
            return replace(at, held={**at.held, s.buffer.name: f})
        return at

    def indexes(self, s: Loop, at: _Scope) -> bool:
        """Whether the variable of a loop says which registers are used."""
        return any(s.var in E.variables(i) for _, ix in self.used(s.body, at) for i in ix)

    # -- what uses elements --------------------------------------------------------------------

    def expr(self, e: Expr, at: _Scope) -> tuple[Expr, dict[int, Source]]:
        """An expression of one lane, and what the bits of the lane's number are that has its elements."""
        lanes: dict[int, Source] = {}

        def f(x: Expr) -> Expr | None:
            if isinstance(x, Load) and x.buffer in at.held:
                p = self.place(at.held[x.buffer], x.indices, at)
                self.agree(lanes, p, at.held[x.buffer], x.indices)
                return Load(x.buffer, p.indices, x.dtype)
            if isinstance(x, Var) and x.name in at.split:
                return at.split[x.name].value
            return None

        return affine.simplify(E.rewrite(e, f), at.ranges), lanes

    def store(self, s: Store, at: _Scope) -> Stmt:
        value, lanes = self.expr(s.value, at)
        if s.buffer in at.held:
            f = at.held[s.buffer]
            p = self.place(f, s.indices, at)
            self.agree(lanes, p, f, s.indices)
            indices = p.indices
        else:
            indices = tuple(self.expr(i, at)[0] for i in s.indices)
            told = frozenset().union(*map(E.variables, s.indices))
            apart = {v for x in lanes.values() if isinstance(x, tuple) for v in x[:1]} - told
            if apart:
                raise ScheduleError(
                    f"block that writes {s.buffer}: along loop {sorted(apart)[0]} the lanes of a warp would "
                    "write the same element, each from its own part of a fragment; reduce in shared memory"
                )
        out: Stmt = Store(s.buffer, indices, value, s.update)
        fixed = {q: x for q, x in lanes.items() if isinstance(x, int)}
        conds = [E.compare("==", self.bits_of_lane(q, 1), Const(x)) for q, x in sorted(fixed.items())]
        return Guard(E.all_of(*conds), out) if conds else out

    def agree(self, lanes: dict[int, Source], p: _Place, f: _Fragment, indices: Indices) -> None:
        """Note which lane has an element. Raise ScheduleError if another one has what is used with it."""
        for q, x in p.lanes.items():
            if lanes.setdefault(q, x) != x:
                raise self.apart(f, indices, "another lane has what is computed with it")

    def place(self, f: _Fragment, indices: Indices, at: _Scope, own: Layout | None = None) -> _Place:
        """Where an element lies. ``own``: the layout of an operand that begins there, which is in all lanes."""
        tiles: list[Expr] = []
        register: Expr = Const(0)
        lanes: dict[int, Source] = {}
        for d, i in enumerate(indices):
            parts, first = self.pieces(f, i, at)
            tile, taken = f.tile(d), set[int]()
            whole: Expr = Const(first // tile)
            for p, source in parts:
                if p.weight % tile == 0:
                    whole = whole + p.value * (p.weight // tile)
                    continue
                low = p.weight.bit_length() - 1
                bits = {*range(low, low + p.bits)}
                if taken & bits or 1 << low != p.weight or max(bits) >= f.layout.bits(d):
                    raise self.apart(f, indices, "loops overlap within a tile of it")
                taken |= bits
                if [_lane_of(f.layout, d, b) for b in sorted(bits)] != p.lanes:
                    raise self.apart(f, indices, "another lane has what is computed with it")
                if p.lane is None:
                    register = register + p.value * (1 << _register_of(f.layout, d, low))
                else:
                    lanes |= {p.lane + n: (source, p.first + n) for n in range(p.bits)}
            for b in range(f.layout.bits(d)):
                value, q = first % tile >> b & 1, _lane_of(f.layout, d, b)
                if value and (b in taken or (own is not None and own.has(d, b))):
                    raise self.apart(f, indices, "it begins in the middle of a tile")
                if b in taken or (own is not None and own.has(d, b)):
                    continue
                if q is None:
                    register = register + (value << _register_of(f.layout, d, b))
                else:
                    lanes[q] = value
            tiles.append(affine.simplify(whole, at.ranges))
        return _Place((*tiles, affine.simplify(register, at.ranges)), lanes)

    def pieces(self, f: _Fragment, index: Expr, at: _Scope) -> tuple[list[tuple[_Part, str]], int]:
        """(the parts that add up to an index, each with the variable that it is of; a number to add)."""
        terms, rest = affine.linear(index)
        first = const(rest)
        out: list[tuple[_Part, str]] = []
        for atom, c in terms.items():
            step = const(c)
            if step is None or first is None:
                break
            split = at.split.get(atom.name) if isinstance(atom, Var) else None
            if split is None:
                out.append((_Part(step, atom), ""))
                continue
            first -= step * split.shift
            out += [(replace(p, weight=p.weight * step), E.show(atom)) for p in split.parts]
        else:
            if first is not None:
                return out, first
        raise self.apart(f, (index,), "where it lies is no sum of loops")

    def apart(self, f: _Fragment, indices: Indices, why: str) -> ScheduleError:
        at = ", ".join(map(E.show, indices))
        tile = " by ".join(str(f.tile(d)) for d in range(len(f.buffer.shape)))
        return ScheduleError(
            f"fragment {f.buffer.name} at [{at}]: {why}; its tiles of {tile} are in the lanes of a warp as "
            f"{f.told} has them: let loops go over whole tiles, each element by itself"
        )

    # -- instructions --------------------------------------------------------------------------

    def intrinsic(self, s: Intrinsic, at: _Scope) -> Stmt:
        """The instruction with operands where each lane has its part. Its body tells what a lane reads and
        writes."""
        ins = s.instruction
        own = tuple(self.operand(s, o, at) for o in s.operands)
        here = {o.name: o for o in own}
        result, place = here[ins.result.name], f"{self.lane}_at"

        def f(e: Expr) -> Expr | None:
            if isinstance(e, Load):
                return Load(here[e.buffer].buffer, here[e.buffer].indices, e.dtype)
            return None

        indices = (*result.indices[:-1], result.indices[-1] + Var(place))
        stored = Store(result.buffer, indices, E.rewrite(ins.step.value, f), ins.step.update)
        return Intrinsic(ins, own, Loop(place, Const(ins.layouts[result.name].size), stored, "unroll"))

    def operand(self, s: Intrinsic, o: Operand, at: _Scope) -> Operand:
        """An operand as one lane has it: where its elements begin, which lie side by side."""
        layout = s.instruction.layouts[o.name]
        if o.buffer in at.held:
            f = at.held[o.buffer]
            p = self.place(f, o.indices, at, layout.along(_dimensions(o, f.buffer)))
            return Operand(o.name, o.buffer, p.indices, (1,))
        b = at.buffers.get(o.buffer)
        if b is None or b.scope != "shared" or s.instruction.result.name == o.name or o.strides[-1] != 1:
            raise ScheduleError(
                f"{s.instruction.name}: operand {o.name} is {o.buffer}, which is neither a fragment nor shared "
                'memory; cache_read it to scope "fragment" or "shared" first'
            )
        dims = _dimensions(o, b)
        indices = [self.expr(i, at)[0] for i in o.indices]
        for d, p in enumerate(dims):
            roles = [_lane_of(layout, d, b) for b in range(layout.bits(d))]
            _, parts = self.parts("", roles, 1)
            for x in parts:
                indices[p] = indices[p] + (x.value * x.weight if x.lane is not None else 0)
        ranges = {**at.ranges, self.lane: (0, LANES - 1)}
        offset = affine.simplify(affine.offset(tuple(indices), known_strides(b)), ranges)
        if affine.multiple(offset) % layout.size:
            raise ScheduleError(
                f"{s.instruction.name}: rows of {b.name} do not begin at multiples of "
                f"{layout.size * DTYPES[b.dtype].itemsize} bytes; let its rows and its padding be such multiples"
            )
        return Operand(o.name, o.buffer, tuple(affine.simplify(i, ranges) for i in indices), (1,))


def _lane_of(layout: Layout, dimension: int, bit: int) -> int | None:
    """The bit of the lane's number that a bit of an index is; None: it is one of a register's."""
    return layout.lanes.index((dimension, bit)) if (dimension, bit) in layout.lanes else None


def _register_of(layout: Layout, dimension: int, bit: int) -> int:
    return layout.registers.index((dimension, bit))


def _with_lanes(s: Stmt, lane: str, names: frozenset[str]) -> Stmt:
    """``s`` with a loop over the lanes around all that stands for one of them."""

    def own(x: Stmt) -> bool:
        return any(lane in E.variables(e) for e in expressions(x)) or any(a.buffer in names for a in accesses(x))

    def whole(x: Stmt) -> bool:
        """Whether every statement in it is that of a lane."""
        if bound_to(x, "threadIdx"):
            return False
        return own(x) if not kids(x) or isinstance(x, Intrinsic) else all(map(whole, kids(x)))

    def go(x: Stmt) -> Stmt:
        if (own(x) and not isinstance(x, Alloc)) or whole(x):
            return Loop(lane, Const(LANES), x, "threadIdx.x")
        return with_body(x, go)

    return go(s)
