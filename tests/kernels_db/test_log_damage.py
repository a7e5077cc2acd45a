"""A log with damaged bytes or values: an error that names it, whatever is damaged, or no harm."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from log_cases import TARGETS, anywhere, copy_of, exported

from kernels_db import Log, LogError, lookup
from kernels_db.records import RECORD_COLUMNS

W = copy_of(8)


def uses(path: Path, folder: Path) -> list[Callable[[], object]]:
    """Loading, reading, merging from it, and writing."""

    def merge() -> None:
        for old in folder.glob("into.db*"):
            old.unlink()
        with Log(folder / "into.db") as log:
            log.merge(path)

    def asked(read_only: bool) -> None:
        with Log(path, read_only=read_only) as log:
            log.stats()
            log.export(folder / "out.jsonl")
            list(log.records())

    return [
        lambda: lookup.best(path, W.digest, anywhere),
        lambda: asked(True),
        merge,
        lambda: asked(False),
    ]


def damaged(data: bytes, *places: tuple[int, int]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        changed = bytearray(data)
        for at, value in places:
            changed[at] = value
        for old in path.parent.glob(path.name + "*"):
            old.unlink()
        path.write_bytes(changed)

    return write


@pytest.mark.slow
def test_damage_to_single_bytes_is_reported_or_does_no_harm(log_file: Path, tmp_path: Path) -> None:
    data, random, reported = log_file.read_bytes(), Random(7), 0
    schema = [i for i in range(16, len(data)) if data[i : i + 7] in (b"CREATE ", b"ix_reco")]
    places = [random.randrange(16, len(data)) for _ in range(150)]
    places += [random.choice(schema) + random.randrange(60) for _ in range(100)]
    for n, at in enumerate(places):
        damage = damaged(data, (at, random.choice((0x92, 0xFF, 0, random.randrange(256)))))
        way = n % 4
        damage(tmp_path / "bad.db")
        try:
            uses(tmp_path / "bad.db", tmp_path)[way]()
        except LogError as err:
            assert "bad.db" in str(err)
            reported += 1
    assert reported > 20


@pytest.mark.parametrize(("name", "at"), [(b"ix_record_best", 0), (b"CREATE TABLE record", 20)])
def test_an_error_that_quotes_what_is_no_text(log_file: Path, tmp_path: Path, name: bytes, at: int) -> None:
    data = log_file.read_bytes()
    damage = damaged(data, (data.index(name) + at, 0x92))
    for way in range(4):
        damage(tmp_path / "bad.db")
        with pytest.raises(LogError, match=r"bad\.db is damaged.*Restore it from a copy"):
            uses(tmp_path / "bad.db", tmp_path)[way]()


WRONG = ("'abc'", "9e999", "x'ff'", """'{"x":1e999}'""")


@pytest.mark.fast("uid")
@pytest.mark.parametrize("column", RECORD_COLUMNS)
def test_damaged_values_of_a_record(log_file: Path, tmp_path: Path, column: str) -> None:
    """No value ends in anything but the error, and as a source of a merge the other rows go in."""
    for value in WRONG:
        con = sqlite3.connect(log_file)
        con.execute("PRAGMA ignore_check_constraints = ON")
        con.execute(f"UPDATE record SET {column} = {value} WHERE rowid = 2")
        con.commit()
        con.close()
        with Log(log_file) as log:
            for ask in (
                lambda: log.export(tmp_path / "out"),
                lambda: log.export(tmp_path / "out", form="t4"),
                lambda: list(log.records()),
                lambda: log.top_k(W, TARGETS[0], 9),
                lambda: log.pin(),
                lambda: log.prune(1),
            ):
                try:
                    ask()
                except LogError as err:
                    assert "tuning.db" in str(err)
        with Log(tmp_path / "other.db") as log:
            result = log.merge(log_file)
            assert result.new + result.known >= 4 and result.new + result.known + len(result.refused) == 5


@pytest.mark.parametrize(
    ("table", "column", "value", "ask"),
    [
        ("record", "time_s", "'abc'", lambda log: list(log.records())),
        ("record", "time_s", "9e999", lambda log: list(log.export_lines())),
        ("record", "time_s", "NULL", lambda log: list(log.records(status="ok"))),
        ("record", "time_s", "0.0", lambda log: list(log.records(status="ok"))),
        ("record", "time_s", "-1.0", lambda log: list(log.records(status="ok"))),
        ("record", "time_s", "NULL", lambda log: lookup.best(log.path, W.digest, anywhere)),
        ("record", "environment", """'{"x":1e999}'""", lambda log: list(log.export_lines())),
        ("record", "trial", "'abc'", lambda log: list(log.export_lines())),
        ("record", "workload", "x'ff'", lambda log: log.tasks()),
        ("workload", "flops", "'abc'", lambda log: log.workload(W.digest)),
        ("workload", "op", "x'ff'", lambda log: log.workload(W.digest)),
        ("run", "seed", "'abc'", lambda log: log.runs()),
        ("run", "ended", "x'ff'", lambda log: log.runs()),
        ("target", "json", "x'ff'", lambda log: log.target(TARGETS[0].digest)),
        *(
            ("machine", "json", f"""'{{"cpu":{value}}}'""", lambda log: log.origin(next(iter(log.records()))))
            for value in ("NaN", "-1e999", "[[Infinity]]")
        ),
    ],
)
def test_a_damaged_value_is_named(
    log_file: Path, table: str, column: str, value: str, ask: Callable[[Log], object]
) -> None:
    con = sqlite3.connect(log_file)
    con.execute("PRAGMA ignore_check_constraints = ON")  # a stranger's file may have none
    con.execute(f"UPDATE {table} SET {column} = {value}")
    con.commit()
    con.close()
    what = "task" if column == "workload" else table
    with Log(log_file) as log, pytest.raises(LogError, match=rf"{what} .+ is damaged; restore the log"):
        ask(log)


def test_a_text_that_is_none_is_refused_by_its_row(log_file: Path, tmp_path: Path) -> None:
    con = sqlite3.connect(log_file)
    con.execute("UPDATE record SET reason = CAST(x'ff' AS TEXT) WHERE trial = 1")
    con.commit()
    con.close()
    with Log(tmp_path / "other.db") as log:
        result = log.merge(log_file)
        assert (result.new, result.refused) == (4, {"record: reason not valid": 1})
    with Log(log_file) as log, pytest.raises(LogError, match="Could not decode.*restore it from a copy"):
        exported(log)
