"""The analytic model: it orders candidates by the estimated time that a space puts in the column
``est_time_s``.

It needs no measurement. It picks well but orders good candidates poorly. Figures:
docs/measurements/cost-models.md.
"""

from __future__ import annotations

import numpy as np

from cost_model.base import CostModelError, Features, Scores, Untaught, check_features

# Name of the column with the estimated time (seconds).
ESTIMATE = "est_time_s"


class AnalyticModel(Untaught):
    """Score = 1 / estimated seconds; a candidate without a usable estimate scores 0."""

    def __init__(self, feature_names: tuple[str, ...]) -> None:
        if ESTIMATE not in feature_names:
            raise CostModelError(
                f"the analytic model needs the feature {ESTIMATE!r}, which this space lacks; use model 'xgb'"
            )
        self.feature_names = feature_names
        self._column = feature_names.index(ESTIMATE)

    def predict(self, features: Features) -> Scores:
        seconds = check_features(features, self.feature_names)[:, self._column].astype(np.float64)
        usable = np.isfinite(seconds) & (seconds > 0)
        return np.where(usable, 1.0 / np.where(usable, seconds, 1.0), 0.0)
