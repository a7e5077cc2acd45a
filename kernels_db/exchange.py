"""The exchange form of a log: canonical JSON Lines.

The first line is ``{"format":"autotune-log","version":2}``; then come workloads, targets, machines,
runs and records, one object a line, each sort in the order of its key and all of it in canonical
text. Nothing varies from one copy of a log to another (no row numbers, no paths), so two logs are
equal if and only if their exports are. A line refers only to lines before it.

Every object that enters a log, from a file or from this process, passes `decode`: each field is
checked, sizes are bounded, and every digest is computed again from the content. Nothing that a
log says is executed.

Version 1 named workloads, and the loops of traces, as whoever tuned them did; `decode` checks such lines as
they stand, and `kernels_db.rekeying` brings them to version 2.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

from kernels_db.compat import check_header, is_header
from kernels_db.compression import opened_text
from kernels_db.errors import LogError
from kernels_db.records import KINDS, MAX_REASON, MAX_SKETCH, STATES, STATUSES, after, now
from kernels_db.sqlite import explain
from schedules.documents import (
    Check,
    canonical_object,
    digest_text,
    integer,
    list_of,
    nullable,
    number,
    one_of,
    text,
)
from schedules.model import TRACE_VERSION, WORKLOAD_VERSION, Target, Workload, canonical, digest
from schedules.te.compute_dag import ComputeDAG

# Largest line (bytes).
MAX_LINE = 1 << 20
# Most rows of one source, so that none can fill a disk.
MAX_ROWS = 5_000_000
# Longest canonical text of a workload, of a trace, and of any other nested object (characters).
MAX_DEFINITION = 768 << 10
MAX_TRACE = 256 << 10
MAX_OBJECT = 64 << 10
# Deepest nesting of lists and objects.
MAX_DEPTH = 300
# Most times of a record.
MAX_TIMES = 1000
# Largest integer of the tables.
MAX_INT = 2**63 - 1

# Any type.
T = TypeVar("T")
ItemType = Literal["workload", "target", "machine", "run", "record"]
# Errors that a check of a field may raise for malformed content.
MALFORMED = (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError)


class Refused(Exception):
    """An object that does not enter the log. The text is the reason under which it is counted, one of a
    limited number."""


@dataclass(frozen=True)
class Item:
    """A checked object: its type, and the columns of its table by name."""

    type: ItemType
    columns: dict[str, Any]
    former: str | None = None  # its key in an earlier version

    @property
    def key(self) -> str:
        """The primary key: a digest or a uid."""
        return str(self.columns["uid" if self.type in ("run", "record") else "digest"])


def size(columns: Mapping[str, Any]) -> int:
    """Length of the texts of a row (characters)."""
    return sum([len(x) for x in columns.values() if type(x) is str or type(x) is bytes])


def read_lines(path: Path) -> Iterator[bytes | Refused]:
    """The lines of an export file, for `parse_line`; a `Refused` in place of one that is too long. A file of
    zero bytes is an empty log. A packed file is unpacked. Raises `LogError` if the file cannot be read or has
    another header."""
    try:
        with opened_text(path) as f:
            first = f.readline(MAX_LINE)
            if not first:
                return
            try:
                header = parse(first)
            except Refused:
                header = None
            check_header(str(path), header)
            yield from capped(_lines(f))
    except OSError as err:
        raise explain(err, path) from None


def _lines(f: IO[bytes]) -> Iterator[bytes | Refused]:
    while line := f.readline(MAX_LINE + 1):
        if len(line) > MAX_LINE:
            while line and not line.endswith(b"\n"):
                line = f.readline(MAX_LINE)
            yield Refused(f"line over {MAX_LINE >> 20} MB")
        elif line.strip():
            yield line


def capped(rows: Iterable[T]) -> Iterator[T | Refused]:
    """The first `MAX_ROWS` rows of a source, and a `Refused` in place of each later one."""
    for i, row in enumerate(rows):
        yield row if i < MAX_ROWS else Refused(too_many())


def parse_line(line: bytes) -> Item | None:
    """The item of a line after the header; None for a repeated header. Raises `Refused`."""
    value = parse(line)
    return None if is_header(value) else decode(value)  # exports may be concatenated


def _no_constant(name: str) -> float:
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_constant=_no_constant)  # NaN and Infinity are not JSON


def parse(line: bytes) -> dict[str, Any]:
    """The JSON object of a line. Raises `Refused`."""
    try:
        value = _DECODER.decode(line.decode("utf-8"))
    except (ValueError, RecursionError):
        raise Refused("not JSON") from None
    if not isinstance(value, dict):
        raise Refused("not a JSON object")
    return value


def decode(value: dict[str, Any]) -> Item:
    """Check an exchange object. Raises `Refused`."""
    kind = value.get("type")
    fields = _FIELDS.get(kind) if isinstance(kind, str) else None
    if fields is None:
        raise Refused("unknown line type")
    assert isinstance(kind, str)
    if kind == "workload" and "names" not in value:  # as in version 1, whose definition has them
        value = {**value, "names": {}}
    return Item(kind, _FINISH[kind](_checked(kind, fields, value), value))  # type: ignore[arg-type]


def decode_own(value: dict[str, Any]) -> dict[str, Any]:
    """The columns of a record that this process made: like `decode`, for a record without a uid. Its trace is
    a `Trace.document`, whose tuples are written as lists. Raises `Refused`."""
    columns = _finish_trace(_checked("record", _OWN_FIELDS, value), value)
    return {"uid": digest(record_text(columns)), **columns}


def _checked(kind: str, fields: dict[str, Check[Any]], value: dict[str, Any]) -> dict[str, Any]:
    columns = {}
    for name, check in fields.items():
        if name not in value:
            raise Refused(f"{kind}: {name} missing")
        try:
            columns[name] = check(value[name])
        except MALFORMED:
            raise Refused(f"{kind}: {name} not valid") from None
    if len(value) != len(fields) + 1:
        raise Refused(f"{kind}: unknown field")
    return columns


def encode(kind: ItemType, columns: dict[str, Any]) -> dict[str, Any]:
    """The exchange object of a row: the inverse of `decode`. Raises ValueError if a JSON column is
    damaged."""
    value: dict[str, Any] = {"type": kind}
    for name in _FIELDS[kind]:
        x = columns["json" if name == "definition" else name]
        value[name] = json.loads(x) if name in _NESTED else x
    return value


def encode_own(kind: ItemType, columns: dict[str, Any]) -> dict[str, Any]:
    """`encode` for a row of a trusted log. Raises one of `MALFORMED` for values that no log has, because
    SQLite keeps any value in any column."""
    value = encode(kind, columns)
    for name, check in _FIELDS[kind].items():
        if name not in _NESTED:
            check(value[name])
        elif not isinstance(value[name], list if name == "times_s" else dict):
            raise ValueError(f"{name} of the wrong type")
    return value


def seal(kind: Literal["run", "record"], value: dict[str, Any]) -> dict[str, Any]:
    """An exchange object with its ``uid``: the digest of its unchanging part."""
    return {**value, "uid": _uid(kind, value)}


def _uid(kind: str, value: dict[str, Any]) -> str:
    constant = dict(value)
    for name in ("uid", "ended", "state") if kind == "run" else ("uid",):
        constant.pop(name, None)
    return digest(canonical(constant))


def record_text(columns: Mapping[str, Any]) -> str:
    """``canonical`` of a record without its uid, from its checked columns: encoding a trace is much of what
    taking in a record costs, so it is done once. What is not quoted here is checked to need no escapes."""
    c = columns
    return (
        f'{{"created":"{c["created"]}","environment":{c["environment"]},"error":{_plain(c["error"])}'
        f',"kind":"{c["kind"]}","machine":"{c["machine"]}","reason":{canonical(c["reason"])}'
        f',"run":"{c["run"]}","sketch":{canonical(c["sketch"])},"status":"{c["status"]}"'
        f',"target":"{c["target"]}","time_s":{_plain(c["time_s"])},"times_s":{c["times_s"]}'
        f',"trace":{c["trace"]},"trial":{c["trial"]},"type":"record","workload":"{c["workload"]}"}}'
    )


def _plain(x: float | None) -> str:
    """``canonical`` of a finite number, without the overhead of a call."""
    return "null" if x is None else float.__repr__(x)


# -- one check per field: value -> column, or an exception of MALFORMED -----------------------------


def _text(limit: int) -> Check[str]:
    within = text(limit, r"[^\x00]*")

    def check(x: Any) -> str:
        within(x).encode()  # fails for a lone surrogate, which UTF-8 lacks
        return str(x)

    return check


def _object(limit: int) -> Check[str]:
    return canonical_object(limit, MAX_DEPTH)


def _times(x: Any) -> str:
    return f"[{','.join(map(_plain, _TIMES(x)))}]"


_seconds = number(math.ulp(0.0), sys.float_info.max, real=True)
_TIMES = list_of(_seconds, MAX_TIMES)
_moment_text = text(27, r"[1-8][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")


def _moment(x: Any) -> str:
    """A moment that exists in the calendar and is not the last one."""
    text = _moment_text(x)
    datetime.fromisoformat(text)
    return text


# {type: {field: its check}}.
_FIELDS: dict[str, dict[str, Check[Any]]] = {
    "workload": {
        "digest": digest_text,
        "op": _text(100),
        "params": _object(MAX_OBJECT),
        "flops": integer(0, MAX_INT),
        "definition": _object(MAX_DEFINITION),
        "names": _object(MAX_DEFINITION),
    },
    "target": {"digest": digest_text, "definition": _object(MAX_OBJECT)},
    "machine": {"digest": digest_text, "definition": _object(MAX_OBJECT)},
    "run": {
        "uid": digest_text,
        "workload": digest_text,
        "target": digest_text,
        "machine": digest_text,
        "seed": integer(-MAX_INT - 1, MAX_INT),
        "options": _object(MAX_OBJECT),
        "nonce": digest_text,
        "started": _moment,
        "ended": nullable(_moment),
        "state": one_of(*STATES),
    },
    "record": {
        "uid": digest_text,
        "run": digest_text,
        "trial": integer(0, MAX_INT),
        "kind": one_of(*KINDS),
        "workload": digest_text,
        "target": digest_text,
        "machine": digest_text,
        "sketch": _text(MAX_SKETCH),
        "trace": _object(MAX_TRACE),
        "status": one_of(*STATUSES),
        "reason": _text(MAX_REASON),
        "times_s": _times,
        "time_s": nullable(_seconds),
        "error": nullable(number(0.0, sys.float_info.max, real=True)),
        "environment": _object(MAX_OBJECT),
        "created": _moment,
    },
}
# Checks of a record that this process made, which has no uid yet.
_OWN_FIELDS = {name: check for name, check in _FIELDS["record"].items() if name != "uid"}
_NESTED = {"definition", "names", "params", "options", "trace", "times_s", "environment"}


# -- checks of a whole line: (columns, object) -> columns of the table -------------------------------


def _finish_workload(columns: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    version = value["definition"].get("version")
    if type(version) is not int or not 1 <= version <= WORKLOAD_VERSION:
        known = _version(value["definition"])
        newer = type(version) is int and version > WORKLOAD_VERSION
        raise Refused(f"workload: version {known} cannot be read{'; update' if newer else ''}")
    if version < WORKLOAD_VERSION:
        if value["names"]:
            raise Refused("workload: names not valid")
        return _defined("workload", columns, lambda text: named_text(Workload.from_json(text).dag))
    try:
        names = Workload.from_json(columns["definition"], names=value["names"]).names
    except MALFORMED:
        names = None
    columns = _defined("workload", columns, lambda text: Workload.from_json(text).json)
    if names != value["names"]:
        raise Refused("workload: names not valid")
    return columns


def named_text(dag: ComputeDAG) -> str:
    """The canonical text of a DAG in version 1, under its own names."""
    return canonical({"version": 1, "dag": dag.to_json()})


def _defined(kind: str, columns: dict[str, Any], codec: Callable[[str], str]) -> dict[str, Any]:
    """Check that ``definition`` survives its codec unchanged and has the stated digest."""
    text = columns.pop("definition")
    try:
        unchanged = codec(text) == text
    except MALFORMED:
        unchanged = False
    if not unchanged:
        raise Refused(f"{kind}: definition not valid")
    if digest(text) != columns["digest"]:
        raise Refused(f"{kind}: digest does not match")
    return {**columns, "json": text}


def _finish_run(columns: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    if _uid("run", value) != columns["uid"]:
        raise Refused("run: uid does not match")
    if max(columns["started"], columns["ended"] or "") > _latest():
        raise Refused("run: more than a year from now")
    return columns


def _finish_record(columns: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    columns = _finish_trace(columns, value)
    if digest(record_text(columns)) != columns["uid"]:
        raise Refused("record: uid does not match")
    if columns["created"] > _latest():
        raise Refused("record: more than a year from now")
    return columns


@cache
def _latest() -> str:
    """The last moment accepted from another log's clock. A record from the far future would remain the newest
    of its trace for ever."""
    return after(now(), days=366)


def _finish_trace(columns: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    if value["trace"].get("version") != TRACE_VERSION:
        raise Refused(f"record: trace version {_version(value['trace'])} cannot be read")
    if not _is_trace(value["trace"]):
        raise Refused("record: trace not valid")
    if columns["status"] == "ok" and columns["time_s"] is None:
        raise Refused("record: ok without time_s")
    return {**columns, "trace_digest": digest(columns["trace"])}


# {type: check of a whole object}.
_FINISH: dict[str, Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]] = {
    "workload": _finish_workload,
    "target": lambda columns, _: _defined("target", columns, lambda text: Target.from_json(text).json),
    "machine": lambda columns, _: _defined("machine", columns, lambda text: text),
    "run": _finish_run,
    "record": _finish_record,
}


def _version(value: dict[str, Any]) -> str:
    """The version of another form, in one of few words."""
    version = value.get("version")
    return str(version) if type(version) is int and 0 <= version < 100 else "unknown"


def too_many() -> str:
    """The reason for all objects after `MAX_ROWS`."""
    return f"more than {MAX_ROWS} rows from one source"


def _is_trace(value: dict[str, Any]) -> bool:
    """Whether ``Trace.from_json(text).to_json() == text``, checked on the parsed value, because that takes
    most of the time of adding a record."""
    steps = value.get("steps")
    if len(value) != 2 or type(steps) is not list:
        return False
    for s in steps:
        if type(s) is not list or len(s) != 2 or type(s[0]) is not str or type(s[1]) is not dict:
            return False
    return True


def line(value: dict[str, Any]) -> str:
    """An object as a line of the export, newline included."""
    return canonical(value) + "\n"


def damaged(source: str, kind: str, key: str) -> LogError:
    """The error for a damaged row of a log."""
    return LogError(f"{source}: {kind} {key} is damaged; restore the log from a copy or an export")
