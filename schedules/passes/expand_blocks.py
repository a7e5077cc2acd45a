"""Blocks become stores under guards."""

from __future__ import annotations

from schedules import expr as E
from schedules.expr import Expr, Load
from schedules.ir import Access, Block, Buffer, Guard, Nest, Stmt, Store, allocated, seq, with_body
from schedules.nest import apart, bound, domain, numbered_each


def expand_blocks(nest: Nest) -> Stmt:
    """The body with every block written out: its domain as guards (spatial ones speculative), its
    initialisation as a store at the first iteration of the reduction."""
    dtypes = {b.name: b.dtype for b in nest.buffers}

    def go(s: Stmt) -> Stmt:
        return _expand(s, dtypes) if isinstance(s, Block) else with_body(s, go)

    return go(nest.body)


def _expand(b: Block, dtypes: dict[str, str]) -> Stmt:
    spatial: list[Expr] = []
    reduce: list[Expr] = []
    start: list[Expr] = []
    for it, e in zip(b.iters, b.binds, strict=True):
        if it.kind == "spatial":
            spatial += domain(it, e)
        else:
            reduce += domain(it, e)
            start.append(E.compare("==", e, 0))
    reduce += [bound(b, w) for w in b.where]
    places = [Access(w.buffer, tuple(bound(b, i) for i in w.indices)) for w in b.writes]
    values = tuple(bound(b, v) for v in b.values)
    parts: list[Stmt] = []
    if b.reducer is not None:
        if b.init:
            zero = seq(
                *(
                    Store(p.buffer, p.indices, c)
                    for p, c in zip(places, b.reducer.identity, strict=True)
                )
            )
            parts.append(_guard(E.all_of(*start), zero))
        acc = tuple(Load(p.buffer, p.indices, dtypes[p.buffer]) for p in places)
        values = b.reducer.apply(acc, values)
    parts.append(_guard(E.all_of(*reduce), _stores(b, places, values, dtypes)))
    return _guard(E.all_of(*spatial), seq(*parts), speculative=True)


def _stores(b: Block, places: list[Access], values: tuple[Expr, ...], dtypes: dict[str, str]) -> Stmt:
    """All stores of one instance. Several of a reduction that depend on each other take effect together:
    through temporaries."""
    update = b.reducer is not None
    if apart(b):
        return seq(*(Store(p.buffer, p.indices, v, update) for p, v in zip(places, values, strict=True)))
    names = numbered_each((f"{b.name}_t{n}" for n in range(len(places))), dtypes)
    temps = [Buffer(n, (), dtypes[p.buffer], "local") for n, p in zip(names, places, strict=True)]
    stmts: list[Stmt] = [Store(t.name, (), v, update) for t, v in zip(temps, values, strict=True)]
    stmts += [
        Store(p.buffer, p.indices, Load(t.name, (), t.dtype))
        for t, p in zip(temps, places, strict=True)
    ]
    return allocated(temps, seq(*stmts))


def _guard(cond: Expr, body: Stmt, *, speculative: bool = False) -> Stmt:
    return body if cond == E.TRUE else Guard(cond, body, speculative)


