"""The shipped model: trained on measured candidates of many operators, good before the first trial.

``data/cpu.json`` was made by ``benchmarks/cost_model.py``; its ``provenance`` says from which tasks. Columns
are found by name, so that it serves later versions of the features too: one that is gone is a missing value
to its trees, a new one is unknown to them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cost_model.analytic import ESTIMATE
from cost_model.base import CostModelError, Features, Scores, check_features, write_document
from cost_model.xgb import decode, encode

FILE = "cpu.json"
KNOWN = 0.5  # share of its columns without which its opinion is worth nothing
BEST = 0.03  # share of a sample that says what a good estimate is


class Prior:
    """The shipped model on one task, ready at once. ``reference``: features of a random sample of its
    candidates, from which it takes what is usual there."""

    def __init__(
        self, feature_names: tuple[str, ...], reference: Features, document: Mapping[str, Any] | None = None
    ) -> None:
        self.feature_names = feature_names
        document = shipped() if document is None else document
        self._document = document
        inputs = tuple(document["feature_names"])
        self._columns = [feature_names.index(n) if n in feature_names else -1 for n in inputs]
        self._usual = usual(check_features(reference, feature_names), feature_names)
        self._names = inputs
        self._bag: list[Any] | None = None

    @property
    def ready(self) -> bool:
        return True

    def fit(self, features: Features, throughput: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> None:
        check_features(features, self.feature_names)

    def predict(self, features: Features) -> Scores:
        """Throughput over the best of the task, as expected."""
        matrix = check_features(features, self.feature_names)
        if not len(matrix):
            return np.zeros(0)
        if self._bag is None:
            self._bag = decode(self._document, len(self._names) + 1, Path(FILE))
        inputs = prepare(matrix, self.feature_names, self._usual, self._columns)
        return np.mean([m.inplace_predict(inputs) for m in self._bag], axis=0).astype(np.float64)

    def save(self, path: Path) -> None:
        raise CostModelError("the shipped model belongs to the package; nothing of it is saved elsewhere")

    def load(self, path: Path) -> None:
        raise CostModelError("the shipped model is not read from elsewhere")


def usual(reference: Features, names: Sequence[str]) -> float:
    """The estimate, in seconds, of good candidates among a sample; 1 where there is no estimate."""
    if ESTIMATE not in names or not len(reference):
        return 1.0
    estimates = np.sort(reference[:, names.index(ESTIMATE)].astype(np.float64))
    best = estimates[: max(4, int(BEST * len(estimates)))]
    return float(max(np.median(best), 1e-12))


def prepare(
    matrix: Features, names: Sequence[str], usual_s: float, columns: Sequence[int] | None = None
) -> Features:
    """What the trees see: columns (-1: missing), and the estimate in doublings of what is usual."""
    order = np.arange(matrix.shape[1]) if columns is None else np.asarray(columns)
    out = np.empty((len(matrix), len(order) + 1), dtype=np.float32)
    out[:, :-1] = np.where(order >= 0, matrix[:, order], np.float32(np.nan))
    if ESTIMATE in names:
        estimate = matrix[:, names.index(ESTIMATE)].astype(np.float64)
        out[:, -1] = np.log2(np.maximum(estimate, 1e-12) / usual_s)
    else:
        out[:, -1] = np.nan
    out[~np.isfinite(out)] = np.nan
    return out


def knows(names: Sequence[str]) -> bool:
    """Whether the shipped model has seen most of these features."""
    inputs = shipped().get("feature_names", ())
    return bool(inputs) and sum(n in names for n in inputs) >= KNOWN * len(inputs)


@cache
def shipped() -> dict[str, Any]:
    """The file of the package, ``{}`` where it has none."""
    with as_file(files("cost_model") / "data" / FILE) as path:
        if not path.exists():
            return {}
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def write(path: Path, names: tuple[str, ...], bag: Sequence[Any], provenance: Mapping[str, Any]) -> None:
    """Write a file to be shipped."""
    write_document(path, "pretrained", names, {"models": encode(bag), "provenance": dict(provenance)})
