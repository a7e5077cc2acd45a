"""What a run makes of the records of earlier ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from search_table import FormulaSpace
from test_tuner import TARGET, WORKLOAD, FakeMeasurer, run

from autotune.backends.building.generator_version import this_machine
from autotune.search.decisions import DECISIONS
from autotune.search.policies import create
from autotune.tuning import plain_loops, resume
from kernels_db import Log, NewRecord
from schedules.space.base import Candidate


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path / "t.db") as opened:
        yield opened


def test_records_of_another_space_only_exclude(log: Log) -> None:
    space = FormulaSpace()
    run(log, FakeMeasurer(space), trials=16, search="random")
    other = log.start_run(WORKLOAD, TARGET, {}, seed=0)
    odd: list[Any] = [[1], [99, 0, 0, 0, 0], [0, 0, 0, 0, 10**30], ["a"] * 5, None, [True] * 5, {"x": 1}]
    for i, row in enumerate(odd):
        trace = space.trace(0, np.array([7, 7, 7, i % 6, 0]))
        environment = {DECISIONS: row}
        log.add(NewRecord(other.uid, i, "sketch0", trace, "ok", times_s=(1.0,), environment=environment))
    wrong = space.trace(0, np.array([6, 6, 6, 5, 1]))  # claims decisions that make another trace
    log.add(
        NewRecord(other.uid, 9, "sketch0", wrong, "ok", times_s=(1.0,), environment={"decisions": [0] * 5})
    )
    log.add(NewRecord(other.uid, 10, "by hand", wrong, "ok", times_s=(1.0,)))
    records = log.seen(WORKLOAD, TARGET)
    earlier = resume.read(log, WORKLOAD, TARGET, space)
    assert {r.trace_digest for r in records} == earlier.digests
    trials = {r.trace_digest: r for r in records if r.kind == "trial" and r.run != other.uid}
    assert len(earlier.results) == 15  # but for the plain loops, which are in no space
    for r in earlier.results:
        digest = space.trace(r.candidate.sketch, np.array(r.candidate.row)).digest
        assert r.throughput == pytest.approx(1 / (trials[digest].time_s or 0))


def test_what_is_resumed_comes_in_the_order_of_its_trials(log: Log) -> None:
    space = FormulaSpace()
    run(log, FakeMeasurer(space), search="random")
    trials = [r for r in log.seen(WORKLOAD, TARGET) if r.kind == "trial" and r.sketch != plain_loops.SKETCH]

    def rows(most: int) -> list[tuple[int, ...]]:
        return [r.candidate.row for r in resume.read(log, WORKLOAD, TARGET, space, most).results]

    assert rows(100) == [tuple(r.environment[DECISIONS]) for r in trials]
    fastest = sorted(trials, key=lambda r: r.time_s or 0.0)[:5]
    assert rows(5) == [tuple(r.environment[DECISIONS]) for r in trials if r in fastest]


def test_failures_that_say_nothing_of_the_candidate_now_are_not_resumed(log: Log) -> None:
    space = FormulaSpace()
    here, generators = this_machine(), {}
    for name, info in (("this", here), ("other", here | {"generator": "other"}), ("unknown", {})):
        generators[name] = log.start_run(WORKLOAD, TARGET, info, seed=0).uid
    statuses = ("ok", "slow", "crash", "compile_error", "wrong_result", "timeout", "error")
    candidates = iter(create("random", space).ask(3 * len(statuses)))
    kept: dict[Candidate, str] = {}
    for name, made in generators.items():
        for i, status in enumerate(statuses):
            c = next(candidates)
            trace = space.trace(c.sketch, np.array(c.row))
            times = (1.0,) if status in ("ok", "slow") else ()
            facts = {DECISIONS: list(c.row)}
            log.add(NewRecord(made, i, space.sketches[c.sketch], trace, status, "", times, environment=facts))
            if times or (name == "this" and status != "error"):
                kept[c] = trace.digest
    earlier = resume.read(log, WORKLOAD, TARGET, space)
    assert [r.candidate for r in earlier.results] == list(kept)
    assert earlier.digests == set(kept.values()) and earlier.trials == len(kept) == 6 + 2 * 2


def test_resumed_throughput() -> None:
    assert resume.throughput("ok", 0.5) == 2
    assert resume.throughput("slow", 0.5) == 2
    assert resume.throughput("slow", None) == resume.throughput("crash", 0.5) == 0
    assert resume.throughput("ok", 5e-324) == 0, "a log may say anything, and 1 / this is infinite"
