"""What client and worker tell each other: JSON text under a digest, and objects under theirs.

A message is refused unless it is whole, of this version, and every part of it has its type and range. Nothing
of it is executed: expressions, targets and traces are read as those of a log are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NoReturn, TypeGuard, TypeVar

from autotune.fleet.errors import MessageError
from autotune.measure.inputs import Tolerance
from autotune.measure.results import Measurement
from kernels_db.records import SHORTEST_S, STATUSES
from schedules.documents import (
    Check,
    Malformed,
    an_object,
    integer,
    items,
    list_of,
    mapping_of,
    name,
    nullable,
    number,
    one_of,
    parsed_object,
    record,
    text,
    wrong,
)
from schedules.model import Target, Trace, Workload, canonical, digest

VERSION = 1
DIGEST = 32  # characters
MOST_TEXT = 64 << 20  # characters
MOST_TRACES = 4096
# Of a measurement, below what a log takes beside the rest of a record: times, characters, objects and lists
# in its facts, and words in a list of these.
MOST_TIMES, MOST_REASON, MOST_FACTS, MOST_NESTED, MOST_WORDS = 160, 4000, 12_000, 200, 32
MOST_NUMBERS = 32
LONGEST_S = 30 * 86400.0

Json = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class FleetTask:
    """What is measured: a workload on a target. ``patience_s``: the budget (seconds) whose limits hold.
    ``reference_s``: as of `autotune.tuning.site.Site.measurer`."""

    workload: Workload
    target: Target
    patience_s: float
    tolerance: Tolerance | None = None
    reference_s: float | None = None

    @property
    def key(self) -> str:
        """Identifies the measurer that a worker keeps for it."""
        return digest(canonical(self.document()))

    def document(self) -> dict[str, Any]:
        """As a JSON object."""
        w = self.workload
        return {
            "workload": json.loads(w.json),
            "names": w.names,
            "op": w.op,
            "params": dict(w.params),
            "flops": w.flops,
            "target": json.loads(self.target.json),
            "patience_s": self.patience_s,
            "tolerance": None if self.tolerance is None else [self.tolerance.rtol, self.tolerance.atol],
            "reference_s": self.reference_s,
        }


@dataclass(frozen=True)
class FleetRequest:
    """What a worker is asked. ``do``: "measure" traces; time them again as "finalists", in turns; measure the
    machine's "limit"; or "close" what is kept for a task.

    ``batch``: its name, which events have (`Fleet.send` gives one). ``left_s``: seconds until no candidate
    may begin. ``place``: a number; where it is another than before, arrays move to other memory.
    ``objects``: digests of the objects that were compiled elsewhere, by the number of their trace.
    """

    do: str
    batch: str
    task: FleetTask
    traces: tuple[Trace, ...] = ()
    best_s: float | None = None
    left_s: float | None = None
    place: int = 0
    rounds: int = 3
    repeats: int = 5
    objects: tuple[tuple[int, str], ...] = ()
    generator: str = ""

    def text(self) -> str:
        """As it is sent."""
        task, traces = self.task.document(), [t.document() for t in self.traces]
        return sealed({**vars(self), "task": task, "traces": traces})


def sealed(body: Json) -> str:
    """A message of a JSON object: a digest, and the text."""
    text = canonical({"version": VERSION, **body})
    return digest(text) + text


def opened(message: object) -> dict[str, Any]:
    """The object of a message. Raises `MessageError`."""
    if not isinstance(message, str) or not DIGEST < len(message) <= MOST_TEXT:
        refuse("it is no text of a length that a message has")
    text = message[DIGEST:]
    if not text.isascii() or digest(text) != message[:DIGEST]:
        refuse("its digest does not fit; it was changed on its way")
    body = _read(parsed_object, text)
    version = body.pop("version", None)
    if version != VERSION:
        refuse(
            f"its version is {str(version)[:20]}, and this autotune has {VERSION}; use the same on both sides"
        )
    return body


def request(message: object) -> FleetRequest:
    """A request from the text of `FleetRequest.text`. Raises `MessageError`."""
    found = FleetRequest(**_read(_REQUEST, opened(message)))
    if any(number >= len(found.traces) for number, _ in found.objects):
        refuse("objects: an object is of a trace that is not there")
    return found


def _task(body: object) -> FleetTask:
    v = _TASK(body)
    text = canonical(v["workload"])
    workload = Workload.from_json(text, v["op"], v["params"], v["flops"], v["names"] or None)
    workload.canonical  # noqa: B018  it must be readable under these names too
    tolerance = None if v["tolerance"] is None else Tolerance(*v["tolerance"])
    return FleetTask(workload, v["target"], v["patience_s"], tolerance, v["reference_s"])


_SECONDS = number(0.0, LONGEST_S, f"a number of seconds, at most {LONGEST_S:g}")
_TIME = number(SHORTEST_S, LONGEST_S, f"a number of seconds from {SHORTEST_S:g} to {LONGEST_S:g}")
_TASK = record(
    {
        "workload": an_object,
        "names": lambda x: x,  # `Workload.from_json` looks
        "op": text(200),
        "params": an_object,
        "flops": integer(0, 1 << 62),
        "target": lambda x: Target.from_json(canonical(x)),
        "patience_s": _SECONDS,
        "tolerance": nullable(items(number(0.0), number(0.0))),
        "reference_s": nullable(_SECONDS),
    }
)
_REQUEST = record(
    {
        "do": one_of("measure", "finalists", "limit", "close"),
        "batch": name,
        "task": _task,
        "traces": list_of(lambda x: Trace.from_json(canonical(x)), MOST_TRACES),
        "best_s": nullable(_SECONDS),
        "left_s": nullable(_SECONDS),
        "place": integer(0, 1 << 20),
        "rounds": integer(1, 100),
        "repeats": integer(1, 1000),
        "objects": list_of(items(integer(0, MOST_TRACES - 1), name), MOST_TRACES),
        "generator": name,
    }
)


# -- measurements ---------------------------------------------------------------------------------------


def of_measurement(m: Measurement) -> dict[str, Any]:
    """A measurement as a JSON object."""
    error = m.error if m.error is None or math.isfinite(m.error) else None
    times_s = list(m.times_s[:MOST_TIMES])
    return {**asdict(m), "reason": m.reason[:MOST_REASON], "times_s": times_s, "error": error}


def measurement(body: object) -> Measurement:
    """The measurement of such an object. Raises `MessageError`."""
    found = Measurement(**_read(_MEASUREMENT, body))
    timed = found.time_s is not None
    if timed is not (found.status == "ok") and not (timed and found.status == "slow"):
        refuse(f"a measurement of status {found.status} and time {found.time_s}")
    return found


def _facts(value: object) -> dict[str, Any]:
    facts = an_object(value)
    if not small(facts):
        raise wrong(facts, f"a small object: {MOST_FACTS} characters, {MOST_NESTED} lists and objects")
    _WORDS(facts)
    return facts


_WORDS = record({}, {"throttled": list_of(name, MOST_WORDS)}, open_ended=True)
_MEASUREMENT = record(
    {
        "status": one_of(*STATUSES),
        "reason": text(MOST_REASON),
        "times_s": list_of(_TIME, MOST_TIMES),
        "time_s": nullable(_TIME),
        "error": nullable(number(0.0)),
        "reference_rate": nullable(number()),
        "build_s": _SECONDS,
        "check_s": _SECONDS,
        "run_s": _SECONDS,
        "facts": _facts,
    }
)


def seconds_of(body: Json, field: str) -> float:
    """Seconds in a message. Raises `MessageError`."""
    return _read(record({field: _SECONDS}, open_ended=True), body)[field]


def numbers_of(body: Json, field: str) -> dict[str, float]:
    """Numbers by their names in a message. Raises `MessageError`."""
    found = _read(record({field: _NUMBERS}, open_ended=True), body)[field]
    return {k[:80]: v or 0.0 for k, v in found.items()}


_NUMBERS = mapping_of(nullable(number()), MOST_NUMBERS)


def small(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether a value is a JSON object that a log takes as a part of a record."""
    if not isinstance(value, dict):
        return False
    try:
        text = canonical(value)
    except (ValueError, TypeError, RecursionError):  # infinite, no JSON, deep
        return False
    return len(text) <= MOST_FACTS and text.count("[") + text.count("{") <= MOST_NESTED


def refuse(reason: str) -> NoReturn:
    """Raises `MessageError`."""
    raise MessageError(f"a message was refused: {reason}")


def _read(check: Check[T], value: object) -> T:
    try:
        return check(value)
    except Malformed as err:
        raise MessageError(f"a message was refused: {err}") from None
