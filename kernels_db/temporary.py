"""Temporary files of this process, and the error where there is no place for them."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from schedules.errors import AutotuneError


class TemporaryFilesError(AutotuneError):
    """No directory for temporary files can be written. The message names the setting that mends it."""


def temporary_place() -> Path:
    """The directory for temporary files. Raises `TemporaryFilesError`."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as err:
        tried = str(err.strerror).partition(" in ")[2]
        raise TemporaryFilesError(
            f"temporary files can be written nowhere (tried {tried.strip('[]')}): set TMPDIR to a directory "
            "that can be written and has space"
        ) from None


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A new folder for temporary files, which is removed in the end. Raises `TemporaryFilesError`, also where
    the block finds no space."""
    place = temporary_place()
    try:
        with tempfile.TemporaryDirectory(dir=place) as folder:
            yield Path(folder)
    except OSError as err:
        if err.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise TemporaryFilesError(
            f"temporary files in {place}: {err.strerror}: set TMPDIR to a directory that has space"
        ) from err
