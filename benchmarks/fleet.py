"""What a fleet costs: candidates a second through one worker beside none, and slots that a client keeps busy.

    python benchmarks/fleet.py overhead [--shape m=256,n=256,k=256] [--rounds 7] [--batch 32] [--json FILE]
    python benchmarks/fleet.py slots [--workers 64] [--takes 1.0] [--budget 60] [--json FILE]

``overhead``: the same candidates are built, checked and timed by this process and by a worker on loopback, in
turns; given is the median of the ratios. ``slots``: workers that sleep in place of measuring, as threads of
one process beside the client's; given is the share of their time that they sleep, from when each task is
searched.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from autotune import backends
from autotune.backends.building.generator_version import generator_version, this_machine
from autotune.fleet import connection, local
from autotune.fleet.building import Builders
from autotune.fleet.members import targets_of
from autotune.fleet.serving import Bench
from autotune.fleet.site import FleetSite
from autotune.fleet.tuning import FleetCrew
from autotune.fleet.worker import BenchThreadPoolExecutor, Offer, make_worker
from autotune.measure.results import Measurement
from autotune.results.tuned import SuiteResult, SuiteTask
from autotune.run.workloads import as_workload
from autotune.tuning import preparation
from autotune.tuning.makers import Tasks
from autotune.tuning.options import TuneOptions
from autotune.tuning.site import Here, Measuring
from autotune.tuning.tuner import tune_jobs
from kernels_db.store import Log
from schedules import ops
from schedules.model import Target, Trace, Workload
from schedules.space import derive
from schedules.space.base import trace_of


def overhead(shape: str, rounds: int, batch: int) -> dict[str, Any]:
    """Candidates a second, here and through a worker."""
    workload = as_workload("matmul", ops.parse_shape(shape))
    target = backends.parse("cpu", 1)
    space = derive(workload.canonical, target)
    rng = np.random.default_rng(0)

    def some(measuring: Measuring, traces: Sequence[Trace]) -> float:
        begin = time.monotonic()
        count = sum(1 for _ in measuring.arrivals(traces, 1e-3))
        return count / (time.monotonic() - begin)

    rates: list[tuple[float, float]] = []
    with local.reached("local:1", ["cpu"], 1) as fleet:
        (machine,) = fleet.machines(target).values()
        there = FleetSite(fleet, machine).measurer(workload, target, 60.0)
        with preparation.measurer(workload, target, 60.0) as here, there:
            for number in range(rounds + 1):
                drawn = [c for s in range(len(space.sketches)) for c in _sample(space, s, batch, rng)]
                traces = [trace_of(space, drawn[i]) for i in rng.permutation(len(drawn))[:batch]]
                order = [here, there] if number % 2 else [there, here]
                found = {id(m): some(m, traces) for m in order}
                if number:  # the first starts processes
                    rates.append((found[id(here)], found[id(there)]))
    return {
        "workload": f"matmul {shape}",
        "batch": batch,
        "here": statistics.median(a for a, _ in rates),
        "worker": statistics.median(b for _, b in rates),
        "ratio": statistics.median(b / a for a, b in rates),
        "ratios": [round(b / a, 3) for a, b in rates],
    }


def _sample(space: Any, sketch: int, count: int, rng: np.random.Generator) -> Iterator[Any]:
    from schedules.space.base import Candidate

    rows = space.sample(sketch, count, rng)
    for row in rows[space.valid(sketch, rows)]:
        yield Candidate(sketch, tuple(int(x) for x in row))


class Sleeper(Here):
    """A site whose candidates take some time and no CPU. ``slept``: when, as (begin, end)."""

    def __init__(self, takes_s: float) -> None:
        self.takes_s = takes_s
        self.slept: list[tuple[float, float]] = []
        self.nominal = self.control = None
        self.waiting: Callable[[], None] | None = None
        self.begins: Callable[[int], None] | None = None

    def __enter__(self) -> Sleeper:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def check(self, target: Target) -> None:
        pass

    def roofline(self, workload: Workload, target: Target) -> Callable[[], float] | None:
        return lambda: 1e-6

    def measurer(self, *_: Any, **__: Any) -> Any:
        return self

    def arrivals(
        self,
        traces: Sequence[Trace],
        best_s: float | None = None,
        deadline: float | None = None,
        latest: float | None = None,
    ) -> Iterator[tuple[int, Measurement]]:
        for n, trace in enumerate(traces):
            if deadline is not None and time.monotonic() >= deadline:
                return
            yield n, self._sleep(trace)

    def finalists(self, traces: Sequence[Trace], rounds: int = 3, repeats: int = 5) -> list[Measurement]:
        return [self._sleep(t) for t in traces]

    def object(self, trace: Trace) -> bytes | None:
        return None

    def move(self) -> None:
        pass

    def _sleep(self, trace: Trace) -> Measurement:
        begin = time.monotonic()
        time.sleep(self.takes_s)
        self.slept.append((begin, time.monotonic()))
        time_s = 1e-3 * (1 + int(trace.digest[:4], 16) / 65536)
        return Measurement("ok", "", (time_s,), time_s, 0.0, 1.0)


def serve(address: str, workers: int, takes_s: float, out: str) -> None:
    """Be workers that sleep, until the scheduler ends; then write when they slept."""
    import asyncio

    target = Target("cpu", "sleeper", "x86_64-unknown-linux-gnu", ("avx2",), 1)
    sites = [Sleeper(takes_s) for _ in range(workers)]

    async def run() -> None:
        made = []
        for n, site in enumerate(sites):
            facts = {**this_machine(), "architecture": "x86_64", "name": f"sleeper-{n}"}
            bench = Bench([target], facts, (), generator_version(), site=site)
            offer = Offer({"sleeper": target}, f"sleeper-{n}")
            made.append(await make_worker(address, offer, BenchThreadPoolExecutor(bench), f"{n:012d}"))
        await asyncio.gather(*(w.finished() for w in made))

    connection.quiet()
    try:
        asyncio.run(run())
    finally:
        Path(out).write_text(json.dumps([s.slept for s in sites]), encoding="utf-8")
        os._exit(0)


def slots(workers: int, takes_s: float, budget_s: float) -> dict[str, Any]:
    """The share of the time of sleeping workers that they sleep, with a task for each."""
    with tempfile.TemporaryDirectory() as folder:
        result, begin, cpu_s, slept = _slept(Path(folder), workers, takes_s, budget_s)
    first = max(s[1][0] for s in slept)  # after the plain loops, when it searches
    last = begin + 0.9 * budget_s  # then come finalists
    busy = sum(max(0.0, min(b, last) - max(a, first)) for s in slept for a, b in s)
    whole = sum(max(0.0, min(b, last) - max(a, begin)) for s in slept for a, b in s)
    return {
        "workers": workers,
        "takes_s": takes_s,
        "budget_s": budget_s,
        "trials": result.measured,
        "all_searched_after_s": round(first - begin, 1),
        "busy": busy / (workers * (last - first)),
        "busy_from_the_start": whole / (workers * (last - begin)),
        "client_cpu_s_a_trial": cpu_s / max(result.measured, 1),
    }


def _slept(
    folder: Path, workers: int, takes_s: float, budget_s: float
) -> tuple[SuiteResult, float, float, list[list[tuple[float, float]]]]:
    """The result of a run, when it began, its CPU seconds here, and when each worker slept."""
    out = folder / "slept.json"
    with local.scheduler() as address:
        command = [
            sys.executable,
            str(Path(__file__).resolve()),
            "serve",
            address,
            str(workers),
            str(takes_s),
            str(out),
        ]
        process = subprocess.Popen(command)
        with local.reached(address) as fleet, Builders() as builders, Log(folder / "t.db") as log:
            while len(fleet.members()) < workers:
                time.sleep(0.2)
                fleet.look()
            shapes = [(64 * (n + 1), 32, 16) for n in range(workers)]  # whose spaces cost little to search
            tasks = [SuiteTask(ops.workload("permute", {"shape": s, "axes": (2, 0, 1)})) for s in shapes]
            goals = targets_of(fleet.members(), [])
            begin, cpu = time.monotonic(), time.process_time()
            options = TuneOptions(budget_s=budget_s, search="random", trials=10**6)  # none converges
            crew = FleetCrew(fleet, goals, builders)
            place = SimpleNamespace(reached=lambda: nullcontext(crew))
            (result,) = tune_jobs(Tasks(tasks, options), place, log).values()
            cpu_s = time.process_time() - cpu
    process.wait(30)
    # CLOCK_MONOTONIC is the same for all processes
    return result, begin, cpu_s, json.loads(out.read_text(encoding="utf-8"))


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    kinds = parser.add_subparsers(dest="kind", required=True)
    one = kinds.add_parser("overhead")
    one.add_argument("--shape", default="m=256,n=256,k=256")
    one.add_argument("--rounds", type=int, default=7)
    one.add_argument("--batch", type=int, default=32)
    two = kinds.add_parser("slots")
    two.add_argument("--workers", type=int, default=64)
    two.add_argument("--takes", type=float, default=1.0)
    two.add_argument("--budget", type=float, default=60.0)
    for p in (one, two):
        p.add_argument("--json", type=Path)
    inner = kinds.add_parser("serve")
    for name, kind in (("address", str), ("workers", int), ("takes", float), ("out", str)):
        inner.add_argument(name, type=kind)
    args = parser.parse_args()
    if args.kind == "serve":
        serve(args.address, args.workers, args.takes, args.out)
        return
    if args.kind == "overhead":
        found = overhead(args.shape, args.rounds, args.batch)
    else:
        found = slots(args.workers, args.takes, args.budget)
    found = {"machine": this_machine()} | found
    print(json.dumps({k: v for k, v in found.items() if k != "machine"}, indent=1))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
