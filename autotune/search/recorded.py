"""Recorded tables: spaces whose candidates have all been measured."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.search.table import TableSpace
from schedules.errors import AutotuneError

# Message for a file without a table.
NO_TABLE = "{} is neither a log, nor an export, nor a table of Kernel Tuner or T4"


class ReplayError(AutotuneError):
    """A file that holds no table, or a table that cannot be searched."""


@dataclass(frozen=True)
class Table:
    """A space of recorded candidates and its name. ``task``: number of the task in its log, from 1;
    ``tasks``: names of all tasks of the log. ``notes``: what was not read of the file."""

    name: str
    space: TableSpace
    task: int | None = None
    tasks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
