"""Sources that can be read only once."""

from __future__ import annotations

import os
import resource
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from log_cases import fill
from signals import alarm

from kernels_db import Log, LogError, MergeResult, spool, sqlite


@pytest.fixture
def in_time() -> Iterator[None]:
    """A pipe that is opened once too often would wait for ever."""
    with alarm(60):
        yield


def piped(path: Path, content: bytes) -> Path:
    """A named pipe that gives this once."""
    os.mkfifo(path)

    def write() -> None:
        with suppress(BrokenPipeError):
            path.write_bytes(content)

    threading.Thread(target=write, daemon=True).start()
    return path


@pytest.mark.slow
@pytest.mark.usefixtures("in_time")
def test_a_pipe_is_a_source(tmp_path: Path) -> None:
    with Log(tmp_path / "a.db") as log:
        fill(log, 300)
        log.export(tmp_path / "a.jsonl")
        log.export(tmp_path / "a.json", form="t4")
    for name in ("a.db", "a.jsonl", "a.json"):
        pipe = piped(tmp_path / f"{name}.pipe", (tmp_path / name).read_bytes())
        with Log(tmp_path / f"{name}.into.db") as log:
            assert log.merge(pipe) == MergeResult(301, 0, {})


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("name", ["a.db", "a.jsonl", "a.jsonl.gz", "a.json"])
def test_a_pipe_may_begin_byte_by_byte(name: str, tmp_path: Path) -> None:
    """What it is shows after some bytes only."""
    with Log(tmp_path / "a.db") as log:
        fill(log, 3)
        for other in ("a.jsonl", "a.jsonl.gz"):
            log.export(tmp_path / other)
        log.export(tmp_path / "a.json", form="t4")
    content = (tmp_path / name).read_bytes()
    reader, writer = os.pipe()

    def write() -> None:
        for n in range(12):
            os.write(writer, content[n : n + 1])
            time.sleep(0.005)
        with open(writer, "wb") as f:
            f.write(content[12:])

    threading.Thread(target=write, daemon=True).start()
    with Log(tmp_path / "b.db") as log:
        assert log.merge(f"/dev/fd/{reader}").new == 4
    os.close(reader)


@pytest.mark.usefixtures("in_time")
def test_errors_name_the_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    with Log(tmp_path / "a.db") as log:
        for content, message in (
            (b"hello\n", "is neither a tuning log nor an export"),
            (b'{"results": 3}', "is not a T4 document"),
            (sqlite.MAGIC + b"x" * 5000, "is damaged"),
        ):
            pipe = piped(tmp_path / "pipe", content)
            with pytest.raises(LogError, match=f"^{pipe} {message}"):
                log.merge(pipe)
            pipe.unlink()
        monkeypatch.setattr(spool, "MAX_BYTES", 3 << 20)
        pipe = piped(tmp_path / "pipe", b"{" + bytes(5 << 20))
        with pytest.raises(LogError, match=f"^{pipe} gives more than 0 GB; write it to a file, and give"):
            log.merge(pipe)
        with pytest.raises(LogError, match="^/dev/zero is neither a tuning log nor an export"):
            log.merge("/dev/zero")
        assert log.merge("/dev/null") == MergeResult(0, 0, {})
    assert list((tmp_path / "tmp").iterdir()) == []  # no copy is left behind


@pytest.mark.usefixtures("in_time")
def test_a_pipe_that_cannot_be_copied(tmp_path: Path) -> None:
    """As on a full disk: the operating system refuses a write."""
    pipe = piped(tmp_path / "pipe", b"{" + b"x" * 300_000)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Log(tmp_path / "a.db") as log:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
        try:
            with pytest.raises(
                LogError, match=f"^cannot copy {pipe} to .*: File too large; give a file, or "
            ):
                log.merge(pipe)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
