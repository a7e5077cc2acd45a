"""The one error of the tuning log."""

from __future__ import annotations

from schedules.errors import AutotuneError


class LogError(AutotuneError):
    """A log cannot be opened, read, written, exported or merged. The message names the file, the reason and
    the remedy.

    >>> at.Log("missing/log.db", read_only=True)
    Traceback (most recent call last):
        ...
    kernels_db.errors.LogError: there is no tuning log at missing/log.db; tune something first, ...
    """
