"""Exploration by expected improvement: the formula, and what it changes of a search."""

from __future__ import annotations

import math

import numpy as np
import pytest
from search_table import FormulaSpace

from autotune.search.base import Result
from autotune.search.evolutionary import EvolutionarySearch, EvolutionOptions, model_features
from autotune.search.improvement import ExpectedImprovement, ImprovementOptions, expected_improvement
from autotune.search.policies import create
from autotune.search.table import Sheet, TableSpace
from autotune.targets import from_name
from cost_model.base import CostModelError
from cost_model.random import RandomModel
from schedules import ops
from schedules.space import derive
from schedules.space.base import Candidate

SMALL = EvolutionOptions(population=128, generations=2)


@pytest.mark.parametrize("mean, deviation, best", [(0.0, 1.0, 0.0), (-2.0, 0.5, -1.0), (3.0, 2.0, 4.5)])
def test_it_is_the_mean_of_what_is_gained(mean: float, deviation: float, best: float) -> None:
    """The formula beside the integral."""
    x = np.linspace(mean - 12 * deviation, mean + 12 * deviation, 200_001)
    density = np.exp(-0.5 * ((x - mean) / deviation) ** 2) / (deviation * math.sqrt(2 * math.pi))
    integral = float((np.maximum(0, x - best) * density).sum() * (x[1] - x[0]))
    found = expected_improvement(np.array([mean]), np.array([deviation]), best)
    assert found[0] == pytest.approx(integral, rel=1e-6)


def test_it_grows_with_mean_and_with_doubt_and_stays_finite() -> None:
    steps = np.linspace(-3, 3, 50)
    assert (np.diff(expected_improvement(steps, np.full(50, 0.7), 0.0)) > 0).all()
    assert (np.diff(expected_improvement(np.full(50, -1.0), steps + 3.1, 0.0)) > 0).all()
    certain = expected_improvement(np.array([-1.0, 2.0]), np.zeros(2), 0.0)
    assert certain.tolist() == pytest.approx([0.0, 2.0])  # nothing, or the certain gain


def test_it_is_ready_after_results_enough_of_which_one_ran() -> None:
    names = ("a",)
    x = np.arange(40, dtype=np.float32)[:, None]
    explorer = ExpectedImprovement(names, options=ImprovementOptions(after=32))
    with pytest.raises(CostModelError, match="needs 32 results"):
        explorer.score(x)
    explorer.fit(x[:31], np.ones(31))
    assert not explorer.ready
    explorer.fit(x[:32], np.zeros(32))
    assert not explorer.ready
    explorer.fit(x[:32], np.arange(32.0))
    assert explorer.ready and explorer.score(x).shape == (40,)


def trap() -> TableSpace:
    """Four parameters of eight values. A hill with its top at (1, 1, 1, 1), and far from it one that is twice
    as high."""
    rows = np.stack(np.meshgrid(*[np.arange(8)] * 4, indexing="ij"), -1).reshape(-1, 4)
    hill = np.exp(-((rows - 1) ** 2).sum(axis=1) / 12)
    higher = 2.0 * np.exp(-((rows - 6) ** 2).sum(axis=1) / 12)
    times = 1e-3 / (0.05 + hill + higher)
    return TableSpace([Sheet("table", tuple("abcd"), rows, times, rows.astype(np.float32))], list("ABCD"))


class Stuck(RandomModel):
    """A model that never leaves the first hill."""

    def predict(self, features: np.ndarray) -> np.ndarray:
        place = [self.feature_names.index(n) for n in "ABCD"]
        return -np.abs(features[:, place] - 1).sum(axis=1).astype(float)


def found(space: TableSpace, policy: EvolutionarySearch, trials: int) -> float:
    """The best throughput (thousands a second) after some trials, eight at a time."""
    best = 0.0
    for _ in range(trials // 8):
        asked = policy.ask(8)
        told = [Result(c, 1.0 / (space.time_s(c) or math.inf)) for c in asked]
        policy.tell(told)
        best = max(best, *(r.throughput for r in told))
    return best / 1000


@pytest.mark.slow
def test_a_search_whose_model_is_stuck_finds_the_other_hill() -> None:
    space, names = trap(), model_features(trap())
    alone, exploring = [], []
    for seed in range(4):
        search = EvolutionarySearch(space, Stuck(names), seed, SMALL)
        alone.append(found(space, search, 96))
        explorer = ExpectedImprovement(names, seed)
        exploring.append(
            found(space, EvolutionarySearch(space, Stuck(names), seed, SMALL, explorer=explorer), 96)
        )
    assert np.mean(exploring) > 1.2 * np.mean(alone)


class Watched(ExpectedImprovement):
    """Says which features are most worth trying, and counts what it is asked."""

    asked = 0

    def score(self, features: np.ndarray) -> np.ndarray:
        self.asked += len(features)
        return features[:, 0].astype(float)  # of the first feature the largest


def test_half_of_a_round_is_the_explorers_after_32_trials() -> None:
    """And a half of that half is drawn by dice when nothing better was found for long."""
    space = trap()
    names = model_features(space)
    explorer = Watched(names, options=ImprovementOptions(pool=200))
    policy = EvolutionarySearch(space, Stuck(names), 0, SMALL, explorer=explorer)
    policy.tell([Result(c, 1.0) for _ in range(2) for c in policy.ask(16)][:31])
    explorer.asked = 0
    policy.ask(8)
    assert explorer.asked == 0
    policy = EvolutionarySearch(space, Stuck(names), 0, SMALL, explorer=explorer)
    for k in range(2):
        policy.tell([Result(c, 1.0 + k + i / 16) for i, c in enumerate(policy.ask(16))])

    def sides(n: int) -> tuple[int, int]:
        """How many of a round the explorer and the model prefer: the first parameter at its end, or all on
        the first hill."""
        chosen = policy.ask(n)
        policy.tell([Result(c, 1.0) for c in chosen])
        return sum(c.row[0] == 7 for c in chosen), sum(max(c.row) <= 3 for c in chosen)

    assert sides(8) == (4, 4)
    assert 200 <= explorer.asked <= 200 + 8 * 32
    for _ in range(8):
        found_first = sides(16)
    explorers, models = sides(16)
    assert found_first[1] >= 6 and models >= 6 and 4 <= explorers <= 6  # of 16: 8, 4, and 4 by dice


@pytest.mark.slow
def test_the_whole_space_is_still_measured_and_then_exhausted() -> None:
    rows = np.stack(np.meshgrid(np.arange(9), np.arange(7), indexing="ij"), -1).reshape(-1, 2)
    sheet = Sheet("table", ("a", "b"), rows, 1e-3 + rows.sum(axis=1) * 1e-4, rows.astype(np.float32))
    space = TableSpace([sheet], ["fa", "fb"])
    policy = create("evolutionary", space, "scratch")
    seen: set[Candidate] = set()
    while asked := policy.ask(8):
        seen.update(asked)
        policy.tell([Result(c, 1.0 / (space.time_s(c) or math.inf)) for c in asked])
    assert len(seen) == 63


def test_several_sketches_share_the_pool() -> None:
    space = FormulaSpace(choices=((12, 12, 8), (9, 9, 9), (30, 30)))
    names = model_features(space)
    seen: list[int] = []

    class Counting(ExpectedImprovement):
        def score(self, features: np.ndarray) -> np.ndarray:
            seen.append(int(features[0, names.index("sketch")]))
            assert len(features) >= 100
            return super().score(features)

    explorer = Counting(names, options=ImprovementOptions(pool=300))
    policy = EvolutionarySearch(space, RandomModel(names, 0), 0, SMALL, explorer=explorer)
    rng = np.random.default_rng(0)
    policy.tell(
        [Result(Candidate(s, tuple(space.sample(s, 1, rng)[0].tolist())), 1.0 + s) for s in (0, 1, 2) * 12]
    )
    assert len(policy.ask(8)) == 8
    assert seen == [0, 1, 2]


def test_who_explores_by_improvement() -> None:
    """Searches whose model learns and has no shipped model to begin with."""
    cpu = from_name("x86-64-v3")
    space = derive(ops.workload("matmul", {"m": 32, "n": 32, "k": 32}).dag, cpu)

    def explores(space: object, model: str) -> bool:
        policy = create("evolutionary", space, model, target=cpu)  # type: ignore[arg-type]
        return policy._explorer is not None  # type: ignore[attr-defined]

    assert explores(space, "scratch") and not explores(space, "xgb")
    assert not explores(space, "random") and not explores(space, "analytic")
    assert explores(trap(), "xgb")  # a table that no shipped model knows
