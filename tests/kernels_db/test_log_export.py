"""Exports: what is written, and where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from log_cases import TARGETS, add, copy_of, exported, fill

from kernels_db import Log, LogError, MergeResult
from schedules.model import canonical


def test_an_export_is_canonical_and_makes_the_same_log(tmp_path: Path) -> None:
    with Log(tmp_path / "a.db") as log, Log(tmp_path / "b.db") as other:
        made = fill(log, 6)
        fill(log, 2, copy_of(9), TARGETS[1])
        assert log.export(tmp_path / "new" / "a.jsonl") == len(made) + 3
        text = (tmp_path / "new" / "a.jsonl").read_text()
        assert text == exported(log)
        lines = text.splitlines()
        assert lines[0] == '{"format":"autotune-log","version":2}'
        assert all(canonical(json.loads(x)) == x for x in lines)
        kinds = [json.loads(x)["type"] for x in lines[1:]]
        assert kinds == sorted(kinds, key=["workload", "target", "machine", "run", "record"].index)
        assert str(tmp_path) not in text

        assert other.merge(tmp_path / "new" / "a.jsonl") == MergeResult(len(made) + 3, 0, {})
        assert other.merge(tmp_path / "new" / "a.jsonl") == MergeResult(0, len(made) + 3, {})
        assert other.merge(tmp_path / "a.db") == MergeResult(0, len(made) + 3, {})
        assert exported(other) == text
        assert list(other.records()) == list(log.records())
        assert log.merge(tmp_path / "a.db").new == 0  # itself
        assert list((tmp_path / "new").iterdir()) == [tmp_path / "new" / "a.jsonl"]


def test_export_of_the_best_is_whole(tmp_path: Path) -> None:
    with Log(tmp_path / "a.db") as log, Log(tmp_path / "b.db") as other:
        fill(log, 8)
        fill(log, 4, copy_of(9), TARGETS[1])
        add(log, copy_of(10))
        assert log.export(tmp_path / "top.jsonl", top=2) == 4
        assert other.merge(tmp_path / "top.jsonl") == MergeResult(4, 0, {})
        assert other.workloads() == sorted((copy_of(8).digest, copy_of(9).digest))
        for w, t in log.tasks():
            assert other.top_k(w, t, 9) == log.top_k(w, t, 2)


def test_runs_that_say_how_graphs_are_rewritten_need_no_records(tmp_path: Path) -> None:
    """They outlive pruning, and travel with the best."""
    with Log(tmp_path / "a.db") as log, Log(tmp_path / "b.db") as other:
        fill(log, 3)
        told = {"rewrites": {"model": "m", "other": [["stack_equal", "q"]]}}
        for options in (told, {"nothing": "rewrites"}):
            log.finish_run(log.start_run(copy_of(20), TARGETS[0], {"cpu": "x"}, seed=0, options=options))
        assert log.prune(1, apply=True).runs >= 1
        (kept,) = log.runs(workload=copy_of(20))
        assert dict(kept.options) == told
        log.export(tmp_path / "top.jsonl", top=1)
        other.merge(tmp_path / "top.jsonl")
        assert [dict(r.options) for r in other.runs(workload=copy_of(20))] == [told]


def test_exports_may_be_concatenated(tmp_path: Path) -> None:
    with Log(tmp_path / "a.db") as a, Log(tmp_path / "b.db") as b, Log(tmp_path / "c.db") as c:
        fill(a, 3)
        fill(b, 3)
        (tmp_path / "both.jsonl").write_text(exported(a) + "\n" + exported(b))
        assert c.merge(tmp_path / "both.jsonl") == MergeResult(8, 0, {})


def test_an_export_never_replaces_a_database(tmp_path: Path) -> None:
    with Log(tmp_path / "a.db") as log, Log(tmp_path / "b.db") as other:
        fill(log, 3)
        fill(other, 3)
        for path in (tmp_path / "a.db", tmp_path / "b.db"):
            with pytest.raises(LogError, match="would be overwritten"):
                log.export(path)
        with pytest.raises(LogError, match="cannot"):
            log.export(tmp_path)
        with pytest.raises(LogError, match="cannot"):
            log.export(tmp_path / "a.db" / "x.jsonl")
        assert other.stats()["records"] == 4


def test_an_export_never_replaces_what_sqlite_keeps_beside_a_database(tmp_path: Path) -> None:
    with Log(tmp_path / "a.db") as log, Log(tmp_path / "b.db") as other:
        fill(log, 3)
        fill(other, 3)
        (tmp_path / "link").symlink_to(tmp_path / "b.db-wal")
        beside = {p: p.read_bytes() for p in tmp_path.glob("*.db-wal")}
        assert len(beside) == 2
        for path in tmp_path / "a.db", tmp_path / "b.db":
            for suffix in ("-wal", "-shm", "-journal"):
                with pytest.raises(LogError, match=f"{suffix} is a file of the database {path} and would"):
                    log.export(f"{path}{suffix}")
        with pytest.raises(LogError, match="b.db-wal is a file of the database"):
            log.export(tmp_path / "link")
        assert {p: p.read_bytes() for p in beside} == beside
        for name in ("c.db-wal", "-wal"):  # of no database
            assert log.export(tmp_path / name) == 4


def test_an_export_goes_where_a_link_leads(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "a.jsonl").write_text("old")
    (tmp_path / "link").symlink_to("there/a.jsonl")
    with Log(tmp_path / "a.db") as log:
        fill(log, 3)
        log.export(tmp_path / "link")
        assert (tmp_path / "there" / "a.jsonl").read_text() == exported(log)
    assert (tmp_path / "link").is_symlink()
    assert [p.name for p in (tmp_path / "there").iterdir()] == ["a.jsonl"]
