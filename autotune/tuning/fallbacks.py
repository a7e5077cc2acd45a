"""Candidates that need no search: those of a first pick, and the plain loops.

Every run of a task without a kernel begins with a first pick (ADR 65). The plain loops come after it. Both
come again where nothing was right.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from autotune.search.base import Result
from autotune.search.decisions import DECISIONS
from autotune.tuning import first_pick, plain_loops
from autotune.tuning.allowed import Allows
from autotune.tuning.plain_loops import PlainLoops
from schedules.model import Trace
from schedules.space.base import trace_of as schedule_of

if TYPE_CHECKING:
    from autotune.measure.results import Measurement
    from autotune.tuning.site import Measuring
    from autotune.tuning.tally import Tally
    from schedules.space.base import Space

# A run that found nothing goes on for this share of its budget, and for so many seconds from its start at
# least.
OVER_SHARE, LEAST_S = 0.1, 5.0


# Logs and counts a trial: a measurement, its sketch, its trace and facts of it. Gives its throughput.
Take = Callable[["Measurement", str, Trace, Mapping[str, object]], float]


class Fallbacks:
    """Those of a run whose earlier trials had the traces ``known`` (digests). ``report``: is told of a phase.
    ``allows``: schedules that it refuses are not tried. ``picked``: results of first picks; ``begun``:
    whether there was one. ``rescued``: whether what most likely gives a kernel was tried, as nothing was
    right. ``plain``: when to try the plain loops; ``tried_plain``: trials of them."""

    def __init__(
        self,
        so_far: Tally,
        space: Space,
        known: frozenset[str],
        take: Take,
        report: Callable[[str], None],
        allows: Allows,
    ) -> None:
        self._run, self._so_far, self._space, self._known = so_far.run, so_far, space, known
        self._take, self._report, self._allows = take, report, allows
        self.picked: list[Result] = []
        self.begun = self.rescued = False
        self.tried_plain = 0
        run = self._run
        self.plain = PlainLoops(
            run.workload, run.target, plain_loops.TRACE.digest in known or not allows(plain_loops.TRACE)
        )

    def pick(self, measurer: Measuring, latest: float | None = None) -> None:
        """Try the candidates of a first pick, until one is right and the budget is used up, and the plain
        loops if they are quick and may win. ``latest``: when all must be over."""
        run, so_far, space, trials = self._run, self._so_far, self._space, self._run.options.trials
        self.begun = True
        self._report("measuring")
        with so_far.timed("first pick"):
            both = run.options.share_s is not None  # other tasks of the run are in the log
            proposed = first_pick.proposals(run.workload, run.target, space, run.log.place, both)
            known = self._known | so_far.tried
            made = [(p, schedule_of(space, p.candidate)) for p in proposed]
            proposed = [p for p, trace in made if trace.digest not in known and self._allows(trace)]
            if trials:
                proposed = proposed[: trials - so_far.measured]
            traces = [schedule_of(space, p.candidate) for p in proposed]
            until = time.monotonic() + first_pick.LIMIT_S - first_pick.MARGIN_S
            if trials:  # a seed then repeats a run
                until = max(until, run.until)
            grace_s = first_pick.grace_s(run.workload)
            if latest is not None:
                until = min(until, latest)
                grace_s = max(0.0, min(grace_s, latest - until))
                put_off = latest
            elif trials == 0:
                put_off = run.started + first_pick.LATEST_S
            else:
                put_off = run.until
                grace_s = max(0.0, min(grace_s, self._end - until))
            # where a log has a kernel, loading makes no first pick
            enough = first_pick.ENOUGH if both or trials == 0 else 1
            race = first_pick.race(measurer, traces, until, grace_s, latest=put_off, enough=enough)
            with contextlib.closing(race) as arrivals:
                for i, m in arrivals:
                    candidate = proposed[i].candidate
                    facts = {DECISIONS: list(candidate.row), "chosen_by": proposed[i].chosen_by}
                    reached = self._take(m, space.sketches[candidate.sketch], traces[i], facts)
                    self.picked.append(Result(candidate, reached, m.facts))
                    right = sum(r.throughput > 0 for r in self.picked)
                    if right >= enough and time.monotonic() > min(until, run.until):
                        break
        if self.picked:
            fastest = max(self.picked, key=lambda r: r.throughput)
            so_far.incumbents.add(schedule_of(space, fastest.candidate).digest)
        left = so_far.trials_left or trials == 0
        time_left = so_far.best_s is None or time.monotonic() < run.until
        if left and time_left and self.plain.worth(so_far.best_s):
            self.try_plain_loops(measurer, until)

    @property
    def _end(self) -> float:
        """When the run gives up, if it found nothing."""
        run = self._run
        return max(run.until + OVER_SHARE * (run.until - run.started), run.started + LEAST_S)

    def rescue(self, measurer: Measuring, until: float = 0.0) -> None:
        """Try what most likely gives a kernel, once, as nothing was right so far: plain loops if they are
        quick, the candidates of a first pick, any plain loops. ``until``: when it must be over; quick plain
        loops have some time in any case."""
        so_far = self._so_far
        if self.rescued or not so_far.trials_left:
            return
        self.rescued = True
        now = time.monotonic()
        if self.plain.pending and self.plain.quick:
            self.try_plain_loops(measurer, max(until, self._end))
        if so_far.best_s is None and now < until and so_far.trials_left:
            self.pick(measurer, until)

    def try_plain_loops(self, measurer: Measuring, until: float) -> bool:
        """Make a trial of the plain loops. Returns whether there was time for it."""
        self._report("measuring")
        with self._so_far.timed("plain loops"):
            for _, m in measurer.arrivals([plain_loops.TRACE], self._so_far.best_s, until):
                self.plain.pending, self.tried_plain = False, 1
                self._take(m, plain_loops.SKETCH, plain_loops.TRACE, {})
        return not self.plain.pending

    def last_resorts(self, measurer: Measuring, until: float) -> None:
        """What is tried before the finalists: where nothing was right, what most likely is; and plain loops
        that may win."""
        so_far = self._so_far
        if so_far.best_s is None:
            self.rescue(measurer, until)
        if self.plain.in_reach(so_far.best_s) and so_far.trials_left:
            least = self._end if so_far.best_s is None and self.plain.quick else 0.0
            self.try_plain_loops(measurer, max(until, least))
