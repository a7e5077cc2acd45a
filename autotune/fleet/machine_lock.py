"""A lock on CPUs: of all workers of a machine that share a CPU, one measures at a time.

A file for each CPU is locked, in ascending order, so that no two wait for each other. The kernel frees them
when a process ends, however it ends. Containers with folders of their own do not see each other's.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from autotune.fleet.errors import FleetError
from autotune.platform.files import locked
from kernels_db.temporary import temporary_place

POLL_S = 0.002


@contextmanager
def held(
    cpus: Sequence[int], waiting: Callable[[], None] = lambda: None, folder: Path | None = None
) -> Iterator[None]:
    """Have these CPUs for oneself until the end of the block. ``waiting`` is called again and again until
    then; what it raises ends the wait. ``folder``: default: that of temporary files."""
    place = folder or temporary_place()
    files: list[int] = []
    try:
        for cpu in sorted(cpus):
            file = _open(place / f"autotune-cpu-{cpu}.lock")
            files.append(file)
            while not locked(file):
                waiting()
                time.sleep(POLL_S)
        yield
    finally:
        for file in files:
            os.close(file)


def _open(path: Path) -> int:
    """A file that all users of the machine may lock. Reading is enough for that."""
    how = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        try:
            return os.open(path, how)
        except FileNotFoundError:
            return os.open(path, how | os.O_CREAT, 0o644)
    except OSError as err:
        full = err.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
        remedy = "set TMPDIR to a directory that all workers here can write" if full else "remove it"
        raise FleetError(f"the lock {path} cannot be opened: {err.strerror}; {remedy}") from None
