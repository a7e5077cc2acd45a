"""benchmarks/replay.py and simulated_search.py: what they count, on tables made here."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from needs import imported

from autotune.search.simulate import SimulatedRun, play, read
from autotune.targets import from_name
from autotune.tuning.measured import Measured, MeasuredSketch
from schedules import ops
from schedules.space import derive
from schedules.space.base import Candidate

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import forest_alone  # noqa: E402
import replay  # noqa: E402
import simulated_search  # noqa: E402


def cache(path: Path) -> Path:
    """A cache of Kernel Tuner: best at x = 8, y = 5; one of ten does not run; one parameter is constant."""
    entries = {}
    for x in (1, 2, 4, 8, 16, 32):
        for y in range(1, 9):
            t = "RuntimeFailedConfig" if (x + y) % 10 == 0 else 1.0 + abs(np.log2(x) - 3) + 0.2 * abs(y - 5)
            entries[f"{x},{y},0"] = {"x": x, "y": y, "z": 0, "time": t}
    document = {"tune_params_keys": ["x", "y", "z"], "cache": entries, "kernel_name": "k", "device_name": "d"}
    path.write_text(json.dumps(document))
    return path


def test_shares_at_the_checkpoints() -> None:
    best = [None, 4.0, *[2.0] * 60, *[1.0] * 100]
    assert replay.shares(best, 1.0) == [0.5, 0.5, 1.0, 1.0, 1.0]  # the run ended after 162
    assert replay.shares([None] * 30, 1.0) == [0.0] * 5 == replay.shares([], 1.0)


def row(name: str, first: list[list[float]], second: list[list[float]]) -> dict[str, object]:
    return {
        "file": name,
        "a": {"shares": first, "cpu_ms": 2.0},
        "b": {"shares": second, "cpu_ms": 4.0},
    }


def test_mean_near_and_worst_are_of_all_tables() -> None:
    one, half = [1.0] * 5, [0.5] * 5
    rows = [row("t", [one, [0.98] * 5], [half, half]), row("u", [[0.992] * 5, one], [half, [0.0] * 5])]
    found = replay.summary(rows, "a")
    assert len(found) == 5
    assert found[2]["mean"] == pytest.approx((0.99 * 0.996) ** 0.5)
    assert found[2]["near"] == 0.75 and found[2]["worst"] == 0.98
    expected = {"mean": pytest.approx((0.5 * 0.25) ** 0.5), "near": 0.0, "worst": 0.0}
    assert replay.summary(rows, "b")[0] == expected
    text = replay.report(rows, ["a", "b", "missing"])
    assert "| a | 2 | 0.993, 75%, 0.98 |" in text and "missing | 0" not in text


def test_ahead_is_by_more_than_the_interval_of_the_difference() -> None:
    low, high = [[0.5 + 0.01 * i] * 5 for i in range(10)], [[0.8 + 0.01 * i] * 5 for i in range(10)]
    assert replay.ahead(row("t", high, low), "a", "b", 100)
    assert not replay.ahead(row("t", low, high), "a", "b", 100)
    wide = [[x] * 5 for x in (0.35, 1.0) * 5]
    assert not replay.ahead(row("t", high, wide), "a", "b", 100)


def test_one_table_runs_each_search_by_its_seeds(tmp_path: Path) -> None:
    found = replay.one_table(cache(tmp_path / "t.json"), ["random", "local"], 2)
    assert (found["configurations"], found["ran"]) == (48, 43)
    for search in ("random", "local"):
        runs = found[search]["shares"]
        assert len(runs) == 2 and all(run[-1] == 1.0 for run in runs)  # the whole table
        assert all(a <= b for run in runs for a, b in pairwise(run))
    again = replay.one_table(cache(tmp_path / "t.json"), ["random"], 2)
    assert again["random"]["shares"] == found["random"]["shares"]


@pytest.mark.slow
def test_a_forest_alone_is_a_policy_that_finds_the_optimum(tmp_path: Path) -> None:
    table = read(cache(tmp_path / "t.json"))
    policy = forest_alone.ForestAlone(table.space, 1)
    run = play(table, policy, 1000, 1, batch=1)
    assert len(run.best_s) == 48 and run.best_s[-1] == pytest.approx(1e-3)
    assert run.best_s[29] == pytest.approx(1e-3)
    assert policy.ask(1) == []


def test_strategies_of_kernel_tuner_see_nothing_of_each_other(tmp_path: Path) -> None:
    """A second run of the same seed is the first: nothing of it was left in the caches."""
    imported("kernel_tuner")
    import kernel_tuner_strategies as strategies

    table = read(cache(tmp_path / "t.json"))
    first = strategies.play("genetic_algorithm", table, 30, 3)
    strategies.play("greedy_ils", table, 30, 4)
    assert strategies.play("genetic_algorithm", table, 30, 3) == first
    assert 0 < len(first.best_s) <= 30 and isinstance(first, SimulatedRun)


def known_product() -> Measured:
    """Made-up times of 200 candidates of a small product: the larger the decisions in sum, the slower."""
    workload, cpu = ops.workload("matmul", {"m": 48, "n": 64, "k": 80}), from_name("x86-64-v3")
    space, rng, sketches = derive(workload.dag, cpu), np.random.default_rng(0), []
    for s, name in enumerate(space.sketches[:2]):
        rows = np.unique(space.sample(s, 400, rng), axis=0)[:100]
        time_s = 1e-6 * (100.0 + rows.sum(axis=1))
        time_s[::10] = np.nan
        sketches.append(MeasuredSketch(name, space.holes(s), rows, time_s, np.ones(len(rows), bool)))
    return Measured(workload, cpu, tuple(sketches))


@pytest.mark.slow
def test_a_simulated_machine_orders_as_its_task_does() -> None:
    known = known_product()
    space = derive(known.workload.dag, known.target)
    machine = simulated_search.Machine(known, space)
    rows = known.sketches[0].rows
    told = machine.run([Candidate(0, tuple(r)) for r in rows.tolist()])
    speed, ran = np.array([r.throughput for r in told]), np.isfinite(known.sketches[0].time_s)
    assert speed.min() > 0 and speed[~ran].mean() < 0.8 * speed[ran].mean()
    assert np.corrcoef(speed[ran], 1 / known.sketches[0].time_s[ran])[0, 1] > 0.8


@pytest.mark.slow
def test_a_simulated_search_is_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated_search, "FEWEST", 50)
    runs = [simulated_search.one_task(known_product(), 1, ["scratch"], (1, 8)) for _ in range(2)]
    assert runs[0] is not None and runs[1] is not None
    first, second = (r["scratch"][0]["best"] for r in runs)
    assert first == second and 0 < first[0] <= first[1]
    rows = [{"task": "t", "scratch": [{"best": [0.4, 0.8], "cpu_ms": 2.0}]}]
    other = [{"task": "t", "scratch": [{"best": [0.5, 1.0], "cpu_ms": 3.0}]}]
    text = simulated_search.report(rows, (1, 8), other)
    assert "scratch  this    0.4000 (0.40)  0.8000 (0.80)  2.0 ms" in text
    assert "scratch  beside  0.5000 (0.50)  1.0000 (1.00)  3.0 ms" in text
    monkeypatch.setattr(simulated_search, "FEWEST", 500)
    assert simulated_search.one_task(known_product(), 1, ["scratch"], (1,)) is None
