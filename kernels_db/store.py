"""`Log`: the tuning log. Only this module and `kernels_db.transfer`, with `kernels_db.reading`, use
SQLAlchemy queries.

The log is a SQLite file in WAL mode or a PostgreSQL database. Any number of processes read while others
write. Writers wait for each other up to the timeout. What `Log.add` returned is kept, even if the process is
killed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import sqlite3
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

from sqlalchemy import Connection, Table, bindparam, delete, func, select, update

from kernels_db import engine, exchange, rescue, sqlite, t4, transfer
from kernels_db.compat import HEADER
from kernels_db.decoding import Raw, decoded
from kernels_db.errors import LogError
from kernels_db.locked_files import File, file_of
from kernels_db.lookup import stored_record
from kernels_db.pins import Pin
from kernels_db.place import LogPlace, locate
from kernels_db.postgresql import PostgresDatabase
from kernels_db.prune import Pruned, prune
from kernels_db.reading import LogReader, ranked, tasks_of
from kernels_db.records import MergeResult, NewRecord, Record, Run, after, host_digest, now
from kernels_db.rekeying import Rekeyer
from kernels_db.replacing import replaced
from kernels_db.schema import CHOOSES, FORMER, PIN, RECORD, RUN, VERIFICATION
from kernels_db.spool import as_file
from kernels_db.sqlite import SqliteFile
from kernels_db.temporary import temporary_folder
from schedules.model import Target, Workload, canonical, digest

logger = logging.getLogger(__name__)


class Log(LogReader):
    """The tuning log; a context manager.

    ``path``: a file, a ``sqlite:///PATH`` or a ``postgresql+psycopg://USER@HOST/DATABASE`` URL. A missing or
    empty file becomes a new log, with its directory; so does an empty database. An older schema is upgraded
    in one transaction. ``read_only``: the file must exist, and nothing is written. ``timeout_s``: longest
    wait for another writer (seconds). A file that is moved, deleted or replaced meanwhile is noticed at the
    next write: a warning says so, and where all that it held is written on (`kernels_db.rescue`).

    Every method raises `LogError` if the file or a value does not allow what is asked. Do not use a log on
    both sides of a fork: open one in each process.

    >>> with at.Log("tuning.db") as log:
    ...     log.stats()["records"]
    0
    """

    def __init__(
        self, path: str | os.PathLike[str] | LogPlace, read_only: bool = False, *, timeout_s: float = 30.0
    ) -> None:
        super().__init__(path, read_only, timeout_s=timeout_s)
        self._file = self._which_file()
        self._looking = threading.Lock()

    def __repr__(self) -> str:
        return f"<Log {self.place}>"

    # -- writing ----------------------------------------------------------------------------------------

    def start_run(
        self,
        workload: Workload,
        target: Target,
        machine: Mapping[str, Any],
        *,
        seed: int,
        options: Mapping[str, Any] | None = None,
    ) -> Run:
        """Open a tuning session in state "running", and store its workload, target and machine."""
        definition = self._plain(machine, "a machine's description")
        where = {"type": "machine", "digest": digest(canonical(definition)), "definition": definition}
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
        with self._write() as con:
            for line in (_workload_line(workload), _target_line(target), where, value):
                self._put(con, line)
        return self.run(str(value["uid"]))

    def finish_run(self, run: Run | str, state: str = "done") -> Run:
        """Close a session: ``state`` is "done", "interrupted" or "failed"."""
        uid = run if isinstance(run, str) else run.uid
        if state not in ("done", "interrupted", "failed"):
            raise LogError(f'a run ends as "done", "interrupted" or "failed", not as {state!r}')
        with self._write() as con:
            con.execute(update(RUN).where(RUN.c.uid == uid).values(ended=now(), state=state))
        return self.run(uid)

    def add(self, new: NewRecord) -> Record:
        """Commit one measurement. The record is kept once this returns."""
        return self.add_all([new])[0]

    def add_all(self, news: Iterable[NewRecord]) -> list[Record]:
        """Commit measurements in one transaction: all of them or none.

        A record without ``created`` is put after the other records of its trace, even if the clock was set
        back, because the newest counts."""
        news = list(news)
        values = [self._prepared(new) for new in news]
        made = [self._sealed(value) for value in values]
        with self._write("add") as con:
            for i, columns in enumerate(made):
                last = con.scalar(_NEWEST, {name: columns[name] for name in _TRACE})
                if news[i].created is None and last is not None and columns["created"] <= last:
                    made[i] = self._sealed({**values[i], "created": after(last)})
                engine.insert(con, "record", made[i : i + 1])
        return [stored_record(self.place, columns) for columns in made]

    def _prepared(self, new: NewRecord) -> dict[str, Any]:
        workload, target, machine = self._identity(new.run)
        value: dict[str, Any] = {"type": "record", "workload": workload, "target": target, "machine": machine}
        value |= new.columns()
        value["environment"] = self._plain(new.environment, "the environment of a record")
        value["trace"] = new.trace.document()
        return value

    def _sealed(self, value: dict[str, Any]) -> dict[str, Any]:
        try:
            return exchange.decode_own(value)
        except exchange.Refused as err:
            raise LogError(f"a record cannot be logged ({err}); see kernels_db.records.NewRecord") from None

    def verified(
        self, record: Record | str, machine: Mapping[str, Any], status: str, time_s: float | None = None
    ) -> None:
        """Note the verdict of checking a record on a machine: "ok", "slower", "wrong" or "failed". The last
        two remove it from the ranking until it is found good on such a machine."""
        uid = record if isinstance(record, str) else record.uid
        row = {"record": uid, "host": host_digest(machine), "status": status, "time_s": time_s}
        with self._write() as con:
            if con.scalar(select(RECORD.c.uid).where(RECORD.c.uid == uid)) is None:
                raise LogError(f"{self.path} has no record {uid}")
            _replace(con, VERIFICATION, {**row, "checked": now()})

    def pin(self, wanted: Iterable[Pin] | None = None) -> list[Pin]:
        """Pin every task to its present best record, or as ``wanted`` says. Loading takes pinned records,
        whatever is measured later. Returns the pins. Raises `LogError`, and changes nothing, if a record is
        not in the log or belongs to another task."""
        if wanted is None:
            each = ((w, t, self.best(w, t)) for w, t in self.tasks())
            wanted = [Pin(w, t, best.uid) for w, t, best in each if best is not None]
        with self._write() as con:
            wanted = [_pin_now(con, pin) for pin in wanted]
            missing = []
            for pin in wanted:
                columns = select(RECORD.c.workload, RECORD.c.target, RECORD.c.status)
                found = con.execute(columns.where(RECORD.c.uid == pin.record)).one_or_none()
                if found is None or (*found,) != (pin.workload, pin.target, "ok"):
                    missing.append(f"{pin.record} ({pin.task or f'workload {pin.workload}'})")
            if missing:
                raise LogError(
                    f"{self.path} lacks {len(missing)} of the records to be pinned: {'; '.join(missing[:5])}"
                    f"{' ...' if len(missing) > 5 else ''}. Import a log that has them: "
                    f"autotune log import FILE"
                )
            for pin in wanted:
                row = {"workload": pin.workload, "target": pin.target, "record": pin.record}
                _replace(con, PIN, {**row, "pinned": now()})
        return wanted

    def unpin(self) -> int:
        """Remove all pins. Returns how many there were."""
        with self._write() as con:
            count = con.scalar(select(func.count()).select_from(PIN)) or 0
            con.execute(delete(PIN))
        return count

    def prune(self, keep: int, apply: bool = False) -> Pruned:
        """Remove all but the ``keep`` best records of every task, pinned ones, and those that found a trace
        wrong (`kernels_db.prune`). Without ``apply`` only count."""
        with self._write() as con:
            found = prune(con, tasks_of(con), keep, apply)
        if apply and found.removed and isinstance(self.place, SqliteFile):
            with contextlib.suppress(LogError), self._raw() as con:  # giving space back may fail
                con.exec_driver_sql("VACUUM")
        return found

    # -- exchange ---------------------------------------------------------------------------------------

    def export(
        self, path: str | os.PathLike[str] | IO[str], top: int | None = None, form: str = "jsonl"
    ) -> int:
        """Write the log to a JSON Lines file (see `kernels_db.exchange`). ``top``: only so many best records
        of every task, and what they refer to. ``form="t4"``: a T4 document (`kernels_db.t4`). Returns the
        number of records.

        A name that ends in ``.gz`` or ``.xz`` is packed. The file is replaced whole or left as it was. An
        open text file is written to. Raises `BrokenPipeError` for a pipe without a reader."""
        count = 0

        def objects() -> Iterator[tuple[str, dict[str, Any]]]:
            nonlocal count
            for kind, value in self._objects(top):
                count += kind == "record"
                if form == "t4":
                    self._line((kind, value))  # raises for damaged values
                yield kind, value

        with replaced(path) as f:
            for piece in t4.document(objects()) if form == "t4" else map(self._line, objects()):
                f.write(piece)
        return count

    def export_lines(self, top: int | None = None) -> Iterator[str]:
        """The lines of `export`, each with its newline, from one snapshot."""
        return map(self._line, self._objects(top))

    def _line(self, item: tuple[str, dict[str, Any]]) -> str:
        kind, value = item
        with self._damage(kind, value.get("uid", value.get("digest", ""))):
            return exchange.line(value)

    def _objects(self, top: int | None) -> Iterator[tuple[str, dict[str, Any]]]:
        yield "header", HEADER
        with self._read() as con:
            wanted = None if top is None else self._closure(con, top)
            for kind, row in transfer.rows(con):
                key = row["uid" if kind in ("run", "record") else "digest"]
                if wanted is None or key in wanted:
                    with self._damage(kind, key):
                        value = exchange.encode_own(kind, row)
                    yield kind, value

    def merge(self, path: str | os.PathLike[str]) -> MergeResult:
        """Merge another log: a database, an export or a T4 document, packed or not. Malformed content is
        refused and counted by reason, the rest is merged. Merging again changes nothing."""
        source = locate(path)
        tally = transfer.MergeTally()
        if isinstance(source, PostgresDatabase):
            self._merge_log(source, tally)
        else:
            assert isinstance(source, SqliteFile)
            with as_file(source.path) as file:
                self._merge_file(file, tally)
        return tally.result()

    def _merge_file(self, file: Path, tally: transfer.MergeTally) -> None:
        if file.is_dir():
            raise LogError(f"{file} is a directory; give an export or a log in it")
        if not sqlite.database_exists(file):
            is_t4 = file.exists() and t4.is_t4(file)
            self._merge(t4.read(file) if is_t4 else decoded(exchange.read_lines(file)), tally)
        elif sqlite.is_older(file, self.timeout_s):
            with temporary_folder() as folder:  # a copy is upgraded, not the file itself
                copy = SqliteFile(folder / file.name)
                sqlite.copy(file, copy.path, self.timeout_s)
                Log(copy.path).close()
                self._merge_log(copy, tally, upgraded=True)
        else:
            self._merge_log(SqliteFile(file), tally)

    def _merge_log(
        self, source: SqliteFile | PostgresDatabase, tally: transfer.MergeTally, upgraded: bool = False
    ) -> None:
        """``upgraded``: by this process, so that what digests are now is no foreign word."""
        with Log(source, read_only=True, timeout_s=self.timeout_s) as other:
            self._merge(decoded(other._rows(tally)), tally)
            former = list(other._former()) if upgraded else []
        for first in range(0, len(former), transfer.BATCH):
            with self._write("bulk") as con:
                transfer.put_former(con, former[first : first + transfer.BATCH])

    import_ = merge

    def _merge(self, items: Generator[exchange.Item | exchange.Refused], tally: transfer.MergeTally) -> None:
        with contextlib.closing(items):  # at once, whatever ends this: it may have processes
            for batch in transfer.batches(Rekeyer().items(items), tally):
                with self._write("bulk") as con:
                    transfer.put(con, batch, tally)
                    former = [(item.former, item.key) for item in batch if item.former is not None]
                    transfer.put_former(con, former)
                del batch  # the next one is as large

    def _former(self) -> list[tuple[str, str]]:
        """What digests of earlier schemas are now."""
        with self._read() as con:
            return [(a, b) for a, b in con.execute(select(FORMER.c.former, FORMER.c.now))]

    def _rows(self, tally: transfer.MergeTally) -> Iterator[Raw]:
        """Every row, to be decoded, because another log's tables are trusted no more than a file. Rows above
        the limit are counted as refused and not read."""
        with self._read() as con:
            engine.read_any_text(con)
            yield from islice(transfer.rows(con, ordered=False), exchange.MAX_ROWS)
            over = transfer.count(con) - exchange.MAX_ROWS
            if over > 0:
                tally.refused[exchange.too_many()] += over

    def _closure(self, con: Connection, top: int) -> set[str]:
        """The keys of the best records of every task and of all that they refer to, and of runs that say
        something by themselves."""
        keys: set[str] = set()
        for r in con.execute(select(RUN).where(CHOOSES)):
            keys |= {r.uid, r.workload, r.target, r.machine}
        pair = (RECORD.c.workload, RECORD.c.target)
        for workload, target in con.execute(select(*pair).distinct()).all():
            for r in con.execute(ranked(workload, target).limit(top)):
                keys |= {r.uid, r.run, r.workload, r.target, r.machine}
        return keys

    # -- plumbing ---------------------------------------------------------------------------------------

    @contextmanager
    def _raw(self) -> Iterator[Connection]:
        """A connection outside any transaction."""
        assert self._engine is not None
        with engine.explained(self.place, self.timeout_s), self._engine.connect() as con:
            yield con.execution_options(isolation_level="AUTOCOMMIT")

    def _which_file(self) -> File | None:
        return file_of(self.place.path) if isinstance(self.place, SqliteFile) else None

    def _follow_file(self) -> None:
        """Notice that the file was moved, deleted or replaced, and go on where nothing is lost."""
        with self._looking:
            if isinstance(self.place, SqliteFile) and self._which_file() != self._file:
                self._rescue(self.place.path)

    def _rescue(self, path: Path) -> None:
        with self._raw() as con:
            copy = rescue.saved(cast(sqlite3.Connection, con.connection.dbapi_connection), path)
        assert self._engine is not None
        self._engine.dispose()
        told = "its records are written there again"
        if not rescue.put_back(copy, path):
            try:
                with Log(path, timeout_s=self.timeout_s) as other:
                    other.merge(copy)
                told = "its records are merged into the log that is there now"
                copy.unlink()
                rescue.forget_changes(copy)
            except (LogError, OSError) as err:
                self.place = SqliteFile(copy)
                told = f"its records are in {copy} from now on, because {err}"
        self._engine = engine.open_writer(self.place, self.timeout_s)
        self._file = self._which_file()
        logger.warning("the log %s was moved, deleted or replaced while it was in use: %s", path, told)

    @contextmanager
    def _write(self, access: engine.Access = "change") -> Iterator[Connection]:
        if self._engine is None or self.read_only:
            why = "has been closed" if self._engine is None else "is opened for reading only"
            raise LogError(f"the log {self.path} {why}; open it again with Log({self.path!r})")
        self._follow_file()
        writing = engine.accessing(self._engine, access)
        with engine.explained(self.place, self.timeout_s), writing.begin() as con:
            yield con

    def _put(self, con: Connection, value: dict[str, Any]) -> None:
        """Put one object of this process into the log."""
        tally = transfer.MergeTally()
        try:
            transfer.put(con, [exchange.decode(value)], tally)
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

    def _plain(self, value: Mapping[str, Any], what: str) -> dict[str, Any]:
        """``value`` as it will be read again: tuples become lists, keys become texts."""
        try:
            return exchange.parse(canonical(dict(value)).encode())
        except (TypeError, ValueError, RecursionError) as err:
            raise LogError(f"{what} must be plain JSON values with finite numbers: {err}") from None


def _replace(con: Connection, table: Table, row: Mapping[str, Any]) -> None:
    """Put a row in the place of the one that has its key, if there is one."""
    con.execute(delete(table).where(*(c == row[c.name] for c in table.primary_key)))
    con.execute(table.insert().values(row))


def _pin_now(con: Connection, pin: Pin) -> Pin:
    """A pin of a lock file, which may name what it pins as an earlier version did."""
    named = (pin.workload, pin.record)
    rows = con.execute(select(FORMER.c.former, FORMER.c.now).where(FORMER.c.former.in_(named)))
    now = {row.former: row.now for row in rows}
    return replace(pin, workload=now.get(pin.workload, pin.workload), record=now.get(pin.record, pin.record))


# The moment of the newest known record of a trace. Made once, as SQLAlchemy takes longer to make it than
# the database to answer.
_TRACE = ("workload", "target", "trace_digest")
_NEWEST = select(func.max(RECORD.c.created)).where(*(RECORD.c[name] == bindparam(name) for name in _TRACE))


def _workload_line(w: Workload) -> dict[str, Any]:
    return {
        "type": "workload",
        "digest": w.digest,
        "op": w.op,
        "params": exchange.parse(canonical(dict(w.params)).encode()),
        "flops": int(w.flops),
        "definition": exchange.parse(w.json.encode()),
        "names": w.names,
    }


def _target_line(t: Target) -> dict[str, Any]:
    return {"type": "target", "digest": t.digest, "definition": exchange.parse(t.json.encode())}
