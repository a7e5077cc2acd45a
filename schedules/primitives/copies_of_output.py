"""Copies of an output to which terms go: what `rfactor` makes of a scatter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from schedules.expr import Expr, Load, Var
from schedules.ir import Access, Block, Buffer, Iter, Loop, Nest, Stmt, blocks, seq
from schedules.ir.nest import (
    add_buffer,
    fresh_each,
    init_name,
    loops_of,
    numbered,
    replace_stmt,
    root_child,
    subtree_of,
    wrap_loops,
    writers,
)
from schedules.primitives.base import Primitive


def check_start(nest: Nest, b: Block, p: Primitive[Any]) -> None:
    """Raise ScheduleError unless a block at the root, which does nothing else, sets the output of a scatter
    to what it starts from. ``p``: the primitive that errors name."""
    w = b.writes[0]
    others = [x for x in writers(nest, w.buffer) if x is not b]
    alone = all(len(blocks(root_child(nest, x.name))) == 1 for x in others)
    if len(others) != 1 or others[0].name != init_name(b.name) or not alone or _marked(nest, others[0]):
        raise p.refused(
            f"{w.buffer} is not started by {init_name(b.name)} in plain loops of its own; use {p.name} first"
        )


def _marked(nest: Nest, b: Block) -> bool:
    return any(x.kind != "serial" for x in loops_of(nest, b.name))


def of_copies(nest: Nest, b: Block, partial: Block, loop: Loop) -> Nest:
    """The nest in which ``partial`` stands for the scatter ``b``: it adds to a copy of the output for each
    iteration of ``loop``. The copies are joined afterwards."""
    assert b.reducer is not None
    outs = [nest.buffer(w.buffer) for w in b.writes]
    out, copied = outs[0], [w.buffer for w in partial.writes]
    start = next(x for x in writers(nest, out.name) if x is not b)
    nest = replace_stmt(nest, subtree_of(nest, start.name), None)
    # lanes hold no loops
    outermost = loops_of(nest, b.name)[0].var == loop.var and loop.kind != "vectorize"
    at = tuple(Var(f"x{d}") for d in range(len(out.shape)))
    box = tuple(Iter(v.name, n, "spatial") for v, n in zip(at, out.shape, strict=True))

    copy = Iter(numbered("rf", {i.var for i in box}), loop.extent, "spatial")
    iters = (copy, *box)
    names = fresh_each(nest, (f"{partial.name}_init_{i.var}" for i in iters))
    binds: tuple[Expr, ...] = tuple(map(Var, names))
    first = Block(
        init_name(partial.name),
        iters,
        binds,
        tuple(Access(n, (Var(copy.var), *at)) for n in copied),
        b.reducer.identity,
    )
    if outermost:
        first = replace(first, binds=(Var(loop.var), *binds[1:]))
        begun = _in_loops(first, names[1:], [i.extent for i in box])
    else:
        begun = wrap_loops(first, names)

    last = Iter(numbered("rf_k", {i.var for i in box}), loop.extent, "reduce")
    whole = (*box, last)
    made = tuple(Load(n, (Var(last.var), *at), x.dtype) for n, x in zip(copied, outs, strict=True))
    final = Block(b.name, whole, (), tuple(Access(x.name, at) for x in outs), made, b.reducer, True)
    ended = fresh_each(nest, [*(f"{b.name}_ax{d}" for d in range(len(at))), f"{b.name}_rf_k"])

    own = subtree_of(nest, b.name)
    for n, x in zip(copied, outs, strict=True):
        nest = add_buffer(nest, Buffer(n, (loop.extent, *x.shape), x.dtype))
    swapped: Stmt = replace_stmt(replace(nest, body=own), b, partial).body
    if outermost:
        assert isinstance(swapped, Loop)
        swapped = replace(swapped, body=seq(begun, swapped.body))
        begun = seq()
    return replace_stmt(nest, own, seq(begun, swapped, wrap_loops(final, ended)))


def _in_loops(b: Block, names: list[str], extents: list[Expr]) -> Stmt:
    out: Stmt = b
    for name, n in zip(reversed(names), reversed(extents), strict=True):
        out = Loop(name, n, out)
    return out
