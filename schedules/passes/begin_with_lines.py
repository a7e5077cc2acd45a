"""Move the tiles of a transposition to where lines of memory begin, which only the call shows.

A tile of 16 by 16 floats reads 64 bytes of each row and writes 64 of each. Where arrays begin within a line
(numpy's begin 16 bytes after one) each of these is a piece of two lines: twice as many are read, and stores
around the caches send each twice. So all tiles move on by what is left of the array's first line, `ir.skew`,
along both axes.
"""

from __future__ import annotations

from schedules import affine
from schedules import expr as E
from schedules.dtypes import ITEMSIZE
from schedules.expr import Expr, Var
from schedules.ir import Buffer, Guard, Loop, Stmt, Store, const, rows_are_lines, seq, skew, walk, with_body
from schedules.model import LINE
from schedules.passes.simplify import simplify, substitute


def begin_with_lines(s: Stmt, params: tuple[Buffer, ...], outputs: tuple[str, ...]) -> Stmt:
    """``s`` where the tiles that write ``outputs``, which nothing reads, begin with the lines of these, and
    with those of the arguments that they read. Not where an output is written in several places, or from
    what was computed for a tile; where tiles are less than a line; or where rows are no whole lines, so that
    each would need a shift of its own."""
    stores = [x for x in walk(s) if isinstance(x, Store)]
    given = {p.name: p for p in params if all(x.buffer != p.name for x in stores)}
    for b in params:
        written = [x for x in stores if x.buffer == b.name]
        if b.name not in outputs or len(written) != 1:
            continue
        indices, reads = written[0].indices, E.loads(written[0].value)
        if any(x.buffer not in given for x in reads):
            continue
        lines = {i: given[x.buffer] for x in reads for i in x.indices[-1:]} | dict.fromkeys(indices[-1:], b)
        for axis, index in enumerate(indices):
            if index in lines and rows_are_lines(lines[index]):
                s = simplify(_move(s, b, axis, lines[index]))
    return s


def _move(s: Stmt, output: Buffer, axis: int, along: Buffer) -> Stmt:
    """``s`` with tiles of the output moved along its axis by the skew of ``along``. Those that would go
    beyond its end stay where they are, and the first is computed there, too: tiles are wider than the skew,
    so nothing is left out."""
    tile = _tile(s, output.name)
    if tile is None:
        return with_body(s, lambda x: _move(x, output, axis, along))
    store, loops = tile
    index = store.indices[axis]
    own = [x for x in loops if x.var in E.variables(index)]
    if len(own) != 1 or affine.linear(index)[0].get(Var(own[0].var)) != E.Const(1):
        return s
    (loop,) = own
    others = [i for k, i in enumerate(store.indices) if k != axis]
    extent, width = const(output.shape[axis]) or 0, const(loop.extent) or 0
    narrow = width * ITEMSIZE[along.dtype] < LINE or width >= extent
    if narrow or any(loop.var in E.variables(i) for i in others):
        return s
    begin: Expr = affine.simplify(index - Var(loop.var), {})
    further, most = begin + skew(along.name), extent - width
    moved = substitute(s, {loop.var: Var(loop.var) + skew(along.name)})
    first = E.all_of(E.compare("<=", begin, 0), E.compare("<", 0, skew(along.name)))
    here = E.any_of(first, E.compare("<", most, further))
    return seq(Guard(E.compare("<=", further, most), moved), Guard(here, s))


def _tile(s: Stmt, output: str) -> tuple[Store, list[Loop]] | None:
    """The store and the loops, if ``s`` is unrolled and vectorized loops around a store of the output."""
    loops = []
    while isinstance(s, Loop) and s.kind in ("unroll", "vectorize"):
        loops.append(s)
        s = s.body
    return (s, loops) if loops and isinstance(s, Store) and s.buffer == output else None
