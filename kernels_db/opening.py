"""Opens files that somebody names, so that none is waited for: a pipe without a writer would never open."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

# Whether a file can be opened without waiting for who writes to it: not on Windows.
WAITS_NOT: int = getattr(os, "O_NONBLOCK", 0)
# How to open a file to read bytes. Systems lack some of these flags.
TO_READ: int = os.O_RDONLY | WAITS_NOT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def open_regular(path: str | os.PathLike[str], *, follow: bool = True) -> BufferedReader:
    """A regular file to read. ``follow``: whether ``path`` may be a link. Raises OSError for anything else: a
    directory, a pipe, a device."""
    links = 0 if follow else getattr(os, "O_NOFOLLOW", 0)
    fd = os.open(path, TO_READ | links)
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))
    return os.fdopen(fd, "rb")


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """The content of a regular file of at most ``most`` bytes. Raises OSError, also for a larger one."""
    with open_regular(path) as f:
        data = f.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most >> 20} MB", os.fspath(path))
    return data


def is_named_pipe(path: Path) -> bool:
    """Whether a path names a pipe in the file system, and not one of this process, such as its stdin."""
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode) and os.path.exists(os.path.realpath(path))
    except OSError:
        return False
