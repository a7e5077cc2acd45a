"""Scans evaluated on numpy arrays: a step after another, all other axes of a step at once.

Of several scan axes, points that do not depend on one another are done together: those on which a weighted
sum of their steps is the same, where every read is at a smaller one (L. Lamport, *The parallel execution of
DO loops*, 1974). A Gauss-Seidel sweep over n × n points takes some 3 n steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedules import affine
from schedules import expr as E
from schedules.expr import INDEX, Binary, Cast, Const, Expr, Load, Select, Var
from schedules.te.compute_dag import Axis, Stage
from schedules.te.scans import own_reads, scan_extents, scan_positions
from schedules.te.very_stage import VeryStage

Array = NDArray[Any]
# One stage of a step, without its scan axes: its outputs, whatever an output is.
Evaluate = Callable[[Stage], Sequence[Any]]
# Where the outputs of a stage go: its name, the place, the outputs.
Put = Callable[[Stage, tuple[Any, ...], Sequence[Any]], None]
# The axis along which points are that are done together, and the tensors that have their places.
_TOGETHER, PLACES = "at_once", "places_of_scan"
# Largest weight of a scan axis.
_MOST_WEIGHT = 8


def run_scan(stages: Sequence[Stage], places: dict[str, Array], stage: Evaluate, put: Put) -> None:
    """Do the steps of a group in order: evaluate each of its stages, and put what it makes where it belongs.
    ``places``: tensors that ``stage`` looks up by name, to which the places of points are added."""
    first = stages[0]
    weights = weights_of(tuple(map(VeryStage, stages))) if len(first.scan) > 1 else None
    if weights is None:
        found = [Cast(INDEX, Load(f"{PLACES}{d}", (), "int64")) for d in range(len(first.scan))]
        # maps look the point up; sums have it as a number, as products of matrices do
        maps = {n: _step(s, found) for n, s in enumerate(stages) if s.reducer is None}
        for point in points(first):
            for d, at in enumerate(point):
                places[f"{PLACES}{d}"] = np.asarray(at)
            for n, s in enumerate(stages):
                put(s, _at(s, point), stage(maps[n] if n in maps else step_of(s, point)))
        return
    for wave in _waves(first, weights):
        for d, own in enumerate(wave):
            places[f"{PLACES}{d}"] = own
        for s in stages:
            positions = scan_positions(s)
            each = range(len(s.axes))
            # numpy puts the axis of index arrays first where others stand between these, else in their place
            front = min(positions) if _adjacent([d in positions for d in each]) else 0
            where = tuple(wave[positions.index(d)] if d in positions else slice(None) for d in each)
            put(s, where, [_moved(x, front) for x in stage(wave_of(s, len(wave[0])))])


def typical_step(stages: Sequence[Stage]) -> tuple[int, tuple[Stage, ...]]:
    """(how many steps a group takes where errors are computed too, what its stages do in one in the middle).
    Cumulative functions take one, but for products, whose errors grow with their factors."""
    s = stages[0]
    if (found := cumulative_of(stages)) is not None and found.op != "*":
        return 1, tuple(replace(x, scan=()) for x in stages)
    extents = scan_extents(s)
    weights = weights_of(tuple(map(VeryStage, stages))) if len(extents) > 1 else None
    if weights is None:
        middle = [n // 2 for n in extents]
        return prod(extents), tuple(step_of(x, middle) for x in stages)
    steps = 1 + sum(k * (n - 1) for k, n in zip(weights, extents, strict=True))
    return steps, tuple(wave_of(x, -(-prod(extents) // steps)) for x in stages)


def points(s: Stage) -> Iterator[tuple[int, ...]]:
    """The points of the scan axes in their order."""
    each = [
        range(n) if step == 1 else range(n - 1, -1, -1)
        for n, (_, step) in zip(scan_extents(s), s.scan, strict=True)
    ]
    return product(*each)


def step_of(s: Stage, point: Sequence[int]) -> Stage:
    """What a stage does at a point of its scan: a stage of its other axes."""
    return _step(s, [Const(n) for n in point])


def _step(s: Stage, point: Sequence[Expr]) -> Stage:
    return _without(s, {v: e for (v, _), e in zip(s.scan, point, strict=True)}, ())


def wave_of(s: Stage, count: int) -> Stage:
    """What a stage does at so many points of its scan together, which lie along a first axis. Tensors
    `PLACES` and a number have the points, one for each axis of the scan."""
    at = (Var(_TOGETHER),)
    found = {v: Cast(INDEX, Load(f"{PLACES}{d}", at, "int64")) for d, (v, _) in enumerate(s.scan)}
    return _without(s, found, (Axis(_TOGETHER, count),))


def _without(s: Stage, fixed: Mapping[str, Expr], before: tuple[Axis, ...]) -> Stage:
    axes = (*before, *(a for a in s.axes if a.var not in fixed))
    shape = tuple(a.extent for a in axes)

    ranges = {a.var: (0, int(a.extent) - 1) for a in (*axes, *s.reduce_axes)}

    def put(e: Expr) -> Expr:
        return _decided(E.substitute(e, dict(fixed)), ranges)

    return replace(
        s,
        outputs=tuple(replace(o, shape=shape, strides=None) for o in s.outputs),
        axes=axes,
        values=tuple(map(put, s.values)),
        where=tuple(map(put, s.where)),
        scan=(),
    )


def _decided(e: Expr, ranges: Mapping[str, affine.Range]) -> Expr:
    """An expression whose selects by the number of the step are decided: what is left may be a product."""

    def visit(x: Expr) -> Expr | None:
        if not isinstance(x, E.Select) or E.loads(x.cond):
            return None
        cond = affine.simplify(x.cond, ranges)
        return None if not isinstance(cond, Const) else _decided(x.a if cond.value else x.b, ranges)

    return E.rewrite(e, visit)


def _at(s: Stage, point: Sequence[int]) -> tuple[Any, ...]:
    positions = scan_positions(s)
    return tuple(point[positions.index(d)] if d in positions else slice(None) for d in range(len(s.axes)))


def _adjacent(indexed: Sequence[bool]) -> bool:
    """Whether the index arrays of a place stand side by side."""
    found = [n for n, x in enumerate(indexed) if x]
    return found == list(range(found[0], found[-1] + 1))


def _moved(x: Any, front: int) -> Any:
    if isinstance(x, tuple):  # a value with its error
        return tuple(y if y is None else _moved(y, front) for y in x)
    return np.moveaxis(np.asarray(x), 0, front)


@dataclass(frozen=True)
class Cumulative:
    """A scan along ``axis`` whose value is that of the step before combined, by ``op``, with ``term``, which
    reads no steps."""

    op: str
    axis: int
    step: int
    term: Stage


def cumulative_of(stages: Sequence[Stage]) -> Cumulative | None:
    """The cumulative sum, product, maximum or minimum that a group is; None for other scans."""
    s = stages[0]
    if len(stages) > 1 or len(s.scan) > 1 or len(s.outputs) > 1 or s.reducer is not None:
        return None
    value, ((v, step),), name = s.values[0], s.scan, s.name
    before = tuple(Var(a.var) - step if a.var == v else Var(a.var) for a in s.axes)
    if not isinstance(value, Binary) or value.op not in ("+", "*", "min", "max"):
        return None
    at = Var(v) - step
    (axis,) = scan_positions(s)
    there = E.compare("<=", 0, at) if step == 1 else E.compare("<", at, s.axes[axis].extent)
    for own, term in ((value.a, value.b), (value.b, value.a)):
        earlier = Load(name, before, s.outputs[0].dtype)
        if isinstance(own, Select) and _alike(own.cond, there) and _alike(own.a, earlier):
            if not any(x.buffer == name for e in (term, own.b) for x in E.loads(e)):
                return Cumulative(value.op, axis, step, replace(s, values=(term,), scan=()))
    return None


def _alike(a: Expr, b: Expr) -> bool:
    return affine.simplify(a, {}) == affine.simplify(b, {})


def first_of(s: Stage, c: Cumulative) -> int:
    """The first step of a cumulative scan."""
    return 0 if c.step == 1 else int(s.axes[c.axis].extent) - 1


def accumulated(c: Cumulative, start: Any, terms: Array, op: Any) -> Array:
    """All steps of a cumulative scan, from its first one and the terms of the others."""
    terms = np.moveaxis(np.array(terms), c.axis, 0)
    into = terms if c.step == 1 else terms[::-1]
    into[0] = start
    out: Array = op.accumulate(into, axis=0, dtype=into.dtype)
    return np.moveaxis(out if c.step == 1 else out[::-1], 0, c.axis)


@lru_cache(maxsize=256)
def weights_of(group: tuple[VeryStage, ...]) -> tuple[int, ...] | None:
    """Weights of the scan axes with which every read is at a smaller sum of steps, those of fewest sums; None
    if none were found."""
    from schedules.te.infeasible import impossible

    stages = [x.stage for x in group]
    reads = list(own_reads(stages))
    extents = scan_extents(stages[0])
    options = sorted(
        product(range(_MOST_WEIGHT + 1), repeat=len(extents) - 1),
        key=lambda w: sum(k * (n - 1) for k, n in zip((*w, 1), extents, strict=True)),
    )
    for head in options:
        weights = (*head, 1)

        def earlier(steps: Sequence[Expr], guards: Sequence[Expr], ranges: Any, same: bool) -> bool:
            total: Expr = Const(0)
            for k, d in zip(weights, steps, strict=True):  # noqa: B023
                total = total + d * k
            return impossible((*guards, E.compare("<", total, Const(0 if same else 1))), ranges)

        if all(earlier(*x) for x in reads):
            return weights
    return None


def _waves(s: Stage, weights: Sequence[int]) -> Iterator[list[Array]]:
    """The coordinates of points along each scan axis, for each sum of their steps in order."""
    extents = scan_extents(s)
    steps = [x.reshape(-1) for x in np.indices(extents)]
    total = sum(k * x for k, x in zip(weights, steps, strict=True))
    order = np.argsort(total, kind="stable")
    ends = np.flatnonzero(np.diff(total[order])) + 1
    places = [x if step == 1 else n - 1 - x for x, n, (_, step) in zip(steps, extents, s.scan, strict=True)]
    for part in np.split(order, ends):
        yield [x[part] for x in places]
