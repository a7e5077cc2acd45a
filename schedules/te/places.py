"""Places of extremes: where an element stands that equals the largest or least of its row.

``min over r of select(t[i, r] == m[i], r, identity)`` with ``m[i] = max over k of t[i, k]``: one element at
least equals ``m``, whatever ``t`` was rounded to, since ``m`` is one of them. So the place is that of an
element that is near the extreme, and never the identity.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedules import expr as E
from schedules.expr import Compare, Expr, Load, Logic, Select, Var
from schedules.te.compute_dag import ComputeDAG, Stage

Array = NDArray[Any]


def finds_place(dag: ComputeDAG, stage: Stage) -> bool:
    """Whether a stage looks for an element that equals an extreme, and one must do so."""
    if stage.reducer is None or len(stage.values) != 1 or stage.reducer.operation(0) not in ("min", "max"):
        return False
    value = stage.values[0]
    return (
        isinstance(value, Select)
        and value.b == stage.reducer.identity[0]
        and any(_is_extreme(dag, stage, c) for c in _alternatives(value.cond))
    )


def _alternatives(cond: Expr) -> tuple[Expr, ...]:
    return cond.args if isinstance(cond, Logic) and cond.op == "or" else (cond,)


def _is_extreme(dag: ComputeDAG, stage: Stage, cond: Expr) -> bool:
    """Whether the condition is that an element equals the extreme of all those that the stage looks at."""
    if not (isinstance(cond, Compare) and cond.op == "=="):
        return False
    for element, extreme in ((cond.a, cond.b), (cond.b, cond.a)):
        if not (isinstance(element, Load) and isinstance(extreme, Load)):
            continue
        maker = next((s for s in dag.stages if [t.name for t in s.outputs] == [extreme.buffer]), None)
        if maker is None or maker.reducer is None or maker.reducer.operation(0) not in ("min", "max"):
            continue
        if [a.extent for a in maker.reduce_axes] != [a.extent for a in stage.reduce_axes]:
            continue
        here: dict[str, Expr] = {a.var: i for a, i in zip(maker.axes, extreme.indices, strict=True)}
        both = zip(maker.reduce_axes, stage.reduce_axes, strict=True)
        here |= {a.var: Var(b.var) for a, b in both}
        if E.substitute(maker.values[0], here) == element:
            return True
    return False


class Places:
    """How far the place may be from the reference's, gathered block by block."""

    def __init__(self, shape: tuple[int, ...], op: str) -> None:
        self._sign = 1.0 if op == "min" else -1.0  # of the greatest, the same with all numbers negated
        self._first = np.full(shape, np.inf)  # of those that may be it
        self._sure = np.full(shape, np.inf)  # of those that are it for certain
        self._last = np.full(shape, -np.inf)  # of those that may be it

    def add(self, at: tuple[slice, ...], over: tuple[int, ...], place: Any, found: Any, near: Any) -> None:
        """``place`` of each element of a block, whether it is the extreme, and where that is open."""
        place = self._sign * place
        may, sure = found | near, found & ~near
        self._first[at] = np.minimum(self._first[at], np.min(place, axis=over, initial=np.inf, where=may))
        self._sure[at] = np.minimum(self._sure[at], np.min(place, axis=over, initial=np.inf, where=sure))
        self._last[at] = np.maximum(self._last[at], np.max(place, axis=over, initial=-np.inf, where=may))

    def bound(self, out: Array) -> Array:
        """Of the places that the reference has."""
        last = np.where(np.isinf(self._sure), self._last, self._sure)
        here = self._sign * out.astype(np.float64)
        return np.maximum(np.maximum(here - self._first, last - here), 0.0)
