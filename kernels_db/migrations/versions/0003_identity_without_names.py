"""Workload version 2: one expression is one workload, whatever its tensors and axes are called.

Rows of workload version 1 get the keys and the names of version 2 (`kernels_db.rekeying`), as if the log had
been exported and imported; workloads that become one are joined, and their runs and records stand side by
side. What an import would refuse, as a workload that cannot be read, stays as it is: a warning counts and
names it.
"""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from alembic import op

from kernels_db import engine, exchange, transfer
from kernels_db.exchange import Item, ItemType
from kernels_db.ranking import ORDER
from kernels_db.rekeying import Rekeyer
from kernels_db.schema import KEY

revision = "0003"
down_revision = "0002"

SHOWN = 5  # of the rows that stay, in the warning
CHANGED = ("uid", "run", "workload", "sketch", "trace", "trace_digest")  # of a record
NOW = "coalesce((SELECT now FROM former WHERE former = {0}), {0})"


def upgrade() -> None:
    op.add_column("workload", sa.Column("names", KEY, nullable=False, server_default="{}"))
    op.create_table(
        "former",
        sa.Column("former", KEY, nullable=False, primary_key=True),
        sa.Column("now", KEY, nullable=False),
    )
    con = op.get_bind()
    if con.scalar(sa.text("SELECT count(*) FROM workload")) == 0:
        return
    raw: Any = con.connection.dbapi_connection
    text_factory = raw.text_factory if isinstance(raw, sqlite3.Connection) else None
    engine.read_any_text(con)
    try:
        left = _rekey(con)
    finally:
        if text_factory is not None:
            raw.text_factory = text_factory
    if left:
        shown = f"{', '.join(left[:SHOWN])}{', ...' if len(left) > SHOWN else ''}"
        warnings.warn(
            f"the log was upgraded, but {len(left)} of its rows are damaged or cannot be read, and stay as "
            f"they are: {shown}; their kernels are not found: restore the log from a copy or tune them again",
            stacklevel=2,
        )


def _rekey(con: sa.Connection) -> list[str]:
    """Bring all rows to version 2; those that stay, in words."""
    rekeyer, left = Rekeyer(), list[str]()
    for table in ("verification", "pin"):  # which refer to records
        con.execute(sa.text(f"CREATE TEMPORARY TABLE kept_{table} AS SELECT * FROM {table}"))
        con.execute(sa.text(f"DELETE FROM {table}"))
    workloads = _changed("workload", _rows(con, "SELECT * FROM workload"), rekeyer, left)
    best: dict[str, dict[str, Any]] = {}
    for item in workloads:
        other = best.setdefault(item.key, item.columns)
        if transfer.described(item.columns) > transfer.described(other):
            best[item.key] = item.columns
    engine.insert(con, "workload", list(best.values()))
    _note(con, workloads)
    runs = _changed("run", _rows(con, "SELECT * FROM run"), rekeyer, left)
    engine.insert(con, "run", [item.columns for item in runs])
    _note(con, runs)
    for run in runs:  # one at a time: a log may have millions of records
        rows = _rows(con, "SELECT * FROM record WHERE run = :run", run=run.former)
        _note(con, _update(con, run, rows, rekeyer, left))
    for item in runs:
        unused = "NOT EXISTS (SELECT 1 FROM record WHERE record.run = run.uid)"
        con.execute(sa.text(f"DELETE FROM run WHERE uid = :key AND {unused}"), {"key": item.former})
    for item in workloads:
        unused = "NOT EXISTS (SELECT 1 FROM run WHERE run.workload = workload.digest)"
        con.execute(sa.text(f"DELETE FROM workload WHERE digest = :key AND {unused}"), {"key": item.former})
    _put_back(con)
    return left


def _changed(
    kind: ItemType, rows: Iterable[dict[str, Any]], rekeyer: Rekeyer, left: list[str]
) -> list[Item]:
    """The rows that change, as they become; those that cannot be read are added to ``left``."""
    found = []
    for row in rows:
        key = row["digest" if kind == "workload" else "uid"]
        try:
            item = rekeyer.item(exchange.decode(exchange.encode(kind, row)))
        except (*exchange.MALFORMED, exchange.Refused):
            left.append(f"{kind} {str(key)[:32]!r}")
            continue
        if item.former is not None:
            found.append(item)
    return found


def _update(
    con: sa.Connection, run: Item, rows: list[dict[str, Any]], rekeyer: Rekeyer, left: list[str]
) -> list[Item]:
    """Change the records of a run in their places. A damaged one stays as it is, but for its run."""
    changed = _changed("record", rows, rekeyer, left)
    if changed:
        sets = ", ".join(f"{name} = :{name}" for name in CHANGED)
        values = [{"former": i.former, **{name: i.columns[name] for name in CHANGED}} for i in changed]
        con.execute(sa.text(f"UPDATE record SET {sets} WHERE uid = :former"), values)
    con.execute(
        sa.text("UPDATE record SET run = :now, workload = :workload WHERE run = :former"),
        {"now": run.key, "workload": run.columns["workload"], "former": run.former},
    )
    return changed


def _put_back(con: sa.Connection) -> None:
    """What refers to records, to what they are now. Of two pins of what became one task the faster stays."""
    con.execute(
        sa.text(
            "INSERT INTO verification (record, host, status, time_s, checked) "
            f"SELECT {NOW.format('k.record')}, k.host, k.status, k.time_s, k.checked "
            "FROM kept_verification AS k"
        )
    )
    con.execute(
        sa.text(
            "INSERT INTO pin (workload, target, record, pinned) "
            "SELECT record.workload, k.target, record.uid, k.pinned FROM kept_pin AS k "
            f"JOIN record ON record.uid = {NOW.format('k.record')} ORDER BY {ORDER} ON CONFLICT DO NOTHING"
        )
    )
    for table in ("verification", "pin"):
        con.execute(sa.text(f"DROP TABLE kept_{table}"))


def _note(con: sa.Connection, items: list[Item]) -> None:
    engine.insert(con, "former", [{"former": item.former, "now": item.key} for item in items])


def _rows(con: sa.Connection, sql: str, **values: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in con.execute(sa.text(sql), values).mappings()]
