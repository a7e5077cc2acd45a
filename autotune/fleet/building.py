"""Compiles here what a machine of a fleet measures: for slow boards, and where a compiler is missing.

Candidates are compiled in processes of their own, several at a time. One that takes too long, or ends its
process, is a failed build of that candidate alone.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from autotune.fleet.messages import FleetTask
from autotune.measure import starting, wire
from autotune.measure.builder import attempt
from autotune.measure.results import Measurement, Options
from autotune.platform.cpus import usable_cpus
from autotune.platform.processes import step_back
from schedules.model import Target, Trace, Workload

# Longest build, longest start of a process (seconds), and its niceness.
BUILD_S, START_S, NICE = Options().build_timeout_s, starting.START_S, 10

Built = tuple[str, str, bytes]  # status, reason, object


class Builders:
    """Processes that compile; a context manager. ``count``: how many; default: as many as CPUs."""

    def __init__(self, count: int | None = None) -> None:
        self._all = [_Process() for _ in range(count or usable_cpus())]
        self._idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()
        for process in self._all:
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(len(self._all), "autotune-build")

    def __enter__(self) -> Builders:
        return self

    def __exit__(self, *_: object) -> None:
        """What is being compiled ends too: nobody waits for it."""
        for process in self._all:
            process.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for process in self._all:
            process.end()

    def begin(self, task: FleetTask, traces: Mapping[int, Trace]) -> Batch:
        """Begin to compile candidates, which have numbers."""
        told = {"workload": task.workload.json, "target": task.target.json}
        asked = {n: {**told, "trace": t.to_json()} for n, t in traces.items()}
        return Batch({n: self._threads.submit(self._build, one) for n, one in asked.items()})

    def _build(self, told: dict[str, str]) -> Built:
        process = self._idle.get()  # there are as many threads
        try:
            return process.build(told)
        finally:
            self._idle.put(process)


@dataclass(frozen=True)
class Batch:
    """Candidates that are compiled, by their numbers."""

    futures: Mapping[int, Future[Built]]

    def taken(
        self, numbers: Iterable[int], waiting: Callable[[float], None]
    ) -> tuple[dict[int, bytes], dict[int, Measurement]]:
        """Wait for some candidates: the objects of those that could be built, and the measurements of the
        others. ``waiting`` lets so many seconds pass."""
        built: dict[int, bytes] = {}
        refused: dict[int, Measurement] = {}
        for number in numbers:
            while not self.futures[number].done():
                waiting(0.01)
            status, reason, code = self.futures[number].result()
            if status == "ok":
                built[number] = code
            else:
                refused[number] = Measurement(status, reason)
        return built, refused

    def close(self) -> None:
        """Give up what is not begun."""
        for future in self.futures.values():
            future.cancel()


class _Process:
    """A process that compiles, of one thread. It is started for its first build, and again after it ended."""

    def __init__(self) -> None:
        self._guard, self._over = threading.Lock(), False
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None

    def build(self, told: dict[str, str]) -> Built:
        """Compile a candidate."""
        begin = time.monotonic()
        new = self._sock is None
        try:
            with self._guard:
                if self._over:
                    return "crash", "nobody waits for it", b""
                sock = self._sock or self._start()
        except OSError as err:
            return "error", f"no process that compiles could be started here: {err}", b""
        try:
            sock.settimeout(BUILD_S + START_S if new else BUILD_S)
            wire.send(sock, told)
            header, code, _ = wire.receive(sock)
            return str(header["status"]), str(header["reason"]), code
        except wire.Closed:
            late = time.monotonic() - begin >= BUILD_S
            self.end()
            if late:
                return "timeout", f"building took longer than {BUILD_S:.1f} s", b""
            return "crash", "the builder ended", b""

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as stack:
            stack.enter_context(ours)  # closed if no process can be started
            self._process = starting.python("autotune.fleet.building", theirs)
            stack.pop_all()
        self._sock = ours
        return ours

    def kill(self) -> None:
        """Kill it for good. A build that another thread waits for is none."""
        with self._guard:
            self._over = True
        if self._process is not None:
            self._process.kill()

    def end(self) -> None:
        """Kill it, and close what leads to it."""
        if self._sock is not None and self._process is not None:
            self._sock.close()
            self._process.kill()
            self._process.wait()
        self._sock = self._process = None


def main(fd: int, parent: int) -> None:
    """The life of such a process: an answer for each request, until the parent goes away."""
    from autotune.backends.building.from_trace import build_object

    step_back(NICE)
    sock = socket.socket(fileno=fd)
    with contextlib.suppress(wire.Closed):
        while True:
            told, _, _ = wire.receive(sock)
            dag = Workload.from_json(told["workload"]).canonical
            status, reason, code = attempt(build_object, dag, told["trace"], Target.from_json(told["target"]))
            wire.send(sock, {"status": status, "reason": reason}, code)
