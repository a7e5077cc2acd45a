"""benchmarks/measured.py: what is kept of a log, read back; and the candidates of the shipped model."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from space_cases import target

from autotune.search.decisions import DECISIONS
from autotune.search.policies import create
from kernels_db import Log, NewRecord
from schedules import ops
from schedules.model import Workload
from schedules.space import DerivedSpace, derive
from schedules.space.estimate.cpu.features import FEATURE_NAMES

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import measured  # noqa: E402
import train_cost_model  # noqa: E402

MATMUL = ops.workload("matmul", {"m": 48, "n": 64, "k": 80})
CANONICAL = replace(MATMUL, dag=MATMUL.canonical)


def add(
    log: Log, workload: Workload, space: DerivedSpace, search: str, n: int, status: str, time_s: float
) -> None:
    """A run of ``n`` candidates, of which the first fails."""
    run = log.start_run(workload, target(), {}, seed=0, options={"search": search})
    for i, c in enumerate(create("random", space, seed=1).ask(n)):
        row = np.array(c.row, dtype=np.int64)
        facts = {DECISIONS: list(c.row)}
        trace, sketch = space.trace(c.sketch, row), space.sketches[c.sketch]
        if i == 0:
            log.add(NewRecord(run.uid, i, sketch, trace, "compile_error", environment=facts))
        else:
            log.add(NewRecord(run.uid, i, sketch, trace, status, times_s=(time_s,), environment=facts))


@pytest.mark.slow
def test_each_candidate_is_kept_once_with_its_median(tmp_path: Path) -> None:
    space = derive(MATMUL.canonical, target())
    with Log(tmp_path / "t.db") as log:
        add(log, MATMUL, space, "random", 40, "slow", 9e-3)  # given up: no better known than that
        add(log, MATMUL, space, "random again", 40, "ok", 1e-3)
        add(log, MATMUL, space, "evolutionary", 50, "ok", 3.00049e-3)
        kept = list(measured.of_log(log))
    path = tmp_path / "folder" / "t.jsonl.xz"
    assert measured.write(path, kept, {"commit": "abc"}) == 50
    facts, (task,) = measured.read(path)
    assert facts["commit"] == "abc" and task.workload == CANONICAL and task.target == target()
    assert task.workload.params == MATMUL.params and task.workload.flops == MATMUL.flops
    seen = np.concatenate([s.time_s for s in task.sketches])
    drawn = np.concatenate([s.drawn for s in task.sketches])
    assert np.isnan(seen).sum() == 1 and drawn.sum() == 40
    assert set(seen[drawn & np.isfinite(seen)]) == {1e-3}, "the median of what was not given up"
    assert set(seen[~drawn]) == {3e-3}, "four digits"
    for before, after in zip(kept[0].sketches, task.sketches, strict=True):
        assert np.array_equal(before.rows, after.rows) and before.holes == after.holes

    data = train_cost_model.of_task(task)
    assert data is not None and data.op == "matmul" and data.feature_names == FEATURE_NAMES
    assert data.features.shape == (50, len(FEATURE_NAMES)) and len(data.rows) == 50
    assert data.cpu == target().arch and data.name == f"matmul {dict(MATMUL.params)}"
    first = task.sketches[0]
    s = space.sketches.index(first.name)
    np.testing.assert_array_equal(data.features[: len(first.rows)], space.features(s, first.rows))
    np.testing.assert_array_equal(data.time_s, seen)


def test_candidates_that_a_space_no_longer_has_are_left_out() -> None:
    space = derive(MATMUL.dag, target())
    rows = space.sample(0, 400, np.random.default_rng(0))
    ok, drawn = np.full(len(rows), 1e-3), np.ones(len(rows), dtype=bool)
    holes = tuple(space.holes(0))
    good = measured.MeasuredSketch(space.sketches[0], holes, rows, ok, drawn)
    others = (
        measured.MeasuredSketch("of another version", holes, rows, ok, drawn),
        measured.MeasuredSketch(space.sketches[0], (*holes[:-1], "new hole"), rows, ok, drawn),
        measured.MeasuredSketch(space.sketches[0], holes, np.full_like(rows, 10_000), ok, drawn),
    )
    data = train_cost_model.of_task(measured.Measured(MATMUL, target(), (good, *others)))
    assert data is not None and len(data.rows) == space.valid(0, rows).sum()
    assert train_cost_model.of_task(measured.Measured(MATMUL, target(), others)) is None


def test_a_task_that_two_cpus_have_measured_is_in_one_fold() -> None:
    """Else it would be judged by a model that has seen it."""
    space = derive(MATMUL.dag, target())
    rows = space.sample(0, 400, np.random.default_rng(0))
    ok, drawn = np.full(len(rows), 1e-3), np.ones(len(rows), dtype=bool)
    sketch = measured.MeasuredSketch(space.sketches[0], tuple(space.holes(0)), rows, ok, drawn)
    data = train_cost_model.of_task(measured.Measured(MATMUL, target(), (sketch,)))
    assert data is not None
    tasks = [
        replace(data, target=replace(data.target, arch=cpu), name=f"matmul {m}")
        for cpu in ("znver4", "znver5")
        for m in range(40)
    ]
    found = train_cost_model.folds(tasks)
    assert found[:40] == found[40:] and set(found) == set(range(train_cost_model.FOLDS))
