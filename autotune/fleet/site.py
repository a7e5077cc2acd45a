"""A machine of a fleet as a `Site` of tuning, and measuring there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from autotune.fleet import messages
from autotune.fleet.building import Batch, Builders
from autotune.fleet.client import DONE, LOOK, NOTICE_S, Fleet
from autotune.fleet.errors import FleetError, MachineLost, MessageError
from autotune.fleet.members import FleetMachine
from autotune.fleet.messages import FleetTask, Request
from autotune.fleet.serving import object_digest
from autotune.measure.inputs import Tolerance
from autotune.measure.process import MeasureError
from autotune.measure.results import Control, Measurement, Nominal
from autotune.targets import TargetError
from autotune.tuning.site import HERE
from schedules.model import Target, Trace, Workload

# Time on the way to a worker and back, at least; after a deadline until a request is taken back; and that a
# machine may be away (seconds).
WAY_S, LATE_S, AWAY_S = 0.1, 4.0, 20.0
# Time without any event until a worker counts as hung: while it has the request, and before it began, when it
# may be busy with those of others (seconds).
HANGS_S, QUEUED_S = 180.0, 900.0
# Time that a machine may be away which was silent before (seconds).
SILENT_AWAY_S = 5.0
# Workers that end while a candidate runs until it counts as a crash. After the first it runs alone. And how
# often a machine may fall silent meanwhile, which is mostly the network's doing, until it is given up.
KILLS, SILENCES = 2, 4
# How often a request is asked whose answer did not come.
ASKS = 4
# Seconds in which the limit of a machine is asked once.
SAME_S = 1.0
# Objects that are kept here of what was compiled here, and candidates that are sent at a time.
KEEP, AT_ONCE = 64, 8


@dataclass
class FleetSite:
    """A machine of a fleet. See `autotune.tuning.site.Site`. ``builders``: compile here what it measures;
    None: the machine compiles."""

    fleet: Fleet
    where: FleetMachine
    builders: Builders | None = None
    way_s: float | None = None  # the least that was seen

    def machine(self) -> Mapping[str, str | int]:
        return self.where.facts

    def check(self, target: Target) -> None:
        if target.digest != self.where.target.digest:
            raise TargetError(f"{self.where.name} does not offer {target.kind} {target.arch}")

    def spare(self, target: Target) -> bool:
        return True

    def roofline(self, workload: Workload, target: Target) -> Callable[[], float] | None:
        return _Limit(self, FleetTask(workload, target, 60.0))

    def cost_s(self, time_s: float, count: int, rounds: int, repeats: int, warm_runs: int) -> float:
        return max(WAY_S, self.way_s or 0.0) + HERE.cost_s(time_s, count, rounds, repeats, warm_runs)

    def move_s(self, time_s: float, warm_runs: int) -> float:
        return HERE.move_s(time_s, warm_runs)

    def measurer(
        self,
        workload: Workload,
        target: Target,
        budget_s: float,
        nominal: Nominal | None = None,
        control: Control | None = None,
        tolerance: Tolerance | None = None,
        reference_s: float | None = None,
        waiting: Callable[[], None] = lambda: None,
    ) -> RemoteMeasuring:
        """``nominal`` and ``control`` stay on the worker, which remembers those of a task."""
        return RemoteMeasuring(self, FleetTask(workload, target, budget_s, tolerance, reference_s))

    @property
    def there(self) -> bool:
        """Whether a worker of the machine is there now."""
        return self.where.slot in self.fleet.machines(self.where.target)


@dataclass
class _Limit:
    """Measures the least seconds that a machine needs for a workload; 0 where it does not know."""

    site: FleetSite
    task: FleetTask
    rates: dict[str, float] = field(default_factory=dict)
    _last: tuple[float, float] | None = None  # when, and what

    def __call__(self) -> float:
        # the worker takes several samples at once
        if self._last is None or time.monotonic() - self._last[0] > SAME_S:
            found = self._ask()
            self._last = time.monotonic(), found  # its way may be long
        return self._last[1]

    def _ask(self) -> float:
        site = self.site
        request = Request("limit", site.fleet.name(), self.task, generator=site.fleet.generator)
        end = _End()
        body = _answered(site, request, (), end)
        if body is None:
            raise MachineLost(f"{site.where.name} {end.told}")
        if body.get("limit_s") is None:
            return 0.0
        self.rates = messages.numbers_of(body, "rates")
        return messages.seconds_of(body, "limit_s")


@dataclass
class _End:
    """Why a request gave no more: it is "done"; "late", as the deadline came; its worker "died", or it
    "hung"; or it is "silent", and the scheduler has it still. ``process``: the worker's. ``begun``: whether
    it had its CPUs. ``running``: the number of the candidate that ran last."""

    how: str = "died"
    process: str = ""
    begun: bool = False
    running: int = -1

    @property
    def told(self) -> str:
        return "gives no sign of life" if self.how == "silent" else "has left the fleet"


@dataclass
class _Suspects:
    """What happened while candidates ran: workers that ended, and silences, in which none need have ended."""

    ended: Counter[int] = field(default_factory=Counter)
    silences: Counter[int] = field(default_factory=Counter)

    def add(self, number: int, end: _End) -> Measurement | None:
        """Its measurement, where that has happened too often: a crash, or nothing is known of it."""
        (self.ended if self._sure(end) else self.silences)[number] += 1
        if self.ended[number] >= KILLS:
            return Measurement("crash", f"{KILLS} workers ended while it ran")
        if self.silences[number] >= SILENCES:
            return Measurement("error", f"its worker fell silent, or lost its connection, {SILENCES} times")
        return None

    def clear(self, number: int, end: _End) -> None:
        """The process of the worker did not end: it lost its connection."""
        if self._sure(end) and end.how == "died":
            self.ended[number] -= 1
            self.silences[number] += 1

    def _sure(self, end: _End) -> bool:
        return end.begun and end.how != "silent"


class RemoteMeasuring:
    """Measures a task on a machine of a fleet. See `autotune.tuning.site.Measuring`."""

    nominal: Nominal | None = None
    control: Control | None = None
    waiting: Callable[[], None] | None = None
    begins: Callable[[int], None] | None = None

    def __init__(self, site: FleetSite, task: FleetTask) -> None:
        self.site, self.task = site, task
        self._place = 0
        self._timed: set[str] = set()  # digests of candidates whose objects the worker most likely keeps
        self._objects: dict[str, tuple[float, bytes]] = {}  # what was compiled here

    def __enter__(self) -> RemoteMeasuring:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The worker ends its processes for the task: now if it is there, else after a while."""
        fleet = self.site.fleet
        if fleet.lost is None and self.site.there:
            fleet.tell(self._request("close"), self.site.where)

    def start(self) -> None:
        """Nothing: the first request starts what it needs."""

    def move(self) -> None:
        self._place += 1

    def object(self, trace: Trace) -> bytes | None:
        """Something, where the worker most likely keeps the object."""
        return b"" if trace.digest in self._timed else None

    def arrivals(
        self,
        traces: Sequence[Trace],
        best_s: float | None = None,
        deadline: float | None = None,
        *,
        latest: float | None = None,
    ) -> Iterator[tuple[int, Measurement]]:
        """The deadline holds, whatever ``latest`` says. Raises `MachineLost` where the machine has left,
        `MeasureError`, `FleetError`."""
        left = dict(enumerate(traces))
        suspects = _Suspects()
        built = self.site.builders.begin(self.task, traces) if self.site.builders else None
        try:
            while left:
                alone = next((i for i in left if suspects.ended[i]), None)
                chosen = [alone] if alone is not None else list(left)
                if built is not None:
                    chosen = chosen[:AT_ONCE]
                    for i, m in self._refused(built, chosen):
                        del left[i]
                        yield i, m
                    chosen = [i for i in chosen if i in left]
                    if not chosen:
                        continue
                end = _End()
                for i, m in self._measured(chosen, left, built, best_s, deadline, end):
                    del left[i]
                    if m.ok and m.time_s is not None:
                        best_s = m.time_s if best_s is None else min(best_s, m.time_s)
                        self._note(traces[i], m.time_s, built.object(i) if built else None)
                    yield i, m
                if end.how in ("died", "hung", "silent"):
                    suspect = next((i for i in (end.running, *chosen) if i in left), None)
                    last = None if suspect is None else suspects.add(suspect, end)
                    if suspect is not None and last is not None:
                        del left[suspect]
                        yield suspect, last
                    self._returned(deadline, end)
                    if suspect is not None and self.site.fleet.listed(end.process):
                        suspects.clear(suspect, end)
                elif end.how == "late" or (deadline is not None and time.monotonic() >= deadline):
                    return
        finally:
            if built is not None:
                built.close()

    def finalists(self, traces: Sequence[Trace], rounds: int = 3, repeats: int = 5) -> list[Measurement]:
        """Raises as `arrivals`."""
        code, found = self._compiled(traces)
        sent = [i for i in range(len(traces)) if i not in found]
        code = {k: code[i] for k, i in enumerate(sent) if i in code}
        request = replace(
            self._request("finalists"),
            traces=tuple(traces[i] for i in sent),
            rounds=rounds,
            repeats=repeats,
            place=self._place,
        )
        ended = 0
        for _ in range(SILENCES if sent else 0):
            end = _End()
            body = _answered(self.site, self._with(request, code), list(code.values()), end)
            if body is None:
                ended += end.how != "silent"
                if ended == KILLS:
                    break
                self._returned(None, end)
                continue
            timed = dict(_found(body))
            if sorted(timed) != list(range(len(sent))):
                raise MessageError("an answer has not as many measurements as were asked for")
            found |= {i: timed[k] for k, i in enumerate(sent)}
            break
        if len(found) < len(traces):
            name = self.site.where.name
            raise MeasureError(f"{name}: the worker ended, or fell silent, whenever finalists were timed")
        self._timed |= {t.digest for i, t in enumerate(traces) if found[i].ok}
        return [found[i] for i in range(len(traces))]

    # -- parts -------------------------------------------------------------------------------

    def _measured(
        self,
        chosen: list[int],
        left: Mapping[int, Trace],
        built: Batch | None,
        best_s: float | None,
        deadline: float | None,
        end: _End,
    ) -> Iterator[tuple[int, Measurement]]:
        """Measurements of some candidates, by their number. ``end`` says why there are no more."""
        traces = [left[i] for i in chosen]
        code = {k: built.object(i) for k, i in enumerate(chosen)} if built is not None else {}
        request = replace(
            self._request("measure"),
            traces=tuple(traces),
            best_s=best_s,
            left_s=None if deadline is None else max(0.0, deadline - time.monotonic()),
            place=self._place,
        )
        seen: set[int] = set()
        until = None if deadline is None else deadline + LATE_S + (self.site.way_s or 0.0)
        for body in _asked(self.site, self._with(request, code), list(code.values()), until, end):
            begins = body.get("begins")
            if isinstance(begins, int) and 0 <= begins < len(chosen):
                end.running = chosen[begins]
            for k, m in _found(body):
                if k not in seen and k < len(chosen):
                    seen.add(k)
                    yield chosen[k], m
        if end.how == "done" and len(seen) < len(chosen):
            end.how = "late"

    def _compiled(self, traces: Sequence[Trace]) -> tuple[dict[int, bytes], dict[int, Measurement]]:
        """Objects of candidates that are compiled here, those of earlier runs too; and measurements of those
        that could not be."""
        code = {i: self._objects[t.digest][1] for i, t in enumerate(traces) if t.digest in self._objects}
        refused: dict[int, Measurement] = {}
        if self.site.builders is not None:
            missing = [i for i in range(len(traces)) if i not in code]
            built = self.site.builders.begin(self.task, [traces[i] for i in missing])
            try:
                failed = dict(self._refused(built, range(len(missing))))
                refused = {missing[k]: m for k, m in failed.items()}
                code |= {i: built.object(k) for k, i in enumerate(missing) if k not in failed}
            finally:
                built.close()
        return code, refused

    def _refused(self, built: Batch, chosen: Sequence[int]) -> Iterator[tuple[int, Measurement]]:
        """Those that could not be built here."""
        for i in chosen:
            refused = built.refusal(i, self._waited)
            if refused is not None:
                yield i, refused

    def _returned(self, deadline: float | None, end: _End) -> None:
        """Wait until the machine is back. Raises `MachineLost` if it stays away."""
        site, notices, name = self.site, self.site.fleet.notices, self.site.where.name
        began, told = time.monotonic(), False
        until = began + (SILENT_AWAY_S if end.how == "silent" else AWAY_S)
        while not site.there:
            now = time.monotonic()
            if now >= min(until, deadline or until):
                raise MachineLost(f"{name} {end.told}")
            if not told and (end.how == "silent" or now - began > NOTICE_S):
                notices.put(f"{name} {end.told}; waiting for it for up to {until - now:.0f} s")
                told = True
            self._waited(0.2)
        if told:
            notices.put(f"{name} is back")

    def _waited(self, seconds: float) -> None:
        """Let time pass, in which others have their turn."""
        fleet = self.site.fleet
        with fleet.freed():
            time.sleep(seconds)
        if fleet.stopped:
            raise KeyboardInterrupt
        if fleet.lost is not None:
            raise FleetError(fleet.lost)

    def _request(self, do: str) -> Request:
        fleet = self.site.fleet
        return Request(do, fleet.name(), self.task, generator=fleet.generator)

    def _with(self, request: Request, code: Mapping[int, bytes]) -> Request:
        objects = tuple((i, object_digest(x)) for i, x in code.items())
        return replace(request, batch=self.site.fleet.name(), objects=objects)

    def _note(self, trace: Trace, time_s: float, obj: bytes | None) -> None:
        self._timed.add(trace.digest)
        if obj is not None:
            self._objects[trace.digest] = time_s, obj
            while len(self._objects) > KEEP:
                del self._objects[max(self._objects, key=lambda k: self._objects[k][0])]


def _found(body: Mapping[str, Any]) -> Iterator[tuple[int, Measurement]]:
    """Measurements in an event or an answer. Raises `MessageError`."""
    listed = body.get("found", [])
    for x in listed if isinstance(listed, list) else [None]:
        if not isinstance(x, list) or len(x) != 2 or type(x[0]) is not int or x[0] < 0:
            raise MessageError("an answer has something else than measurements")
        yield x[0], messages.measurement(x[1])


def _asked(
    site: FleetSite, request: Request, objects: Sequence[bytes], until: float | None, end: _End
) -> Iterator[dict[str, Any]]:
    """Events of a request, and at last the answer. ``end`` says why there are no more. A request that was
    lost on its way is asked again. Raises `MeasureError` for what the worker could not do."""
    fleet = site.fleet
    exchange = fleet.send(request, site.where, objects)
    sent = heard = time.monotonic()
    told = False  # whether its worker has begun
    unanswered: float | None = None
    asks = 1
    try:
        while True:
            end.process = exchange.process
            hangs = heard + (HANGS_S if told else QUEUED_S)
            wake = hangs if until is None else min(until, hangs)
            item = fleet.get(exchange, wake)
            now = time.monotonic()
            if item is None:
                end.how = "late" if until is not None and now >= until else "hung"
                if end.how == "hung":
                    fleet.shun(exchange)  # as good as dead
                return
            if item == LOOK:
                if not fleet.alive(exchange):
                    end.how = "silent" if fleet.listed(exchange.process) else "died"
                    return
                if unanswered is not None and fleet.looked > unanswered:
                    if asks >= ASKS:
                        raise MeasureError(_unanswered(site))
                    fleet.end(exchange)
                    exchange = fleet.send(replace(request, batch=fleet.name()), site.where, objects)
                    sent = heard = time.monotonic()
                    unanswered, asks, told = None, asks + 1, False
                continue
            if item == DONE:  # without an answer: whether its worker is gone, the next look says
                fleet.failure(exchange)
                unanswered = now
                continue
            fleet.check(exchange, item)
            if item.get("sign") == "begun" and not objects:
                site.way_s = min(now - sent, site.way_s or now - sent)
            end.begun = end.begun or item.get("sign") not in ("begun", "waiting")
            heard, told = now, True
            if item.get("answer") is not True:
                yield item
                continue
            if item.get("error") is not None:
                raise _error(site, item["error"])
            end.how = "done"
            yield item
            return
    finally:
        fleet.end(exchange)


def _unanswered(site: FleetSite) -> str:
    return (
        f"{site.where.name} was asked {ASKS} times, and no answer came; see what its worker and the "
        "scheduler say on stderr, and start them again"
    )


def _answered(
    site: FleetSite, request: Request, objects: Sequence[bytes], end: _End
) -> dict[str, Any] | None:
    """The answer to a request without a deadline. None: ``end`` says why. Raises as `_asked`."""
    *_, last = None, *_asked(site, request, objects, None, end)
    return last if end.how == "done" else None


def _error(site: FleetSite, error: object) -> Exception:
    text = str(error.get("text", ""))[: messages.MOST_REASON] if isinstance(error, dict) else ""
    kind = error.get("kind") if isinstance(error, dict) else ""
    where = site.where.name
    return MessageError(f"{where}: {text}") if kind == "message" else MeasureError(f"{where}: {text}")
