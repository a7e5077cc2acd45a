"""Measure candidates of many tasks, the data that cost models are trained and judged on.

    python benchmarks/dataset.py ops.toml:quick --db data.db --trials 500 --search random
    python benchmarks/dataset.py ops.toml:quick --db data.db --trials 200 --search evolutionary

    python benchmarks/dataset.py ops.toml:quick --db data.db --trials 500 --search random --again 3

Tasks take turns, a round of trials each, until each has its number of trials of that search or the time is
up; started again, it goes on. Everything goes into an ordinary tuning log, which `autotune replay` reads too.

One timing of a candidate differs from the next by some percent on a machine that others use too, more than
many candidates differ from each other. ``--again`` times the same candidates until each has so many timings,
in another order each time, so that whatever passes over the machine meets other candidates.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from autotune import backends
from autotune.backends.building.generator_version import this_machine
from autotune.search import policies
from autotune.search.base import Result
from autotune.search.decisions import DECISIONS
from autotune.tuning import resume, suites
from autotune.tuning.preparation import measurer
from autotune.tuning.run_records import new_record
from kernels_db.records import Record
from kernels_db.store import Log
from schedules.model import Target, Workload
from schedules.space import derive

ROUND = 25
MOST_S = 40.0  # of one task in one go


def of_search(log: Log, workload: Workload, target: Target, search: str) -> list[Record]:
    """The trials that runs of this script with this search have made."""
    runs = {r.uid for r in log.runs(workload=workload, target=target) if r.options.get("search") == search}
    return [r for r in log.seen(workload, target) if r.run in runs and r.kind == "trial"]


def extend(log: Log, workload: Workload, target: Target, search: str, trials: int, until: float) -> int:
    """Measure up to ``trials`` trials in all; how many were new."""
    have = len(of_search(log, workload, target, search))
    if have >= trials:
        return 0
    space = derive(workload.canonical, target)
    policy = policies.create(search, space, "xgb", seed=have, target=target)
    earlier = resume.read(log, workload, target, space)
    policy.exclude(earlier.digests)
    policy.tell(earlier.results)
    until = min(until, time.monotonic() + MOST_S)
    best = log.best(workload, target)
    best_s = None if best is None else best.time_s
    new = 0
    with measurer(workload, target, 60.0) as measuring:
        run = log.start_run(workload, target, this_machine(), seed=have, options={"search": search})
        while have + new < trials and time.monotonic() < until:
            asked = policy.ask(min(ROUND, trials - have - new))
            if not asked:
                break
            traces = [space.trace(c.sketch, c.row) for c in asked]
            results: dict[int, Result] = {}
            for i, m in measuring.arrivals(traces, best_s, until):
                c = asked[i]
                facts = {DECISIONS: list(c.row)}
                log.add(new_record(run.uid, new, space.sketches[c.sketch], traces[i], m, facts))
                new += 1
                if m.status == "ok" and m.time_s is not None:
                    best_s = min(best_s or math.inf, m.time_s)
                results[i] = Result(c, resume.throughput(m.status, m.time_s))
            policy.tell([results[i] for i in sorted(results)])
        log.finish_run(run)
    return new


def repeat(log: Log, workload: Workload, target: Target, search: str, times: int, until: float) -> int:
    """Measure the candidates of a search again, each until it has ``times`` timings; how many were new. None
    is given up: one run of a slow candidate, its first, says little more than that it is slow."""
    name = f"{search} again"
    first = [r for r in of_search(log, workload, target, search) if r.time_s is not None]
    again = Counter(r.trace_digest for r in of_search(log, workload, target, name))
    due = [r for r in first for _ in range(times - 1 - again[r.trace_digest])]
    if not due:
        return 0
    due = [due[i] for i in np.random.default_rng(len(due)).permutation(len(due))]
    new = 0
    with measurer(workload, target, 60.0) as measuring:
        run = log.start_run(workload, target, this_machine(), seed=0, options={"search": name})
        for begin in range(0, len(due), ROUND):
            asked = due[begin : begin + ROUND]
            traces = [r.trace for r in asked]
            for i, m in measuring.arrivals(traces, None, until):
                r = asked[i]
                facts = {DECISIONS: r.environment[DECISIONS]}
                log.add(new_record(run.uid, new, r.sketch, r.trace, m, facts))
                new += 1
            if time.monotonic() >= until:
                break
        log.finish_run(run)
    return new


def without_avx512(host: Target) -> Target:
    """AVX2 code beside this CPU's caches."""
    narrow = backends.parse("x86-64-v3", host.threads)
    widths = {name: narrow.limit(name) for name in ("vector_bytes", "vector_registers")}
    return replace(narrow, limits=tuple(sorted({**dict(host.limits), **widths}.items())))


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("suite", help="FILE[:NAME]")
    parser.add_argument("--db", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=500, help="of each task, of this search")
    parser.add_argument("--search", default="random")
    parser.add_argument("--again", type=int, default=1, help="timings of each of these")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--avx2", action="store_true", help="code for this CPU as if it had no AVX-512")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so many")
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    target = backends.parse("cpu", options.threads)
    if options.avx2:
        target = without_avx512(target)
    with Log(options.db) as log:
        for times in range(1, options.again + 1):
            for task in suites.read(options.suite):
                if time.monotonic() >= until - 3:
                    return
                begin = time.monotonic()
                w = task.workload
                if times == 1:
                    new = extend(log, w, target, options.search, options.trials, until)
                else:
                    new = repeat(log, w, target, options.search, times, until)
                if new:
                    took = time.monotonic() - begin
                    print(f"{w.op} {dict(w.params)}: {new} in {took:.1f} s", flush=True)


if __name__ == "__main__":
    main()
