"""Search quality as a test: replayed on tables, deterministic. A model that knows nothing fails here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from recorded_tables import conv2d

from autotune.search.base import SearchPolicy, candidates
from autotune.search.evolutionary import EvolutionarySearch, EvolutionOptions, model_features, model_matrix
from autotune.search.local import LocalSearch
from autotune.search.random import RandomSearch
from autotune.search.simulate import play
from autotune.search.table import Sheet, Table, TableSpace
from cost_model import pretrained
from cost_model.base import CostModel
from cost_model.metrics import pairwise_accuracy, top_k
from cost_model.random import RandomModel
from cost_model.xgb import XGBModel

SEEDS = 3
SMALL = EvolutionOptions(population=128, generations=2)  # tables have hundreds of rows


@pytest.fixture(scope="module")
def table() -> Table:
    return conv2d()


def prior_of(table: Table) -> pretrained.Prior:
    """The shipped model, with the whole table as its sample of what is usual."""
    space = table.space
    parts = []
    for s in range(len(space.sketches)):
        rows = space.every(s, 1 << 20)
        assert rows is not None
        parts.append(model_matrix(space, s, rows))
    return pretrained.Prior(model_features(space), np.concatenate(parts), pretrained.shipped())


def shares(
    table: Table, make: Callable[[int], SearchPolicy], trials: int, seeds: int = SEEDS
) -> np.ndarray:
    """Share of the best of the table after the last trial, by seed."""
    best = float(table.space.times_s.min())
    ends = [play(table, make(seed), trials, seed).best_s[-1] for seed in range(seeds)]
    return np.array([best / t if t else 0.0 for t in ends])


def after(table: Table, model: str, trials: int) -> np.ndarray:
    """The same for evolutionary search with a model; "none": random search."""
    names = model_features(table.space)
    if model == "none":
        return shares(table, lambda seed: RandomSearch(table.space, seed), trials)
    makers: dict[str, Callable[[int], CostModel]] = {
        "shipped": lambda seed: XGBModel(names, seed, models=2, prior=prior_of(table)),
        "scratch": lambda seed: XGBModel(names, seed, models=2),
        "random": lambda seed: RandomModel(names, seed),
    }
    make = makers[model]
    return shares(table, lambda seed: EvolutionarySearch(table.space, make(seed), seed, SMALL), trials)


@pytest.mark.slow
def test_the_shipped_model_picks_well_and_beats_random(table: Table) -> None:
    shipped, guessed, drawn = (after(table, m, 16) for m in ("shipped", "random", "none"))
    assert shipped.min() > 0.9  # nothing but one lucky time is better
    assert shipped.mean() > max(guessed.mean(), drawn.mean()) + 0.05


@pytest.mark.slow
def test_learning_from_scratch_beats_a_model_that_knows_nothing(table: Table) -> None:
    learnt, guessed = after(table, "scratch", 40), after(table, "random", 40)
    assert learnt.mean() > 0.9
    assert learnt.mean() > guessed.mean() + 0.02


def test_the_shipped_model_orders_candidates(table: Table) -> None:
    space, prior = table.space, prior_of(table)
    expected, scores, throughput = [], [], []
    for s in range(len(space.sketches)):
        rows = space.every(s, 1 << 20)
        assert rows is not None
        x = model_matrix(space, s, rows)
        expected.append(prior.learned(x))
        scores.append(prior.predict(x))
        throughput += [1.0 / (space.time_s(c) or np.inf) for c in candidates(s, rows)]
    truth = np.array(throughput)  # measured on another CPU than it learnt from
    assert pairwise_accuracy(np.concatenate(expected), truth, 0.02) > 0.8
    assert top_k(np.concatenate(scores), truth, 8) > 0.9


class Reversed:
    """A prior that prefers the worst."""

    ready = True

    def __init__(self, prior: CostModel) -> None:
        self.feature_names, self._prior = prior.feature_names, prior

    def fit(self, *args: object) -> None: ...

    def predict(self, features: np.ndarray) -> np.ndarray:
        return 1.0 - self._prior.predict(features)


@pytest.mark.slow
def test_own_trials_outvote_a_prior_that_is_wrong(table: Table) -> None:
    wrong, names = Reversed(prior_of(table)), model_features(table.space)

    def make(seed: int) -> SearchPolicy:
        return EvolutionarySearch(table.space, XGBModel(names, seed, models=2, prior=wrong), seed, SMALL)

    astray, found = (shares(table, make, trials, seeds=6) for trials in (8, 64))
    assert astray.mean() < 0.6 and found.mean() > 0.85


@pytest.mark.fast("local")
@pytest.mark.parametrize("search", ["evolutionary", "local"])
def test_brute_forced_tables_never_seen(search: str) -> None:
    """A made-up kernel with interacting parameters, a tenth of whose configurations do not run: after 100
    evaluations both searches stand above random search with the same seeds."""
    rng = np.random.default_rng(5)
    sizes = (8, 8, 6, 4, 3)
    grid = np.stack(np.meshgrid(*map(np.arange, sizes), indexing="ij"), -1).reshape(-1, 5)
    x = grid / (np.array(sizes) - 1)
    peak = rng.random(5)
    slow = 3 * ((x - peak) ** 2).sum(axis=1) + 1.5 * np.abs(x[:, 0] - x[:, 1])
    time_s = 1e-3 * np.exp(slow + 0.05 * rng.random(len(x)))
    time_s[rng.random(len(x)) < 0.1] = np.nan
    features = np.column_stack([grid, np.log2(1 + grid)]).astype(np.float32)
    sheet = Sheet("table", tuple("abcde"), grid.astype(np.int64), time_s, features)
    table = Table("made up", TableSpace([sheet], [f"f{i}" for i in range(10)]))
    names = model_features(table.space)
    makers: dict[str, Callable[[int], SearchPolicy]] = {
        "evolutionary": lambda seed: EvolutionarySearch(
            table.space, XGBModel(names, seed, models=2, trees=50), seed, SMALL
        ),
        "local": lambda seed: LocalSearch(table.space, seed),
    }
    found = shares(table, makers[search], 100)
    drawn = shares(table, lambda seed: RandomSearch(table.space, seed), 100)
    assert found.mean() > max(0.9, drawn.mean() + 0.02)
