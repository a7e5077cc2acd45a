"""What client and worker tell each other: JSON text under a digest, and objects under theirs.

A message is refused unless it is whole, of this version, and every part of it has its type and range. Nothing
of it is executed: expressions, targets and traces are read as those of a log are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NoReturn, TypeGuard

from autotune.fleet.errors import MessageError
from autotune.measure.inputs import Tolerance
from autotune.measure.results import SHORTEST_S, STATUSES, Measurement
from schedules.errors import AutotuneError
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


@dataclass(frozen=True)
class Task:
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
        return digest(canonical(self._document()))

    def _document(self) -> dict[str, Any]:
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
class Request:
    """What a worker is asked. ``do``: "measure" traces; time them again as "finalists", in turns; measure the
    machine's "limit"; or "close" what is kept for a task.

    ``batch``: its name, which events have. ``left_s``: seconds until no candidate may begin. ``place``: a
    number; where it is another than before, arrays move to other memory. ``objects``: digests of the objects
    that were compiled elsewhere, by the number of their trace.
    """

    do: str
    batch: str
    task: Task
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
        return sealed(
            {
                "do": self.do,
                "batch": self.batch,
                "task": self.task._document(),
                "traces": [t.document() for t in self.traces],
                "best_s": self.best_s,
                "left_s": self.left_s,
                "place": self.place,
                "rounds": self.rounds,
                "repeats": self.repeats,
                "objects": [list(x) for x in self.objects],
                "generator": self.generator,
            }
        )


def sealed(body: Json) -> str:
    """A message of a JSON object: a digest, and the text."""
    text = canonical({"version": VERSION, **body})
    return digest(text) + text


def opened(message: object) -> dict[str, Any]:
    """The object of a message. Raises `MessageError`."""
    if not isinstance(message, str) or not DIGEST < len(message) <= MOST_TEXT:
        _refuse("it is no text of a length that a message has")
    text = message[DIGEST:]
    if not text.isascii() or digest(text) != message[:DIGEST]:
        _refuse("its digest does not fit; it was changed on its way")
    try:
        body = json.loads(text, parse_constant=_constant, parse_float=_float)
    except (ValueError, RecursionError):
        _refuse("it is no JSON")
    if not isinstance(body, dict):
        _refuse("it is no JSON object")
    version = body.pop("version", None)
    if version != VERSION:
        _refuse(
            f"its version is {str(version)[:20]}, and this autotune has {VERSION}; use the same on both sides"
        )
    return body


def request(message: object) -> Request:
    """A request from the text of `Request.text`. Raises `MessageError`."""
    body = opened(message)
    _known(body, [f.name for f in fields(Request)], "a request")
    do = body["do"]
    if do not in ("measure", "finalists", "limit", "close"):
        _refuse(f"it asks for {str(do)[:40]!r}")
    traces = _list(body["traces"], "traces", MOST_TRACES)
    objects = []
    for x in _list(body["objects"], "objects", MOST_TRACES):
        if not (isinstance(x, list) and len(x) == 2 and _integer(x[0], 0, len(traces) - 1) and _name(x[1])):
            _refuse("an object is not a number of a trace and a digest")
        objects.append((x[0], x[1]))
    for name, least, most in (("place", 0, 1 << 20), ("rounds", 1, 100), ("repeats", 1, 1000)):
        if not _integer(body[name], least, most):
            _refuse(f"{name} is no integer from {least} to {most}")
    if not _name(body["batch"]) or not _name(body["generator"]):
        _refuse("the name of the batch or of the generator is no short text")
    return Request(
        do=do,
        batch=body["batch"],
        task=_task(body["task"]),
        traces=tuple(_trace(t) for t in traces),
        best_s=_seconds(body["best_s"], "best_s"),
        left_s=_seconds(body["left_s"], "left_s"),
        place=body["place"],
        rounds=body["rounds"],
        repeats=body["repeats"],
        objects=tuple(objects),
        generator=body["generator"],
    )


def _task(body: object) -> Task:
    names = ("workload", "names", "op", "params", "flops", "target", "patience_s", "tolerance", "reference_s")
    _known(body, names, "a task")
    assert isinstance(body, dict)
    if not isinstance(body["op"], str) or len(body["op"]) > 200 or not isinstance(body["params"], dict):
        _refuse("the operator of a task is no name with parameters")
    if not _integer(body["flops"], 0, 1 << 62):
        _refuse("the operations of a task are no count")
    tolerance = body["tolerance"]
    if tolerance is not None:
        if not isinstance(tolerance, list) or len(tolerance) != 2:
            _refuse("the tolerance is no pair of numbers")
        if not all(
            isinstance(x, (int, float)) and not isinstance(x, bool) and 0 <= x < math.inf for x in tolerance
        ):
            _refuse("the tolerance is no pair of numbers")
        tolerance = Tolerance(*map(float, tolerance))
    patience_s = _seconds(body["patience_s"], "patience_s")
    if patience_s is None:
        _refuse("patience_s is missing")
    try:
        target = Target.from_json(canonical(body["target"]))
        workload = Workload.from_json(
            canonical(body["workload"]), body["op"], body["params"], body["flops"], body["names"] or None
        )
        workload.canonical  # noqa: B018  it must be readable under these names too
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,
        RecursionError,
        AutotuneError,
    ) as err:
        _refuse(f"its task cannot be read: {str(err)[:400]}")
    return Task(workload, target, patience_s, tolerance, _seconds(body["reference_s"], "reference_s"))


def _trace(body: object) -> Trace:
    try:
        return Trace.from_json(canonical(body))
    except (ValueError, TypeError, RecursionError, AutotuneError) as err:
        _refuse(f"a trace of it cannot be read: {str(err)[:400]}")


# -- measurements ---------------------------------------------------------------------------------------


def of_measurement(m: Measurement) -> dict[str, Any]:
    """A measurement as a JSON object."""
    return {
        "status": m.status,
        "reason": m.reason[:MOST_REASON],
        "times_s": list(m.times_s[:MOST_TIMES]),
        "time_s": m.time_s,
        "error": m.error if m.error is None or math.isfinite(m.error) else None,
        "reference_rate": m.reference_rate,
        "build_s": m.build_s,
        "check_s": m.check_s,
        "run_s": m.run_s,
        "facts": m.facts,
    }


def measurement(body: object) -> Measurement:
    """The measurement of such an object. Raises `MessageError`."""
    _known(body, [f.name for f in fields(Measurement)], "a measurement")
    assert isinstance(body, dict)
    status, reason = body["status"], body["reason"]
    if status not in STATUSES or not isinstance(reason, str) or len(reason) > MOST_REASON:
        _refuse("a measurement has no status that is known, or no reason")
    times = _list(body["times_s"], "times_s", MOST_TIMES)
    time_s = _seconds(body["time_s"], "time_s", above=True)
    if (status == "ok" and time_s is None) or (time_s is not None and status not in ("ok", "slow")):
        _refuse(f"a measurement of status {status} and time {time_s}")
    facts = body["facts"]
    if not small(facts) or not _words(facts.get("throttled", [])):
        _refuse("the facts of a measurement are no small object")
    error = _number(body["error"], "error")
    if error is not None and error < 0:
        _refuse("error is no size of an error")
    return Measurement(
        status=status,
        reason=reason,
        times_s=tuple(_second(t, "times_s", above=True) for t in times),
        time_s=time_s,
        error=error,
        reference_rate=_number(body["reference_rate"], "reference_rate"),
        build_s=_second(body["build_s"], "build_s"),
        check_s=_second(body["check_s"], "check_s"),
        run_s=_second(body["run_s"], "run_s"),
        facts=facts,
    )


def seconds_of(body: Json, name: str) -> float:
    """Seconds in a message. Raises `MessageError`."""
    return _second(body.get(name), name)


def numbers_of(body: Json, name: str) -> dict[str, float]:
    """Numbers by their names in a message. Raises `MessageError`."""
    found = body.get(name)
    if not isinstance(found, dict) or len(found) > MOST_NUMBERS:
        _refuse(f"{name} has no numbers")
    return {str(k)[:80]: _number(v, name) or 0.0 for k, v in found.items()}


def small(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether a value is a JSON object that a log takes as a part of a record."""
    if not isinstance(value, dict):
        return False
    try:
        text = canonical(value)
    except (ValueError, TypeError, RecursionError):  # infinite, no JSON, deep
        return False
    return len(text) <= MOST_FACTS and text.count("[") + text.count("{") <= MOST_NESTED


# -- parts ----------------------------------------------------------------------------------------------


def _refuse(reason: str) -> NoReturn:
    raise MessageError(f"a message was refused: {reason}")


def _constant(text: str) -> NoReturn:
    raise ValueError(text)


def _float(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):  # such as 1e999
        raise ValueError(text)
    return found


def _words(value: object) -> bool:
    return isinstance(value, list) and len(value) <= MOST_WORDS and all(map(_name, value))


def _known(body: object, names: Sequence[str], what: str) -> None:
    if not isinstance(body, dict) or set(body) != set(names):
        _refuse(f"{what} has {', '.join(names)}, and nothing else")


def _list(value: object, name: str, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        _refuse(f"{name} is no list of at most {most}")
    return value


def _name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= 200 and value.isprintable()


def _integer(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _number(value: object, name: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e300:
        _refuse(f"{name} is no number")
    return float(value)


def _second(value: object, name: str, above: bool = False) -> float:
    found = _seconds(value, name, above)
    if found is None:
        _refuse(f"{name} is missing")
    return found


def _seconds(value: object, name: str, above: bool = False) -> float | None:
    found = _number(value, name)
    if found is not None and not (SHORTEST_S if above else 0.0) <= found <= LONGEST_S:
        _refuse(f"{name} is no number of seconds")
    return found
