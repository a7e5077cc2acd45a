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
from autotune.fleet.client import DONE, LOOK, Fleet
from autotune.fleet.errors import FleetError, MachineLost, MessageError
from autotune.fleet.members import Machine
from autotune.fleet.messages import Request, Task
from autotune.fleet.serving import object_digest
from autotune.measure.inputs import Tolerance
from autotune.measure.process import MeasureError
from autotune.measure.results import Control, Measurement, Nominal
from autotune.targets import TargetError
from autotune.tuning.site import HERE
from schedules.model import Target, Trace, Workload

# Time on the way to a worker and back, at most; after a deadline until a request is taken back; without any
# event until a worker counts as hung; and that a machine may be away (seconds).
WAY_S, LATE_S, HANGS_S, AWAY_S = 0.1, 4.0, 180.0, 20.0
# Workers that end while a candidate runs until it counts as a crash. After the first it runs alone.
KILLS = 2
# Seconds in which the limit of a machine is asked once.
SAME_S = 1.0
# Objects that are kept here of what was compiled here, and candidates that are sent at a time.
KEEP, AT_ONCE = 64, 8


@dataclass
class FleetSite:
    """A machine of a fleet. See `autotune.tuning.site.Site`. ``builders``: compile here what it measures;
    None: the machine compiles."""

    fleet: Fleet
    where: Machine
    builders: Builders | None = None

    def machine(self) -> Mapping[str, str | int]:
        return self.where.facts

    def check(self, target: Target) -> None:
        if target.digest != self.where.target.digest:
            raise TargetError(f"{self.where.name} does not offer {target.kind} {target.arch}")

    def spare(self, target: Target) -> bool:
        return True

    def roofline(self, workload: Workload, target: Target) -> Callable[[], float] | None:
        return _Limit(self, Task(workload, target, 60.0))

    def cost_s(self, time_s: float, count: int, rounds: int, repeats: int, warm_runs: int) -> float:
        return WAY_S + HERE.cost_s(time_s, count, rounds, repeats, warm_runs)

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
    ) -> RemoteMeasuring:
        """``nominal`` and ``control`` stay on the worker, which remembers those of a task."""
        return RemoteMeasuring(self, Task(workload, target, budget_s, tolerance, reference_s))

    @property
    def there(self) -> bool:
        """Whether a worker of the machine is there now."""
        return self.where.slot in self.fleet.machines(self.where.target)


@dataclass
class _Limit:
    """Measures the least seconds that a machine needs for a workload."""

    site: FleetSite
    task: Task
    rates: dict[str, float] = field(default_factory=dict)
    _last: tuple[float, float] | None = None  # when, and what

    def __call__(self) -> float:
        now = time.monotonic()
        if self._last is None or now - self._last[0] > SAME_S:  # the worker takes several samples at once
            self._last = now, self._ask()
        return self._last[1]

    def _ask(self) -> float:
        site = self.site
        request = Request("limit", site.fleet.name(), self.task, generator=site.fleet.generator)
        body = _answered(site, request)
        if body is None:
            raise MachineLost(f"{site.where.name} has left the fleet")
        if body.get("limit_s") is None:
            return 0.0
        self.rates = messages.numbers_of(body, "rates")
        return messages.seconds_of(body, "limit_s")


@dataclass
class _End:
    """Why a request gave no more: it is "done", "late" (the deadline came), or its worker "died".
    ``running``: the number of the candidate that ran last."""

    how: str = "died"
    running: int = -1


class RemoteMeasuring:
    """Measures a task on a machine of a fleet. See `autotune.tuning.site.Measuring`."""

    nominal: Nominal | None = None
    control: Control | None = None
    waiting: Callable[[], None] | None = None
    begins: Callable[[int], None] | None = None

    def __init__(self, site: FleetSite, task: Task) -> None:
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
        self, traces: Sequence[Trace], best_s: float | None = None, deadline: float | None = None
    ) -> Iterator[tuple[int, Measurement]]:
        """Raises `MachineLost` where the machine has left, `MeasureError`, `FleetError`."""
        left = dict(enumerate(traces))
        deaths: Counter[int] = Counter()  # of workers, while a candidate ran
        built = self.site.builders.begin(self.task, traces) if self.site.builders else None
        try:
            while left:
                alone = next((i for i in left if deaths[i]), None)
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
                if end.how == "died":
                    suspect = next((i for i in (end.running, *chosen) if i in left), None)
                    if suspect is not None:
                        deaths[suspect] += 1
                        if deaths[suspect] >= KILLS:
                            del left[suspect]
                            yield suspect, Measurement("crash", f"{KILLS} workers ended while it ran")
                    self._returned(deadline)
                elif end.how == "late" or (deadline is not None and time.monotonic() >= deadline):
                    return
        finally:
            if built is not None:
                built.close()

    def finalists(self, traces: Sequence[Trace], rounds: int = 3, repeats: int = 5) -> list[Measurement]:
        """Raises as `arrivals`."""
        request = replace(
            self._request("finalists"),
            traces=tuple(traces),
            rounds=rounds,
            repeats=repeats,
            place=self._place,
        )
        code = {i: self._objects[t.digest][1] for i, t in enumerate(traces) if t.digest in self._objects}
        for _ in range(KILLS):
            body = _answered(self.site, self._with(request, code), list(code.values()))
            if body is None:
                self._returned(None)
                continue
            found = dict(_found(body))
            if sorted(found) != list(range(len(traces))):
                raise MessageError("an answer has not as many measurements as were asked for")
            self._timed |= {t.digest for i, t in enumerate(traces) if found[i].ok}
            return [found[i] for i in range(len(traces))]
        raise MeasureError(f"{self.site.where.name}: the worker ended whenever finalists were timed")

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
        until = None if deadline is None else deadline + LATE_S
        for event, body in _asked(self.site, self._with(request, code), list(code.values()), until):
            if not event:
                end.how = "late" if body is None else "done"
            begins = (body or {}).get("begins")
            if isinstance(begins, int) and 0 <= begins < len(chosen):
                end.running = chosen[begins]
            for k, m in _found(body or {}):
                if k not in seen and k < len(chosen):
                    seen.add(k)
                    yield chosen[k], m
        if end.how == "done" and len(seen) < len(chosen):
            end.how = "late"

    def _refused(self, built: Batch, chosen: Sequence[int]) -> Iterator[tuple[int, Measurement]]:
        """Those that could not be built here."""
        for i in chosen:
            refused = built.refusal(i, self._waited)
            if refused is not None:
                yield i, refused

    def _returned(self, deadline: float | None) -> None:
        """Wait until the machine is back. Raises `MachineLost` if it stays away."""
        site = self.site
        until = time.monotonic() + AWAY_S
        while not site.there:
            if time.monotonic() >= min(until, deadline or until):
                raise MachineLost(f"{site.where.name} has left the fleet")
            self._waited(0.2)

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
    site: FleetSite, request: Request, objects: Sequence[bytes], until: float | None
) -> Iterator[tuple[bool, Any]]:
    """(True, event) of a request, and at last (False, answer); (False, None) at ``until``; nothing more where
    its worker died. A request that was lost otherwise is asked again. Raises `MeasureError` for what the
    worker could not do."""
    fleet = site.fleet
    exchange = fleet.send(request, site.where, objects)
    heard = time.monotonic()
    unanswered: float | None = None
    try:
        while True:
            wake = heard + HANGS_S if until is None else min(until, heard + HANGS_S)
            item = fleet.get(exchange, wake)
            now = time.monotonic()
            if item is None:
                if until is not None and now >= until:
                    yield False, None
                else:
                    fleet.shun(exchange)  # it hangs: as good as dead
                return
            if item == LOOK:
                if not fleet.alive(exchange):
                    return
                if unanswered is not None and fleet.looked > unanswered:
                    fleet.end(exchange)
                    exchange = fleet.send(replace(request, batch=fleet.name()), site.where, objects)
                    unanswered, heard = None, time.monotonic()
                continue
            if item == DONE:
                body = fleet.answer(exchange)
                if body is None:  # whether its worker is gone, the next look at who is there says
                    unanswered = now
                    continue
                error = body.get("error")
                if error is not None:
                    raise _error(site, error)
                yield False, body
                return
            fleet.check(exchange, item)
            heard = now
            yield True, item
    finally:
        fleet.end(exchange)


def _answered(site: FleetSite, request: Request, objects: Sequence[bytes] = ()) -> dict[str, Any] | None:
    """The answer to a request without a deadline. None: its worker died. Raises as `_asked`."""
    for event, body in _asked(site, request, objects, None):
        if not event:
            return body
    return None


def _error(site: FleetSite, error: object) -> Exception:
    text = str(error.get("text", ""))[: messages.MOST_REASON] if isinstance(error, dict) else ""
    kind = error.get("kind") if isinstance(error, dict) else ""
    where = site.where.name
    return MessageError(f"{where}: {text}") if kind == "message" else MeasureError(f"{where}: {text}")
