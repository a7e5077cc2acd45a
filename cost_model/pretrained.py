"""Models of other tasks, good before the first trial: the shipped ones, trained on measured candidates of
many operators (ADR 29), and those that users train of their own logs (`cost_model.saved`).

There is a shipped one for each width of vectors, and one for Intel's servers, because such CPUs agree on what
is fast more than others do. ``benchmarks/train_cost_model.py`` makes the files in ``data``; their
``provenance`` names the tasks. Columns are found by name, so that a shipped model serves later versions of
the features: a missing column is a missing value, and a new one is not used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from importlib.resources import as_file, files
from typing import Any

import numpy as np

from cost_model.analytic import ESTIMATE
from cost_model.base import Features, Scores, Untaught, check_features
from cost_model.features import inputs, usual
from cost_model.saved import SavedModel
from cost_model.xgb import DRAFT_TREES, decode
from schedules.microarchitecture import is_intel_server
from schedules.model import Target

# Widths of vectors for which there is a model (bytes), and the width assumed if a target states none.
WIDTHS = (32, 64)
USUAL = 32
# Least expectation of a candidate (share of the best).
LEAST = 0.01
# Weight of the analytic estimate in the mean; the boosters together have 1.
ESTIMATES = 2.0
# Share of a pool, the best by the estimate, that a draft asks a booster about.
ESTIMATED = 0.5
# Least share of a model's columns that a space must have for the model to be used.
KNOWN = 0.5


class Prior(Untaught):
    """A model of other tasks for one task: a shipped one's document, or one that a user trained. Ready at
    once. ``reference``: features of a random sample of the task's candidates, which say what is usual
    there."""

    def __init__(
        self, feature_names: tuple[str, ...], reference: Features, model: Mapping[str, Any] | SavedModel
    ) -> None:
        self.feature_names = feature_names
        self._model = model
        names = model.feature_names if isinstance(model, SavedModel) else model["feature_names"]
        self._wanted = tuple(names)
        self._usual = usual(check_features(reference, feature_names), feature_names)

    def predict(self, features: Features) -> Scores:
        """Scores [n]: the weighted geometric mean of the boosters' expectation and the analytic estimate.
        Boosters order better, but their first of thousands is often a mistake, which the estimate seldom
        shares."""
        return self._mean(features, self._bag, 0)

    def draft(self, features: Features) -> Scores:
        """Scores [n], by the first trees of one booster, for those that the estimate puts first. Others get
        the least expectation."""
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
        """The boosters' expectation [n]: throughput over the best of the task. For AVX-512 it is the mean of
        that and of the share of random candidates that are slower."""
        return self._expected(self._inputs(features), self._bag, 0)

    @cached_property
    def _bag(self) -> list[Any]:
        if isinstance(self._model, SavedModel):
            return self._model.boosters
        return decode(self._model)

    def _inputs(self, features: Features) -> Features:
        matrix = check_features(features, self.feature_names)
        return inputs(matrix, self.feature_names, self._wanted, self._usual)

    @staticmethod
    def _expected(seen: Features, bag: list[Any], trees: int) -> Scores:
        """The expectation by the first ``trees`` of each booster (0: all of them), or what it has."""
        if not len(seen):
            return np.zeros(0)
        each = [m.inplace_predict(seen, iteration_range=(0, min(trees, m.num_boosted_rounds()))) for m in bag]
        return np.mean(each, axis=0).astype(np.float64)

    def _mean(self, features: Features, bag: list[Any], trees: int) -> Scores:
        seen = self._inputs(features)
        expected = np.maximum(self._expected(seen, bag, trees), LEAST)
        estimated = np.exp2(-np.nan_to_num(seen[:, -1].astype(np.float64)))  # relative to what is usual
        return _agreed(expected, estimated)


def _agreed(expected: Scores | float, estimated: Scores) -> Scores:
    """The geometric mean of both, weighted by `ESTIMATES`."""
    agreed: Scores = (expected * estimated**ESTIMATES) ** (1 / (1 + ESTIMATES))
    return agreed


def knows(names: Sequence[str], document: Mapping[str, Any]) -> bool:
    """Whether a space has most of the features of a shipped model."""
    wanted = document.get("feature_names", ())
    return bool(wanted) and sum(n in names for n in wanted) >= KNOWN * len(wanted)


def shipped(target: Target | None = None) -> dict[str, Any]:
    """The model for CPUs like this target: for its width of vectors or the nearest; if wide, for Intel's
    servers or for others. ``{}`` if the package has none."""
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
