"""Moves objects into and out of the tables in bulk, for export and merge.

Rows are keyed by digests of their content. Of the few columns outside a digest the larger of two values wins,
in a fixed order (a join in the sense of lattices). So merging logs is commutative, associative and
idempotent.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Table, func, select, update

from kernels_db.engine import insert
from kernels_db.exchange import MALFORMED, Item, ItemType, Refused, size
from kernels_db.records import MergeResult, now
from kernels_db.schema import METADATA
from schedules import ops
from schedules.model import Workload
from schedules.te.flops import count_flops

# Types in the order of an export: each after those that it refers to.
ORDER_OF_TYPES: tuple[ItemType, ...] = ("workload", "target", "machine", "run", "record")
# {type: its table}, and the types that a run refers to.
_TABLES: dict[ItemType, Table] = {t: METADATA.tables[t] for t in ORDER_OF_TYPES}
_REFERENCES: tuple[ItemType, ...] = ("workload", "target", "machine")
# Rows of a transaction: many, as a page of an index is written once a transaction; few enough (about a
# second) that a long merge does not delay other processes' trials.
BATCH = 10_000
# Characters of a transaction; a single row may have more.
BATCH_TEXT = 32 << 20
# Rows that are read at once.
READ = 2000


@dataclass
class MergeTally:
    """Counts of a merge in progress."""

    new: int = 0
    known: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    def result(self) -> MergeResult:
        """The counts so far."""
        return MergeResult(self.new, self.known, dict(sorted(self.refused.items())))


def rows(con: Connection, ordered: bool = True) -> Iterator[tuple[ItemType, dict[str, Any]]]:
    """The columns of every row that other logs may have, streamed in the order of an export. Not ``ordered``:
    as the database finds them, but each after what it refers to, because sorting needs a second copy of a
    large log."""
    for kind, table in _TABLES.items():
        c = table.c
        names = [name for name in c.keys() if name != "imported"]
        query = select(*(c[name] for name in names)).execution_options(yield_per=READ)
        if ordered:
            order = (c.workload, c.target, c.created, c.uid) if kind == "record" else (key_of(table),)
            query = query.order_by(*order)
        for row in con.execute(query):  # mappings would take twice as long
            yield kind, dict(zip(names, row))


def count(con: Connection) -> int:
    """The number of `rows`."""
    return sum(con.scalar(select(func.count()).select_from(t)) or 0 for t in _TABLES.values())


def batches(items: Iterable[Item | Refused], tally: MergeTally) -> Iterator[list[Item]]:
    """The items in lists of at most `BATCH` items and `BATCH_TEXT` characters. Refused ones are counted."""
    batch: list[Item] = []
    length = 0
    for item in items:
        if isinstance(item, Refused):
            tally.refused[str(item)] += 1
            continue
        batch.append(item)
        length += size(item.columns)
        if len(batch) == BATCH or length >= BATCH_TEXT:
            yield batch
            batch, length = [], 0
    if batch:
        yield batch


def put(con: Connection, items: Iterable[Item], tally: MergeTally) -> None:
    """Insert new items, join known ones, refuse those that refer to nothing. ``con`` is in a write
    transaction, so that nothing changes between looking and inserting."""
    for kind, group in groupby(items, key=lambda item: item.type):
        if kind == "record":
            _put_records(con, list(group), tally)
        else:
            _put_joined(con, kind, list(group), tally)


def put_former(con: Connection, pairs: Iterable[tuple[str, str]]) -> None:
    """Note what digests of an earlier version are now."""
    insert(con, "former", [{"former": a, "now": b} for a, b in pairs])


def _put_records(con: Connection, items: list[Item], tally: MergeTally) -> None:
    """Insert records. They never change, so the database finds out which are new. Looking for them first
    would take as long as inserting them."""
    kept = _of_known_runs(con, [item.columns for item in items], tally)
    moment = now()
    rows = {columns["uid"]: {**columns, "imported": moment} for columns in kept}
    new = insert(con, "record", list(rows.values()))
    tally.new += new
    tally.known += len(kept) - new


def _put_joined(con: Connection, kind: ItemType, items: list[Item], tally: MergeTally) -> None:
    table = _TABLES[kind]
    if kind == "run":
        items = _of_known_parts(con, items, tally)
    known = _existing(con, table, {item.key for item in items})
    fresh: dict[str, dict[str, Any]] = {}
    changed: dict[str, dict[str, Any]] = {}
    for item in items:
        old = fresh.get(item.key) or known.get(item.key)
        if old is None:
            fresh[item.key] = item.columns
        elif kind in _JOINS and item.columns != old and _JOINS[kind](item.columns) > _JOINS[kind](old):
            home = fresh if item.key in fresh else changed
            home[item.key] = known[item.key] = item.columns
    insert(con, kind, list(fresh.values()))
    for key, columns in changed.items():
        con.execute(update(table).where(key_of(table) == key).values(columns))


def _of_known_parts(con: Connection, runs: list[Item], tally: MergeTally) -> list[Item]:
    """The runs whose references are all in the log. Others are counted as refused."""
    kept = []
    found = {r: _existing(con, _TABLES[r], {i.columns[r] for i in runs}) for r in _REFERENCES}
    for item in runs:
        missing = next((r for r in _REFERENCES if item.columns[r] not in found[r]), None)
        if missing is None:
            kept.append(item)
        else:
            tally.refused[f"run: unknown {missing}"] += 1
    return kept


def _of_known_runs(con: Connection, records: list[dict[str, Any]], tally: MergeTally) -> list[dict[str, Any]]:
    """The records whose run is in the log and has the same references. Others are counted as refused."""
    kept = []
    runs = _existing(con, _TABLES["run"], {columns["run"] for columns in records})
    parts = {uid: tuple(run[r] for r in _REFERENCES) for uid, run in runs.items()}
    for columns in records:
        of_run = parts.get(columns["run"])
        if of_run is None:
            tally.refused["record: unknown run"] += 1
        elif of_run != (columns["workload"], columns["target"], columns["machine"]):
            tally.refused["record: not of its run"] += 1
        else:
            kept.append(columns)
    return kept


def _existing(con: Connection, table: Table, keys: set[str]) -> dict[str, Mapping[str, Any]]:
    """The rows with these keys, by key."""
    key = key_of(table)
    found = con.execute(select(table).where(key.in_(keys))).mappings()
    return {row[key.name]: dict(row) for row in found}


def key_of(table: Table) -> Any:
    """The column that identifies a row: a digest or a uid."""
    return next(iter(table.primary_key))


def _trust(c: Mapping[str, Any]) -> int:
    """How far the description of a workload, which is outside its digest, is true. 2: the operator library
    agrees; 1: it is no library operator, and its arithmetic count is right; 0: not known."""
    try:
        w = Workload.from_json(c["json"], c["op"], json.loads(c["params"]), c["flops"])
        return 2 if ops.makes(w) else int(w.op not in ops.REGISTRY and w.flops == count_flops(w.dag))
    except MALFORMED:
        return 0


def described(c: Mapping[str, Any]) -> tuple[Any, ...]:
    """How well a workload is described, to be compared: truly, with a name over the user's own, with names of
    its tensors. The rest only makes the order total."""
    return _trust(c), c["op"] != "custom", c["op"], c["flops"], c["params"], c["names"]


# What the larger of two rows of one digest is: a workload that is better described, a run that has ended over
# one that had not. The rest only makes the order total.
_JOINS: dict[ItemType, Callable[[Mapping[str, Any]], Any]] = {
    "workload": described,
    "run": lambda c: (c["ended"] or "", c["state"]),
}
