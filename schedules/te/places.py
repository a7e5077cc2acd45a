"""Bounds of extremes over uncertain elements, and of the place of an element that equals an extreme.

Each element lies between two ends. So the least element lies between the least lower end and the least upper
end, and the greatest likewise.

In ``min over r of select(t[i, r] == m[i], r, none)`` with ``m[i] = max over k of t[i, k]`` at least one
element equals ``m`` however ``t`` is rounded, because ``m`` is one of them. So the place is that of an
element near the extreme, and never ``none``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedules import expr as E
from schedules.expr import Compare, Expr, Load, Logic, Select, Var
from schedules.te.compute_dag import ComputeDAG, Stage

Array = NDArray[Any]
# (condition that one element of each row meets, value where it is met).
Choice = tuple[Expr, Expr]


def place(dag: ComputeDAG, stage: Stage) -> Choice | None:
    """The choice of a stage that looks for an element that equals an extreme, if there must be one; else
    None."""
    if not _finds_extreme(stage) or len(stage.values) != 1:
        return None
    value = stage.values[0]
    if not isinstance(value, Select):
        return None
    if _is_met(dag, stage, value.cond, True):
        return value.cond, value.a
    if _is_met(dag, stage, value.cond, False):
        return Logic("not", (value.cond,)), value.b
    return None


def _finds_extreme(s: Stage) -> bool:
    return s.plain and s.reducer is not None and s.reducer.operation(0) in ("min", "max")


def _is_met(dag: ComputeDAG, stage: Stage, cond: Expr, truth: bool) -> bool:
    """Whether a condition is true (or false) for an element that equals the extreme, whatever else holds."""
    if isinstance(cond, Logic):
        if cond.op == "not":
            return _is_met(dag, stage, cond.args[0], not truth)
        return cond.op == ("or" if truth else "and") and any(_is_met(dag, stage, x, truth) for x in cond.args)
    return (
        isinstance(cond, Compare)
        and cond.op in (("==", "<=") if truth else ("!=", "<"))
        and (_is_extreme(dag, stage, cond.a, cond.b) or _is_extreme(dag, stage, cond.b, cond.a))
    )


def _is_extreme(dag: ComputeDAG, stage: Stage, element: Expr, extreme: Expr) -> bool:
    """Whether ``extreme`` is the extreme of all values of ``element`` over the reduction of the stage."""
    if not (isinstance(element, Load) and isinstance(extreme, Load)):
        return False
    maker = next((s for s in dag.stages if [t.name for t in s.outputs] == [extreme.buffer]), None)
    if maker is None or not _finds_extreme(maker):
        return False
    if [a.extent for a in maker.reduce_axes] != [a.extent for a in stage.reduce_axes]:
        return False
    here: dict[str, Expr] = {a.var: i for a, i in zip(maker.axes, extreme.indices, strict=True)}
    here |= {a.var: Var(b.var) for a, b in zip(maker.reduce_axes, stage.reduce_axes, strict=True)}
    return E.substitute(maker.values[0], here) == element


class Extremes:
    """The ends between which each extreme lies, collected block by block."""

    def __init__(self, shape: tuple[int, ...], op: str) -> None:
        self._least = op == "min"
        self._ufunc: Any = np.minimum if self._least else np.maximum
        self._low, self._high = (np.full(shape, np.inf if self._least else -np.inf) for _ in range(2))
        self._open = np.zeros(shape, bool)  # some element may be anything, also NaN
        self._met = np.full(shape, -np.inf if self._least else np.inf)  # farthest end of the elements met

    def add(self, at: tuple[slice, ...], over: tuple[int, ...], low: Any, high: Any) -> None:
        """Add elements by their ends."""
        self._low[at] = self._ufunc(self._low[at], self._ufunc.reduce(low, axis=over))
        self._high[at] = self._ufunc(self._high[at], self._ufunc.reduce(high, axis=over))
        self._open[at] |= (np.isneginf(low) & np.isposinf(high)).any(axis=over)

    def add_certain(self, at: tuple[slice, ...], extreme: Any) -> None:
        """Add elements whose extreme is known."""
        self._low[at] = self._ufunc(self._low[at], extreme)
        self._high[at] = self._ufunc(self._high[at], extreme)

    def add_met(self, at: tuple[slice, ...], over: tuple[int, ...], ends: tuple[Any, Any], may: Any) -> None:
        """Add the ends of elements one of which must be chosen. ``may``: where each may be chosen."""
        end, other = (ends[1], np.maximum) if self._least else (ends[0], np.minimum)
        none = -np.inf if self._least else np.inf
        self._met[at] = other(self._met[at], other.reduce(end, axis=over, initial=none, where=may))

    def bound(self, out: Array) -> Array:
        """Largest distance of the extremes from those of the reference. If an element is NaN for certain,
        they are NaN; if one may be NaN, anything is right (inf)."""
        low, high, out = self._low, self._high, out.astype(np.float64)
        if self._least:
            high = np.where(np.isinf(self._met), high, np.minimum(high, self._met))
        else:
            low = np.where(np.isinf(self._met), low, np.maximum(low, self._met))
        apart = np.fmax(np.fmax(out - low, high - out), 0.0)  # 0 for an infinity that is certain
        rounded = (apart > 0) & np.isfinite(apart)
        apart = np.where(rounded, apart + 2 * np.spacing(np.abs(out) + apart), apart)
        certain = np.isnan(low) | np.isnan(high)
        return np.where(certain, 0, np.where(self._open, np.inf, apart))
