"""The one query that loading a kernel needs, without SQLAlchemy (see docs/adr/0002).

Importing SQLAlchemy takes longer than `autotune.load` may, so this module reads the log with the
standard library. The ranking rule is the text that the store uses too (`kernels_db.ranking`).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing

from kernels_db.connection import explain, locate, open_reader
from kernels_db.errors import LogError
from kernels_db.ranking import ORDER, REPRESENTS
from kernels_db.records import RECORD_COLUMNS, Hit, Record
from schedules.model import Target

TARGETS = """
    SELECT target.digest, target.json FROM target WHERE EXISTS (
        SELECT 1 FROM record WHERE record.workload = ? AND record.target = target.digest
        AND record.status = 'ok')
    ORDER BY target.digest"""
BEST = f"""
    SELECT {", ".join(RECORD_COLUMNS)} FROM record
    WHERE record.workload = ? AND record.target = ? AND {REPRESENTS}
    ORDER BY {ORDER} LIMIT 1"""


def best(
    path_or_url: str | os.PathLike[str],
    workload_digest: str,
    accept: Callable[[Target], bool],
    threads: int | None = None,
    *,
    timeout_s: float = 30.0,
) -> Hit | None:
    """The best record of a workload over every target that ``accept`` takes and, unless None, that
    has this number of ``threads``. None if the log holds nothing, or there is no log.

    Reads only; works while other processes write, and in a directory that cannot be written. Raises
    `LogError` if the file is not a log or cannot be read.
    """
    path = locate(path_or_url)
    try:
        if not path.exists():
            return None
    except OSError as err:
        raise explain(err, path) from None
    con = open_reader(path, timeout_s=timeout_s)
    if con is None:
        return None
    hits = []
    with closing(con):
        con.row_factory = sqlite3.Row
        try:
            con.execute("BEGIN")  # one snapshot for all queries
            for digest, text in con.execute(TARGETS, (workload_digest,)).fetchall():
                target = stored_target(path, digest, text)
                if threads not in (None, target.threads) or not accept(target):
                    continue
                row = con.execute(BEST, (workload_digest, digest)).fetchone()
                if row is not None:
                    hits.append(Hit(stored_record(path, row), target))
        except sqlite3.Error as err:
            raise explain(err, path, timeout_s) from None
    return min(hits, key=rank, default=None)


def rank(hit: Hit) -> tuple[float, str, str]:
    """The order of `kernels_db.ranking.ORDER`, for records of different targets."""
    return hit.time_s, hit.record.created, hit.record.uid


def stored_target(path: object, digest: str, text: str) -> Target:
    """The target of a row. Raises `LogError` if it is damaged."""
    try:
        return Target.from_json(text)
    except (ValueError, TypeError, OverflowError):
        raise _damaged(path, "target", digest) from None


def stored_record(path: object, row: object) -> Record:
    """The record of a row, a mapping of columns. Raises `LogError` if it is damaged."""
    try:
        return Record.from_columns(row)  # type: ignore[arg-type]
    except (ValueError, TypeError, RecursionError):
        raise _damaged(path, "record", row["uid"]) from None  # type: ignore[index]


def _damaged(path: object, what: str, key: object) -> LogError:
    return LogError(f"{path}: {what} {key} is damaged; restore the log from a copy or an export")
