"""Search policies against spaces whose truth is a formula."""

from __future__ import annotations

import numpy as np
import pytest
from search_table import FormulaSpace

from autotune.search.base import KnownCandidates, Result
from autotune.search.evolutionary import EvolutionarySearch, model_features, model_matrix
from autotune.search.policies import POLICIES, create
from autotune.search.table import Sheet, TableSpace
from autotune.targets import from_name
from cost_model.base import CostModelError
from cost_model.models import MODELS
from cost_model.random import RandomModel
from schedules import ops
from schedules.errors import AutotuneError
from schedules.space import derive
from schedules.space.base import Candidate


def truth(space: FormulaSpace, candidate: Candidate) -> float:
    return float(space.throughput(candidate.sketch, np.array([candidate.row]))[0])


def simulate(policy, space: FormulaSpace, trials: int, batch: int = 16, fail=lambda c: False):
    """Ask and tell until ``trials`` or exhaustion; the results in order."""
    results: list[Result] = []
    while len(results) < trials:
        asked = policy.ask(min(batch, trials - len(results)))
        assert len(asked) <= batch
        if not asked:
            break
        told = [Result(c, 0.0 if fail(c) else truth(space, c)) for c in asked]
        policy.tell(told)
        results += told
    return results


def best(results: list[Result]) -> float:
    return max(r.throughput for r in results)


CASES = [("random", "xgb"), ("local", "xgb"), *(("evolutionary", m) for m in sorted(MODELS))]


@pytest.mark.fast("random-xgb", "local-xgb", "evolutionary-random")
@pytest.mark.parametrize(("search", "model"), CASES)
def test_contract(search: str, model: str) -> None:
    space = FormulaSpace()
    results = simulate(create(search, space, model, seed=1), space, 80)
    assert len(results) == 80
    asked = [r.candidate for r in results]
    assert len(set(asked)) == 80
    assert {c.sketch for c in asked[:16]} == {0, 1, 2}
    for c in asked:
        assert space.valid(c.sketch, np.array([c.row])).all()
    again = simulate(create(search, space, model, seed=1), space, 80)
    assert again == results
    other = simulate(create(search, space, model, seed=2), space, 80)
    assert other != results


@pytest.mark.parametrize(("search", "model"), CASES)
def test_tiny_spaces_are_measured_whole_and_then_exhausted(search: str, model: str) -> None:
    space = FormulaSpace(choices=((2, 2), (3,), (1,)), peaks=(1.0, 0.5, 0.7))
    expected = 0
    for s, c in enumerate(space.choices):
        rows = np.stack(np.meshgrid(*map(np.arange, c), indexing="ij"), -1).reshape(-1, len(c))
        expected += int(space.valid(s, rows).sum())
    policy = create(search, space, model)
    results = simulate(policy, space, 1000, batch=5)
    assert len(results) == expected
    assert policy.ask(5) == []


@pytest.mark.parametrize(("search", "model"), CASES)
def test_equal_traces_of_different_rows_are_proposed_once(search: str, model: str) -> None:
    space = FormulaSpace(choices=((3, 3), (3, 3)), peaks=(1.0, 1.0), twins=True)
    policy = create(search, space, model)
    policy.exclude([space.trace(0, np.array([0, 0])).digest])
    results = simulate(policy, space, 100, batch=4)
    digests = [space.trace(r.candidate.sketch, np.array(r.candidate.row)).digest for r in results]
    rows = np.stack(np.meshgrid(np.arange(3), np.arange(3), indexing="ij"), -1).reshape(-1, 2)
    assert len(set(digests)) == len(digests) == int(space.valid(0, rows).sum()) - 1


@pytest.mark.fast(but=["evolutionary-blend", "evolutionary-scratch", "evolutionary-xgb"])
@pytest.mark.parametrize(("search", "model"), CASES)
def test_resume_continues_without_repeating(search: str, model: str) -> None:
    space = FormulaSpace()
    first = simulate(create(search, space, model, seed=4), space, 48)
    policy = create(search, space, model, seed=4)
    policy.tell(first)
    second = simulate(policy, space, 48)
    assert not {r.candidate for r in first} & {r.candidate for r in second}
    if (search, model) == ("evolutionary", "xgb"):
        assert best(second[:16]) > 0.9 * best(first)  # it starts from what was learnt


@pytest.mark.slow
def test_evolution_with_a_model_beats_random_with_paired_seeds() -> None:
    ratios = []
    for seed in range(6):
        space = FormulaSpace(choices=((12, 12, 10, 10, 8), (16, 12, 12), (10, 8, 8, 4)), seed=seed)
        optimum = space.optimum()
        evolved = best(simulate(create("evolutionary", space, "xgb", seed), space, 64)) / optimum
        drawn = best(simulate(create("random", space, "xgb", seed), space, 64)) / optimum
        assert evolved > 0.85
        ratios.append(evolved / drawn)
    assert np.exp(np.mean(np.log(ratios))) > 1.02
    assert sum(r >= 1 for r in ratios) >= 5


@pytest.mark.slow
def test_local_search_refines_what_it_finds() -> None:
    ratios = []
    for seed in range(8):
        space = FormulaSpace(choices=((12, 12, 10, 10, 8), (16, 12, 12), (10, 8, 8, 4)), seed=seed)
        refined = best(simulate(create("local", space, seed=seed), space, 96))
        ratios.append(refined / best(simulate(create("random", space, seed=seed), space, 96)))
    assert np.exp(np.mean(np.log(ratios))) > 1.02


def test_estimate_helps_before_there_is_data() -> None:
    first = {}
    for estimate in (True, False):
        shares = []
        for seed in range(8):
            space = FormulaSpace(estimate=estimate, seed=seed)
            asked = create("evolutionary", space, "xgb", seed).ask(16)
            shares.append(max(truth(space, c) for c in asked) / space.optimum())
        first[estimate] = float(np.mean(shares))
    assert first[True] > first[False]


def test_before_there_is_data_the_population_is_where_the_scores_are() -> None:
    """One sketch of six is good: most candidates of the generations are its own; later rounds share again."""
    space = FormulaSpace(choices=((12, 12, 10, 10, 8),) * 6, peaks=(0.3, 0.3, 0.3, 1.0, 0.3, 0.3))
    inner, scored = space.features, np.zeros(6, dtype=int)

    def counted(sketch: int, rows: np.ndarray) -> np.ndarray:
        scored[sketch] += len(rows)
        return inner(sketch, rows)

    space.features = counted  # type: ignore[method-assign]
    policy = create("evolutionary", space, "analytic")
    first = policy.ask(1)
    assert first[0].sketch == 3 and scored[3] > 4 * np.delete(scored, 3).max()
    policy.tell([Result(c, truth(space, c)) for c in first])
    before = scored.copy()
    policy.ask(16)
    assert (scored - before).min() > 0


class Devoted(RandomModel):
    """A model that would never leave the first decision's first four choices."""

    def predict(self, features: np.ndarray) -> np.ndarray:
        return (features[:, self.feature_names.index("f0")] < 4).astype(float)


@pytest.mark.slow
def test_a_search_on_a_plateau_looks_elsewhere_until_it_finds_better() -> None:
    grid = np.stack(np.meshgrid(*[np.arange(12)] * 3, indexing="ij"), -1).reshape(-1, 3)
    sheet = Sheet("table", tuple("abc"), grid, np.ones(len(grid)), grid.astype(np.float32))
    space = TableSpace([sheet], ["f0", "f1", "f2"])

    def elsewhere(policy: EvolutionarySearch, throughput: float) -> int:
        """How many of a round, all told to have reached the same, are not what the model prefers."""
        asked = policy.ask(20)
        policy.tell([Result(c, throughput) for c in asked])
        return sum(c.row[0] >= 4 for c in asked)

    policy = EvolutionarySearch(space, Devoted(model_features(space)), seed=1)
    stalled = [elsewhere(policy, 1.0) for _ in range(8)]
    policy.tell([Result(c, 1.02) for c in policy.ask(1)])
    after = elsewhere(policy, 1.0)
    assert stalled[0] <= 2 and after <= 2  # of 20, two of them at random
    assert sum(stalled[4:]) >= 24 and max(stalled) <= 10  # ten at random, of whose choices two thirds


@pytest.mark.slow
def test_failures_teach_to_avoid() -> None:
    space = FormulaSpace(seed=3)
    policy = create("evolutionary", space, "xgb", seed=0)

    def fail(c: Candidate) -> bool:
        return c.sketch == 0 and c.row[0] >= 3

    results = simulate(policy, space, 160, fail=fail)
    late = np.mean([r.throughput == 0 for r in results[-32:]])
    drawn = simulate(create("random", space, seed=0), space, 160, fail=fail)
    assert late < 0.6 * np.mean([r.throughput == 0 for r in drawn])
    assert best(results) > 0


def test_all_failing_does_not_stop_a_search() -> None:
    space = FormulaSpace()
    results = simulate(create("evolutionary", space, "xgb"), space, 64, fail=lambda c: True)
    assert len(results) == 64


def test_sketches_that_only_failed_go_on_when_the_one_that_works_is_used_up() -> None:
    space = FormulaSpace(choices=((1,), (6, 6), (6, 6)))
    results = simulate(create("evolutionary", space, "analytic"), space, 64, fail=lambda c: c.sketch > 0)
    assert len(results) == 64
    assert best(results) > 0


@pytest.mark.slow
def test_every_sketch_is_tried_before_any_is_neglected() -> None:
    space = FormulaSpace(choices=((9, 9, 9),) * 20, peaks=tuple(np.linspace(0.2, 1, 20)))
    policy = create("evolutionary", space, "xgb")
    results = simulate(policy, space, 16)
    assert len({r.candidate.sketch for r in results}) == 16
    results += simulate(policy, space, 150)
    tried = np.bincount([r.candidate.sketch for r in results], minlength=20)
    assert tried.min() >= 3
    assert tried[-3:].sum() > tried[:3].sum()


def test_proposals_of_a_round_differ() -> None:
    space = FormulaSpace(choices=((16,) * 6,), peaks=(1.0,))
    policy = create("evolutionary", space, "analytic")
    rows = np.array([c.row for c in policy.ask(16)[:12]])
    apart = (rows[:, None] != rows[None]).sum(axis=2) + 9 * np.eye(len(rows), dtype=int)
    assert apart.min() >= 2


def test_scoring_is_batched() -> None:
    space = FormulaSpace()
    calls = 0
    inner = space.features

    def counted(sketch: int, rows: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        return inner(sketch, rows)

    space.features = counted  # type: ignore[method-assign]
    policy = create("evolutionary", space, "analytic")
    policy.ask(16)
    assert space.scored > 1000 and calls < 60


def test_a_model_sees_features_sketch_and_decisions_by_name() -> None:
    space = FormulaSpace(choices=((4, 4), (5, 5, 5)), peaks=(1.0, 0.7))
    names = model_features(space)
    assert names == (*space.feature_names, "sketch", "hole.h0", "hole.h1", "hole.h2")
    rows = np.array([[1, 3], [2, 0]])
    seen = model_matrix(space, 0, rows)
    count = len(space.feature_names)
    assert np.array_equal(seen[:, :count], space.features(0, rows).astype(np.float32))
    assert seen[:, count:-1].tolist() == [[0, 1, 3], [0, 2, 0]] and np.isnan(seen[:, -1]).all()
    there = (*space.feature_names, "sketch", "hole.other", "hole.h1")  # of another space
    moved = model_matrix(space, 0, rows, there, -1)
    assert moved[:, [count, -1]].tolist() == [[-1, 3], [-1, 0]] and np.isnan(moved[:, -2]).all()


def test_training_rows_are_bounded() -> None:
    space = FormulaSpace()
    seen: list[int] = []

    class Recorder:
        feature_names = model_features(space)
        ready = True

        def fit(self, features: np.ndarray, throughput: np.ndarray, groups: None = None) -> None:
            assert len(features) == len(throughput)
            seen.append(len(throughput))

        def predict(self, features: np.ndarray) -> np.ndarray:
            return features[:, 0].astype(float)

    policy = EvolutionarySearch(space, Recorder())  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    rows = np.unique(space.sample(0, 1500, rng), axis=0)
    policy.tell([Result(Candidate(0, tuple(r)), 1.0 + i) for i, r in enumerate(rows.tolist())])
    assert len(rows) > 1000
    assert len(policy.ask(4)) == 4
    assert seen == [1000]


def test_known_rows() -> None:
    space = FormulaSpace()
    known = KnownCandidates(space)
    rows = np.array([[0, 0, 0], [1, 2, 3], [0, 0, 0], [7, 7, 5]])
    assert rows[known.fresh(1, rows)].tolist() == [[0, 0, 0], [1, 2, 3]]  # once, and the last is not valid
    known.add(Candidate(1, (1, 2, 3)))
    assert rows[known.fresh(1, rows)].tolist() == [[0, 0, 0]]
    assert not known.admit(Candidate(1, (1, 2, 3)))
    assert known.admit(Candidate(1, (0, 0, 0))) and not known.admit(Candidate(1, (0, 0, 0)))
    drawn = known.draw(1, 50, np.random.default_rng(0))
    assert len(np.unique(drawn, axis=0)) == 50 == known.fresh(1, drawn).sum()


def test_a_sketch_is_searched_until_nothing_new_is_drawn() -> None:
    """Of a product of one row, whose tiles are many: 1,784 candidates with whole sums."""
    space = derive(ops.workload("matmul", {"m": 1, "n": 32000, "k": 4096}).dag, from_name("x86-64-v3"))
    every = space.every(0, 10_000)
    assert every is not None and len(every) > 1500
    known, rng = KnownCandidates(space), np.random.default_rng(0)
    for row in every[:1500].tolist():
        known.add(Candidate(0, tuple(row)))
    assert 0 in known.live() and len(known.draw(0, 4, rng)) == 4
    for row in every[1500:].tolist():
        known.add(Candidate(0, tuple(row)))
    assert not len(known.draw(0, 4, rng)) and 0 not in known.live()


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AutotuneError, match=r"unknown search 'magic'.*evolutionary"):
        create("magic", FormulaSpace())
    with pytest.raises(CostModelError, match="unknown cost model"):
        create("evolutionary", FormulaSpace(), "magic")
    assert set(POLICIES) == {"evolutionary", "local", "random", "grid", "llm"}
