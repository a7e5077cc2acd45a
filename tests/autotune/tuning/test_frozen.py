"""``autotune tune --frozen``: the log as it is, nothing measured."""

from __future__ import annotations

from pathlib import Path

from cli_runner import run
from log_filler import fill, host

from kernels_db import Log, NewRecord
from kernels_db.pins import Pin
from schedules import ops
from schedules.model import Step, Trace

SHAPE = ["--shape", "m=8,n=8,k=8", "--threads", 1]


def test_what_the_log_has_is_taken(tmp_path: Path) -> None:
    db = tmp_path / "tuning.db"
    (uid,) = fill(db, [("matmul", {"m": 8, "n": 8, "k": 8}, 1e-4)])
    ran = run("tune", "matmul", *SHAPE, "--db", db, "--frozen", "--json")
    assert ran.status == 0
    assert ran.json["best"]["record_id"] == uid and ran.json["best"]["time_s"] == 1e-4
    assert ran.json["trials"] == {"measured": 0, "failed": {}, "stopped_early": 0, "resumed": 2}
    assert ran.json["stopped"] == "frozen"
    assert "the log as it is" in run("tune", "matmul", *SHAPE, "--db", db, "--frozen").out
    assert run("log", "stats", "--db", db, "--json").json["runs"] == 1


def test_what_it_lacks_is_not_tuned(tmp_path: Path) -> None:
    db = tmp_path / "tuning.db"
    fill(db, [("matmul", {"m": 8, "n": 8, "k": 8}, 1e-4)])
    ran = run("tune", "softmax", "--shape", "m=4,n=8", "--db", db, "--frozen")
    assert ran.status == 1 and "no valid kernel found" in ran.out
    assert run("log", "stats", "--db", db, "--json").json["records"] == 2


def test_a_log_that_is_missing_is_not_made(tmp_path: Path) -> None:
    db = tmp_path / "nowhere" / "nothere.db"
    for place in (db, f"sqlite:///{db}"):
        ran = run("tune", "matmul", *SHAPE, "--db", place, "--frozen")
        assert ran.status == 2 and f"there is no tuning log at {db}; tune something first" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_the_log_is_only_read(tmp_path: Path) -> None:
    db = tmp_path / "tuning.db"
    db.touch()
    ran = run("tune", "matmul", *SHAPE, "--db", db, "--frozen")
    assert ran.status == 1 and "no valid kernel found" in ran.out
    assert [(p.name, p.stat().st_size) for p in tmp_path.iterdir()] == [("tuning.db", 0)]


def test_what_is_pinned_is_taken_and_what_is_not_legal_is_not(tmp_path: Path) -> None:
    db = tmp_path / "tuning.db"
    (uid,) = fill(db, [("matmul", {"m": 8, "n": 8, "k": 8}, 1e-4)])
    words = ("tune", "matmul", *SHAPE, "--db", db, "--frozen", "--json")
    bad = Trace((Step("unroll", (("loop", "nowhere"),)),))
    with Log(db) as log:
        made = log.start_run(ops.workload("matmul", {"m": 8, "n": 8, "k": 8}), host(), {"cpu": "x"}, seed=0)
        log.add(NewRecord(made.uid, 0, "x", bad, "ok", times_s=[1e-9], kind="final"))
    assert run(*words).json["best"]["record_id"] == uid
    with Log(db) as log:
        log.add(NewRecord(made.uid, 1, "x", Trace(), "ok", times_s=[1e-6]))
        log.pin([Pin(log.run(made.uid).workload, host().digest, uid)])
    assert run(*words).json["best"]["record_id"] == uid
    assert run("log", "pin", "--remove", "--db", db, "--json").json["removed"] == 1
    assert run(*words).json["best"]["time_s"] == 1e-6
