"""The client's side of a fleet: who is there, requests to workers, and what they say meanwhile."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from autotune.backends.building.generator_version import generator_version
from autotune.fleet import messages, reachability
from autotune.fleet.errors import FleetError, MessageError
from autotune.fleet.members import FleetMachine, Member, facts_digest, machines_of, members_of
from autotune.fleet.messages import FleetRequest
from autotune.fleet.serving import object_digest, serve
from schedules.model import Target

if TYPE_CHECKING:
    from distributed import Client, Future

# Time that is given at the end to requests whose answers nobody waits for (seconds).
LAST_S = 3.0
# Time between two looks at who is there, and longest time that an answer to one may take (seconds).
LOOK_S, ANSWER_S = 1.0, 8.0
# Over a slow link a look takes long: most of the time between two, in times what one took, and in seconds.
RARER, LOOKS_S = 5.0, 5.0
# Time without a sign of life after which a worker counts as silent, and without an answer after which the
# scheduler counts as lost (seconds). After a break TCP waits up to as long again as the break was, and Dask
# drops a connection after 30 s.
SILENT_S, AWAY_S = 25.0, 25.0
# Time without an answer after which the user is told (seconds).
NOTICE_S = 5.0

LOOK, DONE = "look", "done"  # what `Exchange.get` returns beside events


@dataclass
class Exchange:
    """A request that was sent. ``events``: what came of it: objects of messages, of which the answer is the
    last, `DONE` after it, and `LOOK` whenever something may have changed. ``worker``: its address;
    ``process``: as of `Member`."""

    request: FleetRequest
    machine: FleetMachine
    events: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    future: Future | None = None
    worker: str = ""
    process: str = ""

    @property
    def open(self) -> bool:
        """Whether it was sent and is not answered."""
        return self.future is not None and not self.future.done()


class Fleet:
    """A connection to a scheduler; a context manager. Several threads may use it, in turns: each holds `turn`
    while it works, and frees it while it waits for an answer.

    ``client``: of Dask. ``address``: of the scheduler, for messages.
    """

    def __init__(self, client: Client, address: str) -> None:
        self.client, self.address = client, address
        self.generator = generator_version()
        self.turn = threading.RLock()
        self.stopped = False
        self.lost: str | None = None  # why there is no scheduler any more
        self.notices: queue.SimpleQueue[str] = queue.SimpleQueue()  # what the user should know
        self._lock = threading.Lock()
        self._topic = client.id  # a scheduler forgets such events an hour after their client left
        self._exchanges: dict[str, Exchange] = {}
        self._numbers = count(1)  # of requests
        self._listed: list[Member] = []  # by the scheduler, silent or not
        self._living: Collection[str] = ()  # addresses of those that gave a sign of life lately
        self._seen: dict[str, tuple[object, float]] = {}
        self.looked = time.monotonic()  # when the scheduler last said who is there
        self._excluded: set[str] = set()
        self._unwaited: list[Exchange] = []  # whose answers nobody waits for
        self._over = threading.Event()
        self._stream: object = None  # by which the scheduler was asked for events
        self._took_s = 0.0  # by the last look
        try:
            self.look()
        except BaseException:
            self._leave()
            raise
        self._watch = threading.Thread(target=self._watching, name="autotune-fleet", daemon=True)
        self._watch.start()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take back what was asked, and leave. Closing again does nothing."""
        if self._over.is_set():
            return
        until = time.monotonic() + LAST_S
        while self.lost is None and time.monotonic() < until:
            if not any(x.open and self.alive(x) for x in self._unwaited):
                break
            time.sleep(0.02)
        self._over.set()
        with self._lock:
            left = list(self._exchanges.values())
        for exchange in left:
            self.end(exchange)
        self._watch.join(ANSWER_S + LOOK_S)
        self._leave()

    def _leave(self) -> None:
        """End the connection and its threads."""
        with suppress(Exception):  # else the scheduler tells who has left of it, and complains
            self.client.unsubscribe_topic(self._topic)
        with suppress(Exception):
            self.client.close(timeout=3)

    def stop(self) -> None:
        """Have whoever waits for an answer be interrupted."""
        self.stopped = True
        self._poke()

    def news(self) -> Iterator[str]:
        """What the user should know, and was not given yet."""
        with suppress(queue.Empty):
            while True:
                yield self.notices.get_nowait()

    # -- who is there ------------------------------------------------------------------------

    def members(self) -> list[Member]:
        """The workers, as they were a moment ago."""
        return [m for m in self._listed if m.address in self._living and m.address not in self._excluded]

    def machines(self, target: Target) -> dict[str, FleetMachine]:
        """The machines that offer a target, by slot."""
        return machines_of(self.members(), target)

    def alive(self, exchange: Exchange) -> bool:
        """Whether the worker of an exchange is there."""
        return any(m.address == exchange.worker for m in self.members())

    def listed(self, process: str) -> bool:
        """Whether the scheduler has a worker of a process, silent or not."""
        return bool(process) and any(m.process == process for m in self._listed)

    def exclude(self, exchange: Exchange) -> None:
        """Give no more to the worker of an exchange: it hangs."""
        self._excluded.add(exchange.worker)

    def look(self) -> None:
        """Ask the scheduler who is there. Raises `FleetError`."""
        began = time.monotonic()
        try:
            info = self.client.sync(self.client.scheduler.identity, n_workers=-1, callback_timeout=ANSWER_S)
            workers = info["workers"]
            self._subscribe()
        except Exception as err:
            closed = self.client.status == "closed"  # and has no scheduler to ask
            why = "the connection is closed" if closed else reachability.reason(err)
            raise FleetError(f"the scheduler at {self.address} does not answer ({why})") from None
        now = time.monotonic()
        self._listed, self._living = members_of(workers, self.generator), self._alive(workers)
        self.looked, self._took_s = now, now - began  # who asks by this finds the members of now

    def _subscribe(self) -> None:
        """Ask for events, once a connection: a scheduler that began anew knows nothing of an earlier one."""
        stream = self.client.scheduler_comm
        if stream is not None and stream is not self._stream:
            self.client.subscribe_topic(self._topic, self._heard)
            self._stream = stream

    def _alive(self, workers: Mapping[str, Any]) -> Collection[str]:
        """The addresses of those that gave a sign of life lately. Clocks of two machines are not compared."""
        now = time.monotonic()
        seen = {}
        for address, told in workers.items():
            last = told.get("last_seen")
            before = self._seen.get(address)
            seen[address] = before if before is not None and before[0] == last else (last, now)
        self._seen = seen
        return {a for a, (_, since) in seen.items() if now - since < SILENT_S}

    def _watching(self) -> None:
        waits = False
        while not self._over.wait(max(LOOK_S, min(RARER * self._took_s, LOOKS_S))):
            try:
                self.look()
            except Exception as err:  # else nobody would look any more
                away_s = time.monotonic() - self.looked
                if away_s > AWAY_S or self.client.status == "closed":
                    self.lost = (
                        f"{err}; see whether it runs and the network is up; what was measured is kept, and "
                        "the same command goes on from there"
                    )
                    self._poke()
                    return
                if away_s > NOTICE_S and not waits:
                    waits = True
                    self.notices.put(
                        f"the scheduler at {self.address} has not answered for {away_s:.0f} s; "
                        f"waiting for up to {AWAY_S:.0f} s"
                    )
            else:
                if waits:
                    self.notices.put(f"the scheduler at {self.address} answers again")
                waits = False
            self._poke()

    def _poke(self) -> None:
        with self._lock:
            exchanges = list(self._exchanges.values())
        for exchange in exchanges:
            exchange.events.put(LOOK)

    # -- requests ----------------------------------------------------------------------------

    def send(
        self, request: FleetRequest, machine: FleetMachine, objects: Mapping[int, bytes] | None = None
    ) -> Exchange:
        """Have a worker of a machine answer a request: that which has least to do. It gets a name, and
        ``objects`` of its traces by their numbers. Whoever sends must `end` the exchange. It is for this
        worker alone: Dask would have another repeat all of it."""
        objects = objects or {}
        batch = f"{self._topic}.{next(self._numbers)}"
        digests = tuple((i, object_digest(x)) for i, x in objects.items())
        request = replace(request, batch=batch, generator=self.generator, objects=digests)
        exchange = Exchange(request, machine)
        present = self.machines(machine.target).get(machine.slot)
        if present is None:
            exchange.events.put(LOOK)
            return exchange
        with self._lock:
            busy = [x.worker for x in self._exchanges.values()]
            exchange.worker = min(present.workers, key=busy.count)
            exchange.process = next((m.process for m in self._listed if m.address == exchange.worker), "")
            self._exchanges[batch] = exchange
        try:
            future = self.client.submit(
                serve,
                request.text(),
                [*objects.values()],
                key=batch,
                workers=[exchange.worker],
                resources={machine.slot: 1},
            )
        except Exception as err:  # the connection is gone
            self.lost = self.lost or f"the scheduler at {self.address} is gone: {err!r:.200}"
            exchange.events.put(LOOK)
            return exchange
        exchange.future = future
        future.add_done_callback(lambda f: exchange.events.put(DONE))
        return exchange

    def tell(self, request: FleetRequest, machine: FleetMachine) -> None:
        """Send a request whose answer nobody waits for. `close` gives it some time, so that nothing is left
        at the scheduler."""
        for done in [x for x in self._unwaited if not x.open]:
            self._unwaited.remove(done)
            self.end(done)
        self._unwaited.append(self.send(request, machine))

    def get(self, exchange: Exchange, until: float | None = None) -> Any:
        """The next of an exchange: an event, `LOOK`, `DONE`, or None at ``until`` (`time.monotonic`). The
        turn is free meanwhile. Raises as `go_on`, and `MessageError` unless an event is of the machine that
        was asked."""
        with self.released():
            try:
                wait = None if until is None else max(0.0, until - time.monotonic())
                found = exchange.events.get(timeout=wait)
            except queue.Empty:
                found = None
        if self.stopped or not isinstance(found, dict):
            self.go_on()
            return found
        facts = found.get("machine")
        if not messages.small(facts) or facts_digest(facts) != exchange.machine.digest:
            raise MessageError("an answer came from another machine than was asked; nothing of it is kept")
        return found

    def go_on(self) -> None:
        """Raises KeyboardInterrupt after `stop`, and `FleetError` where the scheduler is lost."""
        if self.stopped:
            raise KeyboardInterrupt
        if self.lost is not None:
            raise FleetError(self.lost)

    def failure(self, exchange: Exchange) -> None:
        """What is known of a request that is `DONE` without an answer: nothing if its worker died, or the
        connection broke. Raises `FleetError` for what its worker could not do."""
        future = exchange.future
        if future is None or future.status != "error":
            return
        try:
            err = future.exception(timeout=ANSWER_S)
        except Exception as other:
            err = other
        if err is None or type(err).__name__ in ("KilledWorker", "CancelledError", "TimeoutError"):
            return
        raise FleetError(f"a worker could not answer: {type(err).__name__}: {str(err)[:300]}")

    def end(self, exchange: Exchange) -> None:
        """Take a request back, if it is not answered. Its worker ends what it began."""
        with self._lock:
            self._exchanges.pop(exchange.request.batch, None)
        future, exchange.future = exchange.future, None
        if future is not None:
            with suppress(Exception):
                future.release()

    @contextmanager
    def released(self) -> Iterator[None]:
        """Let other threads have their turn."""
        try:
            self.turn.release()
        except RuntimeError:  # who waits has no turn to give
            yield
            return
        try:
            yield
        finally:
            self.turn.acquire()

    def _heard(self, event: Any) -> None:
        """An event of the scheduler: what a worker said."""
        try:
            body = messages.opened(event[1])
        except (MessageError, IndexError, TypeError, KeyError):
            return  # the answer has it too, and without an answer it is asked again
        with self._lock:
            exchange = self._exchanges.get(str(body.get("batch")))
        if exchange is not None:
            exchange.events.put(body)
