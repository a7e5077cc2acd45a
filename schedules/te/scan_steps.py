"""Scans evaluated on numpy arrays: a step after another, all other axes of a step at once.

Of several scan axes, points that do not depend on one another are done together: those on which a weighted
sum of their steps is the same, where every read is at a smaller one (L. Lamport, *The parallel execution of
DO loops*, 1974). A Gauss-Seidel sweep over n × n points takes some 3 n steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedules import expr as E
from schedules.expr import INDEX, Cast, Const, Expr, Load, Var
from schedules.te.compute_dag import Axis, Stage
from schedules.te.scans import own_reads, scan_extents, scan_positions
from schedules.te.very_stage import VeryStage

Array = NDArray[Any]
# One stage of a step, without its scan axes: its outputs, whatever an output is.
Evaluate = Callable[[Stage], Sequence[Any]]
# Where the outputs of a stage go: its name, the place, the outputs.
Put = Callable[[Stage, tuple[Any, ...], Sequence[Any]], None]
# The axis along which points are that are done together, and the tensors that have their places.
_TOGETHER, _PLACES = "at_once", "places_of_scan"
# Largest weight of a scan axis.
_MOST_WEIGHT = 8


def run_scan(stages: Sequence[Stage], places: dict[str, Array], stage: Evaluate, put: Put) -> None:
    """Do the steps of a group in order: evaluate each of its stages, and put what it makes where it belongs.
    ``places``: tensors that ``stage`` looks up by name, to which the places of points are added."""
    first = stages[0]
    weights = weights_of(tuple(map(VeryStage, stages))) if len(first.scan) > 1 else None
    if weights is None:
        for point in points(first):
            for s in stages:
                put(s, _at(s, point), stage(step_of(s, point)))
        return
    for wave in _waves(first, weights):
        for d, own in enumerate(wave):
            places[f"{_PLACES}{d}"] = own
        for s in stages:
            moved = [scan_positions(s).index(d) if d in scan_positions(s) else None for d in range(len(s.axes))]
            made = stage(_wave_of(s, len(wave[0])))
            kept = sum(m is None for m in moved)
            # numpy puts the axes of index arrays first where others stand between them: so do all here
            at = tuple(slice(None) if m is None else wave[m] for m in moved)
            apart = _adjacent([m is not None for m in moved])
            front = [m is not None for m in moved].index(True) if apart else 0
            put(s, at, [_moved(x, front) for x in made] if kept else made)


def points(s: Stage) -> Iterator[tuple[int, ...]]:
    """The points of the scan axes in their order."""
    each = [
        range(n) if step == 1 else range(n - 1, -1, -1)
        for n, (_, step) in zip(scan_extents(s), s.scan, strict=True)
    ]
    return product(*each)


def step_of(s: Stage, point: Sequence[int]) -> Stage:
    """What a stage does at a point of its scan: a stage of its other axes."""
    return _without(s, {v: Const(n) for (v, _), n in zip(s.scan, point, strict=True)}, ())


def _wave_of(s: Stage, count: int) -> Stage:
    """What a stage does at so many points of its scan together, which lie along a first axis."""
    at = (Var(_TOGETHER),)
    found = {v: Cast(INDEX, Load(f"{_PLACES}{d}", at, "int64")) for d, (v, _) in enumerate(s.scan)}
    return _without(s, found, (Axis(_TOGETHER, count),))


def _without(s: Stage, fixed: Mapping[str, Expr], before: tuple[Axis, ...]) -> Stage:
    axes = (*before, *(a for a in s.axes if a.var not in fixed))
    shape = tuple(a.extent for a in axes)

    def put(e: Expr) -> Expr:
        return E.substitute(e, dict(fixed))

    return replace(
        s,
        outputs=tuple(replace(o, shape=shape, strides=None) for o in s.outputs),
        axes=axes,
        values=tuple(map(put, s.values)),
        where=tuple(map(put, s.where)),
        scan=(),
    )


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
