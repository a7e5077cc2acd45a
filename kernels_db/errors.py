"""The one error of the tuning log."""

from __future__ import annotations

from schedules.errors import AutotuneError


class LogError(AutotuneError):
    """A log cannot be opened, read, written, exported or merged. The message names the file, the reason and
    the remedy."""
