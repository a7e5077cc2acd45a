"""How well scores order candidates. All take predictions [n] and truths [n], higher is better, and raise
ValueError for empty vectors or lengths that differ."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def _pair(predicted: npt.ArrayLike, true: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    p, t = np.asarray(predicted, dtype=np.float64), np.asarray(true, dtype=np.float64)
    if p.ndim != 1 or p.shape != t.shape or not len(p):
        raise ValueError(f"predicted {p.shape} and true {t.shape} must be vectors of one length, not empty")
    return p, t


def pairwise_accuracy(predicted: npt.ArrayLike, true: npt.ArrayLike, gap: float = 0.0) -> float:
    """Share of pairs that are ordered rightly, over pairs whose truths differ by more than ``gap`` (a share
    of the larger). A tie of predictions counts half. 1 if no pair differs. O(n²) time."""
    p, t = _pair(predicted, true)
    right = total = 0.0
    for i in range(len(p) - 1):
        difference = t[i] - t[i + 1 :]
        counts = np.abs(difference) > gap * np.maximum(np.abs(t[i]), np.abs(t[i + 1 :]))
        agreement = np.sign(p[i] - p[i + 1 :]) * np.sign(difference)
        right += float(np.sum((agreement[counts] + 1) / 2))
        total += int(np.count_nonzero(counts))
    return right / total if total else 1.0


def top_k(predicted: npt.ArrayLike, true: npt.ArrayLike, k: int = 1) -> float:
    """The best truth among the ``k`` highest predictions, over the best of all."""
    p, t = _pair(predicted, true)
    best = float(t.max())
    return float(t[_highest(p, k)].max()) / best if best > 0 else 1.0


def recall_at_k(predicted: npt.ArrayLike, true: npt.ArrayLike, k: int = 30) -> float:
    """Share of the ``k`` truly best that are among the ``k`` highest predictions."""
    p, t = _pair(predicted, true)
    found = np.intersect1d(_highest(p, k), _highest(t, k))
    return len(found) / min(k, len(t))


def rmse(predicted: npt.ArrayLike, true: npt.ArrayLike) -> float:
    """Root of the mean squared error."""
    p, t = _pair(predicted, true)
    return float(np.sqrt(np.mean((p - t) ** 2)))


def _highest(values: np.ndarray, k: int) -> np.ndarray:
    if k < 1:
        raise ValueError(f"k is {k}; it must be at least 1")
    return np.argsort(-values, kind="stable")[:k]
