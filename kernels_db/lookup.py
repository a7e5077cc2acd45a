"""The queries of loading a kernel, without SQLAlchemy (ADR 2).

Importing SQLAlchemy takes longer than `autotune.load` may take, so this module reads the log through the
database's driver alone. The ranking rule is the text that the store uses too (`kernels_db.ranking`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import Any

from kernels_db.errors import LogError
from kernels_db.place import LogPlace, Reader, locate
from kernels_db.ranking import DOUBTED, ORDER, REPRESENTS
from kernels_db.records import RECORD_COLUMNS, Hit, Record, RecordOrigin
from schedules.errors import AutotuneError
from schedules.model import Target, Workload, canonical

# Where a log is: a path, a URL or a place.
Where = str | os.PathLike[str] | LogPlace
# Queries. ``?`` marks a parameter.
TARGETS = """
    SELECT target.digest, target.json FROM target WHERE EXISTS (
        SELECT 1 FROM record WHERE record.workload = ? AND record.target = target.digest
        AND record.status = 'ok')
    ORDER BY target.digest"""
COLUMNS = ", ".join(f"record.{name}" for name in RECORD_COLUMNS)
BEST = f"""
    SELECT {COLUMNS} FROM record
    WHERE record.workload = ? AND record.target = ? AND {REPRESENTS}
    ORDER BY {ORDER} LIMIT ?"""
PINNED = f"""
    SELECT {COLUMNS}, {DOUBTED} AS doubted FROM pin JOIN record ON record.uid = pin.record
    WHERE pin.workload = ? AND pin.target = ? AND record.status = 'ok'"""
ORIGIN = """
    SELECT record.imported, machine.digest, machine.json FROM record
    JOIN machine ON machine.digest = record.machine WHERE record.uid = ?"""
OF_FLOPS = """
    SELECT json, names FROM workload WHERE flops = ? AND EXISTS (
        SELECT 1 FROM record WHERE record.workload = workload.digest AND record.status = 'ok')
    ORDER BY digest LIMIT 1000"""
ABOUT_FLOPS = """
    SELECT json, names FROM workload WHERE flops BETWEEN ? AND ? AND EXISTS (
        SELECT 1 FROM record WHERE record.workload = workload.digest AND record.status = 'ok')
    ORDER BY ABS(flops - ?), digest LIMIT 256"""
COUNT = "SELECT COUNT(*) AS number FROM workload"
NAME = "SELECT op FROM workload WHERE digest = ?"
NAMES = "SELECT DISTINCT op FROM workload ORDER BY op LIMIT 1000"
NAMED = "SELECT json, op, params, flops, names FROM workload WHERE op = ? ORDER BY digest LIMIT 100"
OPTIONS = """
    SELECT options FROM run WHERE workload = ? AND target = ? AND state = 'done'
    ORDER BY started DESC, uid LIMIT 1000"""
RUNS_OF = """
    SELECT target.json AS target, run.options AS options FROM run JOIN target ON target.digest = run.target
    WHERE run.workload = ? AND run.state = 'done' ORDER BY run.started DESC, run.uid LIMIT 1000"""
OF_TRACE = f"""
    SELECT {COLUMNS} FROM record
    WHERE record.workload = ? AND record.target = ? AND {REPRESENTS} AND record.trace_digest = ?
    ORDER BY {ORDER} LIMIT 1"""
VERIFIED = "SELECT host, status, checked FROM verification WHERE record = ?"


def best(
    where: Where,
    workload_digest: str,
    accept: Callable[[Target], bool],
    threads: int | None = None,
    *,
    timeout_s: float = 30.0,
) -> Hit | None:
    """The best record of a workload over every target that ``accept`` takes and, unless None, that has this
    number of ``threads``. None if there is no log or it has no such record.

    It only reads. It works while other processes write, and in a read-only directory. ``timeout_s``: longest
    wait (seconds). Raises `LogError` if the place is not a log or cannot be read.
    """
    return next(iter(top(where, workload_digest, accept, threads, 1, timeout_s=timeout_s)), None)


def top(
    where: Where,
    workload_digest: str,
    accept: Callable[[Target], bool],
    threads: int | None = None,
    k: int = 1,
    *,
    tolerant: bool = False,
    timeout_s: float = 30.0,
) -> list[Hit]:
    """The ``k`` best records as `best` finds them, best first, one a trace. If any of the targets has a pin,
    only pinned records, also ``doubted`` ones. ``tolerant``: pass over targets and records that are
    damaged."""
    pins: list[Hit] = []
    hits: list[Hit] = []
    with _reading(where, timeout_s) as (place, reader):
        if reader is None:
            return []
        for row in reader.rows(TARGETS, (workload_digest,)):
            with suppress(*([LogError] if tolerant else [])):
                target = stored_target(place, row["digest"], row["json"])
                if threads not in (None, target.threads) or not accept(target):
                    continue
                task = (workload_digest, target.digest)
                for r in reader.rows(PINNED, task):
                    record = stored_record(place, r)
                    pins.append(Hit(record, target, pinned=True, doubted=bool(r["doubted"])))
                if not pins:
                    hits += [Hit(stored_record(place, r), target) for r in reader.rows(BEST, (*task, k))]
        chosen = sorted(pins or hits, key=rank)[:k]
        return [replace(hit, origin=_origin(reader, place, hit.record.uid)) for hit in chosen]


def of_flops(where: Where, flops: int) -> list[tuple[str, str]]:
    """The JSON of workloads that have records and do ``flops`` operations, and of their names, a thousand at
    most."""
    return [(str(row["json"]), str(row["names"])) for row in _rows(where, OF_FLOPS, (flops,))]


def about_flops(where: Where, flops: int, factor: float) -> list[tuple[str, str]]:
    """As `of_flops`, of workloads with at most ``factor`` times more or fewer operations, the 256 nearest."""
    bounds = int(flops / factor), int(min(flops * factor, 2.0**62)), flops
    return [(str(row["json"]), str(row["names"])) for row in _rows(where, ABOUT_FLOPS, bounds)]


def name(where: Where, digest: str) -> str | None:
    """What the workload with this digest is called. None if there is no such workload, or no log."""
    return next((str(row["op"]) for row in _rows(where, NAME, (digest,))), None)


def names(where: Where) -> list[str]:
    """What workloads are called, a thousand names at most. Empty if there is no log."""
    return [str(row["op"]) for row in _rows(where, NAMES)]


def called(where: Where, name: str) -> list[Workload]:
    """The workloads of that name, a hundred at most, by digest. Raises `LogError` for one that is damaged."""
    found = []
    for row in _rows(where, NAMED, (name,)):
        try:
            params, names = json.loads(row["params"]), json.loads(row["names"])
            found.append(Workload.from_json(row["json"], str(row["op"]), params, int(row["flops"]), names))
        except (ValueError, TypeError, AttributeError, RecursionError) as err:
            raise LogError(f"{locate(where)}: workload {name!r} is damaged: {err}") from None
    return found


def workloads(where: Where) -> int:
    """How many workloads a log has; 0 if there is no log."""
    return next((int(row["number"]) for row in _rows(where, COUNT)), 0)


def run_options(where: Where, workload: str, target: str) -> list[Mapping[str, Any]]:
    """The options of a task's finished runs, the newest first; those that are damaged are left out.
    ``workload``, ``target``: digests."""
    return [x for row in _rows(where, OPTIONS, (workload, target)) for x in _options(row)]


def runs_of(where: Where, workload: str) -> list[tuple[str, Mapping[str, Any]]]:
    """(The JSON of the target, the options) of a workload's finished runs, the newest first. Options that are
    damaged are left out. ``workload``: a digest."""
    rows = _rows(where, RUNS_OF, (workload,))
    return [(str(row["target"]), x) for row in rows for x in _options(row)]


def _options(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The options of a run, if they are an object."""
    with suppress(ValueError, TypeError, RecursionError):
        options = json.loads(row["options"])
        if isinstance(options, dict):
            return [options]
    return []


def of_trace(where: Where, workload: str, target: str, trace: str) -> Record | None:
    """The record by which a trace of a task is ranked; None if it is not ranked. All digests."""
    rows = _rows(where, OF_TRACE, (workload, target, trace))
    return stored_record(locate(where), rows[0]) if rows else None


def origin(where: Where, uid: str, *, timeout_s: float = 30.0) -> RecordOrigin | None:
    """Where a record of a log came from; None if there is no such record."""
    with _reading(where, timeout_s) as (place, reader):
        return None if reader is None else _origin(reader, place, uid)


def _rows(where: Where, query: str, values: tuple[Any, ...] = ()) -> list[Mapping[str, Any]]:
    with _reading(where) as (_, reader):
        return [] if reader is None else [*reader.rows(query, values)]


@contextmanager
def _reading(where: Where, timeout_s: float = 30.0) -> Iterator[tuple[LogPlace, Reader | None]]:
    """The place of a log, and a snapshot of it, None where it has none."""
    place = locate(where)
    reader = place.reader(timeout_s) if place.exists() else None
    if reader is None:
        yield place, None
        return
    with closing(reader), explained(place, timeout_s):
        yield place, reader


def _origin(reader: Reader, place: LogPlace, uid: str) -> RecordOrigin | None:
    for row in reader.rows(ORIGIN, (uid,)):
        try:
            machine = json.loads(row["json"])
            canonical(machine)  # fails for NaN and infinity, which are no JSON
        except (ValueError, TypeError, RecursionError):
            raise _damaged(place, "machine", row["digest"]) from None
        found = {r["host"]: (r["status"], r["checked"]) for r in reader.rows(VERIFIED, (uid,))}
        return RecordOrigin(machine if isinstance(machine, dict) else {}, row["imported"], found)
    return None


@contextmanager
def explained(place: LogPlace, timeout_s: float) -> Iterator[None]:
    """Raise errors of the database as `LogError`."""
    try:
        yield
    except AutotuneError:
        raise
    except UnicodeDecodeError as err:  # a message that quotes a damaged file
        raise place.explain(err, timeout_s) from None
    except Exception as err:
        # sqlite3.Error or psycopg.Error, recognised by their module because psycopg may not be installed.
        if type(err).__module__.partition(".")[0] not in ("sqlite3", "psycopg"):
            raise
        raise place.explain(err, timeout_s) from None


def rank(hit: Hit) -> tuple[float, str, str]:
    """The sort key of `kernels_db.ranking.ORDER`, for records of different targets."""
    return hit.time_s, hit.record.created, hit.record.uid


def stored_target(path: object, digest: str, text: str) -> Target:
    """The target of a row. Raises `LogError` if it is damaged."""
    try:
        return Target.from_json(text)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        raise _damaged(path, "target", digest) from None


def stored_record(path: object, row: object) -> Record:
    """The record of a row, a mapping of columns. Raises `LogError` if it is damaged."""
    try:
        return Record.from_columns(row)  # type: ignore[arg-type]
    except (ValueError, TypeError, RecursionError):
        raise _damaged(path, "record", row["uid"]) from None  # type: ignore[index]


def _damaged(path: object, what: str, key: object) -> LogError:
    return LogError(f"{path}: {what} {key} is damaged; restore the log from a copy or an export")
