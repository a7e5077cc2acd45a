"""How well models order the candidates of tasks that they have not seen.

A fold is a part of the tasks: scikit-learn's GroupKFold keeps the candidates of a workload together,
whichever machine measured them. scikit-learn is imported by the functions that need it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cost_model import pretrained
from cost_model.analytic import ESTIMATE
from cost_model.base import CostModelError, Features, Scores
from cost_model.features import DERIVED
from cost_model.metrics import pairwise_accuracy, top_k
from cost_model.pretrained import Prior
from cost_model.saved import SavedModel
from cost_model.training import TaskData, train

# Pairs of candidates whose throughputs differ by less (share) do not count.
GAP = 0.02
# Most folds.
FOLDS = 5
# Rows that importance is measured on at most, and how often each column is mixed.
IMPORTANCE_ROWS, REPEATS = 2000, 3
# Seconds that stand for an estimate that is none.
LONGEST_S = 1e300
# Names of models in tables: without training here; trained on the other folds.
SHIPPED, ESTIMATED, OF_FILE = "shipped", "estimate alone", "file"
TRAINED = {
    "xgb": "trained: XGBoost after the shipped",
    "scratch": "trained: XGBoost from scratch",
    "hist": "trained: HistGradientBoosting",
    "forest": "trained: random forest",
}


@dataclass(frozen=True)
class Figures:
    """Of a model on a task: ``pairwise``, the share of pairs ordered rightly; ``top1``, ``top8``, the best of
    the highest 1 or 8 over the best of all; ``alone``, ``pairwise`` without the analytic estimate, with which
    a search mixes what was learnt (None: it has nothing learnt)."""

    pairwise: float
    top1: float
    top8: float
    alone: float | None = None


@dataclass(frozen=True)
class Summary:
    """Means over the tasks, the worst task's pairwise accuracy, and the share of tasks that it orders better
    than the shipped model (None: nothing to compare with)."""

    pairwise: float
    worst: float
    top1: float
    top8: float
    alone: float | None
    better: float | None


@dataclass(frozen=True)
class Importance:
    """How much the pairwise accuracy falls when a column is mixed: mean and standard deviation."""

    column: str
    mean: float
    spread: float


@dataclass(frozen=True)
class Evaluation:
    """``figures``: {model: figures of each task, in their order}. ``folds``: number of folds, 0 without
    training. ``importance``: of the columns that a model saw, the most important first."""

    tasks: tuple[TaskData, ...]
    figures: Mapping[str, tuple[Figures, ...]]
    folds: int
    importance: tuple[Importance, ...]

    def summary(self, model: str) -> Summary:
        """Means of one model."""
        each = self.figures[model]
        alone = [f.alone for f in each if f.alone is not None]
        pairs = np.array([f.pairwise for f in each])
        shipped = self.figures.get(SHIPPED)
        better = None
        if shipped is not None and model != SHIPPED:
            better = float(np.mean(pairs > np.array([f.pairwise for f in shipped])))
        return Summary(
            float(pairs.mean()),
            float(pairs.min()),
            float(np.mean([f.top1 for f in each])),
            float(np.mean([f.top8 for f in each])),
            float(np.mean(alone)) if len(alone) == len(each) else None,
            better,
        )


def by_folds(
    tasks: Sequence[TaskData],
    seed: int = 0,
    threads: int = 1,
    learners: Iterable[str] = TRAINED,
    progress: Callable[[str], None] | None = None,
) -> Evaluation:
    """Judge each learner on tasks that its model has not learnt from, beside the shipped model and the
    estimate, which learn nothing here. ``progress``: called with what is done next. Raises CostModelError for
    tasks of a single workload, ImportError without scikit-learn."""
    tasks = tuple(tasks)
    fold = folds_of(tasks)
    figures = _untrained(tasks)
    importance: tuple[Importance, ...] = ()
    for learner in learners:
        found: dict[int, Figures] = {}
        for k in range(max(fold) + 1):
            if progress is not None:
                progress(f"{TRAINED[learner]}, fold {k + 1} of {max(fold) + 1}")
            asked = [i for i, f in enumerate(fold) if f == k]
            model = train([t for t, f in zip(tasks, fold) if f != k], learner, seed, threads)
            found |= {i: of_model(tasks[i], model) for i in asked}
            if learner == "xgb" and k == 0:
                importance = importance_of(model, [tasks[i] for i in asked], seed)
        figures[TRAINED[learner]] = tuple(found[i] for i in range(len(tasks)))
    return Evaluation(tasks, figures, max(fold) + 1, importance)


def of_saved(tasks: Sequence[TaskData], model: SavedModel, seed: int = 0) -> Evaluation:
    """Judge a trained model on tasks, beside the shipped one and the estimate. Raises CostModelError for
    tasks of other features, ImportError without scikit-learn."""
    tasks = tuple(tasks)
    if tasks[0].feature_names != model.feature_names:
        raise CostModelError(
            f"the cost model {model.origin} is for {model.serves}, and these tasks are for other targets; "
            "train one of their log with: autotune train"
        )
    figures = _untrained(tasks) | {OF_FILE: tuple(of_model(t, model) for t in tasks)}
    return Evaluation(tasks, figures, 0, importance_of(model, tasks, seed))


def unseen(tasks: Sequence[TaskData], model: SavedModel) -> list[TaskData]:
    """The tasks whose workloads the model has not learnt from, as far as its file says."""
    return [t for t in tasks if t.workload not in model.tasks]


def untrained(tasks: Sequence[TaskData]) -> Evaluation:
    """Judge the shipped model and the estimate. Nothing is trained, and scikit-learn is not needed."""
    tasks = tuple(tasks)
    return Evaluation(tasks, _untrained(tasks), 0, ())


def folds_of(tasks: Sequence[TaskData]) -> list[int]:
    """The fold of each task: at most `FOLDS`, of about as many candidates, a workload in one only. Raises
    CostModelError for a single workload."""
    workloads = sorted({t.workload for t in tasks})
    if len(workloads) < 2:
        raise CostModelError(
            "there is one workload to learn from and none to be judged on; tune another one, or judge a "
            "model's file with --cost-model FILE"
        )
    folder = importlib.import_module("sklearn.model_selection").GroupKFold(min(FOLDS, len(workloads)))
    group = np.repeat([workloads.index(t.workload) for t in tasks], [len(t) for t in tasks])
    task = np.repeat(np.arange(len(tasks)), [len(t) for t in tasks])
    fold = [0] * len(tasks)
    for k, (_, asked) in enumerate(folder.split(task, groups=group)):
        for i in np.unique(task[asked]):
            fold[int(i)] = k
    return fold


def of_model(task: TaskData, model: Mapping[str, Any] | SavedModel) -> Figures:
    """The figures of a shipped or trained model."""
    prior = Prior(task.feature_names, task.reference, model)
    return _figures(task, prior.predict(task.features), prior.learned(task.features))


def _untrained(tasks: Sequence[TaskData]) -> dict[str, tuple[Figures, ...]]:
    found = {}
    documents = [pretrained.shipped(t.target) for t in tasks]
    if all(pretrained.knows(t.feature_names, d) for t, d in zip(tasks, documents)):
        found[SHIPPED] = tuple(of_model(t, d) for t, d in zip(tasks, documents))
    if all(ESTIMATE in t.feature_names for t in tasks):
        found[ESTIMATED] = tuple(_figures(t, _estimate(t), None) for t in tasks)
    return found


def _estimate(task: TaskData) -> Scores:
    seconds = task.features[:, task.feature_names.index(ESTIMATE)].astype(np.float64)
    return -np.where(np.isfinite(seconds), seconds, LONGEST_S)  # differences of infinities are no numbers


def _figures(task: TaskData, scores: Scores, learned: Scores | None) -> Figures:
    ran, fast = np.isfinite(task.time_s), task.throughput
    return Figures(
        pairwise_accuracy(scores[ran], fast[ran], GAP),
        top_k(scores, fast, 1),
        top_k(scores, fast, 8),
        None if learned is None else pairwise_accuracy(learned[ran], fast[ran], GAP),
    )


class _Fitted:
    """A trained model as scikit-learn expects one."""

    def __init__(self, model: SavedModel) -> None:
        self._model = model

    def fit(self, columns: Features, worth: Scores) -> _Fitted:
        """It is fitted already."""
        return self

    def predict(self, columns: Features) -> Scores:
        """Expected worth [n]."""
        each = [b.inplace_predict(columns) for b in self._model.boosters]
        return np.mean(each, axis=0).astype(np.float64)


def importance_of(model: SavedModel, tasks: Sequence[TaskData], seed: int = 0) -> tuple[Importance, ...]:
    """scikit-learn's permutation importance of the columns that the model sees, on tasks that it should not
    have seen: how much the mean over tasks of the pairwise accuracy falls, largest first. Columns that say
    much the same share what they tell. Empty where no task has two candidates that ran. Raises ImportError
    without scikit-learn."""
    inspection = importlib.import_module("sklearn.inspection")
    rng = np.random.default_rng(seed)
    chosen, left = [], IMPORTANCE_ROWS
    for i in rng.permutation(len(tasks)):
        ran = np.flatnonzero(np.isfinite(tasks[i].time_s))
        ran = np.sort(rng.permutation(ran)[: max(IMPORTANCE_ROWS // len(tasks), 16)])
        if len(ran) >= 2 and left > 0:
            chosen.append((tasks[i], ran))
            left -= len(ran)
    if not chosen:
        return ()
    columns = np.concatenate([t.columns(model.feature_names)[ran] for t, ran in chosen])
    fast = np.concatenate([t.throughput[ran] for t, ran in chosen])
    ends = np.cumsum([len(ran) for _, ran in chosen])[:-1]

    def accuracy(estimator: _Fitted, x: Features, y: Scores) -> float:
        parts = zip(np.split(estimator.predict(x), ends), np.split(y, ends))
        return float(np.mean([pairwise_accuracy(p, t, GAP) for p, t in parts]))

    found = inspection.permutation_importance(
        *(_Fitted(model), columns, fast), scoring=accuracy, n_repeats=REPEATS, random_state=seed % 2**32
    )
    names = (*model.feature_names, *DERIVED)
    order = np.argsort(-found.importances_mean, kind="stable")
    return tuple(
        Importance(names[k], float(found.importances_mean[k]), float(found.importances_std[k])) for k in order
    )
