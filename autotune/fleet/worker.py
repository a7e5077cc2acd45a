"""``autotune worker``: a worker of Dask that offers the targets of its machine, one slot for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from autotune import backends, targets
from autotune.backends.building.generator_version import generator_version, this_machine
from autotune.fleet import connection, reachability
from autotune.fleet.errors import FleetError
from autotune.fleet.members import slot
from autotune.fleet.serving import Bench
from autotune.platform import machine
from autotune.platform.processes import when_told_to_end
from autotune.tuning.site import HERE, Site
from schedules.errors import AutotuneError
from schedules.model import Target, canonical, digest

if TYPE_CHECKING:
    from distributed import Worker

# Time between two attempts to reach a scheduler, between two looks for tasks that are idle, that processes
# may take to end, and that a scheduler which answers may take to let a worker in (seconds).
AGAIN_S, LOOK_S, END_S, LET_IN_S = 2.0, 5.0, 5.0, 30.0


@dataclass(frozen=True)
class Offer:
    """What a worker offers. ``asked``: {what the user called a target: the target}. ``name``: the machine's,
    which the user chose. ``builds``: whether it compiles; else clients do."""

    asked: dict[str, Target]
    name: str = ""
    builds: bool = True

    def facts(self) -> dict[str, str | int]:
        """Of this machine, as records have them."""
        return {**this_machine(), **({"name": self.name} if self.name else {})}

    def advert(self, facts: dict[str, str | int], key: str, process: str = "") -> str:
        """What the worker tells the scheduler about itself, as JSON. ``key``: see `machine_key`.
        ``process``: names the process that has its bench."""
        return canonical(
            {
                "machine": facts,
                "key": key,
                "process": process,
                "generator": generator_version(),
                "builds": self.builds,
                "targets": [
                    {"asked": name, "target": json.loads(t.json), "slot": slot(key, t)}
                    for name, t in self.asked.items()
                ],
            }
        )


def machine_key(facts: dict[str, str | int]) -> str:
    """Tells one machine from others like it. It is the same for all workers of a machine until it boots or
    its software changes, and names nothing."""
    boot = machine.boot() or platform.node()
    return digest(canonical({"boot": boot, "facts": facts}))[:12]


def offer_of(names: Sequence[str], threads: int | None, name: str = "", builds: bool | None = None) -> Offer:
    """The offer that a user asks for: this CPU, and the first GPU if there is one, where ``names`` is empty.
    Raises `TargetError` for a target that cannot run here."""
    wanted = list(names)
    if not wanted:
        wanted = [backends.HOST, *[n for n in backends.BACKENDS if _has_gpu(n)][:1]]
    asked = {}
    for one in wanted:
        target = backends.parse(one, threads)
        backends.check_here(target)
        asked[one] = target
    if builds is None:
        builds = all(backends.of(t).compiles() for t in asked.values())
    if name and (len(name) > 100 or not name.isprintable()):
        raise FleetError(f"the name {name[:100]!r} is no short text; give one such as board-7")
    return Offer(asked, name, builds)


def _has_gpu(name: str) -> bool:
    try:
        return backends.named(name).has_gpu()
    except AutotuneError:
        return False


class BenchThreadPoolExecutor(ThreadPoolExecutor):
    """The thread of a bench. It outlives a worker of Dask, which ends the executor that it is given. By the
    name of this class Dask knows that it has threads, and lets tasks know their worker."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(1, "autotune-bench")
        self.bench, self.process = bench, secrets.token_hex(8)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing: see `end`."""

    def end(self) -> None:
        """End what the bench has, and the thread."""
        closed = self.submit(self.bench.close)
        with suppress(TimeoutError):
            closed.result(END_S)
        super().shutdown(wait=False, cancel_futures=True)


def make_worker(
    address: str,
    offer: Offer,
    thread: BenchThreadPoolExecutor,
    machine: str = "",
    host: str | None = None,
) -> Worker:
    """A worker of Dask, not started yet. Its tasks run in the thread of a bench. ``host``: the address that
    it listens at, and no other, because who reaches it can run code. None: all."""
    distributed = connection.distributed()
    key = machine or machine_key(thread.bench.facts)
    advert = offer.advert(thread.bench.facts, key, thread.process)
    worker = distributed.Worker(
        address,
        host=host,
        nthreads=1,
        name=f"{offer.name or 'autotune'}-{secrets.token_hex(4)}",
        executor=thread,
        resources={slot(key, t): 1 for t in offer.asked.values()},
        startup_information={"autotune": lambda worker: advert},
        memory_limit=0,
        dashboard=False,
        security=connection.security(),
        heartbeat_interval="1s",
        death_timeout=LET_IN_S,
    )
    worker.autotune_bench = thread.bench
    return worker


async def run(
    address: str, offer: Offer, say: Callable[[str], None], *, site: Site = HERE, once: bool = False
) -> None:
    """Serve a scheduler until this is cancelled. Where the scheduler goes away, wait for it to come back, or
    return if ``once``. Raises `FleetError` where the scheduler refuses this worker, and if ``once``: where
    none answers."""
    cpus = sorted(targets.usable_cpu_set()) or [0]
    bench = Bench([*offer.asked.values()], offer.facts(), cpus, generator_version(), site=site)
    thread = BenchThreadPoolExecutor(bench)
    shown = ", ".join(f"{n} ({t.arch}, threads: {t.threads})" for n, t in offer.asked.items())
    answers = partial(reachability.reach, timeout_s=AGAIN_S) if once else reachability.try_once
    waits = False
    try:
        while True:
            try:
                host = await asyncio.to_thread(answers, address, connection.security(), "worker")
                async with _working(make_worker(address, offer, thread, host=host), thread) as worker:
                    say(f"connected to {address}, offers {shown}")
                    await worker.finished()
                if once:
                    return
                say(f"the scheduler at {address} is gone; waiting for it")
                waits = True
            except OSError as err:
                why = reachability.reason(err)
                if once:
                    raise FleetError(f"no scheduler answers at {address}: {why}") from None
                if not waits:
                    say(f"no scheduler answers at {address} yet ({why}); waiting for it")
                    waits = True
            await asyncio.sleep(AGAIN_S)
    finally:
        thread.end()


@contextlib.asynccontextmanager
async def _working(worker: Worker, thread: BenchThreadPoolExecutor) -> AsyncIterator[Worker]:
    """Start a worker. At the end it is closed, and what its bench has open. Raises `FleetError`, and
    `OSError` where no scheduler lets it in."""

    async def close_idle() -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if not worker.state.executing_count:
                thread.submit(thread.bench.close_idle)

    idle = asyncio.create_task(close_idle())
    try:
        try:
            await worker
        except RuntimeError as err:  # Dask says so of all that goes wrong in between
            cause = err.__cause__ or err
            if isinstance(cause, OSError):
                raise cause from None
            why = reachability.reason(cause)
            raise FleetError(
                f"the scheduler at {worker.scheduler.address} refuses this worker: {why}"
            ) from None
        yield worker
    finally:
        idle.cancel()
        with suppress(Exception):
            await worker.close(timeout=2)
        thread.submit(thread.bench.close)


def main(address: str, offer: Offer, once: bool = False) -> None:
    """Run a worker until Ctrl-C or SIGTERM. Raises `FleetError`."""
    connection.check_address(address)
    connection.warn_of_plain(address, say)
    connection.quiet()

    async def until_told() -> None:
        task = asyncio.ensure_future(run(address, offer, say, once=once))
        when_told_to_end(asyncio.get_running_loop().add_signal_handler, task.cancel)
        await task

    with suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(until_told())


def say(text: str) -> None:
    """A line on stderr."""
    with suppress(OSError, ValueError):
        print(f"autotune worker {os.getpid()}: {text}", file=sys.stderr, flush=True)
