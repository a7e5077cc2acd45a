"""Removes all but the best records of every task.

Also kept are pinned records, and those that found a trace wrong or that verifying found wrong. Else merging a
log that still trusts such a trace would bring it back. Runs that say how a graph is rewritten are kept too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, func, select, text

from kernels_db.ranking import ORDER, REPRESENTS
from kernels_db.records import REJECTED
from kernels_db.schema import CHOOSES, MACHINE, PIN, RECORD, RUN, TARGET, VERIFICATION, WORKLOAD

# Name of the temporary table of records to keep.
KEEPING = "pruning_keeps"


@dataclass(frozen=True)
class Pruned:
    """Numbers of records kept and removed, and of runs that have no records afterwards."""

    kept: int
    removed: int
    runs: int


def prune(con: Connection, tasks: list[tuple[str, str]], keep: int, apply: bool) -> Pruned:
    """Keep the ``keep`` best records of every task. Without ``apply`` only count. ``con`` is in a
    "change" transaction."""
    con.execute(text(f"CREATE TEMPORARY TABLE {KEEPING} (uid TEXT PRIMARY KEY)"))
    try:
        return _prune(con, tasks, keep, apply)
    finally:
        con.execute(text(f"DROP TABLE {KEEPING}"))


def _prune(con: Connection, tasks: list[tuple[str, str]], keep: int, apply: bool) -> Pruned:
    for workload, target in tasks:
        con.execute(
            text(
                f"INSERT INTO {KEEPING} SELECT record.uid FROM record WHERE record.workload = :w "
                f"AND record.target = :t AND {REPRESENTS} ORDER BY {ORDER} LIMIT :k"
            ),
            {"w": workload, "t": target, "k": keep},
        )
    kept = text(f"record.uid NOT IN (SELECT uid FROM {KEEPING})")
    gone: list[ColumnElement[bool] | Any] = [
        kept,
        RECORD.c.status.not_in(("wrong_result", "out_of_bounds")),
        RECORD.c.uid.not_in(select(PIN.c.record)),
        RECORD.c.uid.not_in(select(VERIFICATION.c.record).where(VERIFICATION.c.status.in_(REJECTED))),
    ]
    total = con.scalar(select(func.count()).select_from(RECORD)) or 0
    removed = con.scalar(select(func.count()).select_from(RECORD).where(*gone)) or 0
    staying = select(RECORD.c.run).where(RECORD.c.uid.not_in(select(RECORD.c.uid).where(*gone)))
    empty = RUN.c.uid.not_in(staying) & RUN.c.ended.is_not(None) & ~CHOOSES
    runs = con.scalar(select(func.count()).select_from(RUN).where(empty)) or 0
    if apply:
        con.execute(delete(VERIFICATION).where(VERIFICATION.c.record.in_(select(RECORD.c.uid).where(*gone))))
        con.execute(delete(RECORD).where(*gone))
        con.execute(delete(RUN).where(empty))
        for table, column in (
            (WORKLOAD, RUN.c.workload),
            (TARGET, RUN.c.target),
            (MACHINE, RUN.c.machine),
        ):
            con.execute(delete(table).where(table.c.digest.not_in(select(column))))
    return Pruned(total - removed, removed, runs)
