"""Sums long floating-point sums in runs of limited length (blocked summation; Higham, 1993; ADR 36).

In a chain of K additions the errors of all roundings meet in the result, and a sum of ones in float32 stops
growing at 2^24. So a sum of more terms than a limit::

    for k: C[i] += A[i, k]

becomes::

    for k_0: P[i] = 0; for k_1: P[i] += A[i, k_0 * n + k_1]; C[i] += P[i]

A run is what the innermost loops of the reduction add. A longer loop is split. Many runs are summed in runs
of runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from schedules import affine
from schedules import expr as E
from schedules.expr import Const, Expr, Load, Var
from schedules.ir import (
    Block,
    Iter,
    Loop,
    Nest,
    Stmt,
    blocks,
    bound_to,
    const,
    loops_around,
    seq,
    size_ranges,
    with_body,
)
from schedules.ir.deps import recovered
from schedules.ir.nest import (
    accesses,
    add_buffer,
    bind_loops,
    bound,
    find_block,
    find_loop,
    fresh,
    fresh_each,
    in_loops_like,
    is_scatter,
    loops_of,
    numbered,
    replace_stmt,
    started,
    vars_bound,
)
from schedules.te.chains import CHAIN
from schedules.te.compute_dag import Reducer

# Length of a run: the limit over this number.
RUNS = 16


def partial_sums(nest: Nest, limit: int = CHAIN) -> Nest:
    """``nest`` in which no floating-point sum adds more than ``limit`` terms in one chain. Sums within the
    limit and other reductions stay. So does a loop of a sum into which spatial axes were fused, or which
    holds other uses of the result, such as its rescaling."""
    for b in blocks(nest.body):
        if b.reducer is None or is_scatter(b):  # how many terms an element has is in the data
            continue
        if adds(b.reducer) and _terms(nest, _chain(nest, b)) > limit:
            nest = _in_runs(nest, b, max(2, limit // RUNS))
    return nest


def adds(r: Reducer) -> bool:
    """Whether a reducer has a floating-point sum, and each component is reduced on its own."""
    return r.apart and any(r.operation(n) == "+" and E.is_float(c.dtype) for n, c in enumerate(r.identity))


def _chain(nest: Nest, b: Block) -> list[Loop]:
    """The loops that add to an element in one chain. Threads of a block add in a tree, and matrix units of a
    GPU all terms of an instruction at once."""
    own, loops = vars_bound(b, "reduce"), loops_of(nest, b.name)
    units = (n for n, x in enumerate(loops) if x.instruction is not None and x.instruction.collective)
    return [x for x in loops[: next(units, None)] if x.var in own and not bound_to(x, "threadIdx")]


def _terms(nest: Nest, loops: Sequence[Loop]) -> int:
    """How often nested loops run, at the largest sizes."""
    ranges = size_ranges(nest.sizes)
    return math.prod(const(x.extent) or affine.most(x.extent, ranges) or 1 for x in loops)


def _in_runs(nest: Nest, b: Block, most: int) -> Nest:
    """``nest`` with the sum of block ``b`` in runs of at most ``most`` terms, from the innermost loop
    outwards."""
    name, terms, head = b.name, 1, ""
    todo = [x.var for x in _chain(nest, b)]
    while todo and _is_run(nest, find_block(nest, name), todo[-1]):
        loop = find_loop(nest, todo[-1])
        count = _terms(nest, [loop])
        if terms * count <= most:
            terms, head = terms * count, todo.pop()
        elif terms * terms >= most:  # the inner loops are a run: nothing needs to be split
            nest, name = _cut(nest, name, head)
            terms = 1
        else:
            nest, todo[-1:] = _split(nest, loop, name, _length(count, most // terms))
    if todo and terms > 1:
        nest, _ = _cut(nest, name, head)
    return nest


def _length(count: int, most: int) -> int:
    """Length of the runs of a loop: a divisor of the loop, if one is not much shorter than ``most``."""
    even = (n for n in range(most, max(1, most // 4), -1) if count % n == 0)
    return next(even, 0) or -(-count // -(-count // most))


def _is_run(nest: Nest, b: Block, var: str) -> bool:
    """Whether one run of a loop can be summed apart: nothing else in the loop uses the result, and its other
    loops distinguish the elements."""
    loop = find_loop(nest, var)
    results = {w.buffer for w in b.writes}
    if any(accesses(x, r) for x in blocks(loop.body) if x is not b for r in results):
        return False
    reduce, space = vars_bound(b, "reduce"), vars_bound(b, "spatial")
    others = {x.var: x.extent for x in loops_around(b, loop.body) if x.var not in reduce - space}
    told = recovered([bound(b, i) for i in b.writes[0].indices], others)
    return (
        var not in space
        and all(v in told or n == Const(1) for v, n in others.items())
        and not (reduce & others.keys())
    )


def _split(nest: Nest, loop: Loop, name: str, length: int) -> tuple[Nest, list[str]]:
    """(the nest with the loop of block ``name`` split into runs and terms of a run, names of both loops)."""
    outer, inner = fresh_each(nest, (f"{loop.var}_run", f"{loop.var}_term"))
    at, count = Var(outer) * length + Var(inner), const(loop.extent)

    def go(s: Stmt) -> Stmt:
        return _until(s, at, loop.extent, name) if isinstance(s, Block) else with_body(s, go)

    body = bind_loops(loop.body, {loop.var: at})
    body = go(body) if count is None or count % length else body
    marks = tuple(a for a in loop.annotations if a[0] == "partition")  # for the shorter last run
    run = Loop(inner, Const(length), body, loop.kind, marks)
    runs = Loop(outer, E.ceildiv(loop.extent, length), run, annotations=loop.annotations)
    return replace_stmt(nest, loop, runs), [outer, inner]


def _until(b: Block, at: Expr, count: Expr, name: str) -> Block:
    """The block under the condition ``at < count``, which is one more iteration axis."""
    reduces = b.name == name or (b.reducer is not None and not b.init)
    it = Iter(numbered("term", {i.var for i in b.iters}), count, "reduce" if reduces else "spatial")
    return replace(b, iters=(*b.iters, it), binds=(*b.binds, at))


def _cut(nest: Nest, name: str, head: str) -> tuple[Nest, str]:
    """(``nest`` with a run of loop ``head`` summed apart, the block that adds the run to the result)."""
    b, loop = find_block(nest, name), find_loop(nest, head)
    assert b.reducer is not None
    results = [nest.buffer(w.buffer) for w in b.writes]
    names = fresh_each(nest, (f"{r.name}_run" for r in results))
    for n, r in zip(names, results, strict=True):
        nest = add_buffer(nest, replace(r, name=n, scope="local"))
    places = tuple(replace(w, buffer=n) for w, n in zip(b.writes, names, strict=True))
    start = started(b, fresh(nest, f"{name}_run_init"), places)
    inner = loops_around(b, loop.body)
    # A run is added at the place of its first term, so that the result starts with the first run.
    reduced = [x.var for x in (loop, *inner) if x.var in vars_bound(b, "reduce")]
    final = replace(
        b,
        name=fresh(nest, f"{name}_sum"),
        binds=tuple(E.substitute(e, dict.fromkeys(reduced, Const(0))) for e in b.binds),
        values=tuple(Load(p.buffer, p.indices, r.dtype) for p, r in zip(places, results, strict=True)),
        where=(),
    )
    run = replace_stmt(replace(nest, body=loop), b, replace(b, writes=places, init=False)).body
    along = [x for x in inner if x.var in vars_bound(b, "spatial")]
    first, last = in_loops_like(nest, along, start, "init"), in_loops_like(nest, along, final, "sum")
    return replace_stmt(nest, loop, seq(first, run, last)), final.name
