"""A model without knowledge: the baseline for all others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from cost_model.base import Features, Scores, check_features, read_document, write_document


class RandomModel:
    """Scores drawn from a seeded generator."""

    def __init__(self, feature_names: tuple[str, ...], seed: int = 0) -> None:
        self.feature_names = feature_names
        self._seed = seed
        self._rng = np.random.default_rng(seed)

    @property
    def ready(self) -> bool:
        return True

    def fit(self, features: Features, throughput: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> None:
        check_features(features, self.feature_names)

    def predict(self, features: Features) -> Scores:
        return self._rng.random(len(check_features(features, self.feature_names)))

    def save(self, path: Path) -> None:
        write_document(path, "random", self.feature_names, {"seed": self._seed})

    def load(self, path: Path) -> None:
        self._seed = int(read_document(path, "random", self.feature_names)["seed"])
        self._rng = np.random.default_rng(self._seed)
