"""The reading half of the log: it opens the database and has every query."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from sqlalchemy import ColumnElement, Engine, Select, func, select, text
from sqlalchemy.orm import Session

from kernels_db import engine, exchange, lookup, transfer
from kernels_db.errors import LogError
from kernels_db.lookup import stored_record, stored_target
from kernels_db.pins import Pin
from kernels_db.place import LogPlace, locate
from kernels_db.ranking import DOUBTED, ORDER, REPRESENTS
from kernels_db.records import REJECTED, Hit, Machine, Record, RecordOrigin, Run, host_digest
from kernels_db.schema import (
    FormerRow,
    MachineRow,
    PinRow,
    RecordRow,
    RunRow,
    TargetRow,
    VerificationRow,
    WorkloadRow,
)
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
        with self._read() as session:
            return self._records(session, ranked(_digest(workload), _digest(target)).limit(k))

    def best_for(
        self, workload: WorkloadLike, accept: Callable[[Target], bool], threads: int | None = None
    ) -> Hit | None:
        """The best record over every target that ``accept`` takes and that has ``threads`` threads (None: any
        number), as loading finds it: `kernels_db.lookup.best`."""
        return lookup.best(self.place, _digest(workload), accept, threads, timeout_s=self.timeout_s)

    def origin(self, record: Record | str) -> RecordOrigin | None:
        """Where a record came from; None if there is no such record."""
        uid = record if isinstance(record, str) else record.uid
        return lookup.origin(self.place, uid, timeout_s=self.timeout_s)

    def doubted(self, workload: WorkloadLike, target: TargetLike, machine: Mapping[str, Any]) -> list[Record]:
        """The records of a task that verifying on such a machine removed from the ranking."""
        task = (RecordRow.workload == _digest(workload), RecordRow.target == _digest(target))
        here = VerificationRow.host == host_digest(machine)
        bad = here & VerificationRow.status.in_(REJECTED)
        query = select(RecordRow).join(VerificationRow, VerificationRow.record == RecordRow.uid).where(bad)
        with self._read() as session:
            return self._records(session, query.where(*task).order_by(RecordRow.uid))

    def doubts(self, record: Record) -> bool:
        """Whether a record was found wrong or failing since. It is then not ranked and must not be used."""
        with self._read() as session:
            query = select(RecordRow.uid).where(RecordRow.uid == record.uid, text(DOUBTED))
            return session.scalar(query) is not None

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
        query = select(RecordRow).order_by(RecordRow.created, RecordRow.uid)
        if workload is not None:
            query = query.where(RecordRow.workload == _digest(workload))
        if target is not None:
            query = query.where(RecordRow.target == _digest(target))
        if run is not None:
            query = query.where(RecordRow.run == (run if isinstance(run, str) else run.uid))
        if status is not None:
            query = query.where(RecordRow.status == status)
        if kind is not None:
            query = query.where(RecordRow.kind == kind)
        # columns, not objects of the mapper, which cost as much as the rest
        columns = query.with_only_columns(*RecordRow.__table__.columns)
        with self._read() as session:
            for row in session.execute(columns.execution_options(yield_per=transfer.READ)).mappings():
                yield stored_record(self.place, row)

    def get(self, uid: str) -> Record | None:
        """The record with this uid, or that had it in an earlier schema."""
        with self._read() as session:
            row = session.get(RecordRow, uid)
            if row is None and (former := session.get(FormerRow, uid)) is not None:
                row = session.get(RecordRow, former.now)
            return None if row is None else self._record(row)

    def run(self, uid: str) -> Run:
        """The run with this uid. Raises `LogError` if there is none."""
        with self._read() as session:
            row = session.get(RunRow, uid)
            if row is None:
                raise LogError(f"{self.path} has no run {uid}; start it with start_run")
            return self._run(row)

    def runs(self, *, workload: WorkloadLike | None = None, target: TargetLike | None = None) -> list[Run]:
        """The runs of a task, oldest first."""
        query = select(RunRow).order_by(RunRow.started, RunRow.uid)
        if workload is not None:
            query = query.where(RunRow.workload == _digest(workload))
        if target is not None:
            query = query.where(RunRow.target == _digest(target))
        with self._read() as session:
            return [self._run(row) for row in session.scalars(query)]

    def runs_by_state(self) -> dict[str, int]:
        """How many runs the log has in each state."""
        with self._read() as session:
            found = session.execute(select(RunRow.state, func.count()).group_by(RunRow.state)).all()
        return {str(state): n for state, n in found}

    def open_runs(self) -> list[tuple[Run, str]]:
        """The runs that no one closed, oldest first, each with its last sign of life: when its last record
        was made, or when it began."""
        last = select(func.max(RecordRow.created)).where(RecordRow.run == RunRow.uid).scalar_subquery()
        query = select(RunRow, last).where(RunRow.state == "running").order_by(RunRow.started, RunRow.uid)
        with self._read() as session:
            return [(self._run(row), str(made or row.started)) for row, made in session.execute(query)]

    def workload(self, key: str) -> Workload:
        """The workload with this digest. Raises `LogError` if there is none."""
        with self._read() as session:
            row = session.get(WorkloadRow, key)
            if row is None:
                raise LogError(f"{self.path} has no workload {key}")
            with self._damage("workload", key):
                _are(str, row.op)
                _are(int, row.flops)
                params = exchange.parse(row.params.encode())
                named = {k: _frozen(v) for k, v in params.items()}
                names = exchange.parse(row.names.encode())
                return Workload.from_json(row.json, row.op, named, row.flops, names)

    def target(self, key: str) -> Target:
        """The target with this digest. Raises `LogError` if there is none."""
        with self._read() as session:
            row = session.get(TargetRow, key)
            if row is None:
                raise LogError(f"{self.path} has no target {key}")
            return stored_target(self.place, key, row.json)

    def machine(self, key: str) -> Machine:
        """The machine with this digest. Raises `LogError` if there is none."""
        with self._read() as session:
            row = session.get(MachineRow, key)
            if row is None:
                raise LogError(f"{self.path} has no machine {key}")
            with self._damage("machine", key):
                return Machine(key, exchange.parse(row.json.encode()))

    def workloads(self) -> list[str]:
        """The digests of all workloads, sorted."""
        with self._read() as session:
            return list(session.scalars(select(WorkloadRow.digest).order_by(WorkloadRow.digest)))

    def tasks(self, *, workload: WorkloadLike | None = None, op: str | None = None) -> list[tuple[str, str]]:
        """The (workload, target) digests that have records, sorted. Filters: one workload, one operator."""
        wanted: list[ColumnElement[bool]] = []
        if workload is not None:
            wanted.append(RecordRow.workload == _digest(workload))
        if op is not None:
            wanted.append(RecordRow.workload.in_(select(WorkloadRow.digest).where(WorkloadRow.op == op)))
        with self._read() as session:
            found = tasks_of(session, *wanted)
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
        task = (RecordRow.workload == _digest(workload), RecordRow.target == _digest(target))
        query = select(RecordRow.status, func.count()).where(*task).group_by(RecordRow.status)
        with self._read() as session:
            return dict(sorted((str(status), n) for status, n in session.execute(query)))

    def stats(self) -> dict[str, Any]:
        """Counts: workloads, targets, machines, runs, records, and by_status ({status: records})."""
        tables = (WorkloadRow, TargetRow, MachineRow, RunRow, RecordRow)
        by_status = select(RecordRow.status, func.count()).group_by(RecordRow.status)
        with self._read() as session:
            counts: dict[str, Any] = {
                f"{t.__tablename__}s": session.scalar(select(func.count()).select_from(t)) for t in tables
            }
            grouped = session.execute(by_status.order_by(RecordRow.status)).all()
            counts["by_status"] = {str(status): n for status, n in grouped}
        return counts

    def by_machine(self) -> list[tuple[Machine, int]]:
        """Machines with the number of their records, those with most first."""
        number = func.count()
        query = select(RecordRow.machine, number).group_by(RecordRow.machine)
        with self._read() as session:
            found = session.execute(query.order_by(number.desc(), RecordRow.machine)).all()
        return [(self.machine(str(key)), n) for key, n in found]

    def pinned(self, workload: WorkloadLike, target: TargetLike) -> Record | None:
        """The record that a task is pinned to."""
        with self._read() as session:
            row = session.get(PinRow, (_digest(workload), _digest(target)))
            found = None if row is None else session.get(RecordRow, row.record)
            return None if found is None else self._record(found)

    def pins(self) -> list[Pin]:
        """The pins, in the order of their tasks."""
        with self._read() as session:
            rows = session.scalars(select(PinRow).order_by(PinRow.workload, PinRow.target))
            return [Pin(row.workload, row.target, row.record) for row in rows]

    # -- plumbing ---------------------------------------------------------------------------------------

    @contextmanager
    def _read(self) -> Iterator[Session]:
        if self._engine is None:
            raise LogError(f"the log {self.path} has been closed; open it again with Log({self.path!r})")
        with engine.explained(self.place, self.timeout_s), Session(self._engine) as session:
            yield session

    @contextmanager
    def _damage(self, kind: str, key: str) -> Iterator[None]:
        try:
            yield
        except (exchange.Refused, *exchange.MALFORMED):
            raise exchange.damaged(self.path, kind, key) from None

    def _record(self, row: RecordRow) -> Record:
        return stored_record(self.place, {c.name: getattr(row, c.name) for c in RecordRow.__table__.columns})

    def _records(self, session: Session, query: Select[Any]) -> list[Record]:
        return [self._record(row) for row in session.scalars(query)]

    def _run(self, row: RunRow) -> Run:
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
    task = (RecordRow.workload == workload, RecordRow.target == target)
    return select(RecordRow).where(*task, text(REPRESENTS)).order_by(text(ORDER))


def tasks_of(session: Session, *wanted: ColumnElement[bool]) -> list[tuple[str, str]]:
    """The (workload, target) digests of records that fulfil the conditions, sorted."""
    pair = (RecordRow.workload, RecordRow.target)
    return [(w, t) for w, t in session.execute(select(*pair).where(*wanted).distinct().order_by(*pair))]


def _are(kind: type, *values: object) -> None:
    """Raises TypeError for values of another type, because SQLite keeps any value in any column."""
    if not all(isinstance(x, kind) for x in values):
        raise TypeError


def _digest(key: Workload | Target | str) -> str:
    return key if isinstance(key, str) else key.digest


def _frozen(v: Any) -> Any:
    return tuple(_frozen(x) for x in v) if isinstance(v, list) else v
