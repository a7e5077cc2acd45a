"""Ends the loops of a group where a call tells (`Graph.short`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from schedules.expr import Var
from schedules.graph.edit import loads_of
from schedules.graph.graph import ShortLoops
from schedules.te.compute_dag import Stage, Tensor
from schedules.te.dims import Dim
from schedules.te.extent import Extent

# (name of a stage, one of its axes).
Place = tuple[str, str]


def ended(stages: Iterable[Stage], axes: Collection[Place], extent: int) -> tuple[Stage, ...]:
    """The stages with ``axes`` of another extent."""

    def shorter(s: Stage) -> Stage:
        own, reduced = (
            tuple(replace(a, extent=extent) if (s.name, a.var) in axes else a for a in every)
            for every in (s.axes, s.reduce_axes)
        )
        shape = tuple(a.extent for a in own)
        outputs = tuple(replace(o, shape=shape) for o in s.outputs)
        return replace(s, axes=own, reduce_axes=reduced, outputs=outputs)

    return tuple(map(shorter, stages))


def shortened(
    short: Iterable[ShortLoops], inputs: Sequence[Tensor], stages: Sequence[Stage], fixed: Collection[str]
) -> tuple[tuple[Tensor, ...], tuple[Stage, ...]]:
    """The inputs and stages of a group with loops that end earlier, for those of ``short`` whose size the
    group's arguments can tell: one is read by such loops alone along a dimension, and has as many rows then.
    Those that are ``fixed`` keep their shape."""
    for loops in short:
        axes = {(s.name, a.var) for s in stages for a in (*s.axes, *s.reduce_axes)} & loops.axes
        n = Extent(Dim(loops.name, loops.least, loops.most, True))
        given = tuple(t if t.name in fixed else _fewer(t, stages, axes, n) for t in inputs)
        if any(a is not b for a, b in zip(given, inputs, strict=True)):
            inputs, stages = given, ended(stages, axes, n)
    return tuple(inputs), tuple(stages)


def _fewer(t: Tensor, stages: Sequence[Stage], axes: AbstractSet[Place], n: Extent) -> Tensor:
    """An input with ``n`` rows along each dimension of which no other ones are read."""
    loads = loads_of(stages).get(t.name, [])

    def walked(d: int) -> bool:
        along = [(s.name, x.indices[d]) for s, x in loads]
        short = all(isinstance(ix, Var) and (name, ix.name) in axes for name, ix in along)
        return bool(along) and short and t.shape[d] == n

    fewer = [d for d in range(len(t.shape)) if walked(d)]
    return replace(t, shape=tuple(n if d in fewer else k for d, k in enumerate(t.shape))) if fewer else t
