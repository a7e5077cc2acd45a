"""A random forest on the logarithm of throughput, for its doubts: where trees disagree, trials are missing.

The trees are xgboost's, grown in one round on random parts of the results. A failed candidate is as slow as
the slowest that ran. Source of forests as surrogates: Hutter, Hoos, Leyton-Brown, "Sequential Model-Based
Optimization for General Algorithm Configuration", 2011.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from cost_model.base import CostModelError, Features, Scores, check_features, without_infinities
from cost_model.library import xgboost

# Trees, the share of the results that each sees, and the share of its columns that each of its splits sees.
TREES, ROWS, COLUMNS = 30, 0.632, 0.8
# Most columns that a tree sees, drawn at random: the time of a fit grows with them.
MOST = 48
DEPTH = 12
# Quantiles of a column: the time of a fit grows with them.
BINS = 32


class Forest:
    """``seed``: the same forest for the same seed and results, whatever was fitted before.

    >>> import numpy as np
    >>> x = np.arange(40, dtype=np.float32)[:, None]
    >>> forest = Forest(("x",))
    >>> forest.fit(x, np.exp(-np.abs(x[:, 0] - 30) / 10))
    >>> mean, deviation = forest.predict(np.float32([[2], [29]]))
    >>> bool(mean[1] > mean[0] and deviation.min() >= 0)
    True
    """

    def __init__(self, feature_names: tuple[str, ...], seed: int = 0) -> None:
        self.feature_names = feature_names
        self._seed = seed
        self._booster: Any = None
        self._leaves: npt.NDArray[np.float64] = np.zeros((0, 0))  # values [tree, node]
        self._columns: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)  # that the trees see
        self.best = 0.0  # logarithm of the greatest throughput

    def fit(self, features: Features, throughput: npt.ArrayLike) -> None:
        """Learn from scratch. ``features``: [n, features]; ``throughput``: [n], 0 for a failure. Raises
        CostModelError if nothing ran, or if lengths differ."""
        matrix = check_features(features, self.feature_names)
        speed = np.asarray(throughput, dtype=np.float64)
        if speed.shape != (len(matrix),):
            raise CostModelError(f"{len(matrix)} rows of features and {speed.size} of throughput")
        if not (speed > 0).any():
            raise CostModelError(f"none of {len(speed)} results ran: a forest needs one that did")
        label = np.log(np.maximum(speed, speed[speed > 0].min()))
        self.best, mean = float(label.max()), float(label.mean())
        matrix = without_infinities(matrix)
        self._columns = _telling(matrix)
        xgb = xgboost()
        parameters = {
            "objective": "reg:squarederror", "tree_method": "hist", "max_bin": BINS, "max_depth": DEPTH,
            "num_parallel_tree": TREES, "subsample": ROWS, "colsample_bynode": COLUMNS, "eta": 1.0,
            "colsample_bytree": min(1.0, MOST / len(self._columns)),
            "lambda": 0.0, "min_child_weight": 1, "base_score": mean, "nthread": 1, "verbosity": 0,
            "seed": self._seed % 2**31,
        }  # fmt: skip
        data = xgb.DMatrix(matrix[:, self._columns], label, nthread=1)
        self._booster = xgb.train(parameters, data, num_boost_round=1)
        trees = json.loads(self._booster.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"]
        # A leaf keeps its value where an inner node keeps its threshold. The sum of all trees predicts.
        values = [np.asarray(t["split_conditions"], dtype=np.float64) for t in trees]
        self._leaves = np.zeros((len(values), max(map(len, values))))
        for leaves, each in zip(self._leaves, values, strict=True):
            leaves[: len(each)] = mean + len(values) * each

    def predict(self, features: Features) -> tuple[Scores, Scores]:
        """(mean, standard deviation) over the trees, each [n], of the logarithm of throughput. Raises
        CostModelError before anything was learnt."""
        matrix = check_features(features, self.feature_names)
        if self._booster is None:
            raise CostModelError("the forest has learnt nothing yet: fit it first")
        if not len(matrix):
            return np.zeros(0), np.zeros(0)
        xgb = xgboost()
        data = xgb.DMatrix(without_infinities(matrix[:, self._columns]), nthread=1)
        leaf = self._booster.predict(data, pred_leaf=True).astype(np.int64).reshape(len(matrix), -1)
        each = self._leaves[np.arange(leaf.shape[1]), leaf]
        return each.mean(axis=1), each.std(axis=1)


def _telling(matrix: Features) -> npt.NDArray[np.int64]:
    """The columns that differ in how they order the rows, the first of each kind, without constant ones.
    Trees see nothing but the order: a number, its logarithm and its rank are the same to them."""
    found: dict[bytes, int] = {}
    for k, column in enumerate(matrix.T):
        values, order = np.unique(column, return_inverse=True)
        if len(values) > 1:
            found.setdefault(np.where(np.isnan(column), -1, order).tobytes(), k)
    return np.array(list(found.values()) or [0], dtype=np.int64)
