"""`Log`: the tuning log, and (with `kernels_db.transfer`) the only place with SQLAlchemy queries.

One SQLite file in WAL mode: any number of processes read while one writes, writers wait for each
other up to the busy timeout, and what `Log.add` returned is on file, whatever kills the process.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Engine, Select, func, select, text
from sqlalchemy.orm import Session

from kernels_db import connection, engine, exchange, transfer
from kernels_db.compat import HEADER
from kernels_db.errors import LogError
from kernels_db.lookup import rank, stored_record, stored_target
from kernels_db.ranking import ORDER, REPRESENTS
from kernels_db.records import Hit, Machine, MergeResult, NewRecord, Record, Run, now
from kernels_db.schema import MachineRow, RecordRow, RunRow, TargetRow, WorkloadRow
from schedules.model import Target, Workload, canonical, digest

WorkloadLike = Workload | str  # a workload or its digest
TargetLike = Target | str


class Log:
    """The tuning log in a file; a context manager.

    ``path`` is a file or a ``sqlite:///PATH`` URL. A file that is missing or empty becomes a new log,
    its directory too; an older schema is upgraded in one transaction. With ``read_only`` the file
    must exist, and nothing is written. ``timeout_s`` is how long to wait for another writer.

    Every method raises `LogError` where the file or a value does not allow what is asked. A log must
    not be used on both sides of a fork: open one in each process.
    """

    def __init__(
        self, path: str | os.PathLike[str], read_only: bool = False, *, timeout_s: float = 30.0
    ) -> None:
        self.path = connection.locate(path)
        self.read_only = read_only
        self.timeout_s = timeout_s
        self._runs: dict[str, tuple[str, str, str]] = {}
        self._engine: Engine | None = (engine.open_reader if read_only else engine.open_writer)(
            self.path, timeout_s
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; closing twice does no harm."""
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    # -- writing ----------------------------------------------------------------------------------------

    def add_workload(self, workload: Workload) -> str:
        """Store a workload unless it is there; gives its digest."""
        with self._write() as session:
            self._put(session, _workload_line(workload))
        return workload.digest

    def add_target(self, target: Target) -> str:
        """Store a target unless it is there; gives its digest."""
        with self._write() as session:
            self._put(session, _target_line(target))
        return target.digest

    def add_machine(self, info: Mapping[str, Any]) -> str:
        """Store a machine's description, a JSON object, unless it is there; gives its digest."""
        line = self._machine_line(info)
        with self._write() as session:
            self._put(session, line)
        return str(line["digest"])

    def start_run(
        self,
        workload: Workload,
        target: Target,
        machine: Mapping[str, Any],
        *,
        seed: int,
        options: Mapping[str, Any] | None = None,
    ) -> Run:
        """Open a tuning session in state "running", and store what it refers to."""
        where = self._machine_line(machine)
        value = {
            "type": "run",
            "workload": workload.digest,
            "target": target.digest,
            "machine": where["digest"],
            "seed": seed,
            "options": self._plain(options or {}, "the options of a run"),
            "nonce": secrets.token_hex(16),
            "started": now(),
            "ended": None,
            "state": "running",
        }
        value = exchange.seal("run", value)
        with self._write() as session:
            for line in (_workload_line(workload), _target_line(target), where, value):
                self._put(session, line)
        return self.run(str(value["uid"]))

    def finish_run(self, run: Run | str, state: str = "done") -> Run:
        """Close a session: ``state`` is "done", "interrupted" or "failed"."""
        uid = run if isinstance(run, str) else run.uid
        if state not in ("done", "interrupted", "failed"):
            raise LogError(f'a run ends as "done", "interrupted" or "failed", not as {state!r}')
        with self._write() as session:
            row = session.get(RunRow, uid)
            if row is None:
                raise LogError(f"{self.path} has no run {uid}; start it with start_run")
            row.ended, row.state = now(), state
        return self.run(uid)

    def add(self, new: NewRecord) -> Record:
        """Commit one measurement. When this returns the record is on file."""
        workload, target, machine = self._identity(new.run)
        value: dict[str, Any] = {"type": "record", "workload": workload, "target": target, "machine": machine}
        value |= new.columns()
        value["environment"] = self._plain(new.environment, "the environment of a record")
        value["trace"] = exchange.parse(new.trace.to_json().encode())
        try:
            columns = exchange.decode(exchange.seal("record", value)).columns
        except (exchange.Refused, ValueError) as err:
            raise LogError(f"a record cannot be logged ({err}); see kernels_db.records.NewRecord") from None
        with self._write() as session:
            if session.get(RecordRow, columns["uid"]) is None:
                session.add(RecordRow(**columns))
        return stored_record(self.path, columns)

    # -- reading ----------------------------------------------------------------------------------------

    def best(self, workload: WorkloadLike, target: TargetLike) -> Record | None:
        """The best record by `kernels_db.ranking`, or None."""
        return next(iter(self.top_k(workload, target, 1)), None)

    def top_k(self, workload: WorkloadLike, target: TargetLike, k: int) -> list[Record]:
        """The ``k`` best records, best first, one a trace."""
        with self._read() as session:
            return self._records(session, _ranked(_digest(workload), _digest(target)).limit(k))

    def best_for(
        self, workload: WorkloadLike, accept: Callable[[Target], bool], threads: int | None = None
    ) -> Hit | None:
        """The best record over every target that ``accept`` takes and that has ``threads``
        threads (None: any number): `kernels_db.lookup.best`."""
        key = _digest(workload)
        hits = []
        with self._read() as session:
            tried = select(RecordRow.target).where(RecordRow.workload == key, RecordRow.status == "ok")
            rows = session.scalars(select(TargetRow).where(TargetRow.digest.in_(tried)))
            for row in rows.all():
                target = stored_target(self.path, row.digest, row.json)
                if threads in (None, target.threads) and accept(target):
                    best = self._records(session, _ranked(key, row.digest).limit(1))
                    hits += [Hit(record, target) for record in best]
        return min(hits, key=rank, default=None)

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
        with self._read() as session:
            for row in session.scalars(query.execution_options(yield_per=transfer.BATCH)):
                yield self._record(row)

    def get(self, uid: str) -> Record | None:
        """The record with this uid."""
        with self._read() as session:
            row = session.get(RecordRow, uid)
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

    def workload(self, key: str) -> Workload:
        """The workload with this digest. Raises `LogError` if there is none."""
        with self._read() as session:
            row = session.get(WorkloadRow, key)
            if row is None:
                raise LogError(f"{self.path} has no workload {key}")
            with self._damage("workload", key):
                params = exchange.parse(row.params.encode())
                named = {k: _frozen(v) for k, v in params.items()}
                return Workload.from_json(row.json, row.op, named, row.flops)

    def target(self, key: str) -> Target:
        """The target with this digest. Raises `LogError` if there is none."""
        with self._read() as session:
            row = session.get(TargetRow, key)
            if row is None:
                raise LogError(f"{self.path} has no target {key}")
            return stored_target(self.path, key, row.json)

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

    def tasks(self) -> list[tuple[str, str]]:
        """The (workload, target) digests that have records, sorted."""
        pair = (RecordRow.workload, RecordRow.target)
        with self._read() as session:
            return [(w, t) for w, t in session.execute(select(*pair).distinct().order_by(*pair))]

    def stats(self) -> dict[str, Any]:
        """Counts: workloads, targets, machines, runs, records, and by_status (status -> records)."""
        tables = (WorkloadRow, TargetRow, MachineRow, RunRow, RecordRow)
        by_status = select(RecordRow.status, func.count()).group_by(RecordRow.status)
        with self._read() as session:
            counts: dict[str, Any] = {
                f"{t.__tablename__}s": session.scalar(select(func.count()).select_from(t)) for t in tables
            }
            grouped = session.execute(by_status.order_by(RecordRow.status)).all()
            counts["by_status"] = {str(status): n for status, n in grouped}
        return counts

    # -- exchange ---------------------------------------------------------------------------------------

    def export(self, path: str | os.PathLike[str], top: int | None = None) -> int:
        """Write the log to a JSON Lines file (see `kernels_db.exchange`), or of every task only the
        ``top`` best records and what they refer to. Gives the number of records.

        The file is replaced whole, or left as it was."""
        target = Path(path)
        if target.absolute() == self.path.absolute() or connection.database_exists(target):
            raise LogError(f"{target} is a database, which an export would overwrite; choose another file")
        connection.make_directory(target)
        # A pipe or a terminal can only be written to, not replaced.
        plain = not target.exists() or target.is_file()
        part = target.with_name(f".{target.name}.{os.getpid()}.part") if plain else target
        count = 0
        try:
            with part.open("w", encoding="ascii", newline="\n") as f:
                for kind, line in self._lines(top):
                    f.write(line)
                    count += kind == "record"
            if plain:
                part.replace(target)
        except OSError as err:
            raise LogError(f"cannot write {target}: {err.strerror}; choose another file") from None
        finally:
            if plain:
                with contextlib.suppress(OSError):
                    part.unlink(missing_ok=True)
        return count

    def export_lines(self, top: int | None = None) -> Iterator[str]:
        """The lines of `export`, each with its newline, from one snapshot."""
        return (line for _, line in self._lines(top))

    def _lines(self, top: int | None) -> Iterator[tuple[str, str]]:
        yield "header", exchange.line(HEADER)
        with self._read() as session:
            wanted = None if top is None else self._closure(session, top)
            for kind, row in transfer.rows(session):
                key = row["uid" if kind in ("run", "record") else "digest"]
                if wanted is None or key in wanted:
                    with self._damage(kind, key):
                        yield kind, exchange.line(exchange.encode(kind, row))

    def merge(self, path: str | os.PathLike[str]) -> MergeResult:
        """Take in another log, a database or an export. Malformed content is refused and counted by
        reason, the rest goes in; merging again changes nothing."""
        source = connection.locate(path)
        tally = transfer.Tally()
        if connection.database_exists(source):
            with Log(source, read_only=True, timeout_s=self.timeout_s) as other:
                self._merge(other._items(), tally)
        elif source.is_dir():
            raise LogError(f"{source} is a directory; give an export or a log in it")
        else:
            self._merge(exchange.read_export(source), tally)
        return tally.result()

    import_ = merge

    def _merge(self, items: Iterator[exchange.Item | exchange.Refused], tally: transfer.Tally) -> None:
        for batch in transfer.batches(items, tally):
            with self._write() as session:
                transfer.put(session, batch, tally)

    def _items(self) -> Iterator[exchange.Item | exchange.Refused]:
        """Every row as a checked item: another log's tables are trusted no more than a file."""
        with self._read() as session:
            for kind, row in transfer.rows(session):
                try:
                    yield exchange.decode(exchange.encode(kind, row))
                except exchange.Refused as err:
                    yield err
                except exchange.MALFORMED:
                    yield exchange.Refused(f"{kind}: damaged")

    def _closure(self, session: Session, top: int) -> set[str]:
        """The keys of the best records of every task and of all that they refer to."""
        keys: set[str] = set()
        pair = (RecordRow.workload, RecordRow.target)
        for workload, target in session.execute(select(*pair).distinct()).all():
            for r in session.scalars(_ranked(workload, target).limit(top)):
                keys |= {r.uid, r.run, r.workload, r.target, r.machine}
        return keys

    # -- plumbing ---------------------------------------------------------------------------------------

    @contextmanager
    def _damage(self, kind: str, key: str) -> Iterator[None]:
        try:
            yield
        except (exchange.Refused, *exchange.MALFORMED):
            raise exchange.damaged(str(self.path), kind, key) from None

    @contextmanager
    def _read(self) -> Iterator[Session]:
        if self._engine is None:
            raise LogError(f"the log {self.path} has been closed; open it again with Log({str(self.path)!r})")
        with engine.explained(self.path, self.timeout_s), Session(self._engine) as session:
            yield session

    @contextmanager
    def _write(self) -> Iterator[Session]:
        if self._engine is None or self.read_only:
            why = "has been closed" if self._engine is None else "is opened for reading only"
            raise LogError(f"the log {self.path} {why}; open it again with Log({str(self.path)!r})")
        with (
            engine.explained(self.path, self.timeout_s),
            Session(engine.writing(self._engine)) as session,
            session.begin(),
        ):
            yield session

    def _put(self, session: Session, value: dict[str, Any]) -> None:
        """Put one object of this process's own into the log."""
        tally = transfer.Tally()
        try:
            transfer.put(session, [exchange.decode(value)], tally)
        except exchange.Refused as err:
            tally.refused[str(err)] += 1
        if tally.refused:
            raise LogError(f"a {value['type']} cannot be logged ({next(iter(tally.refused))})")

    def _identity(self, run: str) -> tuple[str, str, str]:
        """The (workload, target, machine) digests of a run, which never change."""
        if run not in self._runs:
            r = self.run(run)
            self._runs[run] = (r.workload, r.target, r.machine)
        return self._runs[run]

    def _machine_line(self, info: Mapping[str, Any]) -> dict[str, Any]:
        definition = self._plain(info, "a machine's description")
        return {"type": "machine", "digest": digest(canonical(definition)), "definition": definition}

    def _plain(self, value: Mapping[str, Any], what: str) -> dict[str, Any]:
        """``value`` as it will be read again: tuples are lists, keys are texts."""
        try:
            return exchange.parse(canonical(dict(value)).encode())
        except (TypeError, ValueError, RecursionError) as err:
            raise LogError(f"{what} must be plain JSON values with finite numbers: {err}") from None

    def _record(self, row: RecordRow) -> Record:
        return stored_record(self.path, {c.name: getattr(row, c.name) for c in RecordRow.__table__.columns})

    def _records(self, session: Session, query: Select[Any]) -> list[Record]:
        return [self._record(row) for row in session.scalars(query)]

    def _run(self, row: RunRow) -> Run:
        with self._damage("run", row.uid):
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


def _ranked(workload: str, target: str) -> Select[Any]:
    """The records that represent their traces, best first: `kernels_db.ranking`."""
    task = (RecordRow.workload == workload, RecordRow.target == target)
    return select(RecordRow).where(*task, text(REPRESENTS)).order_by(text(ORDER))


def _digest(key: Workload | Target | str) -> str:
    return key if isinstance(key, str) else key.digest


def _workload_line(w: Workload) -> dict[str, Any]:
    definition = exchange.parse(w.json.encode())
    line = {
        "type": "workload",
        "digest": w.digest,
        "op": w.op,
        "flops": int(w.flops),
        "definition": definition,
    }
    return {**line, "params": exchange.parse(canonical(dict(w.params)).encode())}


def _target_line(t: Target) -> dict[str, Any]:
    return {"type": "target", "digest": t.digest, "definition": exchange.parse(t.json.encode())}


def _frozen(v: Any) -> Any:
    return tuple(_frozen(x) for x in v) if isinstance(v, list) else v
