"""Checks whether an output is right.

Each element of a reference comes with a bound on the error of a right result (`schedules.te.rounding`). NaN
and infinity must stand exactly where the reference has them. No element may still hold the poison
(`arena.POISON`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from autotune.measure.arena import POISON, has_rare_nan
from schedules.distance import distance
from schedules.dtypes import is_float

# Elements that are compared at a time.
PIECE = 1 << 20


@dataclass(frozen=True)
class Verdict:
    """``reason``: why the output is wrong, empty if it is right. ``error``: max |out - ref| / RMS(ref)."""

    reason: str
    error: float


class Checker:
    """Compares outputs with one reference and its bounds. ``bounds``: float32 arrays, one an output; inf: any
    value is right there. Holds what can be computed ahead, and a buffer."""

    def __init__(
        self, names: Sequence[str], reference: Sequence[np.ndarray], bounds: Sequence[np.ndarray]
    ) -> None:
        self.names = tuple(names)
        self.reference = tuple(reference)
        self.bounds = tuple(bounds)
        self._scale: list[tuple[float, bool]] = []  # (RMS, whether all elements are finite)
        self._difference: list[np.ndarray] = []
        for ref in self.reference:
            floats = is_float(ref.dtype.name)
            self._scale.append(rms_of(ref) if floats else (1.0, True))
            wide = ref.dtype if ref.dtype.itemsize > 2 and floats else np.dtype("float32")
            self._difference.append(np.empty(ref.shape, wide if floats else "float64"))

    def check(self, outputs: Sequence[np.ndarray], number: int) -> Verdict:
        """Compare the outputs of check ``number``, the number by which they were poisoned."""
        worst = 0.0
        for i, out in enumerate(outputs):
            verdict = self._one(i, out, number)
            if verdict.reason:
                return verdict
            worst = max(worst, verdict.error)
        return Verdict("", worst)

    def _one(self, i: int, out: np.ndarray, number: int) -> Verdict:
        ref, bound = self.reference[i], self.bounds[i]
        rms, finite = self._scale[i]
        if ref.dtype == np.bool_:  # a byte that is neither 0 nor 1 is none
            out, ref = out.view(np.uint8), ref.view(np.uint8)
        if not is_float(ref.dtype.name):
            if np.array_equal(out, ref):
                return Verdict("", 0.0)
            difference = distance(out, ref)
            wrong = (difference > bound) | ((out != ref) & (bound == 0))
            wrong |= self._unwritten(out, number) & (out != ref)
            return self._explain(i, out, wrong, number) if wrong.any() else Verdict("", 0.0)
        difference = self._difference[i]
        with np.errstate(all="ignore"):
            np.subtract(out, ref, out=difference, dtype=difference.dtype)
            np.abs(difference, out=difference)
            if finite and bool((difference <= bound).all()):  # false for NaN
                error = float(difference.max(initial=0.0))
                if error < float("inf"):
                    return Verdict("", error / rms if rms else error)
            same = (out == ref) | (np.isnan(out) & np.isnan(ref))
            wrong = ~(same | (difference <= bound) | np.isposinf(bound))
            if has_rare_nan(ref.dtype.name):
                wrong |= self._unwritten(out, number)
            wrong |= ~np.isfinite(ref) & ~same & ~np.isposinf(bound)
            if wrong.any():
                return self._explain(i, out, wrong, number)
            error = float(np.max(difference, where=np.isfinite(difference), initial=0.0))
        return Verdict("", error / rms if rms else error)

    def _unwritten(self, out: np.ndarray, number: int) -> np.ndarray:
        """Where an output still holds the poison of check ``number``."""
        kind, value = POISON[str(out.dtype)]
        return np.asarray(out.view(kind) == kind(value + number))

    def _explain(self, i: int, out: np.ndarray, wrong: np.ndarray, number: int) -> Verdict:
        ref, name = self.reference[i], self.names[i]
        rms = self._scale[i][0] or 1.0
        unwritten = wrong & self._unwritten(out, number)
        if unwritten.any():
            where = _first(unwritten)
            text = f"{name}: {int(unwritten.sum())} of {ref.size} elements never written, first at {where}"
            return Verdict(text, float("inf"))
        where = _first(wrong)
        at = tuple(where)
        with np.errstate(all="ignore"):
            difference = distance(out, ref)
        error = float(np.max(difference, where=np.isfinite(difference), initial=0.0)) / rms
        bound = float(self.bounds[i][at])
        allowed = f", where rounding explains at most {bound:.2g}" if bound else ""
        text = (
            f"{name}: {int(wrong.sum())} of {ref.size} elements wrong, first at {where}: "
            f"{out[at]!s} instead of {ref[at]!s}{allowed}"
        )
        return Verdict(text, error)


def rms_of(ref: np.ndarray) -> tuple[float, bool]:
    """(RMS of the finite elements, whether all are finite). Piece by piece, as copies of large arrays are
    slow."""
    total, count = 0.0, 0
    scale = 1.0
    if ref.dtype == np.float64:  # squares may overflow or vanish in it
        scale = float(np.max(np.abs(ref), where=np.isfinite(ref), initial=0.0))
    for piece in np.array_split(ref.reshape(-1), -(-ref.size // PIECE) or 1):
        finite = np.isfinite(piece)
        values = (piece if finite.all() else piece[finite]).astype(np.float64)
        values /= scale or 1.0
        total, count = total + float(values @ values), count + values.size
    return scale * sqrt(total / count) if count else 0.0, count == ref.size


def _first(mask: np.ndarray) -> list[int]:
    return [int(x) for x in np.unravel_index(int(mask.argmax()), mask.shape)]
