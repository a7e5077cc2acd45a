"""A log that is moved, deleted or replaced while it is in use."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_cases import MACHINE, TARGETS, anywhere, copy_of, fill, measured, scratch

from kernels_db import Log, LogError, lookup

W = copy_of(8)


def deleted(db: Path) -> None:
    db.unlink()


def moved(db: Path) -> None:
    db.rename(db.with_name(f"moved-{db.name}"))


def without_its_folder(db: Path) -> None:
    shutil.rmtree(db.parent)


def moved_with_its_folder(db: Path) -> None:
    db.parent.rename(db.parent.with_name("elsewhere"))


def replaced_by_a_log(db: Path) -> None:
    with Log(db.with_name("other.db")) as other:
        fill(other, 2, copy_of(16))
    db.with_name("other.db").replace(db)


def replaced_by_a_text(db: Path) -> None:
    db.with_name("notes.txt").write_text("what I must not forget")
    db.with_name("notes.txt").replace(db)


def replaced_by_a_folder(db: Path) -> None:
    db.unlink()
    db.mkdir()


def replaced_by_a_pipe(db: Path) -> None:
    db.unlink()
    os.mkfifo(db)


def replaced_by_a_damaged_log(db: Path) -> None:
    data = db.read_bytes()
    db.with_name("torn.db").write_bytes(data[: len(data) // 2 + 100])
    db.with_name("torn.db").replace(db)


LOSSES = [
    deleted, moved, without_its_folder, moved_with_its_folder, replaced_by_a_log, replaced_by_a_text,
    replaced_by_a_folder, replaced_by_a_pipe, replaced_by_a_damaged_log,
]  # fmt: skip


def records(path: object) -> set[str]:
    with Log(str(path), read_only=True) as log:
        return {r.uid for r in log.records()}


@pytest.mark.parametrize("loss", LOSSES)
def test_no_trial_is_lost(
    loss: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    db = tmp_path / "folder" / "tuning.db"
    with Log(db) as log:
        run = log.start_run(W, TARGETS[0], MACHINE, seed=0).uid
        made = [log.add(measured(run, 0)).uid]
        log.pin()
        loss(db)
        made += [log.add(measured(run, i)).uid for i in (1, 2)]
        log.finish_run(run)
        place = log.place
        assert {r.uid for r in log.records(workload=W)} == set(made)
        assert log.run(run).state == "done"
    assert records(place) >= set(made)
    if loss is replaced_by_a_log:
        assert len(records(place)) == len(made) + 3
    assert lookup.best(place, W.digest, anywhere) is not None
    told = [m for m in caplog.messages if "was moved, deleted or replaced while it was in use" in m]
    assert len(told) == 1 and str(db) in told[0]
    if str(place) != str(db):  # something else is there, and stays as it is
        assert loss in LOSSES[-4:] and str(place) in told[0]
        assert not db.is_file() or db.read_bytes()[:4] in (b"what", b"SQLi")
    else:
        assert lookup.best(db, W.digest, anywhere).pinned is (loss is not replaced_by_a_log)  # type: ignore[union-attr]
        with closing(sqlite3.connect(db)) as con:
            assert con.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_what_was_moved_is_whole_too(tmp_path: Path) -> None:
    db = tmp_path / "tuning.db"
    with Log(db) as log:
        made = {r.uid for r in fill(log, 5)}
        moved(db)
        fill(log, 1, copy_of(16))
    assert records(tmp_path / "moved-tuning.db") == made < records(db)


def test_two_that_write_to_it_meet_again(tmp_path: Path) -> None:
    db = tmp_path / "tuning.db"
    with Log(db) as one, Log(db) as other:
        made = [*fill(one, 2), *fill(other, 2, copy_of(16))]
        deleted(db)
        made += [*fill(one, 2, copy_of(24)), *fill(other, 2, copy_of(32))]
        assert one.place == other.place
    assert records(db) == {r.uid for r in made}


def test_where_it_can_be_put_nowhere_an_error_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = tmp_path / "folder" / "tuning.db"
    with Log(db) as log:
        fill(log, 1)
        without_its_folder(db)
        (tmp_path / "folder").write_text("in the way")
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "folder" / "none"))
        with pytest.raises(LogError, match=r"tuning\.db was moved.* cannot be saved"):
            fill(log, 1, copy_of(16))


def test_where_its_folder_cannot_be_made_it_goes_where_temporary_files_go(tmp_path: Path) -> None:
    db = tmp_path / "folder" / "tuning.db"
    with Log(db) as log:
        made = {r.uid for r in fill(log, 1)}
        without_its_folder(db)
        (tmp_path / "folder").write_text("in the way")
        made |= {r.uid for r in fill(log, 1, copy_of(16))}
        place = Path(str(log.place))
    assert records(place) == made
    place.unlink()


def test_it_is_put_back_where_temporary_files_go_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in []")

    db = tmp_path / "folder" / "tuning.db"
    monkeypatch.setattr("tempfile.gettempdir", nowhere)
    with Log(db) as log:
        made = {r.uid for r in fill(log, 1)}
        without_its_folder(db)
        made |= {r.uid for r in fill(log, 1, copy_of(16))}
    assert records(db) == made


def test_a_log_that_is_only_read_is_left_alone(tmp_path: Path) -> None:
    db = tmp_path / "tuning.db"
    with Log(db) as log:
        fill(log, 1)
    with Log(db, read_only=True) as log:
        list(log.records())
        deleted(db)
        log.stats()
    assert not db.exists()


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from([None, None, *LOSSES[:5]]), min_size=1, max_size=6))
def test_whatever_happens_to_it(steps: list[Callable[[Path], None] | None]) -> None:
    with scratch() as folder:
        db, made = folder / "a" / "tuning.db", []
        with Log(db) as log:
            run = log.start_run(W, TARGETS[0], MACHINE, seed=0).uid
            for i, step in enumerate(steps):
                if step is not None and not (
                    step is moved_with_its_folder and (folder / "elsewhere").exists()
                ):
                    step(db)
                made.append(log.add(measured(run, i)).uid)
            place = log.place
        assert records(place) >= set(made)
