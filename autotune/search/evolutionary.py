"""Evolutionary search guided by a cost model.

Each round evolves a population in every competing sketch, scores whole matrices of candidates with the model,
and proposes a mix: the best predicted, neighbours of the best measured, and a part that explores. That part
is drawn at random (ε-greedy) and grows while nothing better is found; with an explorer
(`autotune.search.improvement`), what it expects the most improvement of takes its place after a few rounds.
Before the model has data, candidates are chosen by the analytic estimate if the features carry one, else at
random. Reasons: ADR 11, ADR 61.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotune.search.base import KnownCandidates, Result, candidates, unique
from autotune.search.improvement import ExpectedImprovement
from autotune.search.stopping import Stopping
from cost_model.analytic import ESTIMATE, AnalyticModel
from cost_model.base import CostModel
from cost_model.dataset import Dataset
from cost_model.draft_then_verify import draft_then_verify
from cost_model.register_model import RegisterModel
from schedules.space.base import Candidate, Rows, Space

Matrix = npt.NDArray[np.float32]
Scores = npt.NDArray[np.float64]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvolutionOptions:
    """Sizes count candidates. Shares are of the trials of a round."""

    population: int = 1024  # over all competing sketches
    generations: int = 4
    competing: int = 6  # sketches that evolve in a round
    elites: int = 32  # measured candidates that a sketch's population starts from
    crossover: float = 0.3  # probability
    mutation: float = 0.85  # probability for a child of crossover; all others are mutated
    epsilon: float = 0.1  # random share
    draft_epsilon: float = 0.3  # random share before the model has data
    most_epsilon: float = 0.5  # largest random share
    stalled: int = 16  # trials without a gain that double the random share: a model may stay on a plateau
    gain: float = 0.01  # share of throughput that counts as a gain: any plateau has smaller ones
    refine: float = 0.25  # share of neighbours of the best measured
    refine_after: int = 32  # trials before neighbours are proposed
    rivals: float = 0.5  # share that is divided over sketches by promise, whatever the model prefers
    least: int = 3  # trials of every sketch before it may be neglected
    refit: float = 1.1  # growth of the results at which the model is fitted again
    training_rows: int = 1000  # most results in a fit, whose time grows with them


@dataclass(frozen=True)
class _Pool:
    """Rows of a sketch, and the model's score of each."""

    sketch: int
    rows: Rows
    scores: Scores


class EvolutionarySearch:
    """A policy over ``space`` with ``model``. The model sees `model_features(space)`, and after those the
    predictions of ``compiled``, if given.

    ``near``: measured candidates of similar tasks, with the space's features, from which the model learns
    too. ``judges``: models of the same features whose predictions are only recorded. ``explorer``: chooses a
    part of every round in place of dice, from the same features.
    """

    def __init__(
        self,
        space: Space,
        model: CostModel,
        seed: int = 0,
        options: EvolutionOptions | None = None,
        near: Dataset | None = None,
        judges: Mapping[str, CostModel] | None = None,
        compiled: RegisterModel | None = None,
        explorer: ExpectedImprovement | None = None,
    ) -> None:
        self._space, self._model, self._compiled = space, model, compiled
        self._explorer = explorer
        self._options = options or EvolutionOptions()
        self._near = near
        self._judges = dict(judges or {})
        self._draft = AnalyticModel(model.feature_names) if ESTIMATE in model.feature_names else None
        self._rng = np.random.default_rng(seed)
        self._known = KnownCandidates(space)
        self._measured: list[Result] = []
        self._features: list[Matrix] = []  # of the measured, in the same order
        self._proposed: dict[Candidate, npt.NDArray[np.float32]] = {}  # features of what is being measured
        self._fitted = 0  # results in the last fit
        self._best = np.zeros(len(space.sketches))  # best throughput of each sketch
        self._expectation = Stopping(self._options.gain)

    # -- the contract ------------------------------------------------------------------------

    def exclude(self, digests: Iterable[str]) -> None:
        self._known.exclude(digests)

    def tell(self, results: Sequence[Result]) -> None:
        for result in results:
            sketch = result.candidate.sketch
            self._known.add(result.candidate)
            self._best[sketch] = max(self._best[sketch], result.throughput)
            self._expectation.add(result.throughput)
        if results:
            self._measured += results
            self._features.append(self._matrix_of([r.candidate for r in results]))
            for result in results:
                self._proposed.pop(result.candidate, None)

    def predicted(self, chosen: Sequence[Candidate]) -> Mapping[str, Sequence[float]]:
        if not chosen:
            return {}
        features = self._seen(self._matrix_of(chosen))
        models = self._judges | ({"model": self._model} if self._model.ready else {})
        return {name: model.predict(features).tolist() for name, model in models.items()}

    def ask(self, n: int) -> list[Candidate]:
        if len(self._measured) > self._fitted * self._options.refit:
            self._fit()
        scorer, epsilon = self._scorer()
        chosen: list[Candidate] = []
        self._explore(chosen, n, scorer)
        left = n - len(chosen)
        if scorer is not None and left:
            explorer = self._explorer if self._explorer is not None and self._explorer.ready else None
            share = epsilon if explorer is None else explorer.options.share
            explored = min(left, max(1, round(share * n))) if n > 1 else 0
            self._exploit(chosen, n - explored, scorer)
            if explorer is not None:
                self._improve(chosen, n - round(epsilon * explored), explorer)
        self._random(chosen, n)
        if scorer is not None and len(chosen) > 1:
            scores = scorer.predict(self._seen(self._matrix_of(chosen)))
            chosen = [chosen[i] for i in np.argsort(-scores, kind="stable")]
        return chosen

    # -- the model ---------------------------------------------------------------------------

    def _fit(self) -> None:
        begin = time.monotonic()
        features = np.concatenate(self._features)
        if self._compiled is not None:
            self._compiled.learn(features, [r.facts for r in self._measured])
        throughput = np.array([r.throughput for r in self._measured])
        limit = self._options.training_rows
        if len(throughput) > limit:
            order = np.argsort(-throughput, kind="stable")
            others = self._rng.choice(order[limit // 2 :], limit - limit // 2, replace=False)
            rows = np.sort(np.concatenate([order[: limit // 2], others]))
            features, throughput = features[rows], throughput[rows]
        if self._explorer is not None:
            self._explorer.fit(self._seen(features), throughput)
        groups = np.zeros(len(throughput), dtype=np.int64)
        if self._near is not None:
            features = np.concatenate([features, self._near.features])
            throughput = np.concatenate([throughput, self._near.throughput])
            groups = np.concatenate([groups, 1 + self._near.groups])
        self._model.fit(self._seen(features), throughput, groups)
        self._fitted = len(self._measured)
        took_s = time.monotonic() - begin
        log.debug("%s fitted to %d results in %.2f s", type(self._model).__name__, len(throughput), took_s)

    def _scorer(self) -> tuple[CostModel | None, float]:
        options = self._options
        if not self._model.ready:
            return self._draft, options.draft_epsilon
        doublings = min(self._expectation.stalled / options.stalled, 8)  # 2 ** thousands would overflow
        return self._model, float(min(options.epsilon * 2.0**doublings, options.most_epsilon))

    def _seen(self, features: Matrix) -> Matrix:
        """The columns that models see, from features of the space."""
        if self._compiled is None:
            return features
        return np.concatenate([features, self._compiled.columns(features)], axis=1)

    def _matrix_of(self, chosen: Sequence[Candidate]) -> Matrix:
        """`model_matrix` for candidates of any sketches, in their order; kept until their results come."""
        new = [c for c in chosen if c not in self._proposed]
        for sketch in {c.sketch for c in new}:
            group = [c for c in new if c.sketch == sketch]
            rows = np.array([c.row for c in group], dtype=np.int64).reshape(len(group), -1)
            self._proposed.update(zip(group, model_matrix(self._space, sketch, rows), strict=True))
        return np.stack([self._proposed[c] for c in chosen])

    # -- choosing ----------------------------------------------------------------------------

    def _explore(self, chosen: list[Candidate], n: int, scorer: CostModel | None) -> None:
        """A trial in each sketch that has none, then more where there are few: in a quarter of the round, or
        in all of it while there is no model. One sample scores all of them."""
        live = self._known.live()
        untried = [s for s in live if not self._known.count(s)]
        few = [s for s in live if 0 < self._known.count(s) < self._options.least]
        few.sort(key=lambda s: (self._known.count(s), -self._best[s], s))
        quarter = n // 4
        wanted = untried + few[: max(0, quarter - len(untried))]
        most = quarter if self._model.ready else n
        if not wanted or not most:
            return
        pools = [self._known.draw(s, 64, self._rng) for s in wanted]
        scores = self._score(wanted, pools, scorer)
        order = sorted(range(len(wanted)), key=lambda i: -float(scores[i].max(initial=-np.inf)))
        for i in order:
            if len(chosen) >= most:
                break
            best_first = pools[i][np.argsort(-scores[i], kind="stable")]
            next((c for c in candidates(wanted[i], best_first) if self._take(chosen, c)), None)

    def _exploit(self, chosen: list[Candidate], n: int, scorer: CostModel) -> None:
        """Fill up to ``n`` with the best predicted, part of it near the best measured."""
        sketches = self._competitors(scorer)
        if not sketches or len(chosen) >= n:
            return
        if len(self._measured) >= self._options.refine_after:
            near = self._neighbours()
            share = min(n, len(chosen) + round(self._options.refine * n))
            self._take_best(chosen, share, self._scored([s for s, _ in near], [r for _, r in near], scorer))
        pools = self._evolve(sketches, scorer)
        for i, slots in self._rivals(sketches, round(self._options.rivals * (n - len(chosen)))):
            self._take_best(chosen, len(chosen) + slots, pools[i : i + 1])
        self._take_best(chosen, n, pools)

    def _improve(self, chosen: list[Candidate], n: int, explorer: ExpectedImprovement) -> None:
        """Fill up to ``n`` with the greatest expected improvement among fresh random rows of all sketches and
        mutations of the best measured."""
        if len(chosen) >= n:
            return
        live, near = self._known.live(), dict(self._neighbours())
        pools = []
        for sketch in live:
            drawn = self._known.draw(sketch, max(64, explorer.options.pool // len(live)), self._rng)
            rows = unique(np.concatenate([drawn, near[sketch]]) if sketch in near else drawn)
            if len(rows):
                features = self._seen(model_matrix(self._space, sketch, rows))
                pools.append(_Pool(sketch, rows, explorer.score(features)))
        if pools:
            self._take_best(chosen, n, pools)

    def _random(self, chosen: list[Candidate], n: int) -> None:
        """Fill up to ``n`` at random. Sketches take turns."""
        while len(chosen) < n and (live := self._known.live()):
            for sketch in self._rng.permutation(live).tolist():
                if len(chosen) < n:
                    drawn = candidates(sketch, self._known.draw(sketch, 4, self._rng))
                    next((c for c in drawn if self._take(chosen, c)), None)

    def _take(self, chosen: list[Candidate], candidate: Candidate) -> bool:
        if not self._known.admit(candidate):
            return False
        chosen.append(candidate)
        return True

    def _take_best(self, chosen: list[Candidate], n: int, pools: list[_Pool]) -> None:
        """Take the best scored of all pools. First those that differ from every taken one of their sketch in
        two decisions or more, so that one wrong prediction does not fill the round."""
        pool = np.concatenate([np.full(len(each.rows), p) for p, each in enumerate(pools)])
        place = np.concatenate([np.arange(len(each.rows)) for each in pools])
        best = np.argsort(-np.concatenate([each.scores for each in pools]), kind="stable")[: 16 * n + 64]
        where = list(zip(pool[best].tolist(), place[best].tolist(), strict=True))
        taken: dict[int, list[npt.NDArray[np.int64]]] = {}
        for candidate in chosen:
            taken.setdefault(candidate.sketch, []).append(np.array(candidate.row, dtype=np.int64))
        for least in (2, 0):
            for p, i in where:
                if len(chosen) >= n:
                    return
                sketch, row = pools[p].sketch, pools[p].rows[i]
                others = taken.setdefault(sketch, [])
                if least and others and (np.stack(others) != row).sum(axis=1).min() < least:
                    continue
                if self._take(chosen, Candidate(sketch, tuple(row.tolist()))):
                    others.append(row)

    # -- evolving ----------------------------------------------------------------------------

    def _competitors(self, scorer: CostModel) -> list[int]:
        """The sketches to evolve: the best measured; before there is any, the best of a sample."""
        live = self._known.live()
        if len(live) <= self._options.competing:
            return live
        strength = self._best
        if not strength.any():
            pools = [self._known.draw(s, 64, self._rng) for s in live]
            strength = strength.copy()
            for sketch, scores in zip(live, self._score(live, pools, scorer), strict=True):
                strength[sketch] = scores.max(initial=-np.inf)
        return sorted(live, key=lambda s: (-strength[s], s))[: self._options.competing]

    def _rivals(self, sketches: list[int], n: int) -> list[tuple[int, int]]:
        """Divide ``n`` trials over sketches: (position in ``sketches``, trials). A model fitted on the
        leading sketch knows the others badly. So each gets trials in proportion to its best, fewer the more
        it has had."""
        if len(sketches) < 2 or n < 1 or not self._best[sketches].any():
            return []
        had = np.array([self._known.count(s) for s in sketches])
        weight = (self._best[sketches] / self._best.max()) ** 8 / np.sqrt(1 + had)
        drawn = self._rng.multinomial(n, weight / weight.sum())
        return [(i, int(k)) for i, k in enumerate(drawn) if k]

    def _shares(self, sketches: list[int]) -> list[int]:
        """Population of each sketch: larger for better ones, and never too small to evolve."""
        best = self._best[sketches]
        weight = (best / best.max()) ** 4 + 0.1 if best.any() else np.ones(len(sketches))
        return [max(64, round(x)) for x in self._options.population * weight / weight.sum()]

    def _evolve(self, sketches: list[int], scorer: CostModel) -> list[_Pool]:
        """Evolve all sketches together, so that the model is asked once a generation. Returns every fresh row
        that was met, by sketch."""
        options, rng, space = self._options, self._rng, self._space
        shares = self._shares(sketches)
        pools = []
        for sketch, share in zip(sketches, shares, strict=True):
            drawn = space.sample(sketch, share, rng)
            rows = np.concatenate([self._elites(sketch), drawn])
            pools.append(unique(rows[space.valid(sketch, rows)]))
        scores = self._score(sketches, pools, scorer)
        met = [[pools[i]] for i in range(len(sketches))]
        met_scores = [[scores[i]] for i in range(len(sketches))]
        for _ in range(options.generations):
            if not self._best.any():
                shares = self._by_score(scores)
            children = [self._offspring(s, pools[i], scores[i], shares[i]) for i, s in enumerate(sketches)]
            child_scores = self._score(sketches, children, scorer)
            for i in range(len(sketches)):
                met[i].append(children[i])
                met_scores[i].append(child_scores[i])
                rows = np.concatenate([pools[i], children[i]])
                both = np.concatenate([scores[i], child_scores[i]])
                if len(rows) and rows.shape[1]:
                    _, first = np.unique(rows, axis=0, return_index=True)
                    keep = first[np.argsort(-both[first], kind="stable")][: shares[i]]
                    pools[i], scores[i] = rows[keep], both[keep]
        found = []
        for i, sketch in enumerate(sketches):
            rows = np.concatenate(met[i])
            fresh = self._known.fresh(sketch, rows)
            found.append(_Pool(sketch, rows[fresh], np.concatenate(met_scores[i])[fresh]))
        return found

    def _by_score(self, scores: list[Scores]) -> list[int]:
        """Population of each sketch while nothing is measured: its number among the best scored of all."""
        of = np.concatenate([np.full(len(x), i) for i, x in enumerate(scores)])
        n = self._options.population
        best = of[np.argsort(-np.concatenate(scores), kind="stable")[: n // 4]]
        count = np.bincount(best, minlength=len(scores))
        return [max(16, round(n * c / max(1, len(best)))) for c in count]

    def _offspring(self, sketch: int, rows: Rows, scores: Scores, n: int) -> Rows:
        """Up to ``n`` valid children. Parents are drawn by rank."""
        if not len(rows):
            return rows
        rank = np.empty(len(rows))
        rank[np.argsort(-scores, kind="stable")] = np.arange(len(rows))
        weight = np.exp(-4.0 * rank / len(rows))
        weight /= weight.sum()
        a, b = (rows[self._rng.choice(len(rows), n, p=weight)] for _ in range(2))
        crossed = self._rng.random(n) < self._options.crossover
        children = a.copy()
        if crossed.any():
            children[crossed] = self._space.crossover(sketch, a[crossed], b[crossed], self._rng)
        mutated = ~crossed | (self._rng.random(n) < self._options.mutation)
        children[mutated] = self._space.mutate(sketch, children[mutated], self._rng)
        return children[self._space.valid(sketch, children)]

    def _elites(self, sketch: int) -> Rows:
        """The best measured rows of a sketch."""
        rows = [
            r.candidate.row
            for r in sorted(self._measured, key=lambda r: -r.throughput)
            if r.candidate.sketch == sketch and r.throughput > 0
        ][: self._options.elites]
        return np.array(rows, dtype=np.int64).reshape(len(rows), len(self._space.holes(sketch)))

    def _neighbours(self) -> list[tuple[int, Rows]]:
        """Mutations of the eight best measured, by sketch."""
        top = sorted(self._measured, key=lambda r: -r.throughput)[:8]
        found = []
        for sketch in sorted({r.candidate.sketch for r in top}):
            rows = np.array([r.candidate.row for r in top if r.candidate.sketch == sketch], dtype=np.int64)
            mutants = self._space.mutate(sketch, np.repeat(rows, 32, axis=0), self._rng)
            found.append((sketch, mutants[self._known.fresh(sketch, mutants)]))
        return found

    def _scored(self, sketches: list[int], pools: list[Rows], scorer: CostModel) -> list[_Pool]:
        return [_Pool(*x) for x in zip(sketches, pools, self._score(sketches, pools, scorer), strict=True)]

    def _score(self, sketches: list[int], pools: list[Rows], scorer: CostModel | None) -> list[Scores]:
        """Scores by pool; random without a scorer."""
        ends = np.cumsum([len(p) for p in pools])[:-1]
        if scorer is None:
            flat = self._rng.random(sum(len(p) for p in pools))
        else:
            both = zip(sketches, pools, strict=True)
            matrix = np.concatenate([model_matrix(self._space, s, p) for s, p in both])
            flat = draft_then_verify(scorer, self._seen(matrix))
        return np.split(flat, ends)


def model_features(space: Space) -> tuple[str, ...]:
    """Columns that a model of this search sees: features of the space, the number of the sketch, and the
    decisions. The decisions tell candidates apart where no feature does."""
    holes = dict.fromkeys(h for s in range(len(space.sketches)) for h in space.holes(s))
    return (*space.feature_names, "sketch", *(f"hole.{h}" for h in holes))


def model_matrix(
    space: Space, sketch: int, rows: Rows, names: tuple[str, ...] | None = None, number: int | None = None
) -> Matrix:
    """The columns of `model_features` for rows of one sketch; NaN for holes that it lacks.

    For a model of another space with the same features: ``names`` are its columns, and ``number`` is the
    number of the same sketch there."""
    names = model_features(space) if names is None else names
    count = len(space.feature_names)
    out = np.full((len(rows), len(names)), np.nan, dtype=np.float32)
    out[:, :count] = space.features(sketch, rows)
    out[:, count] = sketch if number is None else number
    place = {name: i for i, name in enumerate(names)}
    for k, hole in enumerate(space.holes(sketch)):
        if (at := place.get(f"hole.{hole}")) is not None:
            out[:, at] = rows[:, k]
    return out
