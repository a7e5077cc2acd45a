"""Drafts with the analytic model and verifies with the learned one (Pruner, ASPLOS'25).

The learned model scores only those candidates of a call that the estimate ranks highest. Until it has learnt,
the estimate decides alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cost_model.analytic import AnalyticModel
from cost_model.base import Features, Scores
from cost_model.xgb import XGBModel

# Share of the candidates of a call that the learned model scores, and the least number.
DRAFT = 0.5
LEAST = 64
# Distance by which the other scores are moved below the verified ones.
BELOW = 4.0


class BlendModel:
    """``draft`` picks, ``learned`` orders. A score depends on the other candidates of the same call."""

    def __init__(self, draft: AnalyticModel, learned: XGBModel) -> None:
        self.feature_names = learned.feature_names
        self._draft, self._learned = draft, learned

    @property
    def ready(self) -> bool:
        return True

    def fit(self, features: Features, throughput: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> None:
        self._learned.fit(features, throughput, groups)

    def predict(self, features: Features) -> Scores:
        estimate = self._draft.predict(features)
        if not self._learned.ready:
            return estimate
        keep = max(LEAST, int(DRAFT * len(estimate)))
        if keep >= len(estimate):
            return self._learned.predict(features)
        order = np.argsort(-estimate, kind="stable")
        verified = self._learned.predict(features[order[:keep]])
        scores = np.empty(len(estimate))
        scores[order[:keep]] = verified
        rank = np.arange(len(estimate) - keep) / len(estimate)
        scores[order[keep:]] = verified.min() - BELOW - rank
        return scores
