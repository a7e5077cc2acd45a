"""A machine of a fleet as a `Site` of tuning, and measuring there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from autotune.fleet import messages
from autotune.fleet.building import Builders
from autotune.fleet.client import DONE, LOOK, NOTICE_S, Fleet
from autotune.fleet.errors import MachineLost, MessageError
from autotune.fleet.members import FleetMachine
from autotune.fleet.messages import FleetRequest, FleetTask
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

    def asked(
        self,
        request: FleetRequest,
        end: _End,
        code: Mapping[int, bytes] | None = None,
        until: float | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Events of a request, and at last the answer. ``end`` says why there are no more. A request that was
        lost on its way is asked again. Raises `MeasureError` for what the worker could not do."""
        fleet, name = self.fleet, self.where.name
        for _ in range(ASKS):
            exchange = fleet.send(request, self.where, code or {})
            sent = heard = time.monotonic()
            told = False  # whether its worker has begun
            unanswered: float | None = None
            try:
                while True:
                    end.process = exchange.process
                    hangs = heard + (HANGS_S if told else QUEUED_S)
                    item = fleet.get(exchange, hangs if until is None else min(until, hangs))
                    now = time.monotonic()
                    if item is None:
                        end.how = "late" if until is not None and now >= until else "hung"
                        if end.how == "hung":
                            fleet.exclude(exchange)  # as good as dead
                        return
                    if item == LOOK:
                        if not fleet.alive(exchange):
                            end.how = "silent" if fleet.listed(exchange.process) else "died"
                            return
                        if unanswered is not None and fleet.looked > unanswered:
                            break
                        continue
                    if item == DONE:  # without an answer: whether its worker is gone, the next look says
                        fleet.failure(exchange)
                        unanswered = now
                        continue
                    if item.get("sign") == "begun" and not code:
                        self.way_s = min(now - sent, self.way_s or now - sent)
                    end.begun = end.begun or item.get("sign") not in ("begun", "waiting")
                    heard, told = now, True
                    error = item.get("error")
                    if item.get("answer") is True and error is not None:
                        of = error if isinstance(error, dict) else {}
                        kind = MessageError if of.get("kind") == "message" else MeasureError
                        raise kind(f"{name}: {str(of.get('text', ''))[: messages.MOST_REASON]}")
                    if item.get("answer") is True:
                        end.how = "done"
                    yield item
                    if end.how == "done":
                        return
            finally:
                fleet.end(exchange)
        raise MeasureError(
            f"{name} was asked {ASKS} times, and no answer came; see what its worker and the scheduler say "
            "on stderr, and start them again"
        )


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
        end = _End()
        *_, body = {}, *self.site.asked(FleetRequest("limit", "", self.task), end)
        if end.how != "done":
            raise MachineLost(f"{self.site.where.name} {end.words}")
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
    def words(self) -> str:
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

    def __exit__(self, *_: object) -> None:
        """The worker ends its processes for the task: now if it is there, else after a while."""
        fleet = self.site.fleet
        if fleet.lost is None and self.site.there:
            fleet.tell(FleetRequest("close", "", self.task), self.site.where)

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
        built = self.site.builders.begin(self.task, left) if self.site.builders else None
        try:
            while left:
                alone = next((i for i in left if suspects.ended[i]), None)
                chosen = [alone] if alone is not None else list(left)
                code: dict[int, bytes] = {}
                if built is not None:
                    code, refused = built.taken(chosen[:AT_ONCE], self._waited)
                    for i, m in refused.items():
                        del left[i]
                        yield i, m
                    chosen = [*code]
                    if not chosen:
                        continue
                end = _End()
                some = {i: left[i] for i in chosen}
                for i, m in self._measured("measure", some, code, end, deadline, best_s=best_s):
                    del left[i]
                    if m.ok and m.time_s is not None:
                        best_s = m.time_s if best_s is None else min(best_s, m.time_s)
                        self._note(traces[i], m.time_s, code.get(i))
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
        left = dict(enumerate(traces))
        code = {i: self._objects[t.digest][1] for i, t in left.items() if t.digest in self._objects}
        found: dict[int, Measurement] = {}
        if self.site.builders is not None:
            missing = {i: t for i, t in left.items() if i not in code}
            with closing(self.site.builders.begin(self.task, missing)) as built:
                made, found = built.taken(missing, self._waited)
            code |= made
        left = {i: t for i, t in left.items() if i not in found}
        ended = 0
        for _ in range(SILENCES if left else 0):
            end = _End()
            timed = dict(self._measured("finalists", left, code, end, rounds=rounds, repeats=repeats))
            if end.how == "late":
                raise MessageError("an answer has not as many measurements as were asked for")
            if end.how == "done":
                found |= timed
                break
            ended += end.how != "silent"
            if ended == KILLS:
                break
            self._returned(None, end)
        if len(found) < len(traces):
            name = self.site.where.name
            raise MeasureError(f"{name}: the worker ended, or fell silent, whenever finalists were timed")
        self._timed |= {t.digest for i, t in enumerate(traces) if found[i].ok}
        return [found[i] for i in range(len(traces))]

    # -- parts -------------------------------------------------------------------------------

    def _measured(
        self,
        do: str,
        chosen: Mapping[int, Trace],
        code: Mapping[int, bytes],
        end: _End,
        deadline: float | None = None,
        **more: Any,
    ) -> Iterator[tuple[int, Measurement]]:
        """Measurements of some candidates, by their number. ``end`` says why there are no more; it is "late"
        where an answer lacks some. ``more``: fields of the request."""
        numbers = [*chosen]
        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        traces = tuple(chosen.values())
        request = FleetRequest(do, "", self.task, traces, left_s=left_s, place=self._place, **more)
        until = None if deadline is None else deadline + LATE_S + (self.site.way_s or 0.0)
        objects = {k: code[i] for k, i in enumerate(numbers) if i in code}
        seen: set[int] = set()
        for body in self.site.asked(request, end, objects, until):
            begins = body.get("begins")
            if isinstance(begins, int) and 0 <= begins < len(numbers):
                end.running = numbers[begins]
            for k, m in _found(body):
                if k not in seen and k < len(numbers):
                    seen.add(k)
                    yield numbers[k], m
        if end.how == "done" and len(seen) < len(numbers):
            end.how = "late"

    def _returned(self, deadline: float | None, end: _End) -> None:
        """Wait until the machine is back. Raises `MachineLost` if it stays away."""
        site, notices, name = self.site, self.site.fleet.notices, self.site.where.name
        began, told = time.monotonic(), False
        until = began + (SILENT_AWAY_S if end.how == "silent" else AWAY_S)
        while not site.there:
            now = time.monotonic()
            if now >= min(until, deadline or until):
                raise MachineLost(f"{name} {end.words}")
            if not told and (end.how == "silent" or now - began > NOTICE_S):
                notices.put(f"{name} {end.words}; waiting for it for up to {until - now:.0f} s")
                told = True
            self._waited(0.2)
        if told:
            notices.put(f"{name} is back")

    def _waited(self, seconds: float) -> None:
        """Let time pass, in which others have their turn."""
        fleet = self.site.fleet
        with fleet.released():
            time.sleep(seconds)
        fleet.go_on()

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
