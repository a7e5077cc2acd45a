"""Every error a user can meet derives from `AutotuneError`; each message names the thing, the
reason and the remedy."""

from __future__ import annotations


class AutotuneError(Exception):
    """Base of all errors of this project."""


class ScheduleError(AutotuneError, ValueError):
    """A primitive was used where it is not legal, or a trace does not fit its expression."""


class WorkloadError(AutotuneError, ValueError):
    """An operator, its parameters or its dtype do not make a workload."""


class NotPicklable(AutotuneError, TypeError):
    """What belongs to this process, code or a connection, cannot be pickled."""
