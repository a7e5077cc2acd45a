"""Scattered terms, with the largest error of a right kernel: see `rounding`.

Terms meet in any order, and all of those of an element may be added in one chain: no schedule cuts it. Where
a place is uncertain, because what it is computed from is, the term may go to any element: then all that it
may change is uncertain by it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from schedules import expr as E
from schedules.dtypes import DTYPES, computed
from schedules.te.compute_dag import Stage
from schedules.te.evaluator import BINARY, blocks, grid
from schedules.te.rounding_expr import (
    ComputedTensors,
    ErrorScope,
    Value,
    ends,
    rounded,
    unit_roundoff,
    wrapped,
)
from schedules.te.scattered import term_axes

POINTS = 2**15  # of a block, as in `rounding`


def scattered(stage: Stage, known: ComputedTensors, number: int) -> Value:
    """The output of this number of a stage with places, with its bound."""
    assert stage.reducer is not None
    op = stage.reducer.operation(number)
    return _summed(stage, known, number) if op == "+" else _extreme(stage, known, number, op)


def _terms(stage: Stage, known: ComputedTensors, number: int) -> Any:
    """(places, values, errors, whether each place may be another) of the terms, block by block."""
    axes = term_axes(stage)
    for block in blocks(axes, POINTS):
        scope = ErrorScope(stage.name, grid(axes, block), known)
        v, e = scope.value(stage.values[number])
        moves = scope.moves(stage.places)
        full = tuple(hi - lo for lo, hi in block)
        at = tuple(np.broadcast_to(scope.scope.value(p), full) for p in stage.places)
        parts = (v, 0.0 if e is None else e, False if moves is None else moves)
        yield at, *(np.broadcast_to(x, full) for x in parts)


def _summed(stage: Stage, known: ComputedTensors, number: int) -> Value:
    t = stage.outputs[number]
    floats = E.is_float(t.dtype)
    out = np.zeros(t.shape, np.float64 if floats else t.dtype)
    total, error = np.zeros(t.shape), np.zeros(t.shape)
    count = np.zeros(t.shape, np.int64)
    whole, exact, astray = True, True, 0.0
    for at, v, e, moves in _terms(stage, known, number):
        np.add.at(out, at, v.astype(out.dtype))
        size = np.abs(v.astype(np.float64))
        np.add.at(total, at, size)
        np.add.at(count, at, 1)
        whole = whole and bool((v == np.rint(v)).all())
        if e.any():
            exact = False
            np.add.at(error, at, e)
        if moves.any():
            exact = False
            astray += float((size + e)[moves].sum())
    error += astray
    if not floats:
        return out, None if exact else wrapped(out, error)
    unit = unit_roundoff(t.dtype)
    if whole and exact and float(total.max(initial=0)) < 1 / unit:
        return out, None
    chain = count if known.steady else 3 * np.sqrt(count)
    anything = np.isinf(error) | (np.isfinite(total) & (total > DTYPES[computed(t.dtype)].largest))
    bound = error + (4 + chain) * unit * (total + astray)
    return rounded(out, np.where(anything, np.inf, bound), t.dtype, anything=anything)


def _extreme(stage: Stage, known: ComputedTensors, number: int, op: str) -> Value:
    assert stage.reducer is not None
    t = stage.outputs[number]
    ufunc: Any = BINARY[op]
    least = op == "min"
    identity = stage.reducer.identity[number].value
    floats = E.is_float(t.dtype)
    out = np.full(t.shape, identity, np.float64 if floats else t.dtype)
    low, high = (np.full(t.shape, float(identity)) for _ in "lh")
    astray, exact = -math.inf if not least else math.inf, True
    for at, v, e, moves in _terms(stage, known, number):
        ufunc.at(out, at, v.astype(out.dtype))
        exact = exact and not e.any() and not moves.any()
        below, above = ends(v, e)
        stays = ~moves
        ufunc.at(
            low if not least else high, tuple(i[stays] for i in at), (below if not least else above)[stays]
        )
        ufunc.at(high if not least else low, at, above if not least else below)
        if moves.any():
            astray = float(ufunc(astray, ufunc.reduce((below if least else above)[moves])))
    if exact:
        return out, None
    (low if least else high)[...] = ufunc(low if least else high, astray)
    with np.errstate(invalid="ignore"):
        off = np.fmax(np.fmax(out - low, high - out), 0.0)
    off = np.where(np.isnan(off), 0.0, off)
    rounds = (off > 0) & np.isfinite(off) & np.isfinite(out.astype(np.float64))
    return out, np.where(rounds, off + 2 * np.spacing(np.abs(out) + off), off)
