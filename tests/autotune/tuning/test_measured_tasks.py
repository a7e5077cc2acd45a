"""Tuning logs as data to learn from: what is offered still, each record once, each machine by itself."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import learnable_logs
import numpy as np
import pytest
from learnable_logs import fill, matmul
from space_cases import target

from autotune.tuning import measured
from autotune.tuning.measured import of_places
from kernels_db import Log, LogError
from schedules.space import derive
from schedules.space.estimate.cpu.features import FEATURE_NAMES

SIZES = learnable_logs.SIZES[:2]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("logs") / "a.db", SIZES)


@pytest.mark.slow
def test_a_log_gives_features_and_times(log: Path) -> None:
    told: list[tuple[int, int]] = []
    found = of_places([str(log)], lambda done, tasks: told.append((done, tasks)))
    assert told == [(0, 2), (1, 2)] and not found.left_out
    assert len(found.tasks) == 2 and found.rows == found.candidates == 48
    assert found.workloads == sorted(matmul(s).digest for s in SIZES)
    for task in found.tasks:
        assert task.feature_names == FEATURE_NAMES and task.target == target()
        assert np.isnan(task.time_s).sum() == 1, "the failed one; what was given up counts with its time"
        outer = task.features[:, FEATURE_NAMES.index(learnable_logs.COLUMN)]
        ran = np.isfinite(task.time_s)
        np.testing.assert_allclose(task.time_s[ran], 1e-6 * (1 + outer[ran]), rtol=0.05)
        assert len(task.reference) > 20 and task.name.startswith("matmul m=")


@pytest.mark.slow
def test_the_same_record_counts_once_wherever_it_is(log: Path, tmp_path: Path) -> None:
    one = of_places([str(log)])
    with Log(log, read_only=True) as opened:
        opened.export(tmp_path / "a.jsonl.gz")
    both = of_places([str(tmp_path / "a.jsonl.gz"), str(log)])
    assert both.candidates == one.candidates and both.workloads == one.workloads
    for a, b in zip(one.tasks, both.tasks, strict=True):
        np.testing.assert_array_equal(np.sort(a.time_s), np.sort(b.time_s))


@pytest.mark.slow
def test_logs_of_several_machines_are_compared_on_each_by_itself(log: Path, tmp_path: Path) -> None:
    """A slow machine's candidates are not worth less than a fast one's."""
    slow = fill(tmp_path / "b.db", SIZES, machine={"cpu": "Slow CPU", "cpus": 2}, factor=100.0)
    same = fill(tmp_path / "c.db", SIZES, machine=learnable_logs.MACHINE | {"numpy": "9"}, seed=2)
    found = of_places([str(p) for p in (log, slow, same)])
    assert len(found.tasks) == 4 and len(found.workloads) == 2
    fastest = sorted(float(np.nanmin(t.time_s)) for t in found.tasks)
    assert fastest[1] < 1e-4 < fastest[2]
    assert len(of_places([str(log), str(same)]).tasks) == 2, "other software makes no other machine"


@pytest.mark.slow
def test_of_many_candidates_the_latest_of_all_logs_are_learnt_from(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the order of the logs. Only those are kept in memory."""
    later = fill(tmp_path / "b.db", SIZES[:1], seed=2, factor=1e3)
    monkeypatch.setattr(measured, "MOST", 10)
    for places in ((log, later), (later, log)):
        found = of_places([str(p) for p in places])
        assert found.candidates == 3 * 24 and [len(t) for t in found.tasks] == [10, 10]
        slow = [np.nanmin(t.time_s) > 1e-4 for t in found.tasks]
        assert sorted(slow) == [False, True], "of the first task those of the second log are later"


@pytest.mark.slow
def test_what_the_space_no_longer_offers_is_left_out(log: Path, tmp_path: Path) -> None:
    other = tmp_path / "old.db"
    other.write_bytes(log.read_bytes())
    first = of_places([str(log)]).tasks[0]
    with closing(sqlite3.connect(other)) as db, db:
        db.execute("UPDATE record SET sketch = 'of another version' WHERE workload = ?", (first.workload,))
    found = of_places([str(other)])
    assert [t.workload for t in found.tasks] == [t.workload for t in of_places([str(log)]).tasks[1:]]
    assert found.left_out == {"fewer than 8 of its candidates are still offered": 1}
    assert found.candidates == 48 and found.rows == 24


@pytest.mark.slow
def test_places_with_nothing_to_learn_from_are_named(log: Path, tmp_path: Path) -> None:
    with pytest.raises(
        LogError, match=r"there is no tuning log at .*none\.db; give the path of a log or of an"
    ):
        of_places([str(tmp_path / "none.db")])
    with Log(tmp_path / "empty.db"):
        pass
    with pytest.raises(LogError, match=r"nothing to learn from in .*empty\.db: it has no records; tune with"):
        of_places([str(tmp_path / "empty.db")])
    few = fill(tmp_path / "few.db", SIZES[:1], n=7)
    with pytest.raises(LogError, match=r"few\.db: of 1 tasks: fewer than 8 of its candidates"):
        of_places([str(few)])
    text = tmp_path / "notes.txt"
    text.write_text("not a log")
    with pytest.raises(LogError, match=r"notes\.txt"):
        of_places([str(text)])


def test_times_that_no_machine_takes_are_failures(log: Path) -> None:
    workload = matmul(SIZES[0])
    workload = replace(workload, dag=workload.canonical)
    space = derive(workload.dag, target())
    with Log(log, read_only=True) as opened:
        trials = [replace(r, time_s=1e-300) for r in opened.seen(workload.digest, target())]
    found = measured.measured(workload, target(), space, trials)
    assert len(found) == 24 and all(np.isnan(s.time_s).all() for s in found.sketches)
    assert measured.data_of(found, space) is None, "none ran"
