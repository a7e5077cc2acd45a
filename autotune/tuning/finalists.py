"""The finalists of a run: the best of the log, timed again, in turns and in several places of memory.

Those of open sizes are ranked by what they take at several (`autotune.tuning.ranking`).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from autotune import backends
from autotune.search.decisions import DECISIONS
from autotune.tuning import diagnostics
from autotune.tuning.credible import credible
from autotune.tuning.known_limits import MEMORY_BYTES
from autotune.tuning.ranking import behind, mean_s, measured, together, work_at_sizes
from autotune.tuning.run_records import FINALISTS, trace_of
from kernels_db import lookup
from kernels_db.records import Record
from schedules.model import Trace

if TYPE_CHECKING:
    from autotune.measure.results import Measurement
    from autotune.tuning.known_limits import MachineLimit
    from autotune.tuning.site import Measuring, Site
    from autotune.tuning.tally import Tally

FIELD, LUCKY = 32, 256  # finalists at first, if there were so many trials
PASSES = 6  # over finalists, until the best of the log has been timed in...
PLACES_SHARE, PLACES_S = 0.2, 1.0  # of the time so far, or seconds, the longer: what all may take
NEAR = 1.25  # a trial slower than this times the luckiest will not win
NEAR_IF_OPEN, LOOKED_AT = 2.0, 256  # the same where sizes are open, and among how many of the best
# What led before the search is timed too, up to so many times the luckiest: beside other work a time may be
# off by a factor.
DOUBTED = 3.0
MARGIN_S = 0.25  # before the deadline


# Logs a finalist by the record of its trial: the record, its trace, its measurement and facts of it.
Keep = Callable[[Record, Trace, "Measurement", Mapping[str, object]], None]


class Finalists:
    """The finalists of a run on a site. ``keep``: as of `Keep`. ``report``: is told of a phase."""

    def __init__(
        self, so_far: Tally, site: Site, limit: MachineLimit, keep: Keep, report: Callable[[str], None]
    ) -> None:
        self._run, self._so_far, self._site, self._limit = so_far.run, so_far, site, limit
        self._keep, self._report = keep, report
        backend = backends.of(self._run.target)
        self._places = backend.measuring.places
        self._warm_runs = backend.warm_runs(self._run.workload.dag, self._run.target)
        self._work = work_at_sizes(self._run.workload.dag)
        self._passes: defaultdict[str, list[Measurement]] = defaultdict(list)  # by trace digest
        self._given_up: set[str] = set()  # digests of those that lead at the largest sizes alone

    def time(self, measurer: Measuring, begin: float, until: float, each_s: float) -> None:
        """Time the best of the log again, in turns, until the best is one of these. The leaders of thousands
        of trials are the luckiest, so many are timed roughly first. Then they are timed in other places of
        memory while there is time, because pages change each candidate's time by some percent (ADR 28).

        ``begin``, ``until``: when this phase began and must be over (`time.monotonic`). ``each_s``: seconds
        that a trial takes."""
        run, so_far, places = self._run, self._so_far, self._places
        done = 0  # passes that were not rough
        lost: set[str] = set()  # digests of those of which nothing was found out, and would be next time
        for number in range(PASSES):
            most = FINALISTS if number else self._field
            looked_at = LOOKED_AT if self._work else most
            top = run.log.top_k(run.workload, run.target, looked_at + len(lost))
            top = [r for r in top if trace_of(r) and r.trace_digest not in lost][:looked_at]
            if not top or (not number and not so_far.measured and top[0].kind == "final"):
                return
            if not so_far.searched:  # nothing to compare plain loops with
                return
            timed = len(self._passes[top[0].trace_digest])
            spent, room = time.monotonic() - begin, max(PLACES_SHARE * (begin - run.started), PLACES_S)
            if timed >= places or (timed and spent * (done + 1) / done > room):
                return
            fastest = top[0].time_s or 0.0
            near = self._near(top, fastest, most)
            near = [near[0], *self._incumbents(near, fastest, lost), *near[1:]][:most]
            moving = done > 0 and places > 1
            begin_s = self._site.move_s(fastest, self._warm_runs) if moving else 0.0
            plan = self._plan(measurer, near, until - begin_s, each_s)
            if plan is None:
                return
            chosen, rounds, repeats = plan
            rough = len(chosen) > FINALISTS
            self._report("finalists")
            if moving:
                measurer.move()
            traces = [r.trace for r in chosen]
            found = measurer.finalists(traces, rounds, repeats)
            self._limit.check(min((m.time_s for m in found if m.ok and m.time_s), default=None))
            lost |= {t.digest for t, m in zip(traces, found) if m.status == "error"}
            self._log(chosen, found, rough)
            self._give_up(top)
            done += not rough
            so_far.look_up_the_best()
            diagnostics.finalists(run.workload, number + 1, chosen, so_far.best_s)
            self._report("finalists")

    def cost_s(self) -> float:
        """Seconds that they need to be timed well; places after the first mostly take half of what one
        may."""
        site, best_s = self._site, self._so_far.best_s or 0.0
        one = self._turns_s(best_s, FINALISTS, 3, 5)
        rough = self._turns_s(best_s, FIELD, 1, 3) if self._field > FINALISTS else 0.0
        return one + rough / 2 + (self._places - 1) * (one / 2 + site.move_s(best_s, 0))

    def _near(self, top: list[Record], fastest_s: float, most: int) -> list[Record]:
        """Those of the best that may win, ``most`` of them. Where sizes are open, those behind the first come
        in the order of their means over several. Where not all have one, as in an earlier version's log, half
        are the fastest of other sketches."""
        factor = NEAR_IF_OPEN if self._work else NEAR
        near = [r for r in top if (r.time_s or 0.0) <= factor * fastest_s or self._passes[r.trace_digest]]
        if not self._work:
            return near[:most]
        means = {r.uid: mean for r in near if (mean := mean_s(measured(r))) is not None}
        if len(means) == len(near):
            return [near[0], *sorted(near[1:], key=lambda r: means[r.uid])][:most]
        first = {r.sketch: r for r in reversed(near)}
        others = [r for r in near[1:] if r is first[r.sketch]][: most // 2]
        rest = [r for r in near if r not in others]
        return [rest[0], *others, *rest[1:]][:most]

    def _incumbents(self, near: list[Record], fastest_s: float, lost: set[str]) -> list[Record]:
        """What led when the run began and the fastest of its first pick, where neither is ``near`` or was
        timed: the search must not win by a time that other work has spoilt."""
        run = self._run
        timed = {digest for digest, passes in self._passes.items() if passes}
        wanted = self._so_far.incumbents - {r.trace_digest for r in near} - timed - lost
        task = (run.workload.digest, run.target.digest)
        found = [lookup.of_trace(run.log.place, *task, digest) for digest in sorted(wanted)]
        known = [r for r in found if r is not None and trace_of(r)]
        return [r for r in known if (r.time_s or 0.0) <= DOUBTED * fastest_s]

    @property
    def _field(self) -> int:
        """How many of the fastest are timed in the first pass: more after more trials."""
        return FIELD if self._so_far.measured + self._so_far.resumed >= LUCKY else FINALISTS

    def _plan(
        self, measurer: Measuring, records: list[Record], until: float, each_s: float
    ) -> tuple[list[Record], int, int] | None:
        """(finalists, rounds, repeats) that are timed by ``until``."""
        left = until - MARGIN_S - time.monotonic()
        plans = [(FINALISTS, 3, 5), (FINALISTS, 3, 3), (5, 3, 3), (3, 2, 3), (2, 2, 2)]
        if len(records) > FINALISTS:
            plans = [(FIELD, 1, 3), (FIELD // 2, 1, 3), *plans]
        for k, rounds, repeats in plans:
            chosen = records[:k]
            missing = sum(measurer.object(r.trace) is None for r in chosen)  # built and checked again
            slowest = max(r.time_s or 0.0 for r in chosen)
            cost = self._turns_s(slowest, len(chosen), rounds, repeats)
            if cost + missing * each_s <= left:
                return chosen, rounds, repeats
        return None

    def _turns_s(self, time_s: float, count: int, rounds: int, repeats: int) -> float:
        """Seconds that it takes to time so many candidates of about ``time_s``, at every size that counts."""
        each = (time_s * share for share in (1.0, *self._work))
        return sum(self._site.cost_s(s, count, rounds, repeats, self._warm_runs) for s in each)

    def _log(self, chosen: list[Record], found: list[Measurement], rough: bool) -> None:
        """Log the median of each finalist's passes, this one and earlier ones, with the times of all. Of a
        ``rough`` pass the next ones know nothing."""
        passes = {} if rough else self._passes
        timed = {r.trace_digest: credible(m, self._limit.seconds) for r, m in zip(chosen, found)}
        timed = {digest: m for digest, m in timed.items() if m.status != "error"}
        for digest, m in timed.items():
            passes.setdefault(digest, []).append(m)
        left_out = self._given_up - timed.keys()
        known = {d: together(ms) for d, ms in passes.items() if ms and d not in left_out}
        ranked = behind(known, rough)
        for r in chosen:
            if r.trace_digest in timed:
                self._write(r, ranked[r.trace_digest])

    def _give_up(self, top: list[Record]) -> None:
        """Log as slow what was no finalist, and by its trial leads at the largest sizes alone: else it would
        be the best of the log."""
        known = {d: together(ms) for d, ms in self._passes.items() if ms and d not in self._given_up}
        if not self._work or not known:
            return
        others = {r.trace_digest: measured(r) for r in top if not self._passes[r.trace_digest]}
        ranked = behind(known | others, rough=True)
        for r in top:
            if r.trace_digest in others and ranked[r.trace_digest].status == "slow":
                self._write(r, ranked[r.trace_digest])

    def _write(self, r: Record, m: Measurement) -> None:
        if m.status == "slow":
            self._given_up.add(r.trace_digest)
        kept = {k: v for k, v in r.environment.items() if k in (DECISIONS, MEMORY_BYTES)}
        self._keep(r, r.trace, m, kept)
