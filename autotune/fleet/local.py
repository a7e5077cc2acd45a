"""Workers on this machine, ``local:N``: a scheduler in this process, and processes that `autotune worker`
runs. All share the CPUs and take turns, so it is for trying a fleet, and for several devices of a machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import IO

from autotune.fleet import connection
from autotune.fleet.client import Fleet
from autotune.fleet.errors import FleetError
from autotune.run.warned import warn
from kernels_db.temporary import temporary_place
from schedules.model import Target

_LOCAL = re.compile(r"local:([0-9]{1,3})")
# Longest time until the first worker is there, and until a worker ends by itself (seconds).
START_S, END_S = 60.0, 3.0
# Bytes of what a worker said that are looked at.
MOST_SAID = 4096


@contextmanager
def reached(
    address: str,
    targets: Sequence[str | Target] = (),
    threads: int | None = None,
    say: Callable[[str], None] = warn,
) -> Iterator[Fleet]:
    """The fleet at an address, or one on this machine for ``local:N``, whose workers offer ``targets``.
    ``say``: is given what the user should know. Raises `FleetError`, `MissingExtraError`."""
    local = _LOCAL.fullmatch(address)
    if local is None:
        connection.warn_of_plain(address, say)
    elif int(local[1]) == 0:
        raise FleetError(f"fleet {address!r} has no workers; give local:1 or more")
    with ExitStack() as stack:
        stack.enter_context(connection.quieted())
        if local is None:
            yield stack.enter_context(Fleet(connection.connect(address), address))
            return
        names = [stack.enter_context(_named(t)) for t in targets]
        here = stack.enter_context(scheduler())
        started = stack.enter_context(workers(here, int(local[1]), names, threads))
        with Fleet(connection.connect(here), here) as fleet:
            _wait(fleet, started)
            yield fleet


@contextmanager
def _named(target: str | Target) -> Iterator[str]:
    """What a worker's command line calls a target."""
    if isinstance(target, str):
        yield target
        return
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8", dir=temporary_place()) as file:
        file.write(target.json)
        file.flush()
        yield file.name


@contextmanager
def scheduler() -> Iterator[str]:
    """A scheduler of Dask in this process, reached on this machine alone. Gives its address."""
    library = connection.distributed()
    connection.quiet()
    if connection.security().require_encryption:
        raise FleetError(
            "local:N has no TLS, and Dask's setting distributed.comm.require-encryption asks for it; give "
            "this command DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION=false"
        )
    temporary_place()  # which the library needs, and whose error here has a remedy
    cluster = library.LocalCluster(
        n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0", silence_logs=50, protocol="tcp"
    )
    try:
        yield str(cluster.scheduler_address)
    finally:
        with suppress(Exception):
            cluster.close(timeout=3)


@dataclass(frozen=True)
class Started:
    """A process of ``autotune worker``, and a file with what it says on stderr: nobody reads a pipe
    meanwhile, and what writes to a full one waits for ever."""

    process: subprocess.Popen[bytes]
    said: IO[bytes]

    def last_words(self) -> str:
        """The last line that it said, or its exit status."""
        self.said.seek(max(0, self.said.seek(0, os.SEEK_END) - MOST_SAID))
        lines = self.said.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:400] if lines else f"exit status {self.process.returncode}"


@contextmanager
def workers(
    address: str, count: int, targets: Sequence[str] = (), threads: int | None = None
) -> Iterator[list[Started]]:
    """Processes of ``autotune worker``. They end with the scheduler, however it ends."""
    command = [sys.executable, "-m", "autotune", "worker", address, "--once"]
    command += [x for t in targets for x in ("--target", t)]
    command += [] if threads is None else ["--threads", str(threads)]
    started: list[Started] = []
    with ExitStack() as stack:
        stack.callback(_end, started)
        for _ in range(count):
            said = stack.enter_context(tempfile.TemporaryFile(dir=temporary_place()))
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,  # Ctrl-C in the terminal is for this process alone
            )
            started.append(Started(process, said))
        yield started


def _end(started: Sequence[Started]) -> None:
    for one in started:
        one.process.send_signal(signal.SIGTERM)
    until = time.monotonic() + END_S
    for one in started:
        try:
            one.process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            one.process.kill()
            one.process.wait()


def _wait(fleet: Fleet, started: Sequence[Started]) -> None:
    """Wait until every worker is there. Raises `FleetError` where one ends, with what it said."""
    until = time.monotonic() + START_S
    while len(fleet.members()) < len(started):
        for one in started:
            if one.process.poll() is not None:
                raise FleetError(f"a worker could not start: {one.last_words()}")
        if time.monotonic() > until:
            raise FleetError(f"the workers did not start within {START_S:.0f} s; is the machine busy?")
        time.sleep(0.1)
        fleet.look()
