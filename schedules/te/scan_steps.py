"""Scans evaluated on numpy arrays: a step after another, all other axes of a step at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedules import expr as E
from schedules.expr import Const, Expr
from schedules.te.compute_dag import Stage
from schedules.te.scans import scan_extents, scan_positions

Array = NDArray[Any]
Evaluate = Callable[[Stage, Mapping[str, Array]], list[Array]]


def evaluate_scan(
    stages: Sequence[Stage], arrays: Mapping[str, Array], stage: Evaluate
) -> dict[str, Array]:
    """The outputs of the stages of a group by name. ``stage``: evaluates one that is no scan."""
    made = {o.name: np.zeros(o.shape, np.dtype(o.dtype)) for s in stages for o in s.outputs}
    known = {**arrays, **made}
    for point in points(stages[0]):
        for s in stages:
            at = tuple(
                point[scan_positions(s).index(d)] if d in scan_positions(s) else slice(None)
                for d in range(len(s.axes))
            )
            for o, x in zip(s.outputs, stage(step_of(s, point), known), strict=True):
                made[o.name][at] = x
    return made


def points(s: Stage) -> Iterator[tuple[int, ...]]:
    """The points of the scan axes in their order."""
    each = [
        range(n) if step == 1 else range(n - 1, -1, -1)
        for n, (_, step) in zip(scan_extents(s), s.scan, strict=True)
    ]
    return product(*each)


def step_of(s: Stage, point: Sequence[int]) -> Stage:
    """What a stage does at a point of its scan: a stage of its other axes."""
    fixed = {v: Const(n) for (v, _), n in zip(s.scan, point, strict=True)}
    kept = [d for d in range(len(s.axes)) if s.axes[d].var not in fixed]

    def put(e: Expr) -> Expr:
        return E.substitute(e, fixed)

    return replace(
        s,
        outputs=tuple(replace(o, shape=tuple(o.shape[d] for d in kept), strides=None) for o in s.outputs),
        axes=tuple(s.axes[d] for d in kept),
        values=tuple(map(put, s.values)),
        where=tuple(map(put, s.where)),
        scan=(),
    )
