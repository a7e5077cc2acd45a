"""A model without knowledge: the baseline for all others."""

from __future__ import annotations

import numpy as np

from cost_model.base import Features, Scores, Untaught, check_features


class RandomModel(Untaught):
    """Scores drawn from a seeded generator."""

    def __init__(self, feature_names: tuple[str, ...], seed: int = 0) -> None:
        self.feature_names = feature_names
        self._rng = np.random.default_rng(seed)

    def predict(self, features: Features) -> Scores:
        return self._rng.random(len(check_features(features, self.feature_names)))
