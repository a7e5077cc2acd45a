"""A fleet in this process: a scheduler, workers whose site is a fake, and a client."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from autotune.backends.building.generator_version import generator_version
from autotune.fleet import connection, local
from autotune.fleet.building import Builders
from autotune.fleet.client import Fleet
from autotune.fleet.serving import Bench
from autotune.fleet.tuning import FleetCrew
from autotune.fleet.worker import BenchThreadPoolExecutor, Offer, make_worker
from autotune.measure.results import Measurement
from autotune.results.tuned import SuiteResult
from autotune.targets import TargetError
from autotune.tuning.jobs import Job
from autotune.tuning.site import Here
from autotune.tuning.tuner import tune_jobs
from kernels_db import Log
from schedules.model import Target, Trace, Workload

A = Target("cpu", "kind-a", "x86_64-unknown-linux-gnu", ("avx2",), 1)
B = Target("cpu", "kind-b", "x86_64-unknown-linux-gnu", ("avx2", "fma"), 1)
PEAK_S = 1e-5


def facts(name: str, **more: str | int) -> dict[str, str | int]:
    """Of a machine that is not this one."""
    return {"architecture": "x86_64", "cpu": f"a processor of {name}", "cpus": 4, "name": name, **more}


@dataclass
class Fake:
    """A measurer whose candidates take ``time_s``, and which does to each what ``during`` does."""

    site: FakeSite
    nominal: Any = None
    control: Any = None
    waiting: Callable[[], None] | None = None
    begins: Callable[[int], None] | None = None

    def __enter__(self) -> Fake:
        self.site.open += 1
        return self

    def __exit__(self, *error: object) -> None:
        self.site.open -= 1

    def start(self) -> None:
        pass

    def arrivals(
        self,
        traces: Sequence[Trace],
        best_s: float | None = None,
        deadline: float | None = None,
        objects: Mapping[int, bytes] | None = None,
        latest: float | None = None,
    ) -> Iterator[tuple[int, Measurement]]:
        for n, trace in enumerate(traces):
            if deadline is not None and time.monotonic() >= deadline:
                return
            if self.waiting is not None:
                self.waiting()
            if self.begins is not None:
                self.begins(n)
            yield n, self.site.measure(trace, (objects or {}).get(n))

    def finalists(
        self,
        traces: Sequence[Trace],
        rounds: int = 3,
        repeats: int = 5,
        objects: Mapping[int, bytes] | None = None,
    ) -> list[Measurement]:
        self.site.finals += 1
        return [self.site.measure(t, (objects or {}).get(n)) for n, t in enumerate(traces)]

    def object(self, trace: Trace) -> bytes | None:
        return None

    def move(self) -> None:
        self.site.moves += 1


@dataclass
class FakeSite(Here):
    """``takes_s``: seconds that measuring a candidate takes. ``during``: called with each trace."""

    time_s: float = 20 * PEAK_S
    takes_s: float = 0.0
    during: Callable[[Trace], None] | None = None
    open: int = 0
    finals: int = 0
    moves: int = 0
    measured: list[str] = field(default_factory=list)
    given: list[bytes] = field(default_factory=list)

    def check(self, target: Target) -> None:
        if target not in (A, B):
            raise TargetError(f"{target.arch} does not run here")

    def roofline(self, workload: Workload, target: Target) -> Callable[[], float] | None:
        return lambda: PEAK_S

    def measurer(self, *_: Any, **__: Any) -> Any:
        return Fake(self)

    def measure(self, trace: Trace, code: bytes | None) -> Measurement:
        if code is not None:
            self.given.append(code)
        if self.during is not None:
            self.during(trace)
        if self.takes_s:
            time.sleep(self.takes_s)
        self.measured.append(trace.digest)
        return Measurement("ok", "", (self.time_s,), self.time_s, 0.0, 1.0)


@dataclass
class Rack:
    """A scheduler and its workers. They live in the thread of Dask's loop."""

    cluster: Any
    folder: Path
    workers: dict[str, Any] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return str(self.cluster.scheduler_address)

    def add(
        self,
        name: str,
        *targets: Target,
        site: FakeSite | None = None,
        machine: str | None = None,
        told: Mapping[str, str | int] | None = None,
        cpus: Sequence[int] = (),
        builds: bool = True,
        process: str = "",
        walled: bool = False,
    ) -> FakeSite:
        """A worker called ``name``. ``machine``: its key, default: made of the name. ``told``: what its
        answers say of the machine, where that is a lie. ``process``: names its process. ``walled``: nobody
        can connect to it, as behind a firewall."""
        site = site or FakeSite()
        offer = Offer({t.arch: t for t in targets or (A,)}, name, builds)
        about = facts(machine or name)
        bench = Bench(
            list(offer.asked.values()), about, cpus, generator_version(), site=site, folder=self.folder
        )
        key = (machine or name).ljust(12, "0")[:12]
        thread = BenchThreadPoolExecutor(bench)
        thread.process = process or thread.process

        async def start() -> Any:
            worker = make_worker(self.address, offer, thread, key)
            if told is not None:
                bench.facts = dict(told)
            await worker
            for listener in worker.listeners if walled else ():
                await listener.stop() if inspect.iscoroutinefunction(listener.stop) else listener.stop()
            return worker

        self.workers[name] = self.cluster.sync(start)
        return site

    def kill(self, name: str) -> None:
        """Have a worker leave without a word."""
        worker = self.workers.pop(name)

        async def abort() -> None:
            worker.batched_stream.abort()
            await worker.close(timeout=0, executor_wait=False, nanny=False)

        self.cluster.sync(abort)

    def stop(self) -> None:
        for name in list(self.workers):
            self.kill(name)


@contextmanager
def rack(folder: Path) -> Iterator[Rack]:
    """A scheduler in this process without workers. ``folder``: for locks."""
    library = connection.distributed()
    connection.quiet()
    with library.LocalCluster(
        n_workers=0,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        silence_logs=50,
        processes=False,
        protocol="tcp",
    ) as cluster:
        made = Rack(cluster, folder)
        try:
            yield made
        finally:
            made.stop()


@contextmanager
def fleet_of(made: Rack) -> Iterator[Fleet]:
    """A client of it."""
    with ExitStack() as stack:
        yield stack.enter_context(local.reached(made.address))


@dataclass(frozen=True)
class OfTargets:
    """A job for each target."""

    jobs: Mapping[Target, Job]

    def job(self, target: Target) -> Job:
        return self.jobs[target]

    def result(self, target: Target, found: SuiteResult) -> SuiteResult:
        return found


def tuned_on(
    fleet: Fleet, jobs: Mapping[Target, Job], log: Log, progress: Any = None, say: Any = lambda text: None
) -> dict[Target, SuiteResult]:
    """What a fleet makes of jobs."""
    with Builders() as builders:
        crew = FleetCrew(fleet, [*jobs], builders, say=say)
        place = SimpleNamespace(reached=lambda: nullcontext(crew))
        return tune_jobs(OfTargets(jobs), place, log, progress)
