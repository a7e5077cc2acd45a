"""Starts the processes of measuring: a Python for each workload, or one for all that a thread measures."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from autotune.measure import wire
from autotune.measure.results import Nominal
from autotune.platform import processes

# Program of a zygote, or of the nursery of several. numpy's linear algebra starts threads on import, and a
# process with threads must not fork.
_BOOT = (
    "import os, sys, json, importlib\n"
    "os.environ['OPENBLAS_NUM_THREADS'] = os.environ['MKL_NUM_THREADS'] = '1'\n"
    "sys.path[:] = json.loads(sys.argv[1])\n"
    "main = importlib.import_module(sys.argv[2]).main\n"
    "main(int(sys.argv[3]), int(sys.argv[4]))\n"
)
# Longest start of a process (seconds).
START_S = 60.0


class ForkServer:
    """A process at the other end of a socket, which forks others and answers one request at a time."""

    _process: subprocess.Popen[bytes] | Forked | None = None
    _control: socket.socket | None = None

    def _ask(self, header: dict[str, Any], fds: tuple[int, ...] = ()) -> dict[str, Any]:
        if self._control is None:
            raise wire.Closed("not running")
        wire.send(self._control, header, fds=fds)
        return wire.receive(self._control)[0]

    def end(self) -> None:
        """End it, and with it what it forked; a new one begins when it is needed."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if isinstance(self._process, Forked):
            self._process.end()
        elif self._process is not None:
            end(self._process)
        self._process = None


class Nursery(ForkServer):
    """The process of which the zygotes of a thread fork: see `shared_start`. Started on first use.
    ``nominal``: of targets, by their JSON, what its zygotes measured."""

    def __init__(self) -> None:
        self.nominal: dict[str, Nominal] = {}
        self.owner = os.getpid()

    @classmethod
    def of_thread(cls) -> Nursery | None:
        """That of this thread, which a fork of its process cannot use."""
        found: Nursery | None = getattr(_shared, "nursery", None)
        return found if found is not None and found.owner == os.getpid() else None

    def begin(self) -> None:
        """Start its process, if there is none: it imports while this one goes on."""
        if self._process is None:
            self._control, theirs = socket.socketpair()
            try:
                self._process = python("autotune.measure.nursery", theirs)
            finally:
                theirs.close()
            self._control.settimeout(START_S)

    def fork(self, sock: socket.socket, stderr: int) -> Forked | None:
        """A zygote at the other end of a socket; None where the nursery dies of it."""
        for _ in range(2):  # it may have been killed from outside, and its zygotes with it
            self.begin()
            try:
                pid = int(self._ask({"do": "fork"}, (sock.fileno(), stderr))["pid"])
            except wire.Closed:
                self.end()
            else:
                assert isinstance(self._process, subprocess.Popen)
                return Forked(self, self._process, pid)
        return None

    def kill(self, zygote: Forked) -> None:
        """Kill a zygote. One of an earlier nursery died with that, and its number may be another's by now."""
        if zygote.parent is self._process and zygote.parent.poll() is None:
            with suppress(wire.Closed):
                self._ask({"do": "kill", "pid": zygote.pid})


@dataclass(frozen=True)
class Forked:
    """A zygote that forked from a nursery, whose process then was ``parent``."""

    nursery: Nursery
    parent: subprocess.Popen[bytes]
    pid: int

    def end(self) -> None:
        self.nursery.kill(self)


_shared = threading.local()


def begin() -> None:
    """Have a process on its way that a measurer of this thread will need, inside of `shared_start`."""
    nursery = Nursery.of_thread()
    if nursery is not None:
        with suppress(OSError):  # who needs it says so
            nursery.begin()


@contextmanager
def shared_start(late_s: float = math.inf) -> Iterator[None]:
    """Until the end of the block, Python starts once for all measurers of this thread: their zygotes fork
    from one process. A block within another one shares that of the outer. ``late_s``: seconds that what is
    measured in the block may take longer together because others have the CPUs (`may_be_late_s`)."""
    if getattr(_shared, "nursery", None) is not None:
        yield
        return
    _shared.nursery, _shared.late_s = Nursery(), late_s
    try:
        yield
    finally:
        _shared.nursery.end()
        _shared.nursery = None


def may_be_late_s() -> float:
    """Seconds that are left of ``late_s`` of `shared_start`; endless outside of it."""
    left: float = getattr(_shared, "late_s", math.inf)
    return left if Nursery.of_thread() is not None else math.inf


def was_late(seconds: float) -> None:
    """Count seconds that something took longer because others had the CPUs."""
    _shared.late_s = max(may_be_late_s() - seconds, 0.0)


def python(module: str, sock: socket.socket, stderr: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """A new Python that runs the ``main`` of a module at the other end of a socket. Raises `OSError`."""
    processes.check_measuring()
    arguments = [json.dumps(sys.path), module, str(sock.fileno()), str(os.getpid())]
    return subprocess.Popen(
        [sys.executable, "-c", _BOOT, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        pass_fds=(sock.fileno(),),
        start_new_session=True,  # Ctrl-C in the terminal is for the parent alone
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process whose socket is closed. Where that does not take its children along, the end of their
    sockets does."""
    if processes.children_die_too():
        process.kill()
    process.wait()
