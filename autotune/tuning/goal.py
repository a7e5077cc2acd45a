"""Whether the kernels of a run reach what ``until`` asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.results.aim import Aim, Aimed
from autotune.results.tuned import SuiteTask
from autotune.tuning.jobs import Job
from autotune.tuning.known_limits import LIMIT
from autotune.tuning.run_records import FINALISTS, searched
from schedules.model import Target, Workload

if TYPE_CHECKING:
    from autotune.tuning.session import Session
    from kernels_db.store import Log

# Share of a run's time that timing provisional times again may take, beyond the first time.
CONFIRM_SHARE = 0.25


@dataclass(frozen=True)
class Known:
    """What is known of a task: the seconds of its best kernel, which is not the plain loops, and those of the
    machine's limit. ``provisional``: whether that kernel was timed once only."""

    time_s: float | None
    limit_s: float | None
    provisional: bool

    @classmethod
    def of(cls, workload: Workload, target: Target, log: Log) -> Known:
        """What a log has."""
        if not searched(workload, target, log):
            return cls(None, None, False)
        top = log.top_k(workload, target, FINALISTS)
        told = [r.environment.get(LIMIT) for r in top]
        limits = [x["seconds"] for x in told if isinstance(x, Mapping) and "seconds" in x]
        return cls(top[0].time_s, min(limits, default=None), top[0].kind != "final")


class Goal:
    """The aim of a job. ``met``: whether it was found to be reached. ``spent_s``: seconds that timing again
    took."""

    def __init__(self, aim: Aim, job: Job, target: Target, log: Log) -> None:
        self.aim, self.job = aim, job
        self._before = {t.workload.digest: Known.of(t.workload, target, log) for t in job.tasks}
        self.met = False
        self.spent_s = 0.0
        self._known: tuple[object, tuple[float | None, float | None]] | None = None

    def needs_limit(self, session: Session) -> bool:
        """Whether the machine's limit must be measured for a task that has a kernel."""
        return self.aim.share is not None and session.so_far.searched and session.limit.measure is None

    def aimed(self, sessions: Mapping[int, Session]) -> Aimed:
        """Where a run stands. Tasks without a kernel but their plain loops have none."""
        found = dict(self._before)
        for s in sessions.values():
            if s.prepared:
                digest = s.run.workload.digest
                limit_s = s.peak_s if s.limit.measure is not None else found[digest].limit_s
                time_s = s.so_far.best_s if s.so_far.searched else None
                found[digest] = Known(time_s, limit_s, s.so_far.provisional)
        times = {digest: k.time_s for digest, k in found.items() if k.time_s is not None}
        limits = {digest: k.limit_s for digest, k in found.items() if k.limit_s is not None}
        if self._known is None or self._known[0] != (times, limits):
            whole = self.job.whole or _Weighted(self.job.tasks)
            self._known = (times, limits), whole(times, limits)
        time_s, share = self._known[1]
        return Aimed(self.aim, time_s, share, any(k.provisional for k in found.values()))


class _Weighted:
    """Σ weight · time of all tasks, and the share of Σ weight · limit that it reaches."""

    def __init__(self, tasks: Sequence[SuiteTask]) -> None:
        self.tasks = tasks

    def __call__(
        self, times: Mapping[str, float], limits: Mapping[str, float]
    ) -> tuple[float | None, float | None]:
        return whole({t.workload.digest: t.weight for t in self.tasks}, times, limits)


def whole(
    counts: Mapping[str, float], times: Mapping[str, float], limits: Mapping[str, float]
) -> tuple[float | None, float | None]:
    """(Σ count · time, the share of Σ count · limit that it reaches), of tasks by digest. None where one is
    not known."""
    if not counts.keys() <= times.keys():
        return None, None
    time_s = sum(n * times[digest] for digest, n in counts.items())
    if not counts.keys() <= limits.keys() or time_s <= 0:
        return time_s, None
    return time_s, sum(n * limits[digest] for digest, n in counts.items()) / time_s
