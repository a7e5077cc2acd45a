"""Gradient-boosted trees on throughput relative to the best of the task.

Regression on relative throughput ranks as well here as a pairwise objective, and needs no query groups. A
score is the mean of a bag of models less a part of their spread. Each model is trained on a random part of
rows and columns. So a candidate on which the models disagree must promise more.

A prior is a model of other tasks. The trees start from its scores (a base margin) and learn its errors on
this task, so that a few trials correct it and many outvote it.
"""

from __future__ import annotations

import base64
import importlib.util
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cost_model.base import (
    CostModel,
    CostModelError,
    Drafts,
    Features,
    Scores,
    check_features,
    relative_throughput,
    without_infinities,
)
from cost_model.library import xgboost

# Fewest measured candidates that are learnt from.
MIN_ROWS = 8
# Rows of the own task at which a row of another task counts half.
OUTVOTED = 64
# Made-up rows that hold the slope of a prior's scale at 1 (`_fit_scale`).
STEADY = 16
# Trees of a draft: the first trees say most.
DRAFT_TREES = 20
# Quantiles of a feature: as exact as 256 on a few thousand rows, and four times as fast.
BINS = 32


def prefetch(given_up: Callable[[], bool] = lambda: False) -> None:
    """Import xgboost, which takes one to two seconds. Call it from a thread that has time.

    Its library is read first, because an import that waits for the disk blocks every other thread. The import
    begins only if ``given_up()`` is still false.
    """
    spec = importlib.util.find_spec("xgboost")
    for place in spec.submodule_search_locations or () if spec is not None else ():
        for library in Path(place).glob("lib/*xgboost*"):
            with library.open("rb") as f:
                while not given_up() and f.read(1 << 20):
                    pass
    if not given_up():
        xgboost()


class XGBModel:
    """A bag of XGBoost regressors. The same for the same seed and data. ``threads``: models trained at a
    time. ``caution``: part of the bag's standard deviation that is taken off the mean.

    Times: docs/measurements/cost-models.md.
    """

    def __init__(
        self,
        feature_names: tuple[str, ...],
        seed: int = 0,
        threads: int = 1,
        models: int = 3,
        trees: int = 100,
        depth: int = 5,
        eta: float = 0.1,
        caution: float = 0.5,
        prior: CostModel | None = None,
    ) -> None:
        self.feature_names = feature_names
        self._seed, self._threads = seed, threads
        self._models, self._trees, self._depth, self._eta = models, trees, depth, eta
        self._caution = caution
        self._prior = prior
        self._scale = (0.0, 1.0)  # offset and slope of the prior's scores on this task
        self._bag: list[Any] = []

    @property
    def ready(self) -> bool:
        return bool(self._bag) or self._prior is not None

    def fit(self, features: Features, throughput: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> None:
        matrix = check_features(features, self.feature_names)
        target = relative_throughput(throughput, groups)
        if len(matrix) != len(target):
            raise CostModelError(f"{len(matrix)} rows of features and {len(target)} of throughput")
        if len(matrix) < MIN_ROWS or not target.any():
            self._bag = []
            return
        xgb = xgboost()
        finite, label = without_infinities(matrix), target.astype(np.float32)
        own = np.ones(len(label), bool) if groups is None else np.asarray(groups) == 0
        weight = np.where(own, 1.0, 1.0 / (1.0 + np.count_nonzero(own) / OUTVOTED)).astype(np.float32)
        margin = None
        if self._prior is not None:
            scores = self._prior.predict(matrix)
            self._scale = _fit_scale(scores[own], target[own])
            margin = self._margin(scores)

        def train(k: int) -> Any:
            data = xgb.QuantileDMatrix(
                *(finite, label), weight=weight, base_margin=margin, max_bin=BINS, nthread=1
            )
            return xgb.train(self._parameters(k), data, num_boost_round=self._trees)

        self._bag = self._each(train, range(self._models))

    def _each(self, work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """``work`` on every item, one thread a model: faster than threads within a model."""
        if self._threads == 1:
            return [work(x) for x in items]
        with ThreadPoolExecutor(self._threads) as pool:
            return list(pool.map(work, items))

    def _parameters(self, k: int) -> dict[str, Any]:
        return {
            "objective": "reg:squarederror",
            "tree_method": "hist",
            "max_bin": BINS,
            "max_depth": self._depth,
            "eta": self._eta,
            "min_child_weight": 2,
            "subsample": 0.8,
            "colsample_bytree": 0.6,
            "nthread": 1,
            "seed": (self._seed * self._models + k) % 2**31,  # xgboost takes no larger one
            "verbosity": 0,
        }

    def predict(self, features: Features) -> Scores:
        scores, spread = self.predict_spread(features)
        return scores - self._caution * spread

    def draft(self, features: Features) -> Scores:
        """Scores [n] by the first trees of the prior and of the bag's first model."""
        matrix = check_features(features, self.feature_names)
        if not isinstance(self._prior, Drafts | None) or not len(matrix):
            return self.predict(matrix)
        scores = None if self._prior is None else self._prior.draft(matrix)
        if not self._bag:
            return self.predict(matrix) if scores is None else scores
        margin = None if scores is None else self._margin(scores)
        few = (0, DRAFT_TREES)
        first = self._bag[0].inplace_predict(
            without_infinities(matrix), iteration_range=few, base_margin=margin
        )
        return first.astype(np.float64)

    def predict_spread(self, features: Features) -> tuple[Scores, Scores]:
        """(mean, standard deviation) over the bag, each [n]. Raises CostModelError before anything is
        learnt."""
        matrix = check_features(features, self.feature_names)
        if not self.ready:
            raise CostModelError("the model has learnt nothing yet: fit it, or ask `ready` first")
        if not len(matrix):
            return np.zeros(0), np.zeros(0)
        margin = None
        if self._prior is not None:
            scores = self._prior.predict(matrix)
            if not self._bag:
                return scores, np.zeros(len(scores))
            margin = self._margin(scores)
        finite = without_infinities(matrix)
        each = np.stack(
            self._each(lambda m: m.inplace_predict(finite, base_margin=margin), self._bag)
        ).astype(np.float64)
        return each.mean(axis=0), each.std(axis=0)

    def _margin(self, scores: Scores) -> npt.NDArray[np.float32]:
        offset, slope = self._scale
        return (offset + slope * scores).astype(np.float32)


def decode(document: Mapping[str, Any]) -> list[Any]:
    """The boosters of a shipped model: under ``models``, each as UBJ, deflated, in base64."""
    bag = []
    for text in document["models"]:
        booster = xgboost().Booster({"nthread": 1})
        booster.load_model(bytearray(zlib.decompress(base64.b64decode(text))))
        bag.append(booster)
    return bag


def _fit_scale(scores: Scores, target: Scores) -> tuple[float, float]:
    """(offset, slope) that fit a prior's scores to a task's relative throughput by least squares. `STEADY`
    made-up rows hold the slope at 1 while there are few real ones."""
    if not len(scores):
        return 0.0, 1.0
    x, y = scores - scores.mean(), target - target.mean()
    pull = STEADY * 0.04  # the variance of a usual task's scores
    slope = max(0.1, float((x @ y + pull) / (x @ x + pull)))
    return float(target.mean() - slope * scores.mean()), slope
