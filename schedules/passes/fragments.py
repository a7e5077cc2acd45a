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
from dataclasses import replace

from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.errors import ScheduleError
from schedules.expr import Const, Expr, Load, Var
from schedules.ir import (
    Access,
    Alloc,
    AllReduce,
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
from schedules.ir.exprs import accesses, beside, expressions, substitute
from schedules.ir.nest import numbered
from schedules.ir.strides import known_strides
from schedules.layouts import LANES, Layout
from schedules.passes.fragment_rows import RowReduction, layouts_of_rows
from schedules.passes.lane_places import (
    Fragment,
    Indices,
    LanePlace,
    LaneScope,
    LaneSplit,
    Source,
    apart,
    bits_of_lane,
    dimensions,
    lane_of,
    parts,
    place,
)
from schedules.passes.simplify import Ranges, inside, loop_range


def fragments(s: Stmt, ranges: Ranges) -> Stmt:
    """The body of a kernel with its fragments as registers of one lane. ``ranges``: of the variables around.
    Raises ScheduleError for what lanes cannot do each for itself."""
    names = frozenset(x.buffer.name for x in walk(s) if isinstance(x, Alloc) and is_fragment(x.buffer))
    if not names:
        return s
    lane = numbered("lane", {x.var for x in walk(s) if isinstance(x, Loop)})
    out = _stmt(s, LaneScope(lane, layouts_of_rows(s, _layouts(s), names), ranges=ranges))
    return _with_lanes(out, lane, names)


def check_lanes(s: Stmt) -> None:
    """Raise ScheduleError where a loop over threads is to be lanes of a warp that each use a fragment."""
    names = {x.buffer.name for x in walk(s) if isinstance(x, Alloc) and is_fragment(x.buffer)}
    for x in walk(s):
        if isinstance(x, Loop) and x.kind == "threadIdx.x":
            used = sorted({a.buffer for y in walk(x) for a in accesses(y)} & names)
            if used:
                raise ScheduleError(
                    f"loop {x.var} is {x.kind} and uses fragment {used[0]}, but the lanes of a warp have "
                    "that together; bind a loop over warps to threadIdx.y, and none inside of it"
                )


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
            new = ins.layouts[o.name].along(dimensions(o, b))
            old, first = out.get(b.name, (new, ins.name))
            if old.begins(new):
                out[b.name] = new, ins.name
            elif not new.begins(old):
                raise ScheduleError(
                    f"fragment {b.name}: {first} and {ins.name} have its elements in different lanes; copy "
                    "it for one of them through shared memory"
                )

    go(s, {})
    return out


def _stmt(s: Stmt, at: LaneScope) -> Stmt:
    match s:
        case Alloc(buffer=b) if is_fragment(b):
            if b.name not in at.layouts:
                raise ScheduleError(
                    f"fragment {b.name}: no instruction says which lane has which element, nor a fragment "
                    "beside it; tensorize the loops that use it, or give it the scope local"
                )
            f = Fragment(b, *at.layouts[b.name])
            inner = replace(at, held={**at.held, b.name: f}, buffers={**at.buffers, b.name: f.registers})
            return Alloc(f.registers, _stmt(s.body, inner))
        case Alloc(buffer=b):
            return Alloc(b, _stmt(s.body, at.with_local(b, at.split if b.scope == "local" else ())))
        case Loop() if not _uses(s, at):
            return substitute(s, at.values)
        case Loop() if bound_to(s, "threadIdx"):
            return replace(s, body=_stmt(s.body, replace(at, ranges=inside(s, at.ranges))))
        case Loop():
            return _loop(replace(s, extent=_expr(s.extent, at)[0]), at)
        case Guard(cond=c, body=b, speculative=may):
            cond, lanes = _expr(c, at)
            if lanes:
                raise ScheduleError(
                    f"the condition {E.show(c)} reads a fragment; compute what it guards with select"
                )
            return Guard(cond, _stmt(b, at), may)
        case Store():
            return _store(s, at)
        case Intrinsic():
            return _intrinsic(s, at)
    if not kids(s):
        used = [x.buffer for x in accesses(s) if x.buffer in at.held]
        if used:
            raise ScheduleError(f"fragment {used[0]}: {type(s).__name__} cannot use it; copy it out first")
        return substitute(s, at.values)
    return with_body(s, lambda x: _stmt(x, at))


def _uses(s: Stmt, at: LaneScope) -> bool:
    """Whether a statement, or one in it, uses a fragment."""
    return any(x.buffer in at.held for y in walk(s) for x in accesses(y)) or any(
        isinstance(y, Alloc) and is_fragment(y.buffer) for y in walk(s)
    )


def _loop(s: Loop, at: LaneScope) -> Stmt:
    """The loop over what is no lane of its variable, in place of it."""
    rows = RowReduction.of(s, at.held)
    if rows is not None and (near := _near(rows, at)):
        return _reduced(rows, at, near)
    roles, shift = _roles(s, at)
    span = loop_range(s.extent, at.ranges)
    if span is None:
        raise ScheduleError(f"loop {s.var} indexes a fragment and has no known end: {E.show(s.extent)}")
    count = span[1] + 1 + shift
    if not roles:
        inner = replace(at, ranges=inside(s, at.ranges))
        kind = "unroll" if s.kind in ("serial", "vectorize") and _indexes(s, at) else s.kind
        return replace(s, kind=kind, body=_stmt(s.body, inner))
    loops, made = parts(at.lane, s.var, roles, -(-count // (1 << len(roles))))
    split = LaneSplit(tuple(made), shift)
    ranges = {**at.ranges, **{x.var: (0, (const(x.extent) or 1) - 1) for x in loops}}
    ranges |= {s.var: (0, count - 1 - shift), at.lane: (0, LANES - 1)}
    inner = replace(at, split={**at.split, s.var: split}, ranges=ranges)
    body = _stmt(s.body, inner)
    conds = [E.compare("<=", Const(0), split.value)] if shift else []
    if const(s.extent) is None or (count % (1 << len(roles))):
        conds.append(E.compare("<", split.value, s.extent))
    if conds:
        body = Guard(E.all_of(*conds), body)
    for n, x in enumerate(reversed(loops)):
        lanes = n == 0 and isinstance(x.extent, Const) and made[0].lane is None
        vector = lanes and all(isinstance(y, (Guard, Store)) for y in walk(body))
        body = replace(x, body=body, kind="vectorize" if vector else "unroll")
    return body


def _near(rows: RowReduction, at: LaneScope) -> int:
    """How many neighbouring lanes have what a row is reduced from; 0 if one has all."""
    bits = {q for x in rows.loops for q in _roles(x, at)[0] if q is not None}
    if bits != set(range(len(bits))):
        raise ScheduleError(
            f"block that reduces into {rows.store.buffer}: lanes that are no neighbours have parts of a row; "
            "reduce in shared memory"
        )
    return 1 << len(bits) if bits else 0


def _reduced(rows: RowReduction, at: LaneScope, near: int) -> Stmt:
    """The loops of a reduction: each lane for itself, then neighbours together."""
    f = at.held[rows.store.buffer]
    p = place(f, rows.store.indices, at)
    if any(isinstance(x, int) for x in p.lanes.values()):
        raise apart(f, rows.store.indices, "a single row is reduced")
    part = rows.part
    inner = at.with_local(part, (*at.split, *(x.var for x in rows.loops)))
    return rows.together(_loop(rows.own, inner), p.indices, at.lane, near)


def _roles(s: Loop, at: LaneScope) -> tuple[list[int | None], int]:
    """(what bits of a loop's variable are, the least first: a bit of the lane's number, None: of a
    register's; what the variable has to be shifted by to begin with a tile)."""
    told: list[tuple[list[int | None], int, str]] = []
    for f, indices in _used(s.body, at):
        for d, i in enumerate(indices):
            terms, rest = affine.linear(i)
            for atom, c in terms.items():
                if s.var not in E.variables(atom):
                    continue
                step, tile = const(c) or 0, f.tile(d)
                if atom != Var(s.var) or step < 1 or (step % tile and step & (step - 1)):
                    raise apart(f, indices, f"loop {s.var} moves over a tile of it unevenly")
                if step % tile == 0:
                    continue
                low = step.bit_length() - 1
                roles = [lane_of(f.layout, d, b) for b in range(low, f.layout.bits(d))]
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


def _used(s: Stmt, at: LaneScope) -> list[tuple[Fragment, Indices]]:
    """The fragments that a statement and those in it use, where. Of instructions, where their operands
    begin."""
    every: list[Load | Access] = list(accesses(s))
    out = [(f, x.indices) for x in every if (f := at.held.get(x.buffer))]
    if not isinstance(s, Intrinsic):
        inner = _into(s, at)
        out += [y for k in kids(s) for y in _used(k, inner)]
    return out


def _into(s: Stmt, at: LaneScope) -> LaneScope:
    """What is known inside of a statement that is not rewritten yet."""
    if isinstance(s, Alloc) and is_fragment(s.buffer) and s.buffer.name in at.layouts:
        f = Fragment(s.buffer, *at.layouts[s.buffer.name])
        return replace(at, held={**at.held, s.buffer.name: f})
    return at


def _indexes(s: Loop, at: LaneScope) -> bool:
    """Whether the variable of a loop says which registers are used."""
    return any(s.var in E.variables(i) for _, ix in _used(s.body, at) for i in ix)


def _expr(e: Expr, at: LaneScope) -> tuple[Expr, dict[int, Source]]:
    """An expression of one lane, and what the bits of the lane's number are that has its elements."""
    lanes: dict[int, Source] = {}

    def f(x: Expr) -> Expr | None:
        if isinstance(x, Load) and x.buffer in at.held:
            p = place(at.held[x.buffer], x.indices, at)
            _agree(lanes, p, at.held[x.buffer], x.indices)
            return Load(x.buffer, p.indices, x.dtype)
        if isinstance(x, Var) and x.name in at.split:
            return at.split[x.name].value
        return None

    return affine.simplify(E.rewrite(e, f), at.ranges), lanes


def _store(s: Store, at: LaneScope) -> Stmt:
    value, lanes = _expr(s.value, at)
    if s.buffer in at.held:
        f = at.held[s.buffer]
        p = place(f, s.indices, at)
        _agree(lanes, p, f, s.indices)
        if not lanes.keys() <= p.lanes.keys():
            raise ScheduleError(
                f"fragment {s.buffer}: several lanes have the same element, and each would compute it from "
                "its own part of another; start a reduction with decompose_reduction and make its loops "
                "the innermost, or compute it in shared memory"
            )
        indices = p.indices
    else:
        indices = tuple(_expr(i, at)[0] for i in s.indices)
        told = at.own.get(s.buffer, frozenset()).union(*map(E.variables, s.indices))
        several = sorted({x[0] for x in lanes.values() if isinstance(x, tuple)} - told)
        if several:
            raise ScheduleError(
                f"block that writes {s.buffer}: along loop {several[0]} the lanes of a warp would "
                "write the same element, each from its own part of a fragment; reduce in shared memory"
            )
    out: Stmt = Store(s.buffer, indices, value, s.update)
    fixed = {q: x for q, x in lanes.items() if isinstance(x, int)}
    conds = [E.compare("==", bits_of_lane(at.lane, q, 1), Const(x)) for q, x in sorted(fixed.items())]
    return Guard(E.all_of(*conds), out) if conds else out


def _agree(lanes: dict[int, Source], p: LanePlace, f: Fragment, indices: Indices) -> None:
    """Note which lane has an element. Raise ScheduleError if another one has what is used with it."""
    for q, x in p.lanes.items():
        if lanes.setdefault(q, x) != x:
            raise apart(f, indices, "another lane has what is computed with it")


def _intrinsic(s: Intrinsic, at: LaneScope) -> Stmt:
    """The instruction with operands where each lane has its part. Its body tells what a lane reads and
    writes."""
    ins = s.instruction
    own = tuple(_operand(s, o, at) for o in s.operands)
    here = {o.name: o for o in own}
    result, number = here[ins.result.name], f"{at.lane}_at"

    def f(e: Expr) -> Expr | None:
        if isinstance(e, Load):
            return Load(here[e.buffer].buffer, here[e.buffer].indices, e.dtype)
        return None

    stored = Store(
        result.buffer, beside(result.indices, Var(number)), E.rewrite(ins.step.value, f), ins.step.update
    )
    return Intrinsic(ins, own, Loop(number, Const(ins.layouts[result.name].size), stored, "unroll"))


def _operand(s: Intrinsic, o: Operand, at: LaneScope) -> Operand:
    """An operand as one lane has it: where its elements begin, which lie side by side."""
    layout = s.instruction.layouts[o.name]
    if o.buffer in at.held:
        f = at.held[o.buffer]
        p = place(f, o.indices, at, layout.along(dimensions(o, f.buffer)))
        return Operand(o.name, o.buffer, p.indices, (1,))
    b = at.buffers.get(o.buffer)
    if b is None or b.scope != "shared" or s.instruction.result.name == o.name or o.strides[-1] != 1:
        raise ScheduleError(
            f"{s.instruction.name}: operand {o.name} is {o.buffer}, which is neither a fragment nor shared "
            'memory; cache_read it to scope "fragment" or "shared" first'
        )
    indices = [_expr(i, at)[0] for i in o.indices]
    for d, to in enumerate(dimensions(o, b)):
        roles = [lane_of(layout, d, bit) for bit in range(layout.bits(d))]
        for x in parts(at.lane, "", roles, 1)[1]:
            indices[to] = indices[to] + (x.value * x.weight if x.lane is not None else 0)
    ranges = {**at.ranges, at.lane: (0, LANES - 1)}
    offset = affine.simplify(affine.offset(tuple(indices), known_strides(b)), ranges)
    if affine.multiple(offset) % layout.size:
        raise ScheduleError(
            f"{s.instruction.name}: rows of {b.name} do not begin at multiples of "
            f"{layout.size * DTYPES[b.dtype].itemsize} bytes; let its rows and its padding be such multiples"
        )
    return Operand(o.name, o.buffer, tuple(affine.simplify(i, ranges) for i in indices), (1,))


def _check_alone(s: Guard) -> None:
    """Raise ScheduleError where lanes that have to reduce together do so under a condition of each."""
    rows = next((x.buffer for x in walk(s.body) if isinstance(x, AllReduce)), None)
    if rows is not None:
        raise ScheduleError(
            f"fragment {rows}: its rows end within a tile, but all lanes of a warp have to reduce them "
            "together; let it have whole tiles of rows, and leave out the rest where results are stored"
        )


def _with_lanes(s: Stmt, lane: str, names: frozenset[str]) -> Stmt:
    """``s`` with a loop over the lanes around all that stands for one of them."""

    def own(x: Stmt) -> bool:
        return any(lane in E.variables(e) for e in expressions(x)) or any(
            a.buffer in names for a in accesses(x)
        )

    def whole(x: Stmt) -> bool:
        """Whether every statement in it is that of a lane."""
        if bound_to(x, "threadIdx") or isinstance(x, AllReduce):
            return False
        return own(x) if not kids(x) or isinstance(x, Intrinsic) else all(map(whole, kids(x)))

    def go(x: Stmt) -> Stmt:
        if isinstance(x, AllReduce):  # it stands for all lanes
            return x
        if isinstance(x, Guard) and lane in E.variables(x.cond):
            _check_alone(x)
        if (own(x) and not isinstance(x, Alloc)) or whole(x):
            return Loop(lane, Const(LANES), x, "threadIdx.x")
        return with_body(x, go)

    return go(s)
