"""The values that the log takes and returns: frozen, and light to import."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from schedules.model import Target, Trace, canonical, digest

# What may become of a candidate.
STATUSES = (
    "ok",
    "illegal",
    "compile_error",
    "wrong_result",
    "out_of_bounds",
    "crash",
    "timeout",
    "slow",
    "error",
)
# Times below it (seconds) are none of a kernel, whoever says so: the throughput of less may not be finite.
SHORTEST_S = 1e-12
# Kinds of records, and states of runs.
KINDS = ("trial", "final")
STATES = ("running", "done", "interrupted", "failed")
MAX_REASON = 4000  # characters; longer reasons are cut when a record is made
MAX_SKETCH = 400  # characters of the name of a sketch


def now() -> str:
    """The present time as the log writes it: UTC, ISO 8601, microseconds. Texts sort by time."""
    return _text(datetime.now(UTC))


def after(moment: str, days: int = 0) -> str:
    """The moment a microsecond after a moment of the log, plus ``days`` days."""
    return _text(datetime.fromisoformat(moment) + timedelta(days=days, microseconds=1))


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


@dataclass(frozen=True)
class Machine:
    """Where a run took place. ``info``: CPU model, cores, operating system and so on."""

    digest: str
    info: Mapping[str, Any] = field(hash=False)


@dataclass(frozen=True)
class Run:
    """One tuning session. ``ended``: None while it runs, and after a kill."""

    uid: str
    workload: str
    target: str
    machine: str
    seed: int
    options: Mapping[str, Any] = field(hash=False)
    started: str
    ended: str | None
    state: str


@dataclass(frozen=True)
class NewRecord:
    """A measurement to be logged.

    ``trial`` counts from 0 within the run; the re-measurement of a finalist (``kind="final"``)
    repeats the trial's number. ``times_s`` are the raw repeats in seconds per call; ``time_s``, the
    figure that ranks, is their median unless given. ``error`` is the largest scaled absolute
    error; one that is not finite is stored as None. ``environment`` is a JSON object. ``trace`` and
    ``sketch`` have the canonical names of the workload (`schedules.trace_names.to_canonical`).
    """

    run: str
    trial: int
    sketch: str
    trace: Trace
    status: str
    reason: str = ""
    times_s: Sequence[float] = ()
    time_s: float | None = None
    error: float | None = None
    environment: Mapping[str, Any] = field(default_factory=dict, hash=False)
    kind: str = "trial"
    created: str | None = None  # None: now

    def columns(self) -> dict[str, Any]:
        """Plain values, with defaults filled in."""
        times = [float(t) for t in self.times_s]
        time_s = self.time_s
        if time_s is None and times:
            ordered = sorted(times)
            n = len(ordered)
            time_s = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
        error = None if self.error is None or not math.isfinite(self.error) else float(self.error)
        return {
            "run": self.run,
            "trial": int(self.trial),
            "kind": self.kind,
            "sketch": printable(self.sketch),
            "status": self.status,
            "reason": printable(self.reason)[:MAX_REASON],
            "times_s": times,
            "time_s": None if time_s is None else float(time_s),
            "error": error,
            "environment": dict(self.environment),
            "created": self.created or now(),
        }


@dataclass(frozen=True)
class Record:
    """One measurement of the log. ``uid``: digest of its content, the same in every log. ``workload``,
    ``target``, ``machine``: digests."""

    uid: str
    run: str
    trial: int
    kind: str
    workload: str
    target: str
    machine: str
    sketch: str
    trace_json: str
    trace_digest: str
    status: str
    reason: str
    times_s: tuple[float, ...]
    time_s: float | None
    error: float | None
    environment: Mapping[str, Any] = field(hash=False)
    created: str

    def __repr__(self) -> str:
        took = "" if self.time_s is None else f", {self.time_s:.3g} s"
        return f"<Record {self.uid}: {self.kind} {self.trial}, {self.status}{took}>"

    @cached_property
    def trace(self) -> Trace:
        """The schedule, under canonical names: `schedules.trace_names.to_named` gives it those of a workload,
        ``Workload.canonical`` is the DAG to replay it on. Raises `schedules.model.TraceError` if this version
        cannot read it."""
        return Trace.from_json(self.trace_json)

    @staticmethod
    def from_columns(row: Mapping[str, Any]) -> Record:
        """From a row of the table. Raises ValueError or TypeError if it is damaged."""
        times, environment = json.loads(row["times_s"]), json.loads(row["environment"])
        if not isinstance(times, list) or not isinstance(environment, dict):
            raise ValueError("columns of the wrong type")
        plain = {k: row[k] for k in RECORD_COLUMNS if k not in ("trace", "times_s", "environment")}
        for name, x in plain.items():  # SQLite keeps any value in any column
            if name in ("time_s", "error"):
                damaged = x is not None and not math.isfinite(x)
            else:
                damaged = type(x) is not (int if name == "trial" else str)
            if damaged:
                raise ValueError(f"{name} of the wrong type")
        if plain["status"] == "ok" and not (plain["time_s"] or 0.0) > 0.0:  # ranked and divided by
            raise ValueError("an ok record without a time")
        if not isinstance(row["trace"], str) or not all(isinstance(t, float) for t in times):
            raise ValueError("columns of the wrong type")
        if not all(map(math.isfinite, times)):
            raise ValueError("times_s is not finite")
        return Record(trace_json=row["trace"], times_s=tuple(times), environment=environment, **plain)


# Columns of a record that `Record` has.
RECORD_COLUMNS = tuple("trace" if f.name == "trace_json" else f.name for f in fields(Record))


# Parts of a machine's description that do not change with its software.
HARDWARE = ("architecture", "cpu", "cpus", "memory_gib", "system")
# Verdicts of verifying that remove a record from the ranking (it is not pruned). Others: "ok", "slower".
REJECTED = ("wrong", "failed")


def host_digest(machine: Mapping[str, Any]) -> str:
    """The digest of the parts of a machine's description that do not change with its software
    (`HARDWARE`)."""
    return digest(canonical({name: machine.get(name) for name in HARDWARE}))


@dataclass(frozen=True)
class RecordOrigin:
    """Where a record came from. ``machine``: description of the machine that measured it. ``imported``: when
    it was imported, None if it was measured into this log. ``verified``: {`host_digest`: (verdict of `log
    verify`, when)}."""

    machine: Mapping[str, Any] = field(hash=False)
    imported: str | None
    verified: Mapping[str, tuple[str, str]] = field(hash=False)

    def elsewhere(self, host: Mapping[str, Any]) -> bool:
        """Whether it was neither measured nor verified on a machine like ``host``. An import alone does not
        make it so: a log may come back to the machine that it is of."""
        here = host_digest(host)
        good = self.verified.get(here, ("", ""))[0] in ("ok", "slower")
        return not good and host_digest(self.machine) != here

    def document(self, host: Mapping[str, Any]) -> dict[str, Any]:
        """The origin as a JSON object: ``elsewhere``, ``cpu``, ``imported``, ``verified`` (when, on such a
        machine)."""
        status, checked = self.verified.get(host_digest(host), ("", None))
        return {
            "elsewhere": self.elsewhere(host),
            "cpu": self.machine.get("cpu"),
            "imported": self.imported,
            "verified": checked if status in ("ok", "slower") else None,
        }


@dataclass(frozen=True)
class Hit:
    """A record that `lookup.best` found, and its target. ``doubted``: it is pinned, but was
    found wrong or failing since (`kernels_db.ranking`)."""

    record: Record
    target: Target
    pinned: bool = False
    doubted: bool = False
    origin: RecordOrigin | None = None

    @property
    def time_s(self) -> float:
        """Seconds of the record."""
        assert self.record.time_s is not None, "only ok records, which have a time, are ranked"
        return self.record.time_s

    @property
    def trace_json(self) -> str:
        """The record's trace as JSON."""
        return self.record.trace_json


@dataclass(frozen=True)
class MergeResult:
    """``new``, ``known``: numbers of records. ``refused``: {reason: objects of any type that were not
    merged}."""

    new: int
    known: int
    refused: Mapping[str, int] = field(hash=False)


def printable(text: str) -> str:
    """``text`` without NUL and lone surrogates, which SQLite and UTF-8 cannot store."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")
