"""Training on measured tasks, and judging on others: planted orders are found, folds keep tasks apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from needs import imported
from space_cases import target

from cost_model import evaluation, pretrained, training
from cost_model.base import CostModelError
from cost_model.evaluation import (
    ESTIMATED,
    OF_FILE,
    SHIPPED,
    TRAINED,
    by_folds,
    folds_of,
    importance_of,
    of_saved,
    unseen,
    untrained,
)
from cost_model.metrics import pairwise_accuracy
from cost_model.pretrained import Prior
from cost_model.training import TaskData, rows_of, train, worth
from cost_model.tree_ensemble import TreeEnsemble, leaf
from schedules.space.estimate.cpu.features import FEATURE_NAMES

COLUMN = FEATURE_NAMES.index("block0.outer")
ESTIMATE = FEATURE_NAMES.index("est_time_s")


def task(seed: int, n: int = 40, workload: str | None = None) -> TaskData:
    """Candidates that take the longer the larger one feature is; the estimate is a guess, one failed."""
    rng = np.random.default_rng(seed)
    features = rng.uniform(1, 100, size=(n, len(FEATURE_NAMES))).astype(np.float32)
    time_s = 1e-6 * (seed + 1) * features[:, COLUMN].astype(np.float64)
    time_s[0] = np.nan
    name = workload or f"workload {seed}"
    return TaskData(name, name, target(), FEATURE_NAMES, features, time_s, features)


TASKS = [task(seed) for seed in range(6)]


@pytest.fixture(autouse=True)
def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "TREES", 40)
    monkeypatch.setattr(training, "MORE_TREES", 20)
    monkeypatch.setattr(training, "MORE_ETA", 0.1)
    monkeypatch.setattr(training, "FOREST", training.FOREST | {"n_estimators": 40})
    monkeypatch.setattr(training, "HIST", training.HIST | {"max_iter": 40})
    monkeypatch.setattr(evaluation, "REPEATS", 1)


def test_worth_is_a_share_of_the_best_and_a_rank() -> None:
    np.testing.assert_allclose(worth(np.array([1.0, 4.0, 0.0, 2.0])), [0.25, 0.875, 0.0, 0.5])
    assert worth(np.zeros(3)).max() < 0.5 and not len(worth(np.zeros(0)))


@pytest.mark.slow
@pytest.mark.parametrize("learner", training.TRAINERS)
def test_every_learner_orders_tasks_that_it_has_not_seen(learner: str) -> None:
    if learner in ("forest", "hist"):
        imported("sklearn")
    model = train(TASKS[:5], learner, seed=3)
    asked = TASKS[5]
    scores = np.mean([b.inplace_predict(asked.columns(FEATURE_NAMES)) for b in model.boosters], axis=0)
    ran = np.isfinite(asked.time_s)
    assert pairwise_accuracy(scores[ran], asked.throughput[ran]) > (0.75 if learner == "xgb" else 0.85)
    assert model.learner == learner and train(TASKS[:5], learner, seed=3).digest == model.digest
    assert train(TASKS[:5], learner, seed=4).digest != model.digest or learner == "hist"


@pytest.mark.slow
def test_training_begins_with_the_shipped_model() -> None:
    """What the log says nothing of stays as the shipped model has it."""
    shipped = training.shipped_trees(TASKS)
    columns = TASKS[0].columns(FEATURE_NAMES)
    expected = Prior(FEATURE_NAMES, TASKS[0].reference, pretrained.shipped(target()))
    own = np.mean([b.booster(columns.shape[1]).inplace_predict(columns) for b in shipped], axis=0)
    np.testing.assert_array_equal(own.astype(np.float64), expected.learned(TASKS[0].features))
    model = train(TASKS, "xgb")
    assert [len(m) - len(s) for m, s in zip(model.bags, shipped, strict=True)] == [21, 21], "and a base"
    assert len(train(TASKS, "scratch").bags[0]) == 41
    names = ("another", *FEATURE_NAMES)  # a column that came since: the shipped model's are found by name
    moved = [
        replace(t, feature_names=names, features=_one_more(t.features), reference=_one_more(t.reference))
        for t in TASKS
    ]
    seen = moved[0].columns(names)
    other = training.shipped_trees(moved)
    own = np.mean([b.booster(seen.shape[1]).inplace_predict(seen) for b in other], axis=0)
    np.testing.assert_array_equal(own.astype(np.float64), expected.learned(TASKS[0].features))
    assert not training.shipped_trees([replace(t, feature_names=FEATURE_NAMES[1:]) for t in TASKS])


def _one_more(features: np.ndarray) -> np.ndarray:
    return np.pad(features, ((0, 0), (1, 0)), constant_values=7.0)


@pytest.mark.slow
def test_threads_change_no_prediction() -> None:
    assert train(TASKS, threads=2).digest == train(TASKS, threads=1).digest


def test_a_task_of_many_candidates_weighs_as_some() -> None:
    rows = rows_of([task(0, 50), task(1, 400)], FEATURE_NAMES)
    assert set(rows.weights[:50]) == {1.0} and set(rows.weights[50:]) == {0.5}
    assert rows.task.tolist() == [0] * 50 + [1] * 400


def test_what_cannot_be_learnt_from_is_refused() -> None:
    with pytest.raises(
        CostModelError, match=r"unknown learner 'xbg' \(did you mean 'xgb'\?\); choose from xgb, s"
    ):
        train(TASKS, "xbg")
    with pytest.raises(CostModelError, match="15 measured candidates are too few to learn from; tune more"):
        train([task(0, 15)])
    with pytest.raises(CostModelError, match="0 measured candidates"):
        train([])
    with pytest.raises(CostModelError, match="none of the measured candidates ran"):
        train([replace(TASKS[0], time_s=np.full(40, np.nan))])
    other = replace(TASKS[1], feature_names=FEATURE_NAMES[:-1], features=TASKS[1].features[:, :-1])
    with pytest.raises(CostModelError, match="unlike features"):
        train([TASKS[0], other])


@pytest.mark.slow
def test_trees_that_are_not_understood_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later scikit-learn may keep its trees otherwise."""
    imported("sklearn")
    monkeypatch.setattr(training, "_of_hist", lambda nodes: leaf(0.5))
    with pytest.raises(CostModelError, match=r"the trees of scikit-learn [\d.]+ were not understood: .* xgb"):
        train(TASKS, "hist")


# -- judging -------------------------------------------------------------------------------------


def test_a_workload_is_in_one_fold_whoever_measured_it() -> None:
    imported("sklearn")
    tasks = [task(seed, workload=f"w{seed % 7}") for seed in range(14)]
    found = folds_of(tasks)
    assert found[:7] == found[7:] and sorted(set(found)) == [0, 1, 2, 3, 4]
    assert sorted(set(folds_of(tasks[:3]))) == [0, 1, 2]
    with pytest.raises(CostModelError, match="there is one workload to learn from and none to be judged on"):
        folds_of([tasks[0], tasks[7]])


@pytest.mark.slow
def test_folds_judge_what_was_not_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    imported("sklearn")
    seen: list[set[str]] = []
    real = train

    def watched(tasks: list[TaskData], *rest: object) -> object:
        seen.append({t.workload for t in tasks})
        return real(tasks, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("cost_model.evaluation.train", watched)
    judged = by_folds(TASKS, learners=("scratch", "xgb"))
    assert judged.folds == 5 and len(seen) == 10
    assert all(sum(t.workload not in part for part in seen) == 2 for t in TASKS), "each is asked about once"
    assert set(judged.figures) == {SHIPPED, ESTIMATED, TRAINED["scratch"], TRAINED["xgb"]}
    mine = judged.summary(TRAINED["scratch"])
    assert mine.alone is not None and mine.alone > 0.8 > 0.6 > judged.summary(ESTIMATED).pairwise
    assert mine.better is not None and mine.better > 0.5 and judged.summary(SHIPPED).better is None
    assert mine.worst <= mine.pairwise and 0 < mine.top1 <= mine.top8 <= 1


@pytest.mark.slow
def test_the_planted_column_is_the_important_one() -> None:
    imported("sklearn")
    first = importance_of(train(TASKS[:4]), TASKS[4:])[0]
    assert first.column in ("block0.outer", "block0.outer_over_usual") and first.mean > 0.1


def test_estimates_that_are_infinite_are_ordered() -> None:
    features = TASKS[0].features.copy()
    features[5:15, ESTIMATE] = np.inf
    judged = untrained([replace(TASKS[0], features=features)])
    assert 0 <= judged.summary(ESTIMATED).pairwise <= 1


@pytest.mark.slow
def test_where_a_candidate_ran_alone_no_column_is_important() -> None:
    imported("sklearn")
    alone = [replace(t, time_s=np.where(np.arange(len(t)) == 1, t.time_s, np.nan)) for t in TASKS]
    assert by_folds(alone, learners=["xgb"]).importance == ()


@pytest.mark.slow
def test_a_file_is_judged_beside_the_shipped_model() -> None:
    imported("sklearn")
    model = train(TASKS[:4], provenance={"workloads": [t.workload for t in TASKS[:4]]})
    left = unseen(TASKS, model)
    assert left == TASKS[4:]
    judged = of_saved(left, model)
    assert judged.folds == 0 and set(judged.figures) == {SHIPPED, ESTIMATED, OF_FILE}
    assert judged.summary(OF_FILE).alone > judged.summary(SHIPPED).alone  # type: ignore[operator]
    with pytest.raises(CostModelError, match="is for cpus, and these tasks are for other targets; train one"):
        of_saved([replace(TASKS[0], feature_names=FEATURE_NAMES[1:])], model)


def test_nothing_is_trained_for_the_shipped_model_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cost_model.evaluation.train", None)
    judged = untrained(TASKS)
    assert set(judged.figures) == {SHIPPED, ESTIMATED} and len(judged.figures[SHIPPED]) == len(TASKS)


def test_a_forest_is_read_in_parts_whose_mean_is_its_prediction() -> None:
    imported("sklearn")
    model = train(TASKS, "forest")
    assert [len(bag) for bag in model.bags] == [20, 20]
    assert all(isinstance(bag, TreeEnsemble) for bag in model.bags)
