"""Operands of convolutions whose channels lie far apart are read through copies in which they lie side by
side, each made by a kernel before.

A convolution adds up over channels first of all. What a block fetches for some of them is then rows of memory
that go on, which are copied in wide pieces, in the background where the target can. The copies cost what the
operands' bytes take, which a convolution reads again and again.
"""

from __future__ import annotations

from schedules import expr as E
from schedules.expr import Load, Var
from schedules.ir import Block
from schedules.ir.nest import reads, writers
from schedules.space.rules.parts import copy_read
from schedules.space.rules.patterns import extents, is_guarded_copy, is_placed, operands
from schedules.space.sketch_builder import SketchBuilder

# Fewest channels that are worth it: what is copied at once to shared memory.
LEAST = 8


def channels_last(d: SketchBuilder) -> list[str]:
    """Let convolutions read operands whose channels lie side by side. Call it before any is scheduled.
    Returns the names of the copies."""
    made: list[str] = []
    for name in list(d.s.blocks()):
        b = d.block(name)
        c = _channels(b)
        far = [] if c is None else [x for x in dict.fromkeys(operands(b)) if _lies_apart(x, c)]
        if c is None or not any(_is_window(b, x) for x in far):
            continue
        if d.choose(f"{name}.channels", ("", "last")):
            made += [_move_last(d, name, x, c) for x in far]
            loops = {i.var: x.var for i, x in zip(b.iters, d.loops(name), strict=True) if i.kind == "reduce"}
            d.s.reorder(*(x for v, x in loops.items() if v != c), loops[c])
    return made


def _channels(b: Block) -> str | None:
    """The longest axis of a sum; None if it is short, or there is no other."""
    n = extents(b)
    axes = [i.var for i in b.iters if i.kind == "reduce"]
    if b.reducer is None or is_placed(b) or len(b.writes) != 1 or len(axes) < 2:
        return None
    c = max(axes, key=lambda a: n[a])
    return c if n[c] >= LEAST else None


def _lies_apart(x: Load, c: str) -> bool:
    """Whether one index of an operand, but not the last, is the axis, and no other depends on it."""
    held = [k for k, i in enumerate(x.indices) if c in E.variables(i)]
    return len(held) == 1 and x.indices[held[0]] == Var(c) and held[0] != len(x.indices) - 1


def _is_window(b: Block, x: Load) -> bool:
    """Whether the last index of an operand moves with outputs and with the sum."""
    n, last = extents(b), E.variables(x.indices[-1])
    return {i.kind for i in b.iters if i.var in last and n[i.var] > 1} == {"spatial", "reduce"}


def _move_last(d: SketchBuilder, name: str, x: Load, c: str) -> str:
    """Let a block read an operand, and the padding stage behind it what it reads, with axis ``c`` last.
    Returns the name of the copy."""
    place = x.indices.index(Var(c))
    order = [*(k for k in range(len(x.indices)) if k != place), place]
    made = writers(d.s.nest, x.buffer)
    if len(made) == 1 and is_guarded_copy(made[0]):
        (source,) = reads(made[0])
        _store(d, made[0].name, order)
        name, x = made[0].name, source
    copy = copy_read(d, name, x, "global")
    _store(d, copy, order)
    d.roots.add(copy)
    return copy


def _store(d: SketchBuilder, name: str, order: list[int]) -> None:
    """Store what an elementwise stage makes with its dimensions in another order, and make it in that."""
    loops = [x.var for x in d.loops(name)]
    d.s.reorder_axes(*(loops[k] for k in order))
    d.s.reorder_storage(d.block(name).writes[0].buffer, order)
