"""Is an output right?

Integers must be equal. Floats must satisfy

    |out - ref| <= eps * (32 + 8 * sqrt(K)) * (RMS(ref) + |ref|)

with ``eps`` of the dtype, ``K`` the reduction length (`reduction_length`) and the RMS over the finite
elements of the reference. For random data of zero mean, a sum of K terms in any order is off by about eps *
sqrt(K) times its size; a term left out or counted twice is off by 1/sqrt(K) times its size, far above the
bound for any K of practice. A fixed absolute tolerance would refuse long reductions and accept wrong short
ones. NaN and infinity must stand where the reference has them, and the NaN with which outputs were filled
nowhere.

float16 is computed with as float32, so ``eps`` is float32's, and the rounding of both to float16 comes on
top: at most its eps * |ref|, or one step between the numbers next to 0. Where values on the way are stored
as float16 too (`working_dtype`), ``eps`` is float16's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod, sqrt

import numpy as np

from autotune.measure.arena import POISON
from schedules.dag import ComputeDAG
from schedules.dtypes import HALF
from schedules.expr import Cast, walk

PIECE = 1 << 20  # elements


def reduction_length(dag: ComputeDAG) -> int:
    """How many terms can add up to one output element, over stages one after another: an upper bound of
    the number of roundings that pile up."""
    return max(1, sum(prod(a.extent for a in s.reduce_axes) for s in dag.stages if s.reduce_axes))


def working_dtype(dag: ComputeDAG) -> str:
    """What float16 outputs are computed in: float32, unless something that is not an output, or is read
    again, is rounded to float16 on the way."""
    read = {x.buffer for s in dag.stages for x in s.reads()}
    inner = {o.name for s in dag.stages for o in s.outputs} - (set(dag.outputs) - read)
    rounded = any(
        isinstance(x, Cast) and x.dtype == HALF and (x is not v or o.name in inner)
        for s in dag.stages
        for o, v in zip(s.outputs, s.values, strict=True)
        for x in walk(v)
    )
    return HALF if rounded else "float32"


@dataclass(frozen=True)
class Verdict:
    """``reason`` is empty for a right output; ``error`` is max |out - ref| / RMS(ref)."""

    reason: str
    error: float


class Checker:
    """Compares outputs with one reference; holds what can be computed ahead, and a buffer. ``working``: what
    float16 outputs are computed in (`working_dtype`)."""

    def __init__(
        self, names: Sequence[str], reference: Sequence[np.ndarray], reduction: int, working: str = "float32"
    ) -> None:
        self.names = tuple(names)
        self.reference = tuple(reference)
        self._scale: list[tuple[float, float, bool]] = []  # tolerance factor, RMS, all finite
        self._difference: list[np.ndarray] = []
        self._bound: list[np.ndarray | None] = []  # of every element, where the factor alone does not tell
        for ref in self.reference:
            if ref.dtype.kind == "f":
                rms, finite = _rms(ref)
                half = ref.dtype == HALF
                factor = float(np.finfo(working if half else ref.dtype).eps) * (32 + 8 * sqrt(reduction))
                self._scale.append((factor, rms, finite))
                self._bound.append(_rounded_bound(ref, factor, rms) if half else None)
                self._difference.append(np.empty(ref.shape, np.float32 if half else ref.dtype))
            else:
                self._scale.append((0.0, 1.0, True))
                self._bound.append(None)
                self._difference.append(np.empty_like(ref))

    @classmethod
    def of(cls, dag: ComputeDAG, reference: Sequence[np.ndarray], working: str | None = None) -> Checker:
        """For the outputs of a DAG; ``working`` where they were computed in another way."""
        return cls(dag.outputs, reference, reduction_length(dag), working or working_dtype(dag))

    def check(self, outputs: Sequence[np.ndarray], number: int) -> Verdict:
        """Compare the outputs of the check with this number (the one their poison had)."""
        worst = 0.0
        for i, out in enumerate(outputs):
            verdict = self._one(i, out, number)
            if verdict.reason:
                return verdict
            worst = max(worst, verdict.error)
        return Verdict("", worst)

    def _one(self, i: int, out: np.ndarray, number: int) -> Verdict:
        ref = self.reference[i]
        factor, rms, finite = self._scale[i]
        if ref.dtype.kind != "f":
            return Verdict("", 0.0) if np.array_equal(out, ref) else self._explain(i, out, out != ref, number)
        difference, bound = self._difference[i], self._bound[i]
        with np.errstate(all="ignore"):
            np.subtract(out, ref, out=difference, dtype=difference.dtype)
            np.abs(difference, out=difference)
            error = float(difference.max(initial=0.0))
            fits = error <= factor * rms if bound is None else bool((difference <= bound).all())
            if finite and fits:  # false for NaN
                return Verdict("", error / rms if rms else error)
            same = (out == ref) | (np.isnan(out) & np.isnan(ref) & ~self._unwritten(out, number))
            bound = factor * (rms + np.abs(ref)) if bound is None else bound
            wrong = ~(same | (difference <= bound))
            wrong |= ~np.isfinite(ref) & ~same
            if wrong.any():
                return self._explain(i, out, wrong, number)
            error = float(np.max(difference, where=np.isfinite(difference), initial=0.0))
        return Verdict("", error / rms if rms else error)

    def _unwritten(self, out: np.ndarray, number: int) -> np.ndarray:
        """Where the poison is, which is a NaN of its own."""
        kind, value = POISON[str(out.dtype)]
        return np.asarray(out.view(kind) == kind(value + number))

    def _explain(self, i: int, out: np.ndarray, wrong: np.ndarray, number: int) -> Verdict:
        ref, name = self.reference[i], self.names[i]
        rms = self._scale[i][1] or 1.0
        unwritten = wrong & self._unwritten(out, number)
        if unwritten.any():
            where = _first(unwritten)
            text = f"{name}: {int(unwritten.sum())} of {ref.size} elements never written, first at {where}"
            return Verdict(text, float("inf"))
        where = _first(wrong)
        at = tuple(where)
        with np.errstate(all="ignore"):
            difference = np.abs(out.astype(np.float64) - ref.astype(np.float64))
        error = float(np.max(difference, where=np.isfinite(difference), initial=0.0)) / rms
        text = (
            f"{name}: {int(wrong.sum())} of {ref.size} elements wrong, first at {where}: "
            f"{out[at]!s} instead of {ref[at]!s}"
        )
        return Verdict(text, error)


def _rms(ref: np.ndarray) -> tuple[float, bool]:
    """Over the finite elements, and whether all are; piece by piece, as copies of large arrays take long."""
    total, count = 0.0, 0
    for piece in np.array_split(ref.reshape(-1), -(-ref.size // PIECE) or 1):
        finite = np.isfinite(piece)
        values = (piece if finite.all() else piece[finite]).astype(np.float64)
        total, count = total + float(values @ values), count + values.size
    return sqrt(total / count) if count else 0.0, count == ref.size


def _rounded_bound(ref: np.ndarray, factor: float, rms: float) -> np.ndarray:
    """How far an element of float16 may be off."""
    info = np.finfo(ref.dtype)
    size = np.abs(ref, dtype=np.float32)
    return np.asarray(factor * (rms + size) + float(info.eps) * size + float(info.smallest_subnormal))


def _first(mask: np.ndarray) -> list[int]:
    return [int(x) for x in np.unravel_index(int(mask.argmax()), mask.shape)]
