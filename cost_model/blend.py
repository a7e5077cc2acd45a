"""Draft with the analytic model, verify with the learned one (Pruner, ASPLOS'25).

Of the candidates given at once the learned model scores only those that the estimate ranks highest; it can
neither prefer what the estimate thinks hopeless nor waste time on it. Until it has learnt, the estimate alone
decides.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from cost_model.analytic import AnalyticModel
from cost_model.base import Features, Scores, read_document, write_document
from cost_model.xgb import XGBModel

DRAFT = 0.5  # share that is verified
LEAST = 64  # candidates at a time, of which all are
BELOW = 4.0  # that scores of the others lie beneath those of the verified at least


class BlendModel:
    """``draft`` picks, ``learned`` orders. Scores depend on what else is asked in the same call."""

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

    def save(self, path: Path) -> None:
        write_document(path, "blend", self.feature_names, self._learned.body())

    def load(self, path: Path) -> None:
        self._learned.restore(read_document(path, "blend", self.feature_names), path)
