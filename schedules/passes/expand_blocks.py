"""Expands blocks into stores under guards."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from schedules import expr as E
from schedules.expr import Expr, Load, Var
from schedules.ir import (
    Access,
    Atomic,
    Block,
    Buffer,
    Guard,
    Loop,
    Nest,
    Stmt,
    Store,
    allocated,
    blocks,
    seq,
    with_body,
)
from schedules.ir.carried import carried_buffers
from schedules.ir.nest import apart, bound, domain, is_scatter, loops_of, numbered_each


@dataclass(frozen=True)
class _Lanes:
    """A vectorized loop, and the temporaries of its lanes."""

    loop: Loop
    temps: list[Buffer] = field(default_factory=list)


def expand_blocks(nest: Nest, atomic: bool = False) -> Stmt:
    """The body with every block written out: its domain as guards, its initialisation as a store in the
    first iteration of the reduction. Guards of a spatial axis are speculative if outside of it the block
    writes nothing that another instance writes, and no later iteration reads what is made in its loops.
    ``atomic``: terms that go to places of their own are joined in one step each, as threads of a grid
    need."""
    dtypes = {b.name: b.dtype for b in nest.buffers}
    exact = _among_carried(nest)

    def go(s: Stmt, lanes: _Lanes | None = None) -> Stmt:
        if isinstance(s, Block):
            if atomic and is_scatter(s):
                return _expand(s, _joined(s))
            if is_scatter(s) and dict(s.annotations).get("masked") == 1:
                s = _masked(s)
            return _expand(s, _stores(s, dtypes, lanes), s.name in exact)
        if isinstance(s, Loop) and s.kind == "vectorize":
            own = _Lanes(s)
            body = with_body(s, lambda x: go(x, own))
            return allocated(own.temps, body)
        return with_body(s, lambda x: go(x, lanes))

    return go(nest.body)


def _among_carried(nest: Nest) -> frozenset[str]:
    """The blocks that share a loop with one that makes what later iterations read. Its last elements may
    stand where the first ones did."""
    carried = carried_buffers(nest)
    around = {b.name: {x.var for x in loops_of(nest, b.name)} for b in blocks(nest.body)} if carried else {}
    making = (b.name for b in blocks(nest.body) if any(w.buffer in carried for w in b.writes))
    loops = {v for name in making for v in around.get(name, ())}
    return frozenset(n for n, own in around.items() if own & loops)


def _masked(b: Block) -> Block:
    """The block without its conditions on data: where one fails, what changes nothing goes to place 0."""
    assert b.reducer is not None
    conds = [c for c in b.where if E.loads(c)]
    cond = E.all_of(*conds)
    values = tuple(E.select(cond, v, c) for v, c in zip(b.values, b.reducer.identity, strict=True))
    writes = tuple(
        Access(w.buffer, tuple(E.select(cond, i, 0) if E.loads(i) else i for i in w.indices))
        for w in b.writes
    )
    where = tuple(c for c in b.where if c not in conds)
    return replace(b, values=values, writes=writes, where=where)


def _joined(b: Block) -> Stmt:
    """Atomic updates of one instance."""
    assert b.reducer is not None
    ops = [b.reducer.operation(n) for n in range(len(b.writes))]
    places, values = _places(b), (bound(b, v) for v in b.values)
    return seq(*(Atomic(p.buffer, p.indices, op, v) for p, op, v in zip(places, ops, values, strict=True)))


def _expand(b: Block, stores: Stmt, exact: bool = False) -> Stmt:
    spatial: list[Expr] = []
    shared: list[Expr] = []
    reduce: list[Expr] = []
    start: list[Expr] = []
    for it, e in zip(b.iters, b.binds, strict=True):
        if it.kind == "spatial":
            (spatial if not exact and is_apart(b, it.var) else shared).extend(domain(it, e))
        else:
            reduce += domain(it, e)
            start.append(E.compare("==", e, 0))
    reduce += [bound(b, w) for w in b.where]
    parts: list[Stmt] = []
    if b.reducer is not None and b.init:
        zero = [Store(p.buffer, p.indices, c) for p, c in zip(_places(b), b.reducer.identity, strict=True)]
        parts.append(_guard(E.all_of(*start), seq(*zero)))
    parts.append(_guard(E.all_of(*reduce), stores))
    return _guard(E.all_of(*shared), _guard(E.all_of(*spatial), seq(*parts), speculative=True))


def is_apart(b: Block, axis: str) -> bool:
    """Whether an axis has indices of its own in all that a block writes. Where it shares one, as i and j in
    ``C[4 * i + j]``, j = 4 is where another i writes. Where terms go to places of their own, none has."""
    axes = {i.var for i in b.iters}
    if is_scatter(b):
        return False
    for w in b.writes:
        uses = [E.variables(i) & axes for i in w.indices]
        if {axis} not in uses or any(axis in u and len(u) > 1 for u in uses):
            return False
    return True


def _places(b: Block) -> list[Access]:
    """What one instance writes, in terms of the loops."""
    return [Access(w.buffer, tuple(bound(b, i) for i in w.indices)) for w in b.writes]


def _stores(b: Block, dtypes: dict[str, str], lanes: _Lanes | None) -> Stmt:
    """All stores of one instance. Stores of a reduction that depend on each other take effect together,
    through temporaries, of which each lane has its own."""
    places, values = _places(b), tuple(bound(b, v) for v in b.values)
    if b.reducer is not None:
        values = b.reducer.apply(tuple(Load(p.buffer, p.indices, dtypes[p.buffer]) for p in places), values)
    update = b.reducer is not None
    if apart(b):
        return seq(*(Store(p.buffer, p.indices, v, update) for p, v in zip(places, values, strict=True)))
    names = numbered_each((f"{b.name}_t{n}" for n in range(len(places))), dtypes)
    shape, at = ((), ()) if lanes is None else ((lanes.loop.extent,), (Var(lanes.loop.var),))
    temps = [Buffer(n, shape, dtypes[p.buffer], "local") for n, p in zip(names, places, strict=True)]
    stmts: list[Stmt] = [Store(t.name, at, v, update) for t, v in zip(temps, values, strict=True)]
    stmts += [
        Store(p.buffer, p.indices, Load(t.name, at, t.dtype)) for t, p in zip(temps, places, strict=True)
    ]
    if lanes is None:
        return allocated(temps, seq(*stmts))
    lanes.temps.extend(temps)
    return seq(*stmts)


def _guard(cond: Expr, body: Stmt, *, speculative: bool = False) -> Stmt:
    return body if cond == E.TRUE else Guard(cond, body, speculative)


def written_out(s: Stmt, nest: Nest) -> Stmt:
    """A part of a nest with its blocks written out, without the guards that keep them in their domains."""
    dtypes = {b.name: b.dtype for b in nest.buffers}

    def go(x: Stmt) -> Stmt:
        return _stores(x, dtypes, None) if isinstance(x, Block) else with_body(x, go)

    return go(s)
