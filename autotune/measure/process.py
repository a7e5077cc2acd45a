"""The measuring processes as their parent sees them: the zygote, its children, and slots that hold a
child."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from autotune.errors import AutotuneError, refused
from autotune.measure import wire
from autotune.measure.arena import Span
from autotune.measure.inputs import Draw
from autotune.measure.native import RECORD_BYTES, Fault, read_fault
from autotune.measure.results import Nominal, Options
from autotune.measure.starting import START_S, ForkServer, Nursery, python
from autotune.platform import processes
from autotune.platform.files import anonymous_file
from autotune.platform.processes import folder_of, scheduled
from schedules.model import Target
from schedules.te.compute_dag import ComputeDAG

# Longest time that a child may take to accept a message (seconds).
SEND_S = 10.0
# Times its limit that a child may take at most, where it waits for a CPU.
WAITING = 6.0
# Requests after which a child is replaced, so that nothing in it grows for ever.
RECYCLE = 256
# Characters of a child's error output that are kept.
STDERR_TAIL = 400

log = logging.getLogger(__name__)


class MeasureError(AutotuneError):
    """Measuring itself does not work. No candidate caused it."""


@contextmanager
def _told() -> Iterator[None]:
    """Raises `MeasureError` for what the system refuses."""
    try:
        yield
    except OSError as err:
        raise MeasureError(f"measuring could not start: {refused(err)}") from err


@dataclass(frozen=True)
class Death:
    """How a child ended without an answer. ``timeout_s``: seconds after which it was killed, if it was."""

    signal: int = 0
    exit: int = 0
    fault: Fault | None = None
    stderr: str = ""
    timeout_s: float | None = None


@dataclass
class Child:
    """A forked process: its socket, and the files for its error output and its fault record."""

    pid: int
    sock: socket.socket
    stderr: int
    record: int
    requests: int = 0

    def close(self) -> None:
        self.sock.close()
        os.close(self.stderr)
        os.close(self.record)


class Zygote(ForkServer):
    """The zygote of one workload, of which ``dag`` is the form whose loops traces name, and ``names`` what
    the user calls its inputs and outputs. It is started on first use, again if it dies, and ended by `close`.

    Use it from the thread that starts it: on Linux the zygote dies when that thread does.
    """

    def __init__(
        self,
        dag: ComputeDAG,
        names: Sequence[str],
        target: Target,
        build: str,
        draws: Sequence[Draw],
        options: Options,
        nominal: Nominal | None = None,
        others: Sequence[tuple[Mapping[str, int], Draw]] = (),
    ) -> None:
        """``others``: draws of other sizes than the largest, where some are open. Raises `MeasureError` where
        the system lacks what measuring needs."""
        with _told():
            processes.check_measuring()
        self._setup: dict[str, Any] = {
            "dag": dag.to_json(),
            "names": list(names),
            "target": target.json,
            "build": build,
            "options": asdict(options),
            "draws": len(draws),
            "nominal": nominal,
            "sizes": [dict(sizes) for sizes, _ in others],
        }
        self._data = _share([x for draw in (*draws, *(d for _, d in others)) for x in draw.arrays])
        self.spans: tuple[Span, ...] = ()

    @property
    def nominal(self) -> Nominal | None:
        """What times are normalised to; None before the first start, if none was given."""
        found: Nominal | None = self._setup["nominal"]
        return found

    @_told()
    def start(self) -> None:
        """Start the process if it does not run. Raises `MeasureError`."""
        if self._control is not None:
            return
        begin = time.monotonic()
        stderr = anonymous_file("stderr")
        try:
            ours, theirs = socket.socketpair()
        except OSError:
            os.close(stderr)
            raise
        try:
            self._control = ours
            nursery, target = Nursery.of_thread(), self._setup["target"]
            if nursery is not None:
                self._process = nursery.fork(theirs, stderr)
                self._setup["nominal"] = self._setup["nominal"] or nursery.nominal.get(target)
            if self._process is None:
                self._process = python("autotune.measure.zygote", theirs, stderr)
            theirs.close()
            ours.settimeout(START_S)
            answer = self._ask(self._setup, (self._data,))
            if "error" in answer:
                raise MeasureError(f"measuring could not start: {answer['error']}")
        except wire.Closed as err:
            text = _tail(stderr)
            self.end()
            raise MeasureError(f"measuring could not start: {text or err}") from None
        except BaseException:
            ours.close()
            self.end()
            raise
        finally:
            theirs.close()
            os.close(stderr)
        self._setup["nominal"] = Nominal(*answer["nominal"])
        if nursery is not None:
            nursery.nominal.setdefault(target, self._setup["nominal"])
        self.spans = tuple(Span(*s) for s in answer["spans"])
        took_s = time.monotonic() - begin
        log.debug("measuring process %d started in %.2f s", self._process.pid, took_s)

    @_told()
    def fork(self, role: str) -> Child:
        """A new child: "worker" or "builder". Raises `MeasureError`."""
        for attempt in (1, 2):
            self.start()
            ours, theirs = socket.socketpair()
            files: list[int] = []
            try:
                files += [anonymous_file("stderr")]
                files += [anonymous_file("fault")]
                pid = self._ask({"do": "fork", "role": role}, (theirs.fileno(), *files))["pid"]
                ours.settimeout(SEND_S)
                log.debug("%s process %d started", role, pid)
                return Child(pid, ours, *files)
            except (wire.Closed, KeyError, OSError) as err:
                ours.close()
                for f in files:
                    os.close(f)
                if not isinstance(err, (wire.Closed, KeyError)):
                    raise
                self.end()  # it was killed from outside, and its children with it: start again
                if attempt == 2:
                    raise MeasureError(
                        "the measuring process died three times in a row; is the machine out of memory?"
                    ) from None
            finally:
                theirs.close()
        raise AssertionError("unreachable")

    def reap(self, child: Child, kill: bool) -> Death:
        """End a child, or learn how it ended; its descriptors are closed."""
        try:
            status = self._ask({"do": "reap", "pid": child.pid, "kill": kill})["status"]
        except (wire.Closed, KeyError):
            self.end()
            status = processes.KILLED
        record = os.pread(child.record, RECORD_BYTES, 0)
        stderr = _tail(child.stderr)
        child.close()
        if os.WIFSIGNALED(status):
            return Death(signal=os.WTERMSIG(status), fault=read_fault(record), stderr=stderr)
        return Death(exit=os.WEXITSTATUS(status), stderr=stderr)

    @property
    def pid(self) -> int | None:
        """The number of its process, while there is one."""
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """End the zygote for good."""
        self.end()
        if self._data >= 0:
            os.close(self._data)
            self._data = -1


@dataclass
class Slot:
    """Holds a child, and at most one job that it works on, a candidate's number; replaces the child when it
    has died."""

    zygote: Zygote
    role: str
    child: Child | None = None
    job: int | None = None
    deadline: float = 0.0
    _started: float = field(default=0.0)
    _limit: float = field(default=0.0)
    _waited: float = field(default=0.0)

    @property
    def busy(self) -> bool:
        """Whether the child works on a job."""
        return self.job is not None

    def start(self, job: int, header: dict[str, Any], payload: bytes, timeout_s: float) -> None:
        """Give the child a request; ``timeout_s`` begins now. Time that it waits for a CPU does not count
        (`overdue`). Raises `MeasureError`."""
        for _ in range(2):
            child = self.ready()
            child.requests += 1
            try:
                wire.send(child.sock, header, payload)
                break
            except wire.Closed:  # it died between two jobs, by what an earlier one left behind
                self.drop()
        else:
            raise MeasureError(f"a new {self.role} process accepts no request; is the machine out of memory?")
        self.job = job
        self._started, self._limit = time.monotonic(), timeout_s
        self._waited = waiting_s(child.pid)
        self.deadline = self._started + timeout_s

    def overdue(self, now: float) -> bool:
        """Whether the child's time is up. On a loaded machine it may have waited for a CPU: the deadline is
        then put off by as long, up to `WAITING` times the limit."""
        if now < self.deadline or self.child is None:
            return False
        waited = waiting_s(self.child.pid) - self._waited
        self.deadline = self._started + min(self._limit + waited, WAITING * self._limit)
        return self.deadline <= now

    def ready(self) -> Child:
        """The child that takes the next request. A new one if there is none or it reached `RECYCLE`. Raises
        `MeasureError`."""
        if self.child is not None and self.child.requests >= RECYCLE:
            self.drop()
        if self.child is None:
            self.child = self.zygote.fork(self.role)
        return self.child

    def finish(self) -> tuple[dict[str, Any], bytes] | Death:
        """The answer, once the socket is readable; or how the child died."""
        assert self.child is not None
        self.job = None
        try:
            header, payload, _ = wire.receive(self.child.sock)
            return header, payload
        except wire.Closed:
            child, self.child = self.child, None
            return self.zygote.reap(child, kill=False)

    def expire(self) -> Death:
        """Kill the child, whose time is up."""
        assert self.child is not None
        took = time.monotonic() - self._started
        self.drop()
        return Death(timeout_s=took)

    def drop(self) -> None:
        """Kill the child, whatever it does."""
        self.job = None
        if self.child is not None:
            child, self.child = self.child, None
            self.zygote.reap(child, kill=True)


def waiting_s(pid: int) -> float:
    """Seconds that the main thread of a process was ready to run and had no CPU, since it began. 0 where the
    system does not tell."""
    return scheduled(folder_of(pid))[1]


def _share(arrays: Sequence[np.ndarray]) -> int:
    """Descriptor of a file that holds the arrays, each from a multiple of 64 bytes on."""
    fd, at = anonymous_file("arrays"), 0
    try:
        for a in arrays:
            view = np.ascontiguousarray(a).reshape(-1).view(np.uint8).data
            done = 0
            while done < len(view):
                done += os.pwrite(fd, view[done : done + (1 << 30)], at + done)
            at += -(-len(view) // 64) * 64
        os.truncate(fd, max(at, 1))
    except BaseException:
        os.close(fd)
        raise
    return fd


def _tail(fd: int) -> str:
    """The end of an error output, on one line."""
    size = os.fstat(fd).st_size
    text = os.pread(fd, 4096, max(0, size - 4096)).decode(errors="replace")
    return " ".join(text.split())[-STDERR_TAIL:]
