"""Search quality as a test: replayed on tables, deterministic. A model that knows nothing fails here."""

from __future__ import annotations

import numpy as np
import pytest
from recorded import conv2d

from autotune.replay import Table, play, replay
from autotune.search.base import candidates
from autotune.search.evolutionary import EvolutionarySearch, model_features
from autotune.search.table import Sheet, TableSpace
from cost_model import pretrained
from cost_model.base import CostModel
from cost_model.metrics import pairwise_accuracy, top_k
from cost_model.random import RandomModel
from cost_model.xgb import XGBModel

SEEDS = 3


@pytest.fixture(scope="module")
def table() -> Table:
    return conv2d()


def after(table: Table, search: str, model: str, trials: int) -> np.ndarray:
    """Share of the best of the table after the last trial, by seed."""
    best = float(table.space.times_s.min())
    ends = [replay(table, search, model, trials, seed).best_s[-1] for seed in range(SEEDS)]
    return np.array([best / t if t else 0.0 for t in ends])


def test_the_shipped_model_picks_well_and_beats_random_and_scratch(table: Table) -> None:
    shipped, scratch = after(table, "evolutionary", "xgb", 16), after(table, "evolutionary", "scratch", 16)
    random = after(table, "random", "random", 16)
    assert shipped.min() > 0.9  # nothing but one lucky time is better
    assert shipped.mean() > random.mean() + 0.05
    assert shipped.mean() >= scratch.mean() - 0.01


def test_learning_from_scratch_beats_a_model_that_knows_nothing(table: Table) -> None:
    learnt, guessed = after(table, "evolutionary", "scratch", 48), after(table, "evolutionary", "random", 48)
    assert learnt.mean() > 0.93
    assert learnt.mean() > guessed.mean() + 0.02


def test_the_shipped_model_orders_candidates(table: Table) -> None:
    space = table.space
    names = model_features(space)
    features, times = [], []
    for s in range(len(space.sketches)):
        rows = space.every(s, 1 << 20)
        assert rows is not None
        x = space.features(s, rows)
        features.append(np.column_stack([x, np.full(len(x), s, np.float32)]))
        times += [space.time_s(c) or np.inf for c in candidates(s, rows)]
    matrix, throughput = np.concatenate(features), 1.0 / np.array(times)
    prior = pretrained.Prior(names, matrix[::4])
    scores = prior.predict(matrix)
    assert pairwise_accuracy(scores, throughput, 0.02) > 0.8
    assert top_k(scores, throughput, 8) > 0.9
    noise = RandomModel(names).predict(matrix)
    assert pairwise_accuracy(noise, throughput, 0.02) < 0.55


class Reversed:
    """A prior that prefers the worst."""

    ready = True

    def __init__(self, prior: CostModel) -> None:
        self.feature_names, self._prior = prior.feature_names, prior

    def fit(self, *args: object) -> None: ...

    def predict(self, features: np.ndarray) -> np.ndarray:
        return 1.0 - self._prior.predict(features)

    def save(self, path: object) -> None: ...

    def load(self, path: object) -> None: ...


def test_own_trials_outvote_a_prior_that_is_wrong(table: Table) -> None:
    space = table.space
    names = model_features(space)
    rows = space.every(0, 1 << 20)
    assert rows is not None
    reference = np.column_stack([space.features(0, rows), np.zeros(len(rows), np.float32)])
    wrong = Reversed(pretrained.Prior(names, reference))
    best = float(space.times_s.min())
    run = play(table, EvolutionarySearch(space, XGBModel(names, prior=wrong), 0), 64, 0).best_s
    assert run[7] is not None and run[-1] is not None
    assert best / run[-1] > 0.85


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
    best = float(np.nanmin(time_s))
    shares = {
        name: np.array([best / (replay(table, name, "xgb", 100, s).best_s[-1] or np.inf) for s in range(SEEDS)])
        for name in (search, "random")
    }
    assert shares[search].mean() > shares["random"].mean() + 0.02
    assert shares[search].mean() > 0.9
