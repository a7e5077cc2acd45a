"""From workload version 1 to 2: three namings of one matrix product, and the library's, become one task.

The stored logs were written by a version that knew no canonical names (`log-*-names`)."""

from __future__ import annotations

import json
import shutil
import sqlite3
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from log_cases import anywhere, exported

from kernels_db import Log, LogError, MergeResult, lookup
from kernels_db.pins import Pin
from schedules import ops
from schedules.model import Target, Workload, canonical
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.te.compute_dag import ComputeDAG

DATA = Path(__file__).with_name("data")
DB, EXPORT = DATA / "log-schema-2-names.db", DATA / "log-export-1-names.jsonl"
OLD = [json.loads(line) for line in EXPORT.read_text().splitlines()]
MATMUL = ops.workload("matmul", {"m": 24, "n": 32, "k": 16})


def of(kind: str) -> list[dict[str, Any]]:
    return [v for v in OLD if v.get("type") == kind]


@pytest.fixture
def migrated(tmp_path: Path) -> Path:
    path = Path(shutil.copy(DB, tmp_path / "tuning.db"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing stays as it was
        Log(path).close()
    return path


def test_four_namings_become_one_task_and_nothing_is_lost(migrated: Path) -> None:
    with Log(migrated) as log:
        assert log.stats() == {
            "workloads": 2, "targets": 2, "machines": 1, "runs": 6, "records": 30,
            "by_status": {"crash": 6, "ok": 24},
        }  # fmt: skip
        assert len(of("workload")) == 5 and len(of("record")) == 30
        target = next(t for _, t in log.tasks(workload=MATMUL) if log.target(t).threads == 1)
        assert len(log.seen(MATMUL, target)) == sum(
            1 for r in of("record") if r["target"] == target and r["workload"] != conv_digest()
        )
        assert log.workload(MATMUL.digest) == MATMUL  # its name, and its tensors' names, are the library's
        best = log.best(MATMUL, target)
        fastest = min(
            r["time_s"]
            for r in of("record")
            if r["status"] == "ok" and r["target"] == target and r["workload"] != conv_digest()
        )
        assert best is not None and best.time_s == fastest
        before = Counter((r["created"], r["status"], r["time_s"]) for r in of("record"))
        now = Counter((r.created, r.status, r.time_s) for r in log.records())
        assert before == now
    con = sqlite3.connect(migrated)
    assert con.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert con.execute("PRAGMA foreign_key_check").fetchall() == []
    con.close()


def conv_digest() -> str:
    return next(str(w["digest"]) for w in of("workload") if w["op"] == "conv2d")


def test_every_trace_applies_and_is_one_of_the_space(migrated: Path) -> None:
    with Log(migrated) as log:
        for w, t in log.tasks():
            workload, target = log.workload(w), log.target(t)
            space = derive(workload.canonical, target)
            for r in log.records(workload=w, target=t):
                Schedule.replay(workload.canonical, r.trace, target)
                if r.status == "ok":
                    s = space.sketches.index(r.sketch)
                    row = np.array(r.environment["decisions"], dtype=np.int64)
                    assert space.trace(s, row).digest == r.trace_digest


@pytest.mark.slow
def test_an_export_and_a_database_of_before_make_the_same_log(migrated: Path, tmp_path: Path) -> None:
    with Log(migrated) as log:
        text = exported(log)
    for name, sources in (("a", (EXPORT,)), ("b", (DB,)), ("c", (migrated,)), ("d", (EXPORT, DB, migrated))):
        with Log(tmp_path / f"{name}.db") as log:
            found = [log.merge(source) for source in sources]
            assert found == [MergeResult(30, 0, {}), *[MergeResult(0, 30, {})] * (len(sources) - 1)]
            assert exported(log) == text
    new = tmp_path / "new.jsonl"
    new.write_text(text)
    with Log(tmp_path / "e.db") as log:
        assert log.merge(new) == MergeResult(30, 0, {}) and exported(log) == text


def test_one_naming_at_a_time_makes_the_same_log(tmp_path: Path) -> None:
    """In whatever order, and from logs of one naming each."""
    with Log(tmp_path / "all.db") as log:
        log.merge(EXPORT)
        text = exported(log)
    lines = EXPORT.read_text().splitlines(keepends=True)
    with Log(tmp_path / "each.db") as log:
        for w in reversed(of("workload")):
            own = [
                x
                for x, v in zip(lines, OLD, strict=True)
                if w["digest"] in (v.get("workload", w["digest"]), v.get("digest"))
                and (v.get("type") != "workload" or v["digest"] == w["digest"])
            ]
            (tmp_path / "one.jsonl").write_text("".join(own))
            assert log.merge(tmp_path / "one.jsonl").refused == {}
        assert exported(log) == text


@pytest.mark.slow
def test_digests_of_before_are_still_known(migrated: Path, tmp_path: Path) -> None:
    """Lock files of pins name them, and people do."""
    old = sqlite3.connect(DB)
    before = [Pin(*row) for row in old.execute("SELECT workload, target, record FROM pin")]
    verified = dict(old.execute("SELECT record, status FROM verification"))
    created = dict(old.execute("SELECT uid, created FROM record"))
    old.close()
    assert len(before) == 2 and len({p.workload for p in before}) == 2
    for source in (None, DB, EXPORT):
        path = migrated if source is None else tmp_path / f"{source.name}.db"
        with Log(path) as log:
            if source is not None:
                log.merge(source)
            else:  # of two pins of what is one task the faster is left
                (pin,) = log.pins()
                (uid,) = verified
                pinned, checked = log.get(pin.record), log.get(uid)
                assert pinned is not None and checked is not None
                assert pinned.time_s == min(log.get(p.record).time_s for p in before)  # type: ignore[union-attr]
                origin = log.origin(checked)
                assert origin is not None and [s for s, _ in origin.verified.values()] == [verified[uid]]
            for uid, moment in created.items():
                record = log.get(uid)
                assert record is not None and record.uid != uid and record.created == moment
            for p in before:
                (made,) = log.pin([p])
                now = log.get(p.record)
                assert now is not None and made == Pin(MATMUL.digest, p.target, now.uid)
                hit = lookup.best(path, MATMUL.digest, anywhere)
                assert hit is not None and hit.pinned and hit.record == now


def altered(tmp_path: Path, *statements: tuple[str, tuple[object, ...]]) -> Path:
    path = Path(shutil.copy(DB, tmp_path / "altered.db"))
    con = sqlite3.connect(path)
    for sql, values in statements:
        assert con.execute(sql, values).rowcount > 0
    con.commit()
    con.close()
    return path


def rows(path: Path, sql: str) -> list[Any]:
    con = sqlite3.connect(path)
    con.text_factory = bytes
    try:
        return con.execute(sql).fetchall()
    finally:
        con.close()


@pytest.mark.parametrize(
    "json",
    ["no JSON", "{}", '{"version":9,"dag":{}}', '{"version":1,"dag":{"inputs":[1]}}', b"\xff", "[" * 5000],
)
def test_a_workload_that_cannot_be_read_stays_and_is_named(tmp_path: Path, json: str | bytes) -> None:
    digest = conv_digest()
    path = altered(tmp_path, ("UPDATE workload SET json = CAST(? AS TEXT) WHERE digest = ?", (json, digest)))
    before = rows(path, f"SELECT * FROM record WHERE workload = '{digest}' ORDER BY uid")
    with pytest.warns(UserWarning, match=f"1 of its rows are damaged or cannot be read.*workload '{digest}'"):
        Log(path).close()
    assert rows(path, f"SELECT * FROM record WHERE workload = '{digest}' ORDER BY uid") == before != []
    with Log(path) as log:
        assert log.stats()["records"] == 30 and log.stats()["workloads"] == 2
        assert log.best(MATMUL, log.tasks(workload=MATMUL)[0][1]) is not None
        with pytest.raises(LogError, match="damaged|Could not decode"):
            log.workload(digest)


@pytest.mark.parametrize(
    ("column", "value"),
    [("trace", "{}"), ("trace", "x"), ("time_s", -1.0), ("reason", b"\xff"), ("sketch", 5), ("created", "x")],
)
def test_a_damaged_record_stays_and_is_named(tmp_path: Path, column: str, value: object) -> None:
    status = "crash" if column == "time_s" else "ok"
    uid = next(r["uid"] for r in of("record") if r["status"] == status)
    cast = "CAST(? AS TEXT)" if isinstance(value, bytes) else "?"
    path = altered(tmp_path, (f"UPDATE record SET {column} = {cast} WHERE uid = ?", (value, uid)))
    with pytest.warns(UserWarning, match="1 of its rows are damaged or cannot be read.*record '"):
        Log(path).close()
    with Log(path) as log:
        assert log.stats()["records"] == 30 and log.stats()["runs"] == 6 and log.stats()["workloads"] == 2


def test_a_failing_upgrade_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(shutil.copy(DB, tmp_path / "tuning.db"))
    before = rows(path, "SELECT uid FROM record ORDER BY uid")

    def out_of_memory(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as m:
        m.setattr("kernels_db.rekeying.Rekeyer._record", out_of_memory)
        with pytest.raises(MemoryError):
            Log(path)
    assert rows(path, "SELECT uid FROM record ORDER BY uid") == before
    with Log(path) as log:
        assert log.stats()["records"] == 30


def test_a_workload_of_a_newer_version_is_refused_by_its_version(migrated: Path) -> None:
    text = canonical({"version": 3, "dag": MATMUL.canonical.to_json()})
    with pytest.raises(ValueError, match="workload version '3' is not one of 1 to 2.*update autotune: pip"):
        Workload.from_json(text)


def test_version_1_is_read(tmp_path: Path) -> None:
    for w in of("workload"):
        read = Workload.from_json(canonical(w["definition"]))
        assert read.named_digest == w["digest"]
        assert ComputeDAG.from_json(w["definition"]["dag"]) == read.dag
        assert Workload.from_json(read.json, names=read.names) == read


def test_a_record_of_a_workload_that_is_not_in_the_file_is_refused(tmp_path: Path) -> None:
    lines = [x for x, v in zip(EXPORT.read_text().splitlines(keepends=True), OLD, strict=True)
             if v.get("type") != "workload"]  # fmt: skip
    (tmp_path / "x.jsonl").write_text("".join(lines))
    with Log(tmp_path / "x.db") as log:
        assert log.merge(tmp_path / "x.jsonl") == MergeResult(
            0, 0, {"record: unknown run": 30, "run: unknown workload": 6}
        )


def test_names_are_joined_alike_in_any_order(tmp_path: Path) -> None:
    """Two logs that call one expression otherwise agree on how it is shown, whoever takes in whom."""
    shown = set()
    for order in ("ab", "ba"):
        with Log(tmp_path / f"{order}.db") as log:
            for name in order:
                dag = Workload.from_json(MATMUL.json, names=_names(name)).dag
                log.start_run(Workload(dag), Target("cpu", "x"), {"cpu": "c"}, seed=0)
            assert log.stats()["workloads"] == 1
            shown.add(canonical(log.workload(MATMUL.digest).names))
    assert len(shown) == 1


def _names(x: str) -> dict[str, Any]:
    return {"inputs": [f"{x}1", f"{x}2"], "stages": [[[f"{x}3"], ["i", "j", "k"], "sum"]]}
