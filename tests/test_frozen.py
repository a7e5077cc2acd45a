"""``autotune tune --frozen``: the log as it is, nothing measured."""

from __future__ import annotations

from pathlib import Path

from cli_runner import run
from log_filler import fill

SHAPE = ["--shape", "m=8,n=8,k=8", "--threads", 1]


def test_what_the_log_has_is_taken(tmp_path: Path) -> None:
    db = tmp_path / "tuning.db"
    (uid,) = fill(db, [("matmul", {"m": 8, "n": 8, "k": 8}, 1e-4)])
    ran = run("tune", "matmul", *SHAPE, "--db", db, "--frozen", "--json")
    assert ran.status == 0
    assert ran.json["best"]["record_id"] == uid and ran.json["best"]["time_s"] == 1e-4
    assert ran.json["trials"] == {"measured": 0, "failed": {}, "resumed": 2}
    assert ran.json["stopped"] == "frozen"
    assert "the log as it is" in run("tune", "matmul", *SHAPE, "--db", db, "--frozen").out
    assert run("log", "stats", "--db", db, "--json").json["runs"] == 1


def test_what_it_lacks_is_not_tuned(tmp_path: Path) -> None:
    db = tmp_path / "tuning.db"
    fill(db, [("matmul", {"m": 8, "n": 8, "k": 8}, 1e-4)])
    ran = run("tune", "softmax", "--shape", "m=4,n=8", "--db", db, "--frozen")
    assert ran.status == 1 and "no valid kernel found" in ran.out
    assert run("log", "stats", "--db", db, "--json").json["records"] == 2
