"""Computes sums of products of any factors as matrix products, each factor on its own axes only.

`contraction` takes loads with affine indices. Here a factor is any expression: a guarded load, as in the
gradient of a convolution with steps, an index that is divided, a difference. It is evaluated at the points of
its axes, which are far fewer than those of the whole sum, in blocks of limited memory. Guards around the
product, ``select(cond, a * b, 0)``, become guards of its factors. A point where a guard fails then adds 0,
which is the same if all factors are finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedules import expr as E
from schedules.expr import Binary, Const, Expr, Logic, Select
from schedules.te.compute_dag import Axis, Stage
from schedules.te.contraction import blocks_of, halved

Array = NDArray[Any]
# Most points of a factor in a block: 4 MB in float64.
MAX_POINTS = 2**19
# Times as many points as all factors together that the whole sum must have.
GAIN = 4

# The half-open range of each axis.
Ranges = Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class Factor:
    """An expression with the axes that it depends on, in the order of the stage."""

    value: Expr
    axes: tuple[Axis, ...]

    @property
    def labels(self) -> list[str]:
        """Its axes by name."""
        return [a.var for a in self.axes]

    def block(self, ranges: Ranges) -> tuple[tuple[int, int], ...]:
        """The ranges of its axes."""
        return tuple(ranges[a.var] for a in self.axes)


def split_sum(stage: Stage) -> list[Factor] | None:
    """The factors whose product a stage adds up. None if it adds anything else, or if nothing is gained, as
    where a factor depends on all axes."""
    if not stage.plain:
        return None
    axes = (*stage.axes, *stage.reduce_axes)
    value, conds = stage.values[0], list[Expr]()
    zero = Const(0.0 if E.is_float(E.dtype_of(value)) else 0, E.dtype_of(value))
    while isinstance(value, Select) and isinstance(value.b, Const) and value.b.value == 0:
        conds += value.cond.args if isinstance(value.cond, Logic) and value.cond.op == "and" else [value.cond]
        value = value.a
    extents = {a.var: a.extent for a in axes}

    def points(names: frozenset[str]) -> int:
        return math.prod(n for v, n in extents.items() if v in names)

    parts = _multiplied(_product(value), points)
    if len(parts) == 1 and conds:
        (own,) = parts
        apart = [c for c in conds if not E.variables(c) <= E.variables(own)]
        if apart:  # a mask is the other factor
            one = Const(1.0 if E.is_float(zero.dtype) else 1, zero.dtype)
            parts.append(Select(E.all_of(*apart), one, zero))
            conds = [c for c in conds if c not in apart]
    guards: list[list[Expr]] = [[] for _ in parts]
    reach = [E.variables(p) for p in parts]
    for c in conds:
        used = E.variables(c)
        inside = [k for k, own in enumerate(reach) if used <= own]
        for k in inside or [min(range(len(parts)), key=lambda k: points(reach[k] | used))]:
            guards[k].append(c)
            reach[k] |= used
    parts = [Select(E.all_of(*c), p, zero) if c else p for c, p in zip(guards, parts, strict=True)]
    found = [Factor(p, tuple(a for a in axes if a.var in own)) for p, own in zip(parts, reach, strict=True)]
    if any(not any(a in f.axes for f in found) for a in stage.reduce_axes):
        return None
    return found if GAIN * gathered(stage, found) <= points(frozenset(extents)) else None


def is_guarded(stage: Stage) -> bool:
    """Whether a stage adds up its products only where a condition holds."""
    return isinstance(stage.values[0], Select)


def gathered(stage: Stage, factors: Sequence[Factor]) -> int:
    """Points at which all factors together are evaluated."""
    tile = _tile(stage, factors)
    count = math.prod(-(-a.extent // tile[a.var]) for a in (*stage.axes, *stage.reduce_axes))
    return count * sum(math.prod(tile[v] for v in f.labels) for f in factors)


def blocks(stage: Stage, factors: Sequence[Factor]) -> Iterator[Ranges]:
    """Blocks of the whole sum in which no factor has more than `MAX_POINTS` points."""
    tile = _tile(stage, factors)
    axes = (*stage.axes, *stage.reduce_axes)
    for point in blocks_of([a.extent for a in axes], tile.values()):
        yield dict(zip((a.var for a in axes), point, strict=True))


def free_labels(stage: Stage, factors: Sequence[Factor]) -> list[str]:
    """The axes of the output that some factor depends on."""
    return [a.var for a in stage.axes if any(a in f.axes for f in factors)]


def add(out: Array, stage: Stage, ranges: Ranges, free: Sequence[str], part: Array) -> None:
    """Add the sum of a block, with dimensions as ``free``, to the output."""
    at = tuple(slice(*ranges[a.var]) for a in stage.axes)
    sizes = [ranges[a.var][1] - ranges[a.var][0] if a.var in free else 1 for a in stage.axes]
    out[at] += part.reshape(sizes)


def filled(f: Factor, ranges: Ranges, x: Any) -> Array:
    """What an expression has at the points of a block, which may be fewer numbers, one for each point."""
    return np.broadcast_to(x, tuple(hi - lo for lo, hi in f.block(ranges)))


def _product(e: Expr) -> list[Expr]:
    """The factors of an expression."""
    return _product(e.a) + _product(e.b) if isinstance(e, Binary) and e.op == "*" else [e]


def _multiplied(parts: list[Expr], points: Any) -> list[Expr]:
    """The factors, with each that needs no axes beyond those of another multiplied with that."""
    kept: list[Expr] = []
    for p in sorted(parts, key=lambda p: -points(E.variables(p))):
        n = next((n for n, q in enumerate(kept) if E.variables(p) <= E.variables(q)), None)
        if n is None:
            kept.append(p)
        else:
            kept[n] = Binary("*", kept[n], p)
    return kept


def _tile(stage: Stage, factors: Sequence[Factor]) -> dict[str, int]:
    """Extents of a block: the longest axis of a factor is halved until it has few enough points."""
    whole = {a.var: a.extent for a in (*stage.axes, *stage.reduce_axes)}
    return halved(whole, [f.labels for f in factors], MAX_POINTS)
