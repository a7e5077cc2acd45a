"""Removes all but the best records of every task.

Also kept are pinned records, and those that found a trace wrong or that verifying found wrong. Else merging a
log that still trusts such a trace would bring it back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, delete, func, select, text
from sqlalchemy.orm import Session

from kernels_db.ranking import ORDER, REPRESENTS
from kernels_db.records import REJECTED
from kernels_db.schema import (
    MachineRow,
    PinRow,
    RecordRow,
    RunRow,
    TargetRow,
    VerificationRow,
    WorkloadRow,
)

# Name of the temporary table of records to keep.
KEEPING = "pruning_keeps"


@dataclass(frozen=True)
class Pruned:
    """Numbers of records kept and removed, and of runs that have no records afterwards."""

    kept: int
    removed: int
    runs: int


def prune(session: Session, tasks: list[tuple[str, str]], keep: int, apply: bool) -> Pruned:
    """Keep the ``keep`` best records of every task. Without ``apply`` only count. The session is in a
    "change" transaction."""
    session.execute(text(f"CREATE TEMPORARY TABLE {KEEPING} (uid TEXT PRIMARY KEY)"))
    try:
        return _prune(session, tasks, keep, apply)
    finally:
        session.execute(text(f"DROP TABLE {KEEPING}"))


def _prune(session: Session, tasks: list[tuple[str, str]], keep: int, apply: bool) -> Pruned:
    for workload, target in tasks:
        session.execute(
            text(
                f"INSERT INTO {KEEPING} SELECT record.uid FROM record WHERE record.workload = :w "
                f"AND record.target = :t AND {REPRESENTS} ORDER BY {ORDER} LIMIT :k"
            ),
            {"w": workload, "t": target, "k": keep},
        )
    kept = text(f"record.uid NOT IN (SELECT uid FROM {KEEPING})")
    gone: list[ColumnElement[bool] | Any] = [
        kept,
        RecordRow.status.not_in(("wrong_result", "out_of_bounds")),
        RecordRow.uid.not_in(select(PinRow.record)),
        RecordRow.uid.not_in(
            select(VerificationRow.record).where(VerificationRow.status.in_(REJECTED))
        ),
    ]
    total = session.scalar(select(func.count()).select_from(RecordRow)) or 0
    removed = session.scalar(select(func.count()).select_from(RecordRow).where(*gone)) or 0
    staying = select(RecordRow.run).where(RecordRow.uid.not_in(select(RecordRow.uid).where(*gone)))
    empty = RunRow.uid.not_in(staying) & RunRow.ended.is_not(None)
    runs = session.scalar(select(func.count()).select_from(RunRow).where(empty)) or 0
    if apply:
        session.execute(
            delete(VerificationRow).where(VerificationRow.record.in_(select(RecordRow.uid).where(*gone)))
        )
        session.execute(delete(RecordRow).where(*gone))
        session.execute(delete(RunRow).where(empty))
        for row, column in (
            (WorkloadRow, RunRow.workload),
            (TargetRow, RunRow.target),
            (MachineRow, RunRow.machine),
        ):
            session.execute(delete(row).where(row.digest.not_in(select(column))))
    return Pruned(total - removed, removed, runs)
