"""Every error a user can meet derives from `AutotuneError`; each message names the thing, the
reason and the remedy."""

from __future__ import annotations

from collections.abc import Collection, Iterable

# So many names are listed beside the one that is close.
FEW_NAMES = 8


class AutotuneError(Exception):
    """Base of all errors of this project.

    >>> issubclass(at.WorkloadError, at.AutotuneError)
    True
    """


class ScheduleError(AutotuneError, ValueError):
    """A primitive was used where it is not legal, or a trace does not fit its expression.

    >>> x = te.placeholder((64,), name="x")
    >>> at.Schedule([x, te.compute((64,), lambda i: x[i] + 1.0, name="y")]).vectorize("z")
    Traceback (most recent call last):
        ...
    schedules.errors.ScheduleError: there is no loop 'z'; the loops are y_i
    """


class WorkloadError(AutotuneError, ValueError):
    """An operator, its parameters or its dtype do not make a workload.

    >>> at.load("matmul", m=64)
    Traceback (most recent call last):
        ...
    schedules.errors.WorkloadError: matmul needs the parameters n, k: ...
    """


class NotPicklable(AutotuneError, TypeError):
    """What belongs to this process, code or a connection, cannot be pickled."""


def suggest(name: object, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` if something known is close, else empty. For messages of errors."""
    from difflib import get_close_matches  # takes a while, and only mistakes need it

    spelled = {x.lower(): x for x in known}
    close = get_close_matches(str(name).lower(), spelled, n=1, cutoff=0.6)
    return f" (did you mean {spelled[close[0]]!r}?)" if close else ""


def instead(name: object, known: Collection[str], lead: str) -> str:
    """What to give in place of an unknown name: the known name that is close, and all of them, after
    ``; LEAD``, where none is close or they are few."""
    close = suggest(name, known)
    return close if close and len(known) > FEW_NAMES else f"{close}; {lead} {', '.join(known)}"
