"""What a caller wants a kernel for, read and checked once."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from autotune import backends
from autotune.settings import database
from schedules.model import Target


@dataclass(frozen=True)
class Asked:
    """Where a kernel is to run, and which log it may come from.

    ``target``: its threads are the most that a kernel may have. ``threads``: as the caller gave them.
    ``exactly``: the number that a kernel must have, None for any. ``where``: the log. ``fallback``: as of
    `autotune.load`. ``nearest``: the same, and this machine is asked for. ``named``: the target's name as
    the caller gave it, empty for this CPU and for a `Target`."""

    target: Target
    threads: int | None
    exactly: int | None
    where: str
    fallback: bool = False
    nearest: bool = False
    named: str = ""

    @classmethod
    def of(
        cls,
        target: str | Target = "cpu",
        threads: int | None = None,
        db: str | os.PathLike[str] | None = None,
        fallback: bool = False,
        nearest: bool = False,
    ) -> Asked:
        """From the options of `autotune.load`. Raises `TargetError`; `SettingsError` for an empty text."""
        where = database(db)
        wanted = backends.parse(target, threads)
        exactly = target.threads if isinstance(target, Target) and threads is None else threads
        named = target if isinstance(target, str) and target != backends.HOST else ""
        return cls(wanted, threads, exactly, where, fallback, nearest and target == backends.HOST, named)

    def on(self, target: Target) -> Asked:
        """The same for a target, with its number of threads and no other."""
        return replace(self, target=target, threads=target.threads, exactly=target.threads)
