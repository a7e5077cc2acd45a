"""The standard streams of a process. They may be closed, opened in the wrong direction, or full."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from autotune.platform.files import is_read_only


def prepare() -> str | None:
    """Open the null device in place of closed standard streams, so that no file opened later gets their
    descriptors. Returns what is wrong with stdout, None if nothing is."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor
    fault = None
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)
        fault = "closed"
    elif is_read_only(1):
        _discard(1)
        fault = "open for reading only"
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)
    elif is_read_only(2):
        _discard(2)
    return fault


def silence(stream: TextIO) -> None:
    """Prevent the interpreter's last flush from complaining about a closed pipe or a full disk."""
    _discard(stream.fileno())


def _discard(fd: int) -> None:
    """Redirect a descriptor to the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, fd)
    os.close(null)
