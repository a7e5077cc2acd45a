"""Is an output right?

Integers must be equal. Floats must satisfy

    |out - ref| <= eps * (32 + 8 * sqrt(K)) * (RMS(ref) + |ref|)

with ``eps`` of the dtype, ``K`` the reduction length (`reduction_length`) and the RMS over the finite
elements of the reference. For random data of zero mean, a sum of K terms in any order is off by about eps *
sqrt(K) times its size; a term left out or counted twice is off by 1/sqrt(K) times its size, far above the
bound for any K of practice. A fixed absolute tolerance would refuse long reductions and accept wrong short
ones. NaN and infinity must stand where the reference has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod, sqrt

import numpy as np

from autotune.measure.arena import POISON
from schedules.dag import ComputeDAG


def reduction_length(dag: ComputeDAG) -> int:
    """How many terms can add up to one output element, over stages one after another: an upper bound of
    the number of roundings that pile up."""
    return max(1, sum(prod(a.extent for a in s.reduce_axes) for s in dag.stages if s.reduce_axes))


@dataclass(frozen=True)
class Verdict:
    """``reason`` is empty for a right output; ``error`` is max |out - ref| / RMS(ref)."""

    reason: str
    error: float


class Checker:
    """Compares outputs with one reference; holds what can be computed ahead, and a buffer."""

    def __init__(self, names: Sequence[str], reference: Sequence[np.ndarray], reduction: int) -> None:
        self.names = tuple(names)
        self.reference = tuple(reference)
        self._scale: list[tuple[float, float, bool]] = []  # tolerance factor, RMS, all finite
        self._difference: list[np.ndarray] = []
        for ref in self.reference:
            if ref.dtype.kind == "f":
                finite = np.isfinite(ref)
                values = ref[finite].astype(np.float64)
                rms = float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0
                factor = float(np.finfo(ref.dtype).eps) * (32 + 8 * sqrt(reduction))
                self._scale.append((factor, rms, bool(finite.all())))
            else:
                self._scale.append((0.0, 1.0, True))
            self._difference.append(np.empty_like(ref))

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
        difference = self._difference[i]
        with np.errstate(all="ignore"):
            np.subtract(out, ref, out=difference)
            np.abs(difference, out=difference)
            error = float(difference.max(initial=0.0))
            if finite and error <= factor * rms:  # false for NaN
                return Verdict("", error / rms if rms else error)
            same = (out == ref) | (np.isnan(out) & np.isnan(ref))
            wrong = ~(same | (difference <= factor * (rms + np.abs(ref))))
            wrong |= ~np.isfinite(ref) & ~same
            if wrong.any():
                return self._explain(i, out, wrong, number)
            error = float(np.max(difference, where=np.isfinite(difference), initial=0.0))
        return Verdict("", error / rms if rms else error)

    def _explain(self, i: int, out: np.ndarray, wrong: np.ndarray, number: int) -> Verdict:
        ref, name = self.reference[i], self.names[i]
        rms = self._scale[i][1] or 1.0
        kind, value = POISON[str(ref.dtype)]
        unwritten = wrong & (out.view(kind) == kind(value + number))
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


def _first(mask: np.ndarray) -> list[int]:
    return [int(x) for x in np.unravel_index(int(mask.argmax()), mask.shape)]
