"""The reading half of the log: it opens the database and has every query."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from sqlalchemy import ColumnElement, Connection, Engine, Row, Select, Table, func, select, text

from kernels_db import engine, exchange, lookup, transfer
from kernels_db.errors import LogError
from kernels_db.lookup import stored_record, stored_target
from kernels_db.pins import Pin
from kernels_db.place import LogPlace, locate
from kernels_db.ranking import DOUBTED, ORDER, REPRESENTS
from kernels_db.records import REJECTED, Machine, Record, RecordOrigin, Run, host_digest
from kernels_db.schema import FORMER, MACHINE, PIN, RECORD, RUN, TARGET, VERIFICATION, WORKLOAD
from schedules.errors import NotPicklable
from schedules.model import Target, Workload

log = logging.getLogger(__name__)

# A workload or its digest; a target or its digest.
WorkloadLike = Workload | str
TargetLike = Target | str


class LogReader:
    """The half of `kernels_db.store.Log` that opens a log and reads it."""

    def __init__(
        self, path: str | os.PathLike[str] | LogPlace, read_only: bool = False, *, timeout_s: float = 30.0
    ) -> None:
        self.place = locate(path)
        self.read_only = read_only
        self.timeout_s = timeout_s
        self._runs: dict[str, tuple[str, str, str]] = {}
        self._engine: Engine | None = (engine.open_reader if read_only else engine.open_writer)(
            self.place, timeout_s
        )

    @property
    def path(self) -> str:
        """Where the log is, for messages. A URL is shown without its password."""
        return str(self.place)

    def __reduce_ex__(self, protocol: object) -> Any:
        raise NotPicklable(
            f"the log {self.path} can be neither copied nor pickled: it is a connection of this process; "
            f"open it again, with its path, in the other one"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection. Closing again does nothing."""
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def best(self, workload: WorkloadLike, target: TargetLike) -> Record | None:
        """The best record by `kernels_db.ranking`, or None."""
        return next(iter(self.top_k(workload, target, 1)), None)

    def top_k(self, workload: WorkloadLike, target: TargetLike, k: int) -> list[Record]:
        """The ``k`` best records, best first, one a trace."""
        with self._read() as con:
            return self._records(con, ranked(_digest(workload), _digest(target)).limit(k))

    def origin(self, record: Record | str) -> RecordOrigin | None:
        """Where a record came from; None if there is no such record."""
        uid = record if isinstance(record, str) else record.uid
        return lookup.origin(self.place, uid, timeout_s=self.timeout_s)

    def doubted(self, workload: WorkloadLike, target: TargetLike, machine: Mapping[str, Any]) -> list[Record]:
        """The records of a task that verifying on such a machine removed from the ranking."""
        here = VERIFICATION.c.host == host_digest(machine)
        bad = here & VERIFICATION.c.status.in_(REJECTED)
        query = select(RECORD).join(VERIFICATION, VERIFICATION.c.record == RECORD.c.uid).where(bad)
        with self._read() as con:
            task = _of(RECORD, workload, target)
            return self._records(con, query.where(*task).order_by(RECORD.c.uid))

    def doubts(self, record: Record) -> bool:
        """Whether a record was found wrong or failing since. It is then not ranked and must not be used."""
        with self._read() as con:
            query = select(RECORD.c.uid).where(RECORD.c.uid == record.uid, text(DOUBTED))
            return con.scalar(query) is not None

    def seen(self, workload: WorkloadLike, target: TargetLike) -> list[Record]:
        """Every record of a task, failures too, oldest first (by created, then uid)."""
        return list(self.records(workload=workload, target=target))

    def records(
        self,
        *,
        workload: WorkloadLike | None = None,
        target: TargetLike | None = None,
        run: Run | str | None = None,
        status: str | None = None,
        kind: str | None = None,
    ) -> Iterator[Record]:
        """The records that match every filter given, oldest first, streamed."""
        uid = run.uid if isinstance(run, Run) else run
        asked = ((RECORD.c.run, uid), (RECORD.c.status, status), (RECORD.c.kind, kind))
        wanted = [*_of(RECORD, workload, target), *(column == x for column, x in asked if x is not None)]
        query = select(RECORD).where(*wanted).order_by(RECORD.c.created, RECORD.c.uid)
        with self._read() as con:
            for row in con.execute(query.execution_options(yield_per=transfer.READ)).mappings():
                yield stored_record(self.place, row)

    def get(self, uid: str) -> Record | None:
        """The record with this uid, or that had it in an earlier schema."""
        with self._read() as con:
            now = con.scalar(select(FORMER.c.now).where(FORMER.c.former == uid))
            found = self._records(con, select(RECORD).where(RECORD.c.uid.in_((uid, now or uid))))
            return min(found, key=lambda r: r.uid != uid, default=None)

    def run(self, uid: str) -> Run:
        """The run with this uid. Raises `LogError` if there is none."""
        with self._row(RUN, uid, "; start it with start_run") as row:
            return self._run(row)

    def runs(self, *, workload: WorkloadLike | None = None, target: TargetLike | None = None) -> list[Run]:
        """The runs of a task, oldest first."""
        query = select(RUN).where(*_of(RUN, workload, target)).order_by(RUN.c.started, RUN.c.uid)
        with self._read() as con:
            return [self._run(row) for row in con.execute(query)]

    def runs_by_state(self) -> dict[str, int]:
        """How many runs the log has in each state."""
        with self._read() as con:
            found = con.execute(select(RUN.c.state, func.count()).group_by(RUN.c.state)).all()
        return {str(state): n for state, n in found}

    def open_runs(self) -> list[tuple[Run, str]]:
        """The runs that no one closed, oldest first, each with its last sign of life: when its last record
        was made, or when it began."""
        last = select(func.max(RECORD.c.created)).where(RECORD.c.run == RUN.c.uid).scalar_subquery()
        query = select(RUN, last.label("last")).where(RUN.c.state == "running")
        with self._read() as con:
            rows = con.execute(query.order_by(RUN.c.started, RUN.c.uid))
            return [(self._run(row), str(row.last or row.started)) for row in rows]

    def workload(self, key: str) -> Workload:
        """The workload with this digest. Raises `LogError` if there is none."""
        with self._row(WORKLOAD, key) as row:
            _are(str, row.op)
            _are(int, row.flops)
            params = exchange.parse(row.params.encode())
            named = {k: _frozen(v) for k, v in params.items()}
            names = exchange.parse(row.names.encode())
            return Workload.from_json(row.json, row.op, named, row.flops, names)

    def target(self, key: str) -> Target:
        """The target with this digest. Raises `LogError` if there is none."""
        with self._row(TARGET, key) as row:
            return stored_target(self.place, key, row.json)

    def machine(self, key: str) -> Machine:
        """The machine with this digest. Raises `LogError` if there is none."""
        with self._row(MACHINE, key) as row:
            return Machine(key, exchange.parse(row.json.encode()))

    def workloads(self) -> list[str]:
        """The digests of all workloads, sorted."""
        with self._read() as con:
            return list(con.scalars(select(WORKLOAD.c.digest).order_by(WORKLOAD.c.digest)))

    def tasks(self, *, workload: WorkloadLike | None = None, op: str | None = None) -> list[tuple[str, str]]:
        """The (workload, target) digests that have records, sorted. Filters: one workload, one operator."""
        wanted = _of(RECORD, workload)
        if op is not None:
            wanted.append(RECORD.c.workload.in_(select(WORKLOAD.c.digest).where(WORKLOAD.c.op == op)))
        with self._read() as con:
            found = tasks_of(con, *wanted)
        for task in found:
            with self._damage("task", repr(task)):
                _are(str, *task)
        return found

    def readable_tasks(self) -> Iterator[tuple[tuple[str, str], Workload, Target]]:
        """`tasks` with what their digests name. Those that this version cannot read are left out, with a
        warning that says why: they hide no others."""
        for task in self.tasks():
            try:
                workload, target = self.workload(task[0]), self.target(task[1])
            except LogError as err:
                log.warning("a task is left out: %s", err)
                continue
            yield task, workload, target

    def by_status(self, workload: WorkloadLike, target: TargetLike) -> dict[str, int]:
        """{status: number of records of a task}."""
        task = _of(RECORD, workload, target)
        query = select(RECORD.c.status, func.count()).where(*task).group_by(RECORD.c.status)
        with self._read() as con:
            return dict(sorted((str(status), n) for status, n in con.execute(query)))

    def stats(self) -> dict[str, Any]:
        """Counts: workloads, targets, machines, runs, records, and by_status ({status: records})."""
        tables = (WORKLOAD, TARGET, MACHINE, RUN, RECORD)
        by_status = select(RECORD.c.status, func.count()).group_by(RECORD.c.status)
        with self._read() as con:
            counts: dict[str, Any] = {
                f"{t.name}s": con.scalar(select(func.count()).select_from(t)) for t in tables
            }
            grouped = con.execute(by_status.order_by(RECORD.c.status)).all()
            counts["by_status"] = {str(status): n for status, n in grouped}
        return counts

    def by_machine(self) -> list[tuple[Machine, int]]:
        """Machines with the number of their records, those with most first."""
        number = func.count()
        query = select(RECORD.c.machine, number).group_by(RECORD.c.machine)
        with self._read() as con:
            found = con.execute(query.order_by(number.desc(), RECORD.c.machine)).all()
        return [(self.machine(str(key)), n) for key, n in found]

    def pinned(self, workload: WorkloadLike, target: TargetLike) -> Record | None:
        """The record that a task is pinned to."""
        with self._read() as con:
            query = select(RECORD).join(PIN, PIN.c.record == RECORD.c.uid).where(*_of(PIN, workload, target))
            return next(iter(self._records(con, query)), None)

    def pins(self) -> list[Pin]:
        """The pins, in the order of their tasks."""
        with self._read() as con:
            rows = con.execute(select(PIN).order_by(PIN.c.workload, PIN.c.target))
            return [Pin(row.workload, row.target, row.record) for row in rows]

    # -- plumbing ---------------------------------------------------------------------------------------

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        if self._engine is None:
            raise LogError(f"the log {self.path} has been closed; open it again with Log({self.path!r})")
        with engine.explained(self.place, self.timeout_s), self._engine.connect() as con:
            yield con

    @contextmanager
    def _row(self, table: Table, key: str, remedy: str = "") -> Iterator[Row[Any]]:
        """The row of a table with this key. Raises `LogError` if there is none, or for what says that it is
        damaged."""
        with self._read() as con:
            row = con.execute(select(table).where(transfer.key_of(table) == key)).one_or_none()
            if row is None:
                raise LogError(f"{self.path} has no {table.name} {key}{remedy}")
            with self._damage(table.name, key):
                yield row

    @contextmanager
    def _damage(self, kind: str, key: str) -> Iterator[None]:
        try:
            yield
        except (exchange.Refused, *exchange.MALFORMED):
            raise exchange.damaged(self.path, kind, key) from None

    def _records(self, con: Connection, query: Select[Any]) -> list[Record]:
        return [stored_record(self.place, row) for row in con.execute(query).mappings()]

    def _run(self, row: Row[Any]) -> Run:
        with self._damage("run", row.uid):
            _are(str, row.uid, row.workload, row.target, row.machine, row.started, row.ended or "", row.state)
            _are(int, row.seed)
            return Run(
                uid=row.uid,
                workload=row.workload,
                target=row.target,
                machine=row.machine,
                seed=row.seed,
                options=exchange.parse(row.options.encode()),
                started=row.started,
                ended=row.ended,
                state=row.state,
            )


def ranked(workload: str, target: str) -> Select[Any]:
    """The records that represent their traces, best first: `kernels_db.ranking`."""
    return select(RECORD).where(*_of(RECORD, workload, target), text(REPRESENTS)).order_by(text(ORDER))


def tasks_of(con: Connection, *wanted: ColumnElement[bool]) -> list[tuple[str, str]]:
    """The (workload, target) digests of records that fulfil the conditions, sorted."""
    pair = (RECORD.c.workload, RECORD.c.target)
    return [(w, t) for w, t in con.execute(select(*pair).where(*wanted).distinct().order_by(*pair))]


def _are(kind: type, *values: object) -> None:
    """Raises TypeError for values of another type, because SQLite keeps any value in any column."""
    if not all(isinstance(x, kind) for x in values):
        raise TypeError


def _of(
    table: Table, workload: WorkloadLike | None, target: TargetLike | None = None
) -> list[ColumnElement[bool]]:
    """The conditions for rows of a workload and a target (None: any)."""
    asked = ((table.c.workload, workload), (table.c.target, target))
    return [column == _digest(key) for column, key in asked if key is not None]


def _digest(key: Workload | Target | str) -> str:
    return key if isinstance(key, str) else key.digest


def _frozen(v: Any) -> Any:
    return tuple(_frozen(x) for x in v) if isinstance(v, list) else v
