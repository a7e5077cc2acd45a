"""Folders of this user alone. What lies in them is trusted, because nobody else can write there."""

from __future__ import annotations

import logging
import os
import stat
from functools import cache
from pathlib import Path

from autotune.platform.files import user_id
from kernels_db.temporary import temporary_place

log = logging.getLogger(__name__)


def refusal_of(status: os.stat_result) -> str | None:
    """Why a file or directory is not to be trusted, or None."""
    if status.st_uid != user_id():
        return f"belongs to user {status.st_uid}, not to {user_id()}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"may be written by others (mode {stat.S_IMODE(status.st_mode):04o})"
    return None


@cache
def instead_of_home() -> Path:
    """A folder among temporary files, for a user without a home directory. It is made, and said to be used,
    once. Raises `TemporaryFilesError` or `OSError` where it cannot be made, and `PermissionError` where
    somebody else made it."""
    folder = temporary_place() / f"autotune-{user_id()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = os.lstat(folder)  # a link may lead anywhere
    refusal = "is a link" if stat.S_ISLNK(status.st_mode) else refusal_of(status)
    if refusal is not None:
        raise PermissionError(0, refusal, str(folder))
    folder.chmod(0o700)
    log.warning(
        "this user has no home directory; the tuning log and compiled kernels are in %s, which may be "
        "emptied at any time; AUTOTUNE_DB and AUTOTUNE_CACHE_DIR name other places",
        folder,
    )
    return folder
