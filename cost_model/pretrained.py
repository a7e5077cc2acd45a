"""The shipped models: trained on measured candidates of many operators, good before the first trial.

There is one for each width of vectors, and one for Intel's servers, because such CPUs agree with each other
on what is fast more than with others. The files in ``data`` were made by ``benchmarks/train_cost_model.py``;
their ``provenance`` says from which tasks. Columns are found by name, so that a model serves later versions
of the features too: one that is gone is a missing value to its trees, a new one is unknown to them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cost_model.analytic import ESTIMATE
from cost_model.base import CostModelError, Features, Scores, check_features, write_document
from cost_model.features import DERIVED, inputs, usual
from cost_model.xgb import DRAFT_TREES, decode, encode
from schedules.microarchitecture import is_intel_server
from schedules.model import Target

WIDTHS = (32, 64)  # bytes of a vector
USUAL = 32  # of them, where a target does not say
LEAST = 0.01  # that is expected of anything
ESTIMATES = 2.0  # that the analytic estimate counts as, beside the boosters as one
ESTIMATED = 0.5  # share of a pool, by the estimate, that a draft asks a booster about
KNOWN = 0.5  # share of its columns without which its opinion is worth nothing


class Prior:
    """A shipped model, ``document``, on one task, ready at once. ``reference``: features of a random sample
    of the task's candidates, from which it takes what is usual there."""

    def __init__(
        self, feature_names: tuple[str, ...], reference: Features, document: Mapping[str, Any]
    ) -> None:
        self.feature_names = feature_names
        self._document = document
        self._wanted = tuple(document["feature_names"])
        self._usual = usual(check_features(reference, feature_names), feature_names)

    @property
    def ready(self) -> bool:
        return True

    def fit(self, features: Features, throughput: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> None:
        check_features(features, self.feature_names)

    def predict(self, features: Features) -> Scores:
        """What candidates are worth, with caution: the geometric mean of what the boosters and the analytic
        estimate say, by weight. Boosters order candidates better, but what they rank first of thousands is
        often where they are most mistaken, and the estimate seldom makes the same mistake."""
        return self._mean(features, self._bag, 0)

    def draft(self, features: Features) -> Scores:
        """The same by the first trees of one booster for those that the estimate puts first; for others as if
        that expected the least of them."""
        matrix = check_features(features, self.feature_names)
        if ESTIMATE not in self.feature_names:
            return self._mean(matrix, self._bag[:1], DRAFT_TREES)
        estimate_s = matrix[:, self.feature_names.index(ESTIMATE)].astype(np.float64)
        estimate_s[~np.isfinite(estimate_s)] = np.inf
        scores = _agreed(LEAST, self._usual.estimate_s / np.maximum(estimate_s, 1e-12))
        first = np.argsort(estimate_s, kind="stable")[: math.ceil(ESTIMATED * len(matrix))]
        scores[first] = self._mean(matrix[first], self._bag[:1], DRAFT_TREES)
        return scores

    def learned(self, features: Features) -> Scores:
        """What the boosters alone expect: throughput over the best of the task; for AVX-512 its mean with the
        share of random candidates that are slower."""
        return self._expected(self._inputs(features), self._bag, 0)

    @cached_property
    def _bag(self) -> list[Any]:
        return decode(self._document, len(self._wanted) + len(DERIVED), Path("data"))

    def _inputs(self, features: Features) -> Features:
        matrix = check_features(features, self.feature_names)
        return inputs(matrix, self.feature_names, self._wanted, self._usual)

    @staticmethod
    def _expected(seen: Features, bag: list[Any], trees: int) -> Scores:
        """By the first ``trees`` of each booster (0: all of them)."""
        if not len(seen):
            return np.zeros(0)
        each = [m.inplace_predict(seen, iteration_range=(0, trees)) for m in bag]
        return np.mean(each, axis=0).astype(np.float64)

    def _mean(self, features: Features, bag: list[Any], trees: int) -> Scores:
        seen = self._inputs(features)
        expected = np.maximum(self._expected(seen, bag, trees), LEAST)
        estimated = np.exp2(-np.nan_to_num(seen[:, -1].astype(np.float64)))  # over what is usual
        return _agreed(expected, estimated)

    def save(self, path: Path) -> None:
        raise CostModelError("the shipped model belongs to the package; nothing of it is saved elsewhere")

    def load(self, path: Path) -> None:
        raise CostModelError("the shipped model is not read from elsewhere")


def _agreed(expected: Scores | float, estimated: Scores) -> Scores:
    """The geometric mean of the two, by weight."""
    agreed: Scores = (expected * estimated**ESTIMATES) ** (1 / (1 + ESTIMATES))
    return agreed


def knows(names: Sequence[str], document: Mapping[str, Any]) -> bool:
    """Whether a shipped model has seen most of these features."""
    wanted = document.get("feature_names", ())
    return bool(wanted) and sum(n in names for n in wanted) >= KNOWN * len(wanted)


def shipped(target: Target | None = None) -> dict[str, Any]:
    """The model for CPUs like this target: with vectors of its width, or the nearest, and if these are wide,
    servers of Intel's or others; ``{}`` where the package has none."""
    wanted = target.limit("vector_bytes", USUAL) if target is not None else USUAL
    width = min(WIDTHS, key=lambda width: abs(math.log2(width / wanted)))
    server = target is not None and width == max(WIDTHS) and is_intel_server(target)
    return _read("cpu-intel-server.json" if server else f"cpu-vector{width}.json")


@cache
def _read(name: str) -> dict[str, Any]:
    with as_file(files("cost_model") / "data" / name) as path:
        if not path.exists():
            return {}
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def write(path: Path, names: tuple[str, ...], bag: Sequence[Any], provenance: Mapping[str, Any]) -> None:
    """Write a file to be shipped."""
    write_document(path, "pretrained", names, {"models": encode(bag), "provenance": dict(provenance)})
