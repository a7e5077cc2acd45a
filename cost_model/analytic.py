"""The analytic model: an estimate of the time that the features themselves carry.

A space that knows its machine puts its roofline and issue estimate into the column
``est_time_s``; this model orders by it and needs no measurement. It picks well and orders good
candidates poorly (pairwise 0.73 over all, 0.53 among the good; first pick 0.94 of the best).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from cost_model.base import CostModelError, Features, Scores, check_features, read_document, write_document

ESTIMATE = "est_time_s"


class AnalyticModel:
    """Score = 1 / estimated seconds; a candidate without a usable estimate scores 0."""

    def __init__(self, feature_names: tuple[str, ...]) -> None:
        if ESTIMATE not in feature_names:
            raise CostModelError(
                f"the analytic model needs the feature {ESTIMATE!r}, which this space lacks; use model 'xgb'"
            )
        self.feature_names = feature_names
        self._column = feature_names.index(ESTIMATE)

    @property
    def ready(self) -> bool:
        return True

    def fit(self, features: Features, throughput: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> None:
        check_features(features, self.feature_names)

    def predict(self, features: Features) -> Scores:
        seconds = check_features(features, self.feature_names)[:, self._column].astype(np.float64)
        usable = np.isfinite(seconds) & (seconds > 0)
        return np.where(usable, 1.0 / np.where(usable, seconds, 1.0), 0.0)

    def save(self, path: Path) -> None:
        write_document(path, "analytic", self.feature_names, {})

    def load(self, path: Path) -> None:
        read_document(path, "analytic", self.feature_names)
