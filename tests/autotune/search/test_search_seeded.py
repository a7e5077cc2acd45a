"""Candidates of other machines are tried first, and the policy goes on from there."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autotune.search import policies
from autotune.search.base import Result
from autotune.search.decisions import DECISIONS
from autotune.search.seeded import Seeded
from autotune.targets import from_name
from autotune.tuning.similar import seeds
from kernels_db import Log, NewRecord
from schedules import ops
from schedules.model import Step, Target, Trace, Workload
from schedules.space import derive
from schedules.space.base import Candidate, Space

WORKLOAD = ops.workload("matmul", {"m": 32, "n": 32, "k": 32})
HERE = from_name("x86-64-v3")  # wherever the tests run
OTHER = replace(HERE, arch="another", limits=tuple((k, 2 * v) for k, v in HERE.limits if "bytes" in k))


def some(space: Space, n: int, seed: int = 0) -> list[Candidate]:
    return policies.create("random", space, "random", seed).ask(n)


def trace_of(space: Space, c: Candidate) -> str:
    return space.trace(c.sketch, np.array(c.row, dtype=np.int64)).digest


def store(db: Path, target: Target, space: Space, candidates: list[Candidate]) -> None:
    """Records of candidates, the first the fastest."""
    with Log(db) as log:
        run = log.start_run(WORKLOAD, target, {"cpu": "x"}, seed=0).uid
        for i, c in enumerate(candidates):
            trace = space.trace(c.sketch, np.array(c.row, dtype=np.int64))
            decisions = {DECISIONS: list(c.row)}
            sketch, times = space.sketches[c.sketch], [1e-6 * (i + 1)]
            log.add(NewRecord(run, i, sketch, trace, "ok", times_s=times, environment=decisions))


def seeds_of(workload: Workload, target: Target, space: Space, log: Log) -> list[Candidate]:
    return [s.candidate for s in seeds(workload, target, space, log.place, 8)]


def test_seeds_come_first_once_and_the_policy_never_repeats_them() -> None:
    space = derive(WORKLOAD.canonical, HERE)
    first = some(space, 5)
    policy = Seeded(policies.create("random", space, "random", 1), space, [*first, first[0]])
    policy.exclude([trace_of(space, first[1])])
    wanted = [first[0], *first[2:]]
    assert policy.ask(3) == wanted[:3] and policy.ask(16) == wanted[3:]
    assert policy.predicted(wanted) == {}
    policy.tell([Result(c, 1.0) for c in wanted])
    rest = policy.ask(200)
    assert len(rest) > 100
    assert not {trace_of(space, c) for c in rest} & {trace_of(space, c) for c in first}


@pytest.mark.slow
def test_the_best_of_other_targets_are_seeds_and_what_is_not_valid_here_is_not(tmp_path: Path) -> None:
    space, there = derive(WORKLOAD.canonical, HERE), derive(WORKLOAD.canonical, OTHER)
    good = some(there, 20)
    db = tmp_path / "tuning.db"
    store(db, OTHER, there, good)
    store(db, Target("cuda", "sm_90"), there, some(there, 5, seed=3))  # another kind of machine
    with Log(db) as log:
        found = seeds_of(WORKLOAD, HERE, space, log)
        assert 0 < len(found) <= 8 and set(found) & set(good)
        for c in found:
            assert space.valid(c.sketch, np.array([c.row])).all()
        assert seeds_of(WORKLOAD, OTHER, space, log) == []  # its own records are resumed instead
        assert seeds_of(ops.workload("add", {"n": 8}), HERE, space, log) == []
        run = log.start_run(WORKLOAD, replace(OTHER, arch="hostile"), {}, seed=0).uid
        for i, row in enumerate(([10**30] * 9, ["x"], [-1] * 6, None, [[1]], [2**63 - 1] * 6)):
            said, name = {DECISIONS: row}, there.sketches[0]
            trace = Trace((Step("unroll", (("loop", f"x{i}"),)),))
            log.add(NewRecord(run, i, name, trace, "ok", times_s=[1e-9], environment=said))
        again = seeds_of(WORKLOAD, HERE, space, log)
        assert len(again) == len(found)
        assert all(space.valid(c.sketch, np.array([c.row])).all() for c in again)


def test_what_cannot_be_read_of_other_targets_is_passed_over(tmp_path: Path) -> None:
    space, db = derive(WORKLOAD.canonical, HERE), tmp_path / "tuning.db"
    newer, damaged = (replace(OTHER, arch=name) for name in ("newer", "damaged"))
    good = some(space, 3)
    for target in (OTHER, newer, damaged):
        store(db, target, space, good)
    with closing(sqlite3.connect(db)) as con, con:
        con.execute("UPDATE target SET json = '{}' WHERE digest = ?", (newer.digest,))
        con.execute("UPDATE record SET environment = '[' WHERE target = ?", (damaged.digest,))
    with Log(db) as log:
        assert seeds_of(WORKLOAD, HERE, space, log) == good
