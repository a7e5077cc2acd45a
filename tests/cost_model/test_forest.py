"""The forest: its mean learns, its spread says where trials are missing."""

from __future__ import annotations

import numpy as np
import pytest

from cost_model.base import CostModelError
from cost_model.forest import TREES, Forest, _telling

NAMES = ("a", "b", "c")


def task(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).random((n, 3)).astype(np.float32)
    return x, np.exp(-3 * np.abs(x[:, 0] - 0.6) - x[:, 1]).astype(np.float64)


def test_it_learns_the_logarithm_of_throughput() -> None:
    x, y = task(300, 0)
    forest = Forest(NAMES)
    forest.fit(x, 1e6 * y)
    assert forest.best == pytest.approx(np.log(1e6 * y.max()))
    held_out, truth = task(200, 1)
    mean, deviation = forest.predict(held_out)
    error = mean - np.log(1e6 * truth)
    assert np.sqrt((error**2).mean()) < 0.35 * np.log(truth).std()
    assert mean.shape == deviation.shape == (200,) and (deviation > 0).mean() > 0.9


def test_mean_and_spread_are_those_of_the_trees() -> None:
    """The mean is what xgboost itself predicts with the whole forest."""
    xgb = pytest.importorskip("xgboost")
    x, y = task(120, 2)
    forest = Forest(NAMES, seed=4)
    forest.fit(x, y)
    mean, deviation = forest.predict(x)
    whole = forest._booster.predict(xgb.DMatrix(x[:, forest._columns]))
    assert np.allclose(mean, whole, atol=1e-4)
    assert len(forest._leaves) == TREES and deviation.max() < np.ptp(np.log(y))


def test_trees_disagree_where_they_know_least() -> None:
    """At the end of a plateau, of which each tree has seen another part; and the more the fewer trials."""
    x = np.random.default_rng(3).random((400, 3)).astype(np.float32)
    y = np.where(x[:, 0] < 0.5, 1.0, 4.0)
    far, spread = np.abs(x[:, 0] - 0.5) > 0.1, {}
    for n in (30, 400):
        forest = Forest(NAMES)
        forest.fit(x[:n], y[:n])
        spread[n] = forest.predict(x)[1]
        assert spread[n][~far].mean() > 1.5 * spread[n][far].mean()
    assert spread[30].mean() > 3 * spread[400].mean()


def test_failures_are_as_slow_as_the_slowest_that_ran() -> None:
    x, y = task(200, 5)
    failed = x[:, 2] > 0.7
    speed = np.where(failed, 0.0, y)
    forest, slowest = Forest(NAMES), Forest(NAMES)
    forest.fit(x, speed)
    slowest.fit(x, np.where(failed, y[~failed].min(), y))
    for a, b in zip(forest.predict(x), slowest.predict(x)):
        assert np.array_equal(a, b)
    mean, _ = forest.predict(x)
    assert mean[failed].max() < mean[~failed].mean()


def test_the_same_for_the_same_seed_and_another_for_another() -> None:
    x, y = task(100, 6)
    found = []
    for seed in (1, 1, 2):
        forest = Forest(NAMES, seed)
        forest.fit(*task(50, 7))  # what was fitted before does not matter
        forest.fit(x, y)
        found.append(forest.predict(x)[1])
    assert np.array_equal(found[0], found[1]) and not np.array_equal(found[0], found[2])


def test_columns_that_order_alike_are_one_to_it() -> None:
    x = np.array([[1, 2, 5, 0, 4], [2, 4, 5, 1, 2], [4, 9, 5, 0, 1], [4, 9, 5, np.nan, 1]], dtype=np.float32)
    assert _telling(x).tolist() == [0, 3, 4]
    assert _telling(np.ones((4, 2), np.float32)).tolist() == [0]  # nothing tells: trees of one leaf
    forest = Forest(NAMES)
    forest.fit(np.ones((8, 3), np.float32), np.arange(1.0, 9.0))
    assert np.allclose(
        forest.predict(np.ones((2, 3), np.float32))[0], np.log(np.arange(1, 9)).mean(), atol=0.4
    )


def test_missing_and_infinite_values() -> None:
    x, y = task(80, 8)
    x[::3, 2] = np.nan
    x[1::3, 2] = np.inf
    forest = Forest(NAMES)
    forest.fit(x, y)
    assert np.isfinite(forest.predict(x)).all()


def test_what_it_cannot_learn_from_is_refused() -> None:
    forest, (x, y) = Forest(NAMES), task(20, 9)
    with pytest.raises(CostModelError, match="learnt nothing yet"):
        forest.predict(x)
    with pytest.raises(CostModelError, match="none of 20 results ran"):
        forest.fit(x, np.zeros(20))
    with pytest.raises(CostModelError, match="20 rows of features and 19 of throughput"):
        forest.fit(x, y[1:])
    with pytest.raises(CostModelError, match="columns"):
        forest.fit(x[:, :2], y)
    forest.fit(x, y)
    assert [len(a) for a in forest.predict(x[:0])] == [0, 0]
