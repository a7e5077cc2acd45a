"""A fully associative cache of lines with write-back, which a nest is run through access by access."""

from __future__ import annotations

from collections import OrderedDict
from random import Random

from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Expr
from schedules.ir import Block, Loop, Nest, Seq, Stmt
from schedules.ir.nest import bound, reads
from schedules.model import LINE

# Numbers below this are read as indices.
ANYWHERE = 1024


def lru_bytes(nest: Nest, capacity: int) -> int:
    """Bytes of lines that are fetched and written back, with what is dirty at the end. What is read as an
    index is any number, the same each time."""
    held: OrderedDict[tuple[str, int], bool] = OrderedDict()
    moved = 0

    def touch(line: tuple[str, int], write: bool) -> None:
        nonlocal moved
        dirty = held.pop(line, None)
        moved += dirty is None
        held[line] = bool(dirty) or write
        if len(held) > capacity // LINE:
            moved += held.popitem(last=False)[1]

    def places(b: Block) -> list[tuple[str, Expr, int, bool]]:
        found = [(x.buffer, x.indices, False) for x in reads(b)]
        found += [(w.buffer, w.indices, True) for w in b.writes]
        out = []
        for name, ix, write in found:
            buf, offset = nest.buffer(name), E.Const(0)
            for n, i in zip(buf.shape, ix, strict=True):
                offset = offset * n + bound(b, i)
            out.append((name, offset, DTYPES[buf.dtype].itemsize, write))
        return out

    known: dict[int, list[tuple[str, Expr, int, bool]]] = {}

    def go(s: Stmt, env: dict[str, int]) -> None:
        if isinstance(s, Loop):
            for v in range(int(E.evaluate(s.extent, env))):
                go(s.body, {**env, s.var: v})
        elif isinstance(s, Seq):
            for x in s.stmts:
                go(x, env)
        else:
            assert isinstance(s, Block)
            if not all(E.evaluate(c, env) for c in s.where):
                return
            if id(s) not in known:
                known[id(s)] = places(s)
            for name, offset, item, write in known[id(s)]:
                touch((name, int(E.evaluate(told(nest, offset, env), env)) * item // LINE), write)

    go(nest.body, {})
    return LINE * (moved + sum(held.values()))


def told(nest: Nest, e: Expr, env: dict[str, int]) -> Expr:
    """An index with numbers for what is read for it."""

    def number(x: Expr) -> Expr | None:
        if isinstance(x, E.Cast):
            return E.Const(int(E.evaluate(told(nest, x.a, env), env)))
        if not isinstance(x, E.Load):
            return None
        at = 0
        for n, i in zip(nest.buffer(x.buffer).shape, x.indices, strict=True):
            at = at * int(E.evaluate(n, {})) + int(E.evaluate(told(nest, i, env), env))
        return E.Const(Random(at).randrange(ANYWHERE), x.dtype)

    return E.rewrite(e, number) if E.loads(e) else e
