"""Recorded tables: spaces whose candidates have all been measured."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.search.table import TableSpace
from schedules.errors import AutotuneError

NO_TABLE = "{} is neither a log, nor an export, nor a table of Kernel Tuner or T4"


class ReplayError(AutotuneError):
    """A file that holds no table, or a table that cannot be searched."""


@dataclass(frozen=True)
class Table:
    """A space of recorded candidates, and what it is called. Of a log: which of its ``tasks`` it is, from 1,
    and their names. ``notes``: what of the file was not read."""

    name: str
    space: TableSpace
    task: int | None = None
    tasks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
