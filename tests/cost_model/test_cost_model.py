"""Cost models behind one contract, their metrics and the data they learn from."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from cost_model import metrics
from cost_model.analytic import AnalyticModel
from cost_model.base import CostModelError, relative_throughput
from cost_model.dataset import Dataset
from cost_model.draft_then_verify import BELOW, LEAST, VERIFIED, draft_then_verify
from cost_model.metrics import pairwise_accuracy
from cost_model.models import MODELS, create
from cost_model.xgb import XGBModel

NAMES = ("est_time_s", "a", "b", "c")


def measured(n: int, seed: int, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Features and throughput of a made-up task; the estimate is right within a factor."""
    rng = np.random.default_rng(seed)
    x = rng.random((n, 4)).astype(np.float32)
    throughput = scale * np.exp(-2 * np.abs(x[:, 1] - 0.4) - x[:, 2] * x[:, 3])
    x[:, 0] = 1.0 / (throughput * np.exp(0.5 * rng.standard_normal(n)))
    return x, throughput.astype(np.float64)


@pytest.mark.fast(but=["blend", "scratch"])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_contract(name: str) -> None:
    x, y = measured(200, 0)
    held_out, truth = measured(300, 1)
    model = create(name, NAMES, seed=3)
    model.fit(x, y)
    assert model.ready
    scores = model.predict(held_out)
    assert scores.shape == (300,) and np.isfinite(scores).all()

    again = create(name, NAMES, seed=3)
    again.fit(x, y)
    assert np.array_equal(again.predict(held_out), scores)

    assert model.predict(held_out[:0]).shape == (0,)
    with pytest.raises(CostModelError, match="columns"):
        model.predict(held_out[:, :3])
    if name == "random":
        assert 0.4 < metrics.pairwise_accuracy(scores, truth) < 0.6


def test_every_seed_of_a_tune_is_one_of_a_model() -> None:
    x, y = measured(50, 0)
    for name in MODELS:
        model = create(name, NAMES, seed=2**63 - 1)
        model.fit(x, y)
        assert model.ready


def test_learned_beats_analytic_beats_random() -> None:
    x, y = measured(300, 0)
    held_out, truth = measured(300, 1)
    accuracy = {}
    for name in MODELS:
        model = create(name, NAMES)
        model.fit(x, y)
        accuracy[name] = metrics.pairwise_accuracy(model.predict(held_out), truth)
    assert accuracy["xgb"] > 0.88 > accuracy["analytic"] > 0.65 > accuracy["random"]


def test_failures_score_low_and_odd_features_are_harmless() -> None:
    x, y = measured(300, 0)
    fails = x[:, 1] > 0.7
    model = create("xgb", NAMES)
    x[::7, 2] = np.inf
    x[::11, 3] = np.nan
    model.fit(x, np.where(fails, 0.0, y))
    scores = model.predict(x)
    assert scores[fails].max() < np.median(scores[~fails])


def test_tasks_of_any_scale_train_together() -> None:
    parts = [measured(150, s, scale) for s, scale in ((0, 1e12), (1, 1.0), (2, 1e-6))]
    x, y = np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
    model = create("xgb", NAMES)
    x[:, 0] = 0
    model.fit(x, y, np.repeat([5, 2, 9], 150))
    held_out, truth = measured(300, 3)
    held_out[:, 0] = 0
    assert metrics.pairwise_accuracy(model.predict(held_out), truth) > 0.88


def test_not_ready_without_data() -> None:
    x, y = measured(50, 0)
    model = create("xgb", NAMES)
    assert not model.ready
    model.fit(x[:3], y[:3])
    assert not model.ready
    model.fit(x, np.zeros(50))
    assert not model.ready
    with pytest.raises(CostModelError, match="fit"):
        model.predict(x)
    with pytest.raises(CostModelError, match="finite"):
        model.fit(x, np.full(50, np.inf))
    with pytest.raises(CostModelError, match="rows"):
        model.fit(x, y[:40])


def test_refusals() -> None:
    with pytest.raises(CostModelError, match=r"unknown cost model .gnn.*xgb"):
        create("gnn", NAMES)
    with pytest.raises(CostModelError, match="est_time_s"):
        create("analytic", ("a", "b"))


def test_analytic_orders_by_estimate_and_puts_nonsense_last() -> None:
    model = create("analytic", ("x", "est_time_s"))
    features = np.array([[0, 2.0], [0, 1.0], [0, np.nan], [0, 0.0], [0, -1.0], [0, np.inf]], np.float32)
    assert model.predict(features).tolist() == [0.5, 1.0, 0, 0, 0, 0]


def test_relative_throughput() -> None:
    assert relative_throughput([2, 4, 0, 0, 10], [1, 1, 1, 3, 7]).tolist() == [0.5, 1, 0, 0, 1]
    assert relative_throughput([]).tolist() == []
    with pytest.raises(CostModelError):
        relative_throughput([1.0, -1.0])


def test_metrics_by_hand() -> None:
    true = [4.0, 3.0, 2.0, 1.0]
    assert metrics.pairwise_accuracy(true, true) == 1
    assert metrics.pairwise_accuracy([1, 2, 3, 4], true) == 0
    assert metrics.pairwise_accuracy([4, 3, 1, 2], true) == pytest.approx(5 / 6)
    assert metrics.pairwise_accuracy([0, 0, 0, 0], true) == 0.5
    assert metrics.pairwise_accuracy([1, 2], [100, 99], gap=0.02) == 1  # no pair counts
    assert metrics.pairwise_accuracy([1, 2], [100, 97], gap=0.02) == 0
    assert metrics.top_k([1, 4, 2, 3], true, 1) == 0.75
    assert metrics.top_k([1, 4, 2, 3], true, 4) == 1
    assert metrics.recall_at_k([4, 1, 2, 3], true, 2) == 0.5
    assert metrics.recall_at_k(true, true, 30) == 1
    assert metrics.rmse([1, 2, 3, 4], [1, 2, 3, 6]) == 1
    with pytest.raises(ValueError, match="length"):
        metrics.rmse([1], [1, 2])
    with pytest.raises(ValueError, match="k is 0"):
        metrics.top_k(true, true, 0)


def test_data_must_fit_together() -> None:
    x, y = measured(20, 0)
    assert len(Dataset(NAMES, x, y, np.zeros(20, np.int64))) == 20
    with pytest.raises(CostModelError):
        Dataset(NAMES, x, y[:3], np.zeros(20, np.int64))


def test_nothing_heavy_is_imported_before_it_is_used() -> None:
    code = (
        "import sys, cost_model.models, cost_model.metrics, cost_model.dataset\n"
        "print(sorted({'xgboost', 'sklearn'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


class Halting:
    """Scores by the first column; its draft sees only whether that is above a half."""

    feature_names = ("a", "b")
    ready = True

    def __init__(self) -> None:
        self.asked = 0

    def fit(self, *args: object) -> None: ...

    def predict(self, x: np.ndarray) -> np.ndarray:
        self.asked += len(x)
        return x[:, 0].astype(np.float64)

    def draft(self, x: np.ndarray) -> np.ndarray:
        return (x[:, 0] > 0.5).astype(np.float64)


def test_a_survey_asks_the_whole_model_only_about_the_best_of_its_draft() -> None:
    x = np.random.default_rng(0).random((3200, 2)).astype(np.float32)
    model = Halting()
    scores = draft_then_verify(model, x)
    whole = scores >= 0
    assert model.asked == whole.sum() == 3200 * VERIFIED and (x[whole, 0] > 0.5).all()
    assert np.array_equal(scores[whole], x[whole, 0])
    assert (scores[~whole] == model.draft(x[~whole]) - BELOW).all()


def test_a_survey_of_few_candidates_or_without_a_draft_is_the_model() -> None:
    x = np.random.default_rng(0).random((LEAST, 2)).astype(np.float32)
    assert np.array_equal(draft_then_verify(Halting(), x), x[:, 0])
    x = np.random.default_rng(0).random((500, 1)).astype(np.float32)
    analytic = AnalyticModel(("est_time_s",))
    assert np.array_equal(draft_then_verify(analytic, x), analytic.predict(x))


def test_a_draft_is_near_what_the_whole_model_says() -> None:
    rng = np.random.default_rng(0)
    x = rng.random((600, 6)).astype(np.float32)
    y = 1 / (1 + 3 * x[:, 0] + x[:, 1] * x[:, 2])
    names = tuple("abcdef")
    model = XGBModel(names)
    model.fit(x[:300], y[:300])
    whole, few = model.predict(x[300:]), model.draft(x[300:])
    assert pairwise_accuracy(few, whole) > 0.9 and not np.array_equal(few, whole)
