"""Exports that are packed, and those that go through stdin and stdout."""

from __future__ import annotations

import gzip
import lzma
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runner import run
from hypothesis import given, settings
from hypothesis import strategies as st
from log_cases import exported, fill, scratch

from kernels_db import Log, LogError, MergeResult, compression
from kernels_db.compression import opened

PACK = {".gz": gzip.compress, ".xz": lzma.compress}


def autotune(*words: object, text: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "autotune", *map(str, words)]
    return subprocess.run(command, input=text, capture_output=True, timeout=60)


@pytest.fixture
def db(tmp_path: Path) -> Path:
    with Log(tmp_path / "a.db") as log:
        fill(log, 30)
    return tmp_path / "a.db"


@pytest.mark.fast("jsonl-.gz")
@pytest.mark.parametrize("pack", PACK)
@pytest.mark.parametrize("form", ["jsonl", "t4"])
def test_what_is_packed_comes_back(tmp_path: Path, db: Path, pack: str, form: str) -> None:
    first, again = tmp_path / f"x{pack}", tmp_path / f"y{pack}"
    for file in (first, again):
        assert run("log", "export", file, "--db", db, "--format", form).status == 0
    plain = tmp_path / "plain"
    run("log", "export", plain, "--db", db, "--format", form)
    assert first.read_bytes() == again.read_bytes()  # no name, no time
    assert {".gz": gzip.decompress, ".xz": lzma.decompress}[pack](first.read_bytes()) == plain.read_bytes()
    unnamed = tmp_path / "no suffix"
    first.rename(unnamed)  # what it is its first bytes say
    for n, command in enumerate(("import", "merge")):
        into = tmp_path / f"{n}.db"
        assert run("log", command, unnamed, "--db", into).status == 0
        with Log(into) as log, Log(db) as source:
            assert exported(log) == exported(source)


@pytest.mark.parametrize("pack", PACK)
def test_members_one_after_the_other_are_one_export(tmp_path: Path, db: Path, pack: str) -> None:
    with Log(db) as log:
        log.export(tmp_path / f"x{pack}")
    (tmp_path / "twice").write_bytes(2 * (tmp_path / f"x{pack}").read_bytes() + bytes(8))
    with Log(tmp_path / "b.db") as log:
        assert log.merge(tmp_path / "twice") == MergeResult(31, 31, {})


@pytest.mark.parametrize("pack", PACK)
def test_what_is_torn_or_damaged_is_said(tmp_path: Path, db: Path, pack: str) -> None:
    with Log(db) as log:
        log.export(tmp_path / f"x{pack}")
    good = (tmp_path / f"x{pack}").read_bytes()
    file = tmp_path / "bad"
    with Log(tmp_path / "b.db") as log:
        for content in (good[:20], good[: len(good) // 2], good[:-3]):
            file.write_bytes(content)
            with pytest.raises(LogError, match=f"^{file} ends early"):
                log.merge(file)
        for content in (good[:200] + bytes(100) + good[300:], good + b"more"):
            file.write_bytes(content)
            with pytest.raises(LogError, match=f"^{file} (cannot be unpacked|ends early)"):
                log.merge(file)
    assert run("replay", file).status == 2


@pytest.mark.parametrize("pack", PACK)
def test_a_bomb_is_given_up(tmp_path: Path, pack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "MAX_BYTES", 8 << 20)
    file = tmp_path / "bomb"
    file.write_bytes(PACK[pack](b'{"format":"autotune-log","version":1}\n' + bytes(16 << 20)))
    with Log(tmp_path / "b.db") as log, pytest.raises(LogError, match="unpacks to more than 0 GB"):
        log.merge(file)


def test_memory_that_xz_asks_for_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "MAX_WINDOW", 1 << 20)
    file = tmp_path / "greedy"
    file.write_bytes(lzma.compress(b"x" * 100, preset=9))
    with opened(file) as f, pytest.raises(LogError, match="cannot be unpacked .*emory"):
        f.read()


@given(st.lists(st.binary(max_size=300), max_size=4), st.sampled_from(sorted(PACK)), st.integers(1, 400))
@settings(max_examples=60)
def test_unpacking_gives_what_was_packed(parts: list[bytes], pack: str, piece: int) -> None:
    with scratch() as folder:
        file = folder / "x"
        file.write_bytes(b"".join(PACK[pack](p) for p in parts) if parts else b"plain")
        with opened(file) as f:
            found = b"".join(iter(lambda: f.read(piece), b""))
    assert found == (b"".join(parts) if parts else b"plain")


@pytest.mark.slow
def test_a_log_goes_down_a_pipe(tmp_path: Path, db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sent = autotune("log", "export", "-", "--db", db)
    assert sent.returncode == 0 and b"31 records written to stdout" in sent.stderr
    with Log(db) as log:
        assert sent.stdout.decode() == exported(log)
    for n, (command, text) in enumerate(
        [
            ("import", sent.stdout),
            ("merge", sent.stdout),
            ("merge", db.read_bytes()),
            ("import", gzip.compress(sent.stdout)),
        ]
    ):
        took = autotune("log", command, "-", "--db", tmp_path / f"{n}.db", "--json", text=text)
        assert took.returncode == 0 and b'"new": 31' in took.stdout
    assert not (tmp_path / "-").exists()
    appended = tmp_path / "all.jsonl"
    appended.write_text("# before\n")
    with appended.open("ab") as f:
        subprocess.run(
            [sys.executable, "-m", "autotune", "log", "export", "-", "--db", db], stdout=f, timeout=60
        )
    assert appended.read_bytes() == b"# before\n" + sent.stdout


@pytest.mark.slow
def test_pins_and_tables_too(tmp_path: Path, db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pinned = autotune("log", "pin", "-", "--db", db)
    assert pinned.returncode == 0 and pinned.stdout.startswith(b'{"format"')
    took = autotune("log", "pin", "--from", "-", "--db", db, "--json", text=pinned.stdout)
    assert took.returncode == 0 and b'"pinned": 1' in took.stdout
    cache = b'{"tune_params_keys": ["x"], "cache": {"1": {"x": 1, "time": 2.0}, "2": {"x": 2, "time": 3.0}}}'
    found = autotune("replay", "-", "--search", "random", "--json", text=cache)
    assert found.returncode == 0 and b'"configurations": 2' in found.stdout
    assert list(tmp_path.glob("*-")) == []
    for words in (("log", "export", "-"), ("log", "pin", "-")):
        refused = run(*words, "--db", db, "--json")
        assert refused.status == 2 and "give a file" in refused.json["error"]["message"]
