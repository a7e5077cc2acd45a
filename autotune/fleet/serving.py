"""What a worker does: checks a request, measures what it asks for, and says what it found.

A worker keeps the measurers of a few tasks open between requests, because starting one takes about a second.
It forgets nothing that a client would need: a request has all, so that another worker of the machine can
answer the next one.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any

from autotune import backends
from autotune.fleet import machine_lock, messages
from autotune.fleet.errors import MessageError
from autotune.fleet.messages import FleetRequest, FleetTask
from autotune.measure import memory
from autotune.measure.results import Control, Measurement, Nominal
from autotune.targets import TargetError
from autotune.tuning.open_measurers import OpenMeasurers
from autotune.tuning.site import HERE, Measuring, Site
from schedules.errors import AutotuneError
from schedules.model import Target, Workload

# Seconds without a request for a task after which its measurer is closed.
IDLE_S = 30.0
# Tasks of which the control and the normal speed are remembered.
REMEMBERED = 256
# Seconds between signs of life while CPUs are waited for, or a reference is computed; and between two events
# with measurements, because each costs CPU time of who measures.
SIGN_S, TELL_S = 5.0, 0.1
# Samples of the machine's limit that a request takes.
SAMPLES = 3

_AT_WORK = ("running", "paused")  # states of a worker of Dask

Tell = Callable[[Mapping[str, Any]], None]


class Unwanted(BaseException):
    """Nobody waits for the answer any more. Not an error, so that nothing takes it for one of a candidate."""


class _Late(BaseException):
    """The deadline of a request came before its first candidate could begin."""


class _Telling:
    """What a worker says before its answer, some times a second at most."""

    def __init__(self, batch: str, tell: Tell) -> None:
        self._batch, self._tell = batch, tell
        self._last = time.monotonic()
        self._news: dict[str, Any] = {}

    def say(self, **event: Any) -> None:
        """Say it now."""
        self._last = time.monotonic()
        self._tell({"batch": self._batch, **event})

    def begins(self, index: int) -> None:
        """A candidate begins to run."""
        self._news["begins"] = index
        self._soon()

    def found(self, index: int, m: Measurement) -> None:
        """A candidate was measured."""
        self._news.setdefault("found", []).append([index, messages.of_measurement(m)])
        self._soon()

    def pause(self) -> None:
        """Nothing happens just now."""
        self._soon()
        if time.monotonic() - self._last > SIGN_S:
            self.say(sign="waiting")

    def _soon(self) -> None:
        if self._news and time.monotonic() - self._last >= TELL_S:
            news, self._news = self._news, {}
            self.say(**{"found": [], **news})


class Bench:
    """The measuring half of a worker. Use it from one thread, which must live as long as it does.

    ``targets``: what it offers. ``facts``: of its machine, which every answer has. ``cpus``: those that no
    other worker may use meanwhile. ``generator``: its version of the code generator. ``site``: what measures.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        facts: Mapping[str, str | int],
        cpus: Sequence[int],
        generator: str,
        *,
        site: Site = HERE,
        folder: Path | None = None,
    ) -> None:
        self.targets = {t.digest: t for t in targets}
        self.facts, self.cpus, self.generator = dict(facts), tuple(cpus), generator
        self.site, self.folder = site, folder
        self._open = OpenMeasurers[str](self._made, self._closing)
        self._kept: dict[str, tuple[int, float]] = {}  # of what is open: its place, its last use
        # the normal speed and the control of what was closed: the times of a task's requests are to compare
        self._before: OrderedDict[str, tuple[Nominal | None, Control | None]] = OrderedDict()

    def answer(
        self,
        message: object,
        objects: Sequence[bytes] = (),
        tell: Tell = lambda event: None,
        wanted: Callable[[], bool] = lambda: True,
        batch: str = "",
    ) -> str:
        """The answer to a request, as text. ``tell`` is given what is known before. Once ``wanted`` says no,
        everything ends, and `Unwanted` is raised. ``batch``: the name of a request that cannot be read."""
        try:
            request = messages.request(message)
            batch = request.batch
            code = self._checked(request, objects)
            found = self._do(request, code, tell, wanted)
        except AutotuneError as err:
            kind = "message" if isinstance(err, MessageError) else "task"
            found = {"error": {"kind": kind, "text": str(err)[: messages.MOST_REASON]}}
        return messages.sealed({"batch": batch, "answer": True, "machine": self.facts, **found})

    def close(self) -> None:
        """End all processes."""
        self._open.close()

    def close_idle(self, after_s: float = IDLE_S) -> None:
        """End the processes of tasks of which nothing was asked for some time."""
        now = time.monotonic()
        for key in [k for k, (_, used) in self._kept.items() if now - used >= after_s]:
            self._open.drop(key)

    # -- a request ---------------------------------------------------------------------------

    def _checked(self, request: FleetRequest, objects: Sequence[bytes]) -> dict[int, bytes]:
        """The objects of a request by the number of their trace."""
        target = request.task.target
        if request.generator != self.generator:
            messages.refuse(
                "client and worker have different versions of autotune or LLVM; install the same on both"
            )
        if target.digest not in self.targets:
            offered = ", ".join(f"{t.kind} {t.arch}, threads: {t.threads}" for t in self.targets.values())
            messages.refuse(
                f"it is for {target.kind} {target.arch}, threads: {target.threads}, and this worker offers "
                f"{offered}"
            )
        if len(objects) != len(request.objects) or not all(isinstance(x, bytes) for x in objects):
            messages.refuse("its objects are not as many as it says")
        code = {}
        for (index, digest), data in zip(request.objects, objects):
            if object_digest(data) != digest:
                messages.refuse("an object was changed on its way")
            if backends.of_code(data).measuring.on_device is not backends.of(target).measuring.on_device:
                messages.refuse("an object is not for the target")
            code[index] = data
        return code

    def _do(
        self, request: FleetRequest, code: Mapping[int, bytes], tell: Tell, wanted: Callable[[], bool]
    ) -> dict[str, Any]:
        key = request.task.key
        if request.do == "close":
            self._open.drop(key)
            return {}
        began = time.monotonic()
        telling = _Telling(request.batch, tell)

        def waiting() -> None:
            if not wanted():
                raise Unwanted
            telling.pause()

        telling.say(sign="begun")
        try:
            with machine_lock.held(self.cpus, waiting, self.folder):
                if not wanted():
                    raise Unwanted
                telling.say(sign="measuring")
                return self._measure(request, code, telling, waiting, began)
        except BaseException as err:  # nobody knows what still runs
            if not isinstance(err, TargetError):
                self._open.drop(key)
            raise

    def _measure(
        self,
        request: FleetRequest,
        code: Mapping[int, bytes],
        telling: _Telling,
        waiting: Callable[[], None],
        began: float,
    ) -> dict[str, Any]:
        task = request.task
        self.site.check(task.target)
        if request.do == "limit":
            return self._limit(request)
        deadline = None if request.left_s is None else began + request.left_s

        def in_time() -> None:
            waiting()
            if deadline is not None and time.monotonic() >= deadline:
                raise _Late

        try:
            measurer = self._kept_measurer(request, in_time)
        except _Late:
            return {"found": []}
        measurer.waiting, measurer.begins = waiting, telling.begins
        key, traces = task.key, list(request.traces)
        if self._kept[key][0] != request.place:
            measurer.move()
        more: dict[str, Any] = {"objects": code} if code else {}
        if request.do == "finalists":
            timed = measurer.finalists(traces, request.rounds, request.repeats, **more)
            found = list(enumerate(timed))
        else:
            found = []
            arrivals: Any = measurer.arrivals(traces, request.best_s, deadline, **more)
            with closing(arrivals):
                for index, m in arrivals:
                    found.append((index, m))
                    telling.found(index, m)
        self._kept[key] = request.place, time.monotonic()
        return {"found": [[i, messages.of_measurement(m)] for i, m in found]}

    def _limit(self, request: FleetRequest) -> dict[str, Any]:
        """The least seconds that the machine needs, and the rates behind it."""
        limit = self.site.roofline(request.task.workload, request.task.target)
        if limit is None:
            return {"limit_s": None, "rates": {}}
        samples = [(limit(), dict(getattr(limit, "rates", {}))) for _ in range(SAMPLES)]
        limit_s, rates = min(samples, key=itemgetter(0))
        return {"limit_s": limit_s, "rates": rates}

    # -- what is kept ------------------------------------------------------------------------

    def _kept_measurer(self, request: FleetRequest, waiting: Callable[[], None]) -> Measuring:
        """``waiting``: called now and then while a reference is computed; what it raises ends that."""
        found = self._open.get(request.task.key, request.task.workload, request.task, waiting)
        self._kept.setdefault(request.task.key, (request.place, time.monotonic()))
        return found

    def _made(self, workload: Workload, task: FleetTask, waiting: Callable[[], None]) -> Measuring:
        memory.check_fits(workload.dag, self._open.free)
        before = self._before.get(task.key, (None, None))
        more = (*before, task.tolerance, task.reference_s, waiting)
        return self.site.measurer(workload, task.target, task.patience_s, *more)

    def _closing(self, key: str, measurer: Measuring) -> None:
        self._kept.pop(key, None)
        with suppress(Exception):
            self._before[key] = measurer.nominal, measurer.control
            self._before.move_to_end(key)
            while len(self._before) > REMEMBERED:
                self._before.popitem(last=False)


def object_digest(data: bytes) -> str:
    """The digest by which an object is known in a message."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def serve(message: str, objects: Sequence[bytes] = ()) -> None:
    """The task that Dask runs: `Bench.answer` of the worker that it runs on. The answer is the last event,
    and nothing is returned: for a result the scheduler would connect to the worker, and a firewall, or a
    router between two networks, lets nobody in."""
    from distributed import get_worker

    worker = get_worker()
    key = str(worker.get_current_task())
    topic = key.partition(".")[0]
    bench: Bench = worker.autotune_bench  # others do not have the resource that it asks for

    def wanted() -> bool:
        state = worker.state.tasks.get(key)
        return state is not None and state.state == "executing" and worker.status.name in _AT_WORK

    def tell(event: Mapping[str, Any]) -> None:
        worker.log_event(topic, messages.sealed({"worker": worker.address, "machine": bench.facts, **event}))

    with suppress(Unwanted):
        worker.log_event(topic, bench.answer(message, objects, tell, wanted, key))
