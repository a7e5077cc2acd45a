"""What a run of a task is asked for, and what it has found and spent so far."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autotune.results.tuned import Progress
from autotune.tuning import plain_loops, resume
from autotune.tuning.interrupts import Interrupts
from autotune.tuning.options import TuneOptions
from autotune.tuning.run_records import searched
from schedules.model import Target, Trace, Workload

if TYPE_CHECKING:
    from autotune.measure.results import Measurement
    from kernels_db.store import Log


@dataclass(frozen=True)
class TaskRun:
    """``started``, ``until``: when its budget began and when it ends, finalists included (`time.monotonic`).
    ``round_s``: longest round (seconds), so that results come soon."""

    workload: Workload
    target: Target
    log: Log
    options: TuneOptions
    progress: Callable[[Progress], None] | None
    interrupts: Interrupts
    started: float
    until: float
    round_s: float


@dataclass
class Tally:
    """``best_s``: seconds of the best, which is ``provisional`` until it was timed again. ``searched``:
    whether there is a kernel that is not the plain loops. ``incumbents``: digests of traces that are timed
    beside the finalists. ``tried``: digests of this run's trials. ``stopped_early``: trials that were too
    slow to be timed to the end. ``reasons``: the last one of each status. ``throttled``: {reason: trials
    beside which the device ran slower}. ``spent``: seconds by phase. ``pairwise``: share of pairs that the
    model ordered rightly in the last round."""

    run: TaskRun
    best_s: float | None = None
    provisional: bool = False
    searched: bool = False
    incumbents: set[str] = field(default_factory=set)
    measured: int = 0
    resumed: int = 0
    rounds: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    stopped_early: int = 0
    reasons: dict[str, str] = field(default_factory=dict)
    throttled: Counter[str] = field(default_factory=Counter)
    spent: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    pairwise: float | None = None
    tried: set[str] = field(default_factory=set)

    def add(self, m: Measurement, trace: Trace) -> float:
        """Count a trial. Returns its throughput (runs a second)."""
        self.tried.add(trace.digest)
        self.measured += 1
        for phase, seconds in (("build", m.build_s), ("check", m.check_s), ("run", m.run_s)):
            self.spent[phase] += seconds
        if m.status == "ok" and m.time_s is not None:
            if self.best_s is None or m.time_s < self.best_s:
                self.best_s, self.provisional = m.time_s, True
            self.searched = self.searched or trace != plain_loops.TRACE
        elif m.status == "slow":
            self.stopped_early += 1
        else:
            self.failed[m.status] += 1
            self.reasons[m.status] = m.reason
        self.throttled.update(m.facts.get("throttled", ()))
        return resume.throughput(m.status, m.time_s)

    def look_up_the_best(self) -> None:
        """Take the best of the log as that of this run, as it was timed last."""
        run = self.run
        best = run.log.best(run.workload, run.target)
        if best is not None:
            self.best_s, self.provisional = best.time_s, best.kind != "final"
            self.searched = searched(run.workload, run.target, run.log)

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """A context manager that adds its wall time to a phase."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self.spent[phase] += time.monotonic() - begin

    @property
    def trials_left(self) -> bool:
        """Whether there may be more trials."""
        return self.run.options.trials is None or self.measured < self.run.options.trials

    def progress(self, phase: str, share: float | None, peak_of: str | None = None) -> Progress:
        """Where the run stands. ``share``: of the machine's limit, that the best reaches. ``peak_of``: the
        instruction whose peak that is."""
        run = self.run
        return Progress(
            phase=phase,
            measured=self.measured,
            failed=dict(self.failed),
            stopped_early=self.stopped_early,
            resumed=self.resumed,
            best_time_s=self.best_s,
            provisional=self.provisional,
            best_gflops=None if self.best_s is None else run.workload.flops / self.best_s / 1e9,
            share_of_peak=share,
            elapsed_s=time.monotonic() - run.started,
            budget_s=run.until - run.started,
            trials=run.options.trials,
            pairwise=self.pairwise,
            peak_of=peak_of,
        )

    def counts(self) -> dict[str, Any]:
        """The fields of a result that are of trials and seconds."""
        return {
            "measured": self.measured,
            "failed": dict(sorted(self.failed.items())),
            "stopped_early": self.stopped_early,
            "throttled": dict(sorted(self.throttled.items())),
            "resumed": self.resumed,
            "spent_s": dict(self.spent),
        }
