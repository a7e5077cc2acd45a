"""What the log says about predictions and time; what a search may still expect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runner import run
from log_cases import TARGETS, copy_of
from made_up import tune
from search_table import FormulaSpace
from test_tuner import PEAK_S, FakeMeasurer

from autotune.search.stopping import GAIN, LEAST, Stopping
from autotune.tuning import prediction_quality
from autotune.tuning.options import TuneOptions
from kernels_db import Log, NewRecord
from schedules.model import Step, Trace

WORKLOAD, TARGET = copy_of(64), TARGETS[0]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path / "t.db") as opened:
        yield opened


def add(log: Log, scores: list[float], times: list[float], model: str, statuses: str = "ok") -> None:
    begun = log.start_run(WORKLOAD, TARGET, {}, seed=0)
    for i, (score, t) in enumerate(zip(scores, times, strict=True)):
        trace = Trace((Step("made up", (("i", i), ("model", model))),))
        facts = {
            prediction_quality.PREDICTED: {model: score},
            "seconds": {"search": 0.5, "build": 1.0, "run": "?"},
        }
        log.add(NewRecord(begun.uid, i, "s", trace, statuses, times_s=(t,), environment=facts))


def test_predictions_are_held_against_measurements(log: Log) -> None:
    times = [1.0 + i for i in range(40)]
    add(log, [1 / t for t in times], times, "model")
    add(log, times, times, "prior")  # prefers the slowest
    found = prediction_quality.of_log(log)
    within, by = found["predictions"]["within_task"], found["predictions"]["by_task"]
    assert within["pairwise"] == within["top1"] == within["top5"] == within["recall30"] == 1
    assert within["rmse"] == pytest.approx(0, abs=1e-9) and within["candidates"] == 40
    assert by["pairwise"] == 0 and by["top1"] == pytest.approx(1 / 40)
    assert by["recall30"] == pytest.approx(20 / 30, abs=1e-3)
    assert "analytic" not in found["predictions"]
    assert found["seconds"] == {"search": 40.0, "build": 80.0, "check": 0.0, "run": 0.0}


def test_failures_and_few_trials_say_nothing(log: Log) -> None:
    add(log, [1.0] * 4, [1.0, 2.0, 3.0, 4.0], "model")
    add(log, [1.0] * 20, [1.0] * 20, "prior", statuses="crash")
    assert prediction_quality.of_log(log)["predictions"] == {}


def test_numbers_of_any_size_are_no_harm(log: Log) -> None:
    """A log keeps integers that no float can hold."""
    begun = log.start_run(WORKLOAD, TARGET, {}, seed=0)
    for i in range(prediction_quality.LEAST):
        facts = {prediction_quality.PREDICTED: {"model": 10**400}, "seconds": {"search": 10**400, "run": 1.0}}
        trace = Trace((Step("made up", (("i", i),)),))
        log.add(NewRecord(begun.uid, i, "s", trace, "ok", times_s=(1.0,), environment=facts))
    found = prediction_quality.of_log(log)
    assert found["predictions"] == {} and found["seconds"]["search"] == 0.0
    assert found["seconds"]["run"] == float(prediction_quality.LEAST)


def test_times_that_no_kernel_takes_are_no_harm(log: Log) -> None:
    add(log, [1.0] * 40, [1e-320] * 20 + [1.0] * 20, "model")
    begun = log.start_run(WORKLOAD, TARGET, {}, seed=0)
    for i in range(3):
        spent = {"seconds": {"search": -5.0, "run": float(i)}}
        trace = Trace((Step("made up", (("i", i),)),))
        log.add(NewRecord(begun.uid, i, "s", trace, "ok", times_s=(1.0,), environment=spent))
    found = prediction_quality.of_log(log)  # a warning of numpy would be an error
    assert found["predictions"]["within_task"]["candidates"] == 20
    assert found["seconds"] == {"search": 20.0, "build": 40.0, "check": 0.0, "run": 3.0}


@pytest.mark.slow
def test_a_run_keeps_what_its_models_thought(log: Log) -> None:
    space = FormulaSpace()
    seen = []
    tune(
        *(WORKLOAD, TARGET, log, TuneOptions(trials=49, model="scratch", batch=16), seen.append),
        space=space,
        measurer=FakeMeasurer(space),
        peak=lambda: PEAK_S,
    )
    *records, plain = sorted(log.records(kind="trial"), key=lambda r: r.trial)
    assert prediction_quality.PREDICTED not in plain.environment
    assert [set(r.environment[prediction_quality.PREDICTED]) for r in records] == [{"analytic"}] * 16 + [
        {"analytic", "model"}
    ] * 32
    assert [r.environment["round"] for r in records] == [0] * 16 + [1] * 16 + [2] * 16
    assert seen[-1].task.pairwise is not None and 0 <= seen[-1].task.pairwise <= 1
    found = prediction_quality.of_log(log)
    assert found["predictions"]["within_task"]["candidates"] == 32
    assert found["predictions"]["analytic"]["pairwise"] > 0.6
    assert found["seconds"]["search"] > 0


def test_log_stats_prints_them(log: Log) -> None:
    add(log, [1.0 / (1 + i) for i in range(10)], [1.0 + i for i in range(10)], "model")
    log.close()
    ran = run("log", "stats", "--db", log.path, "--json")
    assert ran.json["search"]["predictions"]["within_task"]["pairwise"] == 1
    text = run("log", "stats", "--db", log.path).out
    assert "100.0 % of pairs in order" in text and "search 5.0 s (33%)" in text


def test_nothing_more_is_expected_after_long_without_gain() -> None:
    e = Stopping()
    for _ in range(2 * LEAST):
        e.add(0.0)
    assert not e.met  # nothing ran
    e.add(1.0)
    for k in range(2 * (2 * LEAST + 1)):
        assert not e.met, k
        e.add(1.0 + GAIN / 2)
    assert e.met
    e.add(1.0 + 2 * GAIN)
    assert not e.met


@pytest.mark.slow
def test_a_search_ends_when_nothing_more_is_expected(log: Log) -> None:
    space = FormulaSpace(choices=((8, 8, 8, 6, 4),), peaks=(1.0,))
    result = tune(
        *(WORKLOAD, TARGET, log, TuneOptions(search="random", model="random", batch=64)),
        space=space,
        measurer=FakeMeasurer(space),
        peak=lambda: PEAK_S,
    )
    assert result.stopped == "converged" and LEAST <= result.measured < 6000
