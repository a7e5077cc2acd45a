"""What a compiler tells of candidates for GPUs, as features of those that it has not seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import made_up
import numpy as np
import pytest
from needs import missing

from autotune import backends, targets
from autotune.backends.building.from_trace import build_object
from autotune.backends.drivers.protocol import facts
from autotune.codegen.grid_code import GridCode
from autotune.codegen.simt import nvrtc
from autotune.measure.results import Measurement
from autotune.search.base import Result
from autotune.search.evolutionary import EvolutionarySearch, model_features, model_matrix
from autotune.search.policies import create
from autotune.tuning import resume
from autotune.tuning.options import TuneOptions
from cost_model.register_model import LEAST, NAMES, RegisterModel
from kernels_db.store import Log
from schedules import ops
from schedules.model import Trace, Workload
from schedules.space import Candidate, DerivedSpace, derive
from schedules.space.estimate.gpu.limits import occupancy
from schedules.space.estimate.gpu.rates import GpuRates

H100 = backends.parse("h100")
SHAPE = {"m": 512, "n": 512, "k": 512}


@cache
def product() -> DerivedSpace:
    return derive(ops.workload("matmul", SHAPE).dag, H100)


@cache
def candidates() -> tuple[np.ndarray, list[Candidate]]:
    """Features of 200 valid candidates, and the candidates."""
    space, rng = product(), np.random.default_rng(0)
    found: list[Candidate] = []
    matrices = []
    for s in range(len(space.sketches)):
        rows = space.sample(s, 4000, rng)
        rows = rows[space.valid(s, rows)][: 200 // len(space.sketches)]
        matrices.append(model_matrix(space, s, rows))
        found += [Candidate(s, tuple(map(int, r))) for r in rows]
    order = rng.permutation(len(found))
    return np.concatenate(matrices)[order], [found[i] for i in order]


def compiler(features: np.ndarray) -> list[dict[str, int]]:
    """One that takes half as many registers again as are counted, for each doubling of what is unrolled a few
    more, and has as many as the block leaves it."""
    names = model_features(product())
    counted, unrolled, threads = (
        features[:, names.index(f"kernel0.{c}")] for c in ("registers", "unrolled", "threads")
    )
    demand = (1.5 * counted * np.maximum(unrolled, 1) ** 0.1).astype(int)
    room = np.minimum(255, 65536 // (np.ceil(threads / 32) * 32) // 8 * 8).astype(int)
    shared = features[:, names.index("kernel0.shared_bytes")].astype(int)
    return [
        {"registers": int(min(d, r)), "spill_bytes": int(4 * max(0, d - r)), "shared_bytes": int(s)}
        for d, r, s in zip(demand, room, shared)
    ]


def foretold(learnt: int) -> tuple[np.ndarray, np.ndarray]:
    """Columns of the last hundred, foretold from what is told of so many others, and the truth."""
    features, _ = candidates()
    model = RegisterModel(model_features(product()), GpuRates.of(H100))
    model.learn(features[:learnt], compiler(features[:learnt]))
    truth = [[t["registers"], t["spill_bytes"], t["shared_bytes"]] for t in compiler(features[-100:])]
    return model.columns(features[-100:]), np.array(truth)


def test_departures_of_the_compiler_are_learnt() -> None:
    before, truth = foretold(0)
    after, _ = foretold(60)
    assert before.shape == after.shape == (100, len(NAMES)) and np.isfinite(after).all()
    wrong = [np.abs(c[:, 0] / truth[:, 0] - 1).mean() for c in (before, after)]
    assert wrong[1] < 0.1 < 0.2 < wrong[0]
    spilling = truth[:, 1] > 100
    assert 3 < spilling.sum() < 97
    assert np.corrcoef(np.log1p(after[:, 1]), np.log1p(truth[:, 1]))[0, 1] > 0.9
    assert (after[spilling, 1] > 40).all() and not before[:, 1].any()
    few, _ = foretold(LEAST - 1)
    np.testing.assert_array_equal(few, before)


def test_occupancy_follows_from_registers() -> None:
    m = GpuRates.of(H100)
    assert occupancy(256, 0, 32, m) == 1.0 and occupancy(256, 0, 64, m) == 0.5
    assert occupancy(256, 48 << 10, 32, m) == 4 * 256 / 2048 and occupancy(32, 0, 16, m) == 0.5
    _, names = candidates()[0], model_features(product())
    features = candidates()[0]
    columns, _ = foretold(60)
    threads = features[-100:, names.index("kernel0.threads")]
    given = np.ceil(columns[:, 0].astype(np.float64) / 8) * 8
    np.testing.assert_allclose(columns[:, 3], occupancy(threads, columns[:, 2], given, m), rtol=1e-6)


def test_what_makes_no_sense_is_left_out() -> None:
    features, _ = candidates()
    names, m = model_features(product()), GpuRates.of(H100)
    told: list[Any] = compiler(features[:20])
    sound, odd = RegisterModel(names, m), RegisterModel(names, m)
    sound.learn(features[:20], told)
    wrong = [("registers", 0), ("registers", -3), ("spill_bytes", 1 << 40), ("shared_bytes", float("nan"))]
    nonsense = [None, {}, {"registers": "many"}, *({**told[0], k: v} for k, v in wrong)]
    odd.learn(features[: 20 + len(nonsense)], [*told, *nonsense])
    np.testing.assert_array_equal(sound.columns(features), odd.columns(features))


def test_a_search_sees_what_is_foretold() -> None:
    features, found = candidates()
    policy = create("evolutionary", product(), "scratch", target=product().target)
    assert isinstance(policy, EvolutionarySearch)
    assert policy._model.feature_names == (*model_features(product()), *NAMES)
    seen: list[np.ndarray] = []
    fit = policy._model.fit
    policy._model.fit = lambda x, *rest: (seen.append(x), fit(x, *rest))[-1]  # type: ignore[method-assign]
    told = compiler(features[:40])
    policy.tell([Result(c, 1.0 / t["registers"], t) for c, t in zip(found[:40], told)])
    assert len(policy.ask(8)) == 8
    (matrix,) = seen
    registers = matrix[:, -len(NAMES)]
    assert np.corrcoef(registers, [t["registers"] for t in told])[0, 1] > 0.95
    assert not np.allclose(registers, matrix[:, policy._model.feature_names.index("kernel0.registers")])


def test_nothing_changes_for_a_cpu() -> None:
    space = derive(ops.workload("matmul", SHAPE).dag, targets.from_name("x86-64-v3"))
    policy = create("evolutionary", space, "scratch", target=space.target)
    assert isinstance(policy, EvolutionarySearch) and policy._model.feature_names == model_features(space)


class Telling:
    """A measurer whose compiler tells the same of everything."""

    facts = {"registers": 40, "spill_bytes": 8, "shared_bytes": 0, "throttled": ["HwSlowdown"]}

    def measure(self, traces: Sequence[Trace], *_: Any, **__: Any) -> Iterator[Measurement]:
        for n, _t in enumerate(traces):
            yield Measurement("ok", "", (1e-3 + n * 1e-6,), 1e-3 + n * 1e-6, 0.0, facts=self.facts)

    def arrivals(self, *args: Any, **kwargs: Any) -> Iterator[tuple[int, Measurement]]:
        return enumerate(self.measure(*args, **kwargs))

    def object(self, trace: Trace) -> bytes:
        return b""

    def finalists(self, traces: Sequence[Trace], *_: Any) -> list[Measurement]:
        return list(self.measure(traces))


def test_facts_go_into_the_log_and_come_back_from_it(tmp_path: Path) -> None:
    workload = ops.workload("matmul", SHAPE)
    assert isinstance(workload, Workload)
    with Log(tmp_path / "tuning.db") as log:
        options = TuneOptions(trials=16, budget_s=60, model="scratch")
        fakes = {"space": product(), "measurer": Telling(), "peak": lambda: 1e-4}
        result = made_up.tune(workload, H100, log, options, **fakes)
        assert result.throttled == {"HwSlowdown": 16}
        records = list(log.records(workload=workload, target=H100))
        assert {r.kind for r in records} == {"trial", "final"}
        assert all(r.environment[resume.FACTS] == Telling.facts for r in records)
        earlier = resume.read(log, workload, H100, product()).results
    assert len(earlier) >= 16 and all(r.facts == Telling.facts for r in earlier)


@pytest.mark.soak
def test_registers_of_nvrtc_are_foretold() -> None:
    if not nvrtc.available():
        missing("nvrtc")
    features, found = candidates()
    space, count = product(), 80
    told = []
    for c in found[:count]:
        obj = build_object(space.dag, space.trace(c.sketch, np.array(c.row)), H100)
        told.append(facts(GridCode.from_bytes(obj)))
    model = RegisterModel(model_features(space), GpuRates.of(H100))
    truth = np.array([t["registers"] for t in told[40:]])
    before = model.columns(features[40:count])[:, 0]
    model.learn(features[:40], told[:40])
    after = model.columns(features[40:count])[:, 0]
    assert rank_correlation(after, truth) > rank_correlation(before, truth) + 0.05
    assert np.abs(np.log2(after / truth)).mean() < 0.9 * np.abs(np.log2(before / truth)).mean()


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    ranks = [np.argsort(np.argsort(x, kind="stable"), kind="stable") for x in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])
