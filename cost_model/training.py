"""Training a model of many tasks on measured candidates: the shipped ones, and those of a user's own log.

A model sees proportions and what is usual for a task beside plain features (`cost_model.features`), and
learns what a candidate is worth within its task. scikit-learn is imported only by the learners that are its.
"""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from cost_model import pretrained
from cost_model.base import CostModelError, Features
from cost_model.features import DERIVED, Usual, inputs, usual
from cost_model.library import xgboost
from cost_model.saved import SavedModel
from cost_model.tree_ensemble import NONE, TreeEnsemble, inclusive, leaf, of_booster
from cost_model.xgb import decode
from schedules.errors import instead
from schedules.model import Target

# Fewest candidates of all tasks together that are learnt from.
FEWEST = 16
# A task weighs as up to so many candidates.
FULL = 200
# Settings of XGBoost, its trees, and its models; those of the forest, which is read in parts of so many
# trees.
PARAMETERS = {
    "objective": "reg:squarederror",
    "max_depth": 7,
    "eta": 0.07,
    "subsample": 0.7,
    "colsample_bytree": 0.5,
    "min_child_weight": 3,
    "tree_method": "hist",
    "max_bin": 32,
}
TREES, BAG = 300, 2
# Trees that learn the errors of the shipped model, and their rate.
MORE_TREES, MORE_ETA = 200, 0.03
FOREST = {"n_estimators": 60, "max_depth": 24, "min_samples_leaf": 3, "max_features": 0.2}
PART = 20
HIST = {"max_iter": 300, "learning_rate": 0.07, "max_leaf_nodes": 63, "max_bins": 32, "early_stopping": False}
# Largest difference between a library's own prediction and that of the arrays read from its trees.
ALIKE = 1e-4

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TaskData:
    """Measured candidates of a workload on a target and machine.

    ``name``: for people; ``workload``: what tells it from others on every machine, such as its digest.
    ``features`` float32 [n, names] and ``time_s`` [n] seconds, NaN for a failure. ``reference``: features of
    a random sample of its space, which say what is usual."""

    name: str
    workload: str
    target: Target
    feature_names: tuple[str, ...]
    features: Features
    time_s: Vector
    reference: Features

    def __len__(self) -> int:
        return len(self.time_s)

    @property
    def throughput(self) -> Vector:
        """Runs a second [n], 0 for a failure."""
        return np.where(np.isfinite(self.time_s), 1.0 / self.time_s, 0.0)

    @cached_property
    def usual(self) -> Usual:
        """What is usual for good candidates."""
        return usual(self.reference, self.feature_names)

    def columns(self, wanted: tuple[str, ...]) -> Features:
        """What a model with the features ``wanted`` sees of the candidates."""
        return inputs(self.features, self.feature_names, wanted, self.usual)


@dataclass(frozen=True, eq=False)
class Rows:
    """What is learnt from several tasks. ``columns`` [n, width], ``worth`` [n], ``weights`` [n], ``task``
    [n], the place of each row's task in the list."""

    columns: Features
    worth: Vector
    weights: Vector
    task: npt.NDArray[np.int64]


def rows_of(tasks: Sequence[TaskData], wanted: tuple[str, ...]) -> Rows:
    """The candidates of all tasks, in their order. Raises CostModelError for fewer than `FEWEST`, and where
    nothing ran."""
    count = sum(len(t) for t in tasks)
    if count < FEWEST:
        raise CostModelError(
            f"{count} measured candidates are too few to learn from; tune more, so that there are {FEWEST}"
        )
    labels = [worth(t.throughput) for t in tasks]
    if not any(t.throughput.any() for t in tasks):
        raise CostModelError("none of the measured candidates ran, so that there is nothing to learn")
    return Rows(
        np.concatenate([t.columns(wanted) for t in tasks]),
        np.concatenate(labels),
        np.concatenate([np.full(len(y), min(1.0, FULL / max(len(y), 1))) for y in labels]),
        np.repeat(np.arange(len(tasks)), [len(t) for t in tasks]),
    )


# (rows, their tasks, seed, threads) -> ensembles whose mean predicts.
Learner = Callable[[Rows, Sequence[TaskData], int, int], list[TreeEnsemble]]


def worth(throughput: Vector) -> Vector:
    """The mean of throughput over the best of the task and of the share of its candidates that are slower:
    where most are slow, throughput alone hardly tells them apart, and ranks alone not what is best."""
    slower = np.argsort(np.argsort(throughput, kind="stable"), kind="stable") / max(len(throughput), 1)
    found: Vector = (throughput / max(float(throughput.max(initial=0.0)), 1e-300) + slower) / 2
    return found


def train(
    tasks: Sequence[TaskData],
    learner: str = "xgb",
    seed: int = 0,
    threads: int = 1,
    provenance: Mapping[str, Any] | None = None,
) -> SavedModel:
    """A model of the tasks' candidates, which must have the same features. The same for the same tasks and
    seed.

    Raises CostModelError for an unknown learner and for too little to learn from, ImportError where
    scikit-learn is needed and missing.

    Example: ``train(tasks).save(Path("model.json"))``."""
    if learner not in TRAINERS:
        raise CostModelError(
            f"unknown learner {learner!r}{instead(learner, TRAINERS, 'choose from')}"
        )
    wanted = tasks[0].feature_names if tasks else ()
    if any(t.feature_names != wanted for t in tasks):
        raise CostModelError("the tasks have unlike features; train a model for cpus and one for gpus")
    rows = rows_of(tasks, wanted)
    bags = TRAINERS[learner](rows, tasks, seed, threads)
    for bag in bags:
        bag.check(rows.columns.shape[1])
    return SavedModel(learner, wanted, tuple(bags), provenance or {})


def boosters(rows: Rows, seed: int = 0, threads: int = 1) -> list[Any]:
    """A bag of XGBoost models that begin with nothing."""
    return _boosters(rows, seed, threads, PARAMETERS, TREES)


def _boosters(
    rows: Rows, seed: int, threads: int, parameters: dict[str, Any], trees: int, margin: Vector | None = None
) -> list[Any]:
    """One thread a model: several in one wait for each other, which is slow on a busy machine. ``margin``:
    what is known of each row before."""
    xgb = xgboost()
    data = xgb.QuantileDMatrix(
        *(rows.columns, rows.worth),
        weight=rows.weights,
        base_margin=margin,
        max_bin=parameters["max_bin"],
        nthread=1,
    )

    def one(k: int) -> Any:
        settings = parameters | {"seed": (seed * BAG + k) % 2**31, "nthread": 1, "verbosity": 0}
        return xgb.train(settings, data, trees)

    if threads == 1:
        return [one(k) for k in range(BAG)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(one, range(BAG)))


def _scratch(rows: Rows, tasks: Sequence[TaskData], seed: int, threads: int) -> list[TreeEnsemble]:
    return [of_booster(b) for b in boosters(rows, seed, threads)]


def _xgb(rows: Rows, tasks: Sequence[TaskData], seed: int, threads: int) -> list[TreeEnsemble]:
    """The shipped model's trees and then others, which learn its errors: a log is of some operators, and the
    shipped model of many. From scratch where no shipped model knows the features."""
    shipped = shipped_trees(tasks)
    if not shipped:
        return _scratch(rows, tasks, seed, threads)
    width = rows.columns.shape[1]
    margin = np.mean([bag.booster(width).inplace_predict(rows.columns) for bag in shipped], axis=0)
    parameters = PARAMETERS | {"eta": MORE_ETA, "base_score": 0.0}
    more = [of_booster(b) for b in _boosters(rows, seed, threads, parameters, MORE_TREES, margin)]
    return [shipped[k % len(shipped)].then(more[k % BAG]) for k in range(math.lcm(len(shipped), BAG))]


def shipped_trees(tasks: Sequence[TaskData]) -> list[TreeEnsemble]:
    """The ensembles of the model that is shipped for the target with the most candidates, over the columns of
    the tasks. Empty where there is none, or it has features that they lack."""
    sizes: Counter[Target] = Counter()
    for t in tasks:
        sizes[t.target] += len(t)
    document = pretrained.shipped(sizes.most_common(1)[0][0])
    wanted, names = document.get("feature_names", ()), tasks[0].feature_names
    if not wanted or not set(wanted) <= set(names):
        return []
    added = range(len(names), len(names) + len(DERIVED))
    places = np.array([*(names.index(n) for n in wanted), *added], dtype=np.int64)
    bag = decode(document)
    return [of_booster(b).renumbered(places) for b in bag]


def _forest(rows: Rows, tasks: Sequence[TaskData], seed: int, threads: int) -> list[TreeEnsemble]:
    ensemble = importlib.import_module("sklearn.ensemble")
    fitted = ensemble.RandomForestRegressor(**FOREST, random_state=seed % 2**32, n_jobs=threads)
    fitted.fit(rows.columns, rows.worth, sample_weight=rows.weights)
    trees = [_of_forest(e.tree_, PART) for e in fitted.estimators_]
    parts = [TreeEnsemble.of(trees[k : k + PART]) for k in range(0, len(trees), PART)]
    return _as_predicted(parts, rows.columns, fitted)


def _of_forest(tree: Any, trees: int) -> Any:
    is_leaf = tree.children_left == NONE
    return (
        tree.children_left.astype(np.int32),
        tree.children_right.astype(np.int32),
        np.where(is_leaf, NONE, tree.feature).astype(np.int32),
        np.where(is_leaf, tree.value[:, 0, 0] / trees, inclusive(tree.threshold)).astype(np.float32),
        tree.missing_go_to_left.astype(bool),
    )


def _hist(rows: Rows, tasks: Sequence[TaskData], seed: int, threads: int) -> list[TreeEnsemble]:
    ensemble = importlib.import_module("sklearn.ensemble")
    with importlib.import_module("threadpoolctl").threadpool_limits(1, "openmp"):  # as of XGBoost
        fitted = ensemble.HistGradientBoostingRegressor(**HIST, random_state=seed % 2**32)
        fitted.fit(rows.columns, rows.worth, sample_weight=rows.weights)
        # scikit-learn has no public way to the trees; what is read of them is compared below
        base = float(np.ravel(fitted._baseline_prediction)[0])
        trees = [leaf(base), *(_of_hist(each[0].nodes) for each in fitted._predictors)]
        return _as_predicted([TreeEnsemble.of(trees)], rows.columns, fitted)


def _of_hist(nodes: Any) -> Any:
    is_leaf = nodes["is_leaf"].astype(bool)
    left, right, feature = (
        np.where(is_leaf, NONE, nodes[name].astype(np.int64)).astype(np.int32)
        for name in ("left", "right", "feature_idx")
    )
    threshold = np.where(is_leaf, nodes["value"], inclusive(nodes["num_threshold"])).astype(np.float32)
    return left, right, feature, threshold, nodes["missing_go_to_left"].astype(bool)


def _as_predicted(bags: list[TreeEnsemble], columns: Features, fitted: Any) -> list[TreeEnsemble]:
    """The ensembles, if they predict as the library's own model does. Raises CostModelError otherwise."""
    some = columns[:: max(1, len(columns) // 500)]
    own = np.mean([bag.booster(columns.shape[1]).inplace_predict(some) for bag in bags], axis=0)
    apart = float(np.abs(own - fitted.predict(some)).max())
    if not apart < ALIKE:
        version = importlib.import_module("sklearn").__version__
        raise CostModelError(
            f"the trees of scikit-learn {version} were not understood: predictions differ by {apart:.2g}; "
            "train with the learner xgb"
        )
    return bags


# {learner: how it is trained}; the names are `cost_model.saved.LEARNERS`.
TRAINERS: dict[str, Learner] = {
    "xgb": _xgb,
    "scratch": _scratch,
    "forest": _forest,
    "hist": _hist,
}
