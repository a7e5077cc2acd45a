"""Candidates that need no search: those of a first pick, and the plain loops.

Every run of a task without a kernel begins with a first pick (ADR 65). The plain loops come after it. Both
come again where nothing was right.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from autotune.search.base import Result
from autotune.search.decisions import DECISIONS
from autotune.tuning import first_pick, plain_loops
from autotune.tuning.plain_loops import PlainLoops
from schedules.space.base import trace_of as schedule_of

if TYPE_CHECKING:
    from autotune.tuning.session import Session
    from autotune.tuning.site import Measuring

# A run that found nothing goes on for this share of its budget, and for so many seconds from its start at
# least.
OVER_SHARE, LEAST_S = 0.1, 5.0


class Fallbacks:
    """Those of a `Session`. ``picked``: results of first picks. ``rescued``: whether what most likely gives
    a kernel was tried, as nothing was right. ``plain``: when to try the plain loops, known after `prepare`;
    ``tried_plain``: trials of them."""

    plain: PlainLoops

    def __init__(self, session: Session) -> None:
        self._session = session
        self.picked: list[Result] = []
        self.rescued, self.tried_plain = False, 0
        self._begun = False

    def prepare(self) -> None:
        """Once earlier runs are read."""
        run = self._session
        known = plain_loops.TRACE.digest in run.earlier.digests
        self.plain = PlainLoops(run.workload, run.target, known)

    def begin(self, measurer: Measuring, latest: float | None = None) -> bool:
        """Try the candidates of a first pick, once, where nothing is known but the plain loops. Returns
        whether it did. ``latest``: when it must be over."""
        run = self._session
        due = run.options.begins_at_once and not (run.so_far.searched or self._begun)
        if due:
            self._begun = True
            if run.options.trials != 0 and not run.options.short:
                run.measure_limit()
            self.pick(measurer, latest)
        if run.options.trials == 0 or not run.trials_left:
            run.stopped = "trials"
        return due

    def pick(self, measurer: Measuring, latest: float | None = None) -> None:
        """Try the candidates of a first pick, until one is right and the budget is used up, and the plain
        loops if they are quick and may win. ``latest``: when all must be over."""
        run = self._session
        run.report("measuring")
        with run.so_far.timed("first pick"):
            both = run.options.share_s is not None  # other tasks of the run are in the log
            proposed = first_pick.proposals(run.workload, run.target, run.space, run.log.place, both)
            known = run.earlier.digests | run.so_far.tried
            proposed = [p for p in proposed if schedule_of(run.space, p.candidate).digest not in known]
            if run.options.trials:
                proposed = proposed[: run.options.trials - run.so_far.measured]
            traces = [schedule_of(run.space, p.candidate) for p in proposed]
            until = time.monotonic() + first_pick.LIMIT_S - first_pick.MARGIN_S
            if run.options.trials:  # a seed then repeats a run
                until = max(until, run.until)
            grace_s = first_pick.grace_s(run.workload)
            if latest is not None:
                until = min(until, latest)
                grace_s = max(0.0, min(grace_s, latest - until))
                put_off = latest
            elif run.options.trials == 0:
                put_off = run.started + first_pick.LATEST_S
            else:
                put_off = run.until
                grace_s = max(0.0, min(grace_s, self._end - until))
            # where a log has a kernel, loading makes no first pick
            enough = first_pick.ENOUGH if both or run.options.trials == 0 else 1
            race = first_pick.race(measurer, traces, until, grace_s, latest=put_off, enough=enough)
            with contextlib.closing(race) as arrivals:
                for i, m in arrivals:
                    candidate = proposed[i].candidate
                    facts = {DECISIONS: list(candidate.row), "chosen_by": proposed[i].chosen_by}
                    reached = run.take(m, run.space.sketches[candidate.sketch], traces[i], facts)
                    self.picked.append(Result(candidate, reached, m.facts))
                    right = sum(r.throughput > 0 for r in self.picked)
                    if right >= enough and time.monotonic() > min(until, run.until):
                        break
        if self.picked:
            fastest = max(self.picked, key=lambda r: r.throughput)
            run.so_far.incumbents.add(schedule_of(run.space, fastest.candidate).digest)
        left = run.trials_left or run.options.trials == 0
        time_left = run.so_far.best_s is None or time.monotonic() < run.until
        if left and time_left and self.plain.worth(run.so_far.best_s):
            self.try_plain_loops(measurer, until)

    @property
    def _end(self) -> float:
        """When the run gives up, if it found nothing."""
        run = self._session
        return max(run.until + OVER_SHARE * (run.until - run.started), run.started + LEAST_S)

    def rescue(self, measurer: Measuring, until: float = 0.0) -> None:
        """Try what most likely gives a kernel, once, as nothing was right so far: plain loops if they are
        quick, the candidates of a first pick, any plain loops. ``until``: when it must be over; quick plain
        loops have some time in any case."""
        run = self._session
        if self.rescued or not run.trials_left:
            return
        self.rescued = True
        now = time.monotonic()
        if self.plain.pending and self.plain.quick:
            self.try_plain_loops(measurer, max(until, self._end))
        if run.so_far.best_s is not None or now >= until or not run.trials_left:
            return
        told = len(self.picked)
        self.pick(measurer, until)
        run.tell(self.picked[told:])

    def try_plain_loops(self, measurer: Measuring, until: float) -> bool:
        """Make a trial of the plain loops. Returns whether there was time for it."""
        run = self._session
        run.report("measuring")
        with run.so_far.timed("plain loops"):
            for _, m in measurer.arrivals([plain_loops.TRACE], run.so_far.best_s, until):
                self.plain.pending, self.tried_plain = False, 1
                run.take(m, plain_loops.SKETCH, plain_loops.TRACE, {})
        return not self.plain.pending

    def last_resorts(self, measurer: Measuring) -> None:
        """What is tried before the finalists: where nothing was right, what most likely is; and plain loops
        that may win."""
        run = self._session
        if run.so_far.best_s is None:
            self.rescue(measurer, run.until)
        if self.plain.in_reach(run.so_far.best_s) and run.trials_left:
            least = self._end if run.so_far.best_s is None and self.plain.quick else 0.0
            self.try_plain_loops(measurer, max(run.until, least))
