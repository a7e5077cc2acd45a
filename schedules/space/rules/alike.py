"""Stages that are alike, such as the sweeps of a stencil, are scheduled alike: the space has one decision for
all of them, not one for each."""

from __future__ import annotations

from collections.abc import Hashable

from schedules import expr as E
from schedules.expr import Expr, Load, Var
from schedules.ir import Block, Nest, blocks
from schedules.ir.nest import is_scatter, places_of
from schedules.space.sketch_builder import SketchBuilder


def schedule_alike(d: SketchBuilder) -> None:
    """Let stages that do the same with buffers of the same kind share their decisions. Call it when stages
    are inlined, and before any is scheduled."""
    last: dict[Hashable, str] = {}  # rules go from the last stage to the first
    for b in reversed(blocks(d.s.nest.body)):
        d.alike[b.name] = last.setdefault(_likeness(d.s.nest, b), b.name)


def _likeness(nest: Nest, b: Block) -> Hashable:
    """What is equal for stages that differ in names only. Elementwise stages of any extents are alike: where
    they have other options, they share no hole. Reductions are not, nor if one reads an argument where the
    other reads an intermediate result, which no rule packs."""
    places = {i.var: Var(f"i{n}") for n, i in enumerate(b.iters)}
    seen: dict[str, str] = {w.buffer: f"out{n}" for n, w in enumerate(b.writes)}

    def unnamed(e: Expr) -> Expr | None:
        if isinstance(e, Var):
            return places.get(e.name)
        if isinstance(e, Load):
            name = seen.setdefault(e.buffer, f"b{len(seen)}")
            return Load(name, tuple(E.rewrite(i, unnamed) for i in e.indices), e.dtype)
        return None

    every = (*b.values, *b.where, *(places_of(b) if is_scatter(b) else ()))
    values = tuple(E.rewrite(v, unnamed) for v in every)
    if b.reducer is None:
        return len(b.iters), len(b.writes), values
    buffers = [nest.buffer(name) for name in seen]
    lie = tuple((x.shape, x.strides, x.dtype, x.name in nest.params) for x in buffers)
    return tuple((i.kind, i.extent) for i in b.iters), values, b.reducer, lie
