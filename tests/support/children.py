"""Child processes of tests: where they import from, and which of them run."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]


def folders(file: str) -> list[str]:
    """Of a test file: its own, what tests share, and the project's. A child then has the names that the
    file has."""
    return [str(Path(file).resolve().parent), str(Path(__file__).resolve().parent), str(ROOT)]


def python_path(file: str) -> str:
    """`folders` as PYTHONPATH."""
    return os.pathsep.join(folders(file))


def children(
    word: str = "", pid: int | None = None, but: str | None = None, recursive: bool = False
) -> list[psutil.Process]:
    """Children of a process, this one's by default, whose command line has ``word`` and not ``but``.
    ``recursive``: their children too.

    A process that has ended and is not yet waited for has no command line. It is not among them."""
    found = []
    for process in psutil.Process(pid).children(recursive=recursive):
        try:
            line = " ".join(process.cmdline())
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        if word in line and (but is None or but not in line):
            found.append(process)
    return found
