"""Logs of every schema version there was, as they were stored; two versions of the library on one file."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from log_cases import MACHINE, TARGETS, anywhere, copy_of, exported, measured

from kernels_db import Log, LogError, MergeResult, compat, lookup

DATA = Path(__file__).with_name("data")
EXPORT = (DATA / f"log-export-{compat.EXPORT_VERSION}.jsonl").read_text()
VERSIONS = range(1, compat.SCHEMA_VERSION + 1)
W = copy_of(8)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stored_log_is_upgraded_and_says_what_it_said(version: int, tmp_path: Path) -> None:
    path = Path(shutil.copy(DATA / f"log-schema-{version}.db", tmp_path / "tuning.db"))
    if version < compat.SCHEMA_VERSION:
        for use in (lambda: Log(path, read_only=True), lambda: lookup.best(path, W.digest, anywhere)):
            with pytest.raises(LogError, match=f"upgrade it once.*autotune log stats --db {path}"):
                use()
    with Log(path) as log:
        assert exported(log) == EXPORT
        best = log.best(W, TARGETS[0])
        assert best is not None
        run = log.start_run(W, TARGETS[0], MACHINE, seed=0).uid
        log.add(measured(run, 9))
        log.pin()
        assert log.prune(100, apply=True).removed > 0  # failures
    con = sqlite3.connect(path)
    assert con.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert con.execute("PRAGMA foreign_key_check").fetchall() == []
    con.close()
    found = lookup.best(path, W.digest, anywhere)
    assert found is not None and found.record == best and found.pinned


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stored_log_is_merged_without_being_changed(version: int, tmp_path: Path) -> None:
    source = DATA / f"log-schema-{version}.db"
    before = source.read_bytes()
    with Log(tmp_path / "new.db") as log:
        assert log.merge(source) == MergeResult(11, 0, {})
        assert log.merge(source) == MergeResult(0, 11, {})
        assert exported(log) == EXPORT
    assert source.read_bytes() == before
    assert not source.with_name(f"{source.name}-wal").exists()


@pytest.mark.parametrize("version", range(1, compat.EXPORT_VERSION + 1))
def test_a_stored_export_is_read(version: int, tmp_path: Path) -> None:
    with Log(tmp_path / "new.db") as log:
        assert log.merge(DATA / f"log-export-{version}.jsonl") == MergeResult(11, 0, {})
        assert exported(log) == EXPORT


@pytest.mark.parametrize("version", range(2, compat.SCHEMA_VERSION + 1))
def test_a_stored_log_keeps_its_pins_and_what_verifying_found(version: int, tmp_path: Path) -> None:
    path = Path(shutil.copy(DATA / f"log-schema-{version}.db", tmp_path / "tuning.db"))
    with Log(path) as log:
        assert len(log.pins()) == 2
        origin = log.origin(log.pins()[0].record)
        assert origin is not None and origin.imported is not None
        assert [status for status, _ in origin.verified.values()] == ["ok"]
