"""Right outputs at a few places, for operators whose whole result takes long to compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from autotune.measure.inputs import Draw, judged
from schedules import expr as E
from schedules.te.compute_dag import ComputeDAG, Stage
from schedules.te.contraction import is_contracted
from schedules.te.domains import masked, narrowed
from schedules.te.factored import gathered, split_sum
from schedules.te.flops import count_flops
from schedules.te.number_chains import chain_of
from schedules.te.part import Box, Part, part
from schedules.te.scan_steps import cumulative_of, typical_step
from schedules.te.scans import groups
from schedules.te.scattered import term_axes

# Boxes of each output. The first lies at the beginning of all dimensions, the second at their end, where
# tiles are cut off; the others lie at random.
BOXES = 6
# Largest side of a box (elements), and the operations that it may take.
SIDE, OPERATIONS = 32, 1 << 21

# Most bytes of a draw: as `inputs.MOST_BYTES`, but operators that take long have few draws.
MOST_BYTES = 1 << 25
# Seconds that a reference takes for a point of a sum of products, and for one of anything else with at most
# NODES operations.
PRODUCT_S, POINT_S, NODES = 1e-9, 3e-8, 64
# Seconds that a stage of a scan takes for a step, for each operation of it, for a point of a product of a few
# rows, which is not read from a cache, and for an operation of a chain of numbers.
STEP_S, NODE_S, ROW_S, NUMBER_S = 6e-5, 5e-6, 5e-9, 5e-7
DRAW_S = 3e-8  # for drawing an element of an input


def plan(dag: ComputeDAG, limit_s: float) -> tuple[bool, float]:
    """(whether the reference of a draw is computed in part, about how many seconds a draw takes). It is
    computed in part where the whole takes longer than ``limit_s`` and the parts take less."""
    whole, drawn_s = whole_s(dag), DRAW_S * sum(prod(t.shape) for t in dag.inputs)
    if whole <= limit_s:
        return False, whole + drawn_s
    parts = sum(whole_s(x.dag) for x in boxes(dag))
    return parts < whole, min(parts, whole) + drawn_s


def whole_s(dag: ComputeDAG) -> float:
    """About the seconds in which the whole reference of one draw is computed."""
    together = groups(dag)
    inside = {n for a, b in together for n in range(a, b + 1)}
    scans = sum(_scan_s(dag.stages[a : b + 1]) for a, b in together)
    return scans + sum(_stage_s(s, PRODUCT_S) for n, s in enumerate(dag.stages) if n not in inside)


def _scan_s(stages: Sequence[Stage]) -> float:
    chain, whole = chain_of(stages), cumulative_of(stages)
    if chain is not None and (whole is None or whole.op == "*"):
        nodes = sum(len(E.distinct(v)) for v in chain.values)
        ahead = sum(_stage_s(replace(s, scan=()), PRODUCT_S) for s in chain.ahead)
        return ahead + NUMBER_S * nodes * stages[0].axes[0].extent
    steps, each = typical_step(stages)
    return steps * sum(STEP_S + NODE_S * _nodes(s) + _stage_s(s, ROW_S) for s in each)


def _stage_s(stage: Stage, product_s: float) -> float:
    left = narrowed(stage)  # as the reference computes it
    if left is None:
        return 0.0
    s = masked(left)
    points = prod(a.extent for a in term_axes(s))
    sums = s.reducer is not None and len(s.outputs) == 1 and s.reducer.operation(0) == "+"
    if sums and not s.places and is_contracted(s):
        return points * product_s
    parts = split_sum(s) if sums else None
    point_s = POINT_S * max(1.0, _nodes(s) / NODES)
    if parts is None:
        return points * point_s
    return points * product_s + min(gathered(s, parts), points) * point_s


def _nodes(s: Stage) -> int:
    """Operations of a term."""
    each = (*s.values, *s.places, *(s.reducer.combine if s.reducer else ()))
    return sum(len(E.distinct(v)) for v in each)


def judged_in_part(dag: ComputeDAG, inputs: Sequence[np.ndarray], **kind: Any) -> Draw:
    """`judged` in `BOXES` boxes of each output. Elsewhere any number passes that was written: bounds are
    infinite there."""
    reference = tuple(np.zeros(dag.tensors[n].shape, dag.tensors[n].dtype) for n in dag.outputs)
    bounds: list[np.ndarray] = []
    places: list[list[tuple[slice, ...]]] = [[] for _ in dag.outputs]
    for found in boxes(dag):
        cut = [x[_slices(b)] for x, b in zip(inputs, found.inputs, strict=True)]
        draw = judged(found.dag, cut, **kind)
        if not bounds:
            both = zip(reference, draw.bounds, strict=True)
            bounds = [np.full(x.shape, np.inf, b.dtype) for x, b in both]
        for n, box in enumerate(found.outputs):
            at = _slices(box)
            reference[n][at], bounds[n][at] = draw.reference[n], draw.bounds[n]
            places[n].append(at)
    return Draw(tuple(inputs), reference, tuple(bounds), tuple(map(tuple, places)))


def boxes(dag: ComputeDAG, seed: int = 0) -> list[Part]:
    """At most `BOXES` different parts of a DAG, as large as `SIDE` and `OPERATIONS` allow."""
    rng = np.random.default_rng([seed, 2])
    shapes = [dag.tensors[n].shape for n in dag.outputs]
    side = SIDE
    while side > 1 and count_flops(part(dag, [_box(s, side, 0.0) for s in shapes]).dag) > OPERATIONS:
        side //= 2
    where = [0.0, 1.0, *([None] * (BOXES - 2))]
    found = [tuple(_box(s, side, w, rng) for s in shapes) for w in where]
    return [part(dag, b) for b in dict.fromkeys(found)]


def _box(
    shape: tuple[int, ...], side: int, where: float | None, rng: np.random.Generator | None = None
) -> Box:
    """A box of at most ``side`` along each dimension. ``where``: 0 at the beginning, 1 at the end; None:
    at random."""
    lows = [
        round((rng.random() if where is None and rng is not None else where or 0.0) * max(n - side, 0))
        for n in shape
    ]
    return tuple((lo, min(lo + side, n)) for lo, n in zip(lows, shape, strict=True))


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(lo, hi) for lo, hi in box)
