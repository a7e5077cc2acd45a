"""Pipes, devices, sockets and directories in the place of a file that is read: a message, and no waiting."""

from __future__ import annotations

import gzip
import lzma
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_runner import run
from log_cases import fill
from signals import alarm

import autotune as at
from cost_model import saved
from cost_model.base import CostModelError
from kernels_db import Log, LogError, compression, spool
from schedules.errors import AutotuneError

MATMUL = ("matmul", "--shape", "m=8,n=8,k=8", "--threads", 1, "--trials", 1)
# What reads a file: the words of a command with FILE in them, or a function.
DOORS: dict[str, Any] = {
    "log import": ("log", "import", "FILE"),
    "log merge": ("log", "merge", "FILE"),
    "log pin --from": ("log", "pin", "--from", "FILE"),
    "--db": ("log", "stats", "--db", "FILE"),
    "replay": ("replay", "FILE"),
    "train": ("train", "FILE"),
    "evaluate": ("evaluate", "FILE"),
    "--target": ("tune", *MATMUL, "--target", "FILE"),
    "--cost-model": ("tune", *MATMUL, "--cost-model", "FILE"),
    "--suite": ("tune", "--suite", "FILE", "--trials", 1),
    "a model's file": ("tune", "FILE", "--trials", 1),
    "load_model": at.load_model,
    "a cost model": saved.read,
}
SUFFIX = {"--target": ".json", "a model's file": ".onnx", "--cost-model": ".json"}


@pytest.fixture(autouse=True)
def in_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(spool, "WRITER_S", 0.1)
    with alarm(120):
        yield


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(path))


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


THINGS: dict[str, Callable[[Path], Any]] = {
    "pipe": os.mkfifo,
    "directory": Path.mkdir,
    "socket": a_socket,
    "device": zeros,
}


@pytest.mark.fast("pipe-*", "*-log import")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("thing", THINGS)
def test_what_is_no_file_is_refused(
    door: str, thing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if door == "a model's file":
        pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)  # a socket's name must be short
    with Log("a.db") as log:
        fill(log, 1)
    monkeypatch.setenv("AUTOTUNE_DB", str(tmp_path / "a.db"))
    file = Path(f"x{SUFFIX.get(door, '')}")
    THINGS[thing](file)
    use = DOORS[door]
    if callable(use):
        with pytest.raises((AutotuneError, CostModelError), match="x"):
            use(file)
        return
    ran = run(*[file if word == "FILE" else word for word in use])
    assert ran.status == 2 and "x" in ran.err and "Traceback" not in ran.err, (ran.out, ran.err)


def test_input_without_an_end_is_refused_by_its_beginning(tmp_path: Path) -> None:
    """Without filling the disk first."""
    with Log(tmp_path / "a.db") as log:
        for file in ("/dev/zero", "/dev/urandom"):
            with pytest.raises(LogError, match=f"^{file} is (neither a tuning log nor|in UTF)"):
                log.merge(file)


def endless(code: str) -> subprocess.Popen[bytes]:
    """A process that writes into a pipe for ever."""
    words = [sys.executable, "-c", f"import sys\n{code}"]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("text", ["y", '{"format":"autotune-log","version":2}', "{"])
def test_input_that_repeats_for_ever_ends(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "MAX_LINES", 100_000)
    with endless(f"while True: sys.stdout.write({text!r} + '\\n')") as p:
        assert p.stdout is not None
        with Log(tmp_path / "a.db") as log, pytest.raises(LogError, match="neither a tuning|100,000 lines"):
            log.merge(f"/dev/fd/{p.stdout.fileno()}")
        p.kill()


def test_a_line_without_an_end_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "MAX_BYTES", 8 << 20)
    with endless("sys.stdout.write('{')\nwhile True: sys.stdout.write(' ' * 65536)") as p:
        assert p.stdout is not None
        with Log(tmp_path / "a.db") as log, pytest.raises(LogError, match="gives more than 0 GB"):
            log.merge(f"/dev/fd/{p.stdout.fileno()}")
        p.kill()


def test_a_writer_that_comes_later_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "WRITER_S", 60.0)
    with Log(tmp_path / "a.db") as log:
        fill(log, 3)
        log.export(tmp_path / "a.jsonl")
    os.mkfifo(tmp_path / "pipe")
    code = "import time; time.sleep(0.3); open('pipe', 'wb').write(open('a.jsonl', 'rb').read())"
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path), Log(tmp_path / "b.db") as log:
        assert log.merge(tmp_path / "pipe").new == 4


@pytest.mark.slow
@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_a_bomb_is_not_unpacked_to_its_end(
    pack: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What unpacks to far more than a log does is refused long before the limit of all files."""
    monkeypatch.setattr(compression, "RATIO_FROM", 1 << 20)
    (tmp_path / "bomb").write_bytes(pack(b'{"format":"autotune-log","version":2}\n' + bytes(64 << 20)))
    with Log(tmp_path / "a.db") as log:
        fill(log, 300)
        with pytest.raises(LogError, match="bomb unpacks to more than 300 times its size, as no log does"):
            log.merge(tmp_path / "bomb")
        log.export(tmp_path / "good.gz")
        assert log.merge(tmp_path / "good.gz").known == 301
