"""Compiles here what a machine of a fleet measures: for slow boards, and where a compiler is missing.

Candidates are compiled in processes of their own, several at a time. One that takes too long, or ends its
process, is a failed build of that candidate alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from autotune.fleet.messages import FleetTask
from autotune.measure import wire
from autotune.measure.builder import attempt
from autotune.measure.results import Measurement, Options
from autotune.targets import usable_cpus
from schedules.model import Target, Trace, Workload

# Longest build, longest start of a process (seconds), and its niceness.
BUILD_S, START_S, NICE = Options().build_timeout_s, 60.0, 10
# Program of a process. It needs nothing of the user's script.
_BOOT = (
    "import sys, json\n"
    "sys.path[:] = json.loads(sys.argv[1])\n"
    "from autotune.fleet.building import serve\n"
    "serve(int(sys.argv[2]))\n"
)

Built = tuple[str, str, bytes]  # status, reason, object


class Builders:
    """Processes that compile; a context manager. ``count``: how many; default: as many as CPUs."""

    def __init__(self, count: int | None = None) -> None:
        self._count = count or usable_cpus()
        self._idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()
        self._guard, self._all, self._over = threading.Lock(), list[_Process](), False
        self._threads: ThreadPoolExecutor | None = None

    def __enter__(self) -> Builders:
        return self

    def __exit__(self, *_: object) -> None:
        """What is being compiled ends too: nobody waits for it."""
        with self._guard:
            self._over, left = True, list(self._all)
        for process in left:
            process.kill()
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
        for process in self._all:
            process.end()

    def begin(self, task: FleetTask, traces: Sequence[Trace]) -> Batch:
        """Begin to compile candidates."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._count, "autotune-build")
        workload, target = task.workload.json, task.target.json
        return Batch([self._threads.submit(self._build, workload, target, t.to_json()) for t in traces])

    def _build(self, workload: str, target: str, trace: str) -> Built:
        try:
            process = self._idle.get_nowait()
        except queue.Empty:
            with self._guard:
                if self._over:
                    return "crash", "nobody waits for it", b""
                try:
                    process = _Process()
                except OSError as err:
                    return "error", f"no process that compiles could be started here: {err}", b""
                self._all.append(process)
        found = process.build(workload, target, trace)
        if process.usable:
            self._idle.put(process)
        else:
            with self._guard:
                self._all.remove(process)
        return found


class Batch:
    """Candidates of one round."""

    def __init__(self, futures: Sequence[Future[Built]]) -> None:
        self._futures = futures

    def object(self, index: int) -> bytes:
        """What `refusal` found no fault with."""
        return self._futures[index].result()[2]

    def refusal(self, index: int, waiting: Callable[[float], None]) -> Measurement | None:
        """Wait for a candidate. Its measurement if it could not be built, else None. ``waiting`` lets so many
        seconds pass."""
        while not self._futures[index].done():
            waiting(0.01)
        status, reason, _ = self._futures[index].result()
        return None if status == "ok" else Measurement(status, reason)

    def close(self) -> None:
        """Give up what is not begun."""
        for future in self._futures:
            future.cancel()


class _Process:
    """A process that compiles, of one thread."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._sock, self.usable = ours, True
        self._started = False
        with contextlib.ExitStack() as stack:
            stack.enter_context(ours)  # closed if no process can be started
            stack.enter_context(theirs)
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, json.dumps(sys.path), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C in the terminal is for the parent alone
            )
            theirs.close()
            stack.pop_all()

    def build(self, workload: str, target: str, trace: str) -> Built:
        """Compile a candidate. Where that ends the process, or takes too long, it is not usable any more."""
        begin = time.monotonic()
        try:
            self._sock.settimeout(BUILD_S if self._started else BUILD_S + START_S)
            wire.send(self._sock, {"workload": workload, "target": target, "trace": trace})
            header, code, _ = wire.receive(self._sock)
            self._started = True
            return str(header["status"]), str(header["reason"]), code
        except wire.Closed:
            late = time.monotonic() - begin >= BUILD_S
            self.end()
            if late:
                return "timeout", f"building took longer than {BUILD_S:.1f} s", b""
            return "crash", "the builder ended", b""

    def kill(self) -> None:
        """Kill it. A build that another thread waits for is none."""
        self._process.kill()

    def end(self) -> None:
        """Kill it, and close what leads to it."""
        self.usable = False
        self._sock.close()
        self._process.kill()
        self._process.wait()


def serve(fd: int) -> None:
    """The life of such a process: an answer for each request, until the parent goes away."""
    from autotune.backends.building.from_trace import build_object

    os.nice(NICE)
    sock = socket.socket(fileno=fd)
    with contextlib.suppress(wire.Closed):
        while True:
            told, _, _ = wire.receive(sock)
            dag = Workload.from_json(told["workload"]).canonical
            status, reason, code = attempt(build_object, dag, told["trace"], Target.from_json(told["target"]))
            wire.send(sock, {"status": status, "reason": reason}, code)
