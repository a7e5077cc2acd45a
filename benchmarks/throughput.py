"""How many candidates a second are built, checked and timed, and where the CPU time of each goes.

    python benchmarks/throughput.py [--op matmul] [--shape m=512,n=512,k=512] [--threads 1] [--json FILE]

One tuning with an empty log. Between its first round and its finalists the CPU seconds of its processes are
counted (Linux: from /proc): those that build, the one that checks and times, and this one, whose threads
search (choose, train, import xgboost) but the first, which hands out work and keeps the log. Other users of
the machine lengthen the clock, hardly CPU time: ``on idle CPUs`` is what it allows. Then some of the trials
are built again here, part by part, the least of three times each.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from suite import commit  # noqa: E402

from autotune import targets  # noqa: E402
from autotune.backends.building import from_trace  # noqa: E402
from autotune.backends.building.generator_version import this_machine  # noqa: E402
from autotune.codegen.llvm import compile as llvm  # noqa: E402
from autotune.measure import Measurer  # noqa: E402
from autotune.results.tuned import Progress  # noqa: E402
from autotune.run.workloads import as_workload  # noqa: E402
from autotune.tuning import preparation  # noqa: E402
from autotune.tuning.makers import OneTask  # noqa: E402
from autotune.tuning.options import TuneOptions  # noqa: E402
from autotune.tuning.site import Here  # noqa: E402
from autotune.tuning.tuner import OneMachine, tune_jobs  # noqa: E402
from kernels_db.store import Log  # noqa: E402
from schedules import ops  # noqa: E402
from schedules.model import Target, Trace, Workload  # noqa: E402
from schedules.passes.lower import lower  # noqa: E402
from schedules.schedule import Schedule  # noqa: E402

TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
AGAIN = 48  # trials that are built again


class Counted(Here):
    """This machine. ``made``: its measurer."""

    made: Measurer

    def measurer(self, *args: Any, **more: Any) -> Any:
        self.made = preparation.measurer(*args, **more)
        return self.made


class Account:
    """CPU seconds of a tuning's processes, asked for whenever it reports. Builders and workers are replaced
    now and then, so what each had last is kept."""

    def __init__(self, site: Counted) -> None:
        self._site = site
        self._seen: dict[str, dict[int, float]] = {"build": {}, "measure": {}}
        self.first: dict[str, float] | None = None  # when the first round began
        self.last: dict[str, float] = {}
        self.trials = 0

    def __call__(self, report: Progress) -> None:
        if report.phase == "searching" and self.first is None:
            self.first = self._now()
        elif report.phase in ("searching", "measuring"):
            self.last, self.trials = self._now(), report.measured

    def _now(self) -> dict[str, float]:
        measurer = self._site.made
        slots = [("build", b) for b in measurer.builders] + [("measure", measurer.runner)]
        for role, slot in slots:
            if slot.child is not None:
                self._seen[role][slot.child.pid] = _cpu_s(slot.child.pid)
        return {
            "clock": time.monotonic(),
            "search": time.process_time() - time.thread_time(),
            "log": time.thread_time(),
            **{role: sum(seconds.values()) for role, seconds in self._seen.items()},
        }

    def spent(self) -> dict[str, float]:
        assert self.first is not None
        return {k: self.last[k] - v for k, v in self.first.items()}


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def parts(workload: Workload, target: Target, traces: list[Trace]) -> dict[str, float]:
    """Milliseconds of CPU that each part of building takes a candidate."""
    total: defaultdict[str, float] = defaultdict(float)
    for trace in traces:
        least: dict[str, float] = {}

        def timed(name: str, work: Callable[[], Any], least: dict[str, float] = least) -> Any:
            start = time.thread_time()
            result = work()
            least[name] = min(least.get(name, float("inf")), time.thread_time() - start)
            return result

        for _ in range(3):
            s = timed("replay", lambda t=trace: Schedule.replay(workload.canonical, t, target))
            func = timed("lower", lambda s=s: lower(s.nest))
            module = timed("emit", lambda f=func: from_trace.module_of(f, target))
            timed("llvm", lambda m=module: llvm.compile_module(m.text, target))
        for name, seconds in least.items():
            total[name] += 1e3 * seconds / len(traces)
    return dict(total)


def run(workload: Workload, target: Target, budget_s: float, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, Log(str(Path(folder) / "tuning.db")) as log:
        site = Counted()
        account = Account(site)
        options = TuneOptions(budget_s=budget_s, seed=seed)
        place = OneMachine(target, site)
        result = tune_jobs(OneTask(workload, options), place, log, lambda p: account(p.task))[target]
        records = [r for r in log.records(workload=workload, target=target) if r.kind == "trial"]
    spent, trials = account.spent(), account.trials
    each = {f"{k}_ms": 1e3 * spent[k] / trials for k in ("build", "measure", "search", "log")}
    whole = sum(each.values())
    chosen = [r.trace for r in records[:: max(1, len(records) // AGAIN)]]
    return {
        "trials": trials,
        "best_ms": None if result.best is None else 1e3 * result.best.time_s,
        "candidates_a_second": trials / spent["clock"],
        "on_idle_cpus": targets.usable_cpus() / (1e-3 * whole),
        "cpu_ms_a_candidate": whole,
        **each,
        "search_share": each["search_ms"] / whole,
        "building_ms": parts(workload, target, chosen),
    }


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    p = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    p.add_argument("--op", default="matmul")
    p.add_argument("--shape", default="m=512,n=512,k=512")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--budget", type=float, default=60.0, help="seconds")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--json", type=Path)
    args = p.parse_args()
    workload = as_workload(args.op, ops.parse_shape(args.shape))
    found = run(workload, targets.detect(args.threads), args.budget, args.seed)
    for name, value in found.items():
        shown = value if not isinstance(value, dict) else {k: round(v, 1) for k, v in value.items()}
        print(f"{name:20} {shown:.4g}" if isinstance(shown, float) else f"{name:20} {shown}")
    if args.json:
        command = "python benchmarks/throughput.py " + shlex.join(sys.argv[1:])
        facts = {"machine": this_machine(), "command": command, "commit": commit()}
        args.json.write_text(json.dumps(facts | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
