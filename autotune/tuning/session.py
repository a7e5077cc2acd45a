"""One run of one task: its space, its search, its rounds of trials and its finalists.

`autotune.tuning.suite` gives sessions their turns.
They give the times at which something must stop, in `time.monotonic` seconds.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, cast

from autotune.results.tuned import TuneResult
from autotune.search import policies
from autotune.search.ahead import AskAhead
from autotune.search.base import Result, SearchPolicy
from autotune.search.decisions import DECISIONS
from autotune.search.seeded import Seeded
from autotune.search.stopping import Stopping
from autotune.tuning import diagnostics, neighbours, no_kernel, plain_loops, resume
from autotune.tuning.allowed import Allows
from autotune.tuning.credible import credible
from autotune.tuning.fallbacks import Fallbacks
from autotune.tuning.finalists import Finalists
from autotune.tuning.known_limits import MachineLimit, moved
from autotune.tuning.notes import notes, small
from autotune.tuning.prediction_quality import PREDICTED
from autotune.tuning.run_records import FINALISTS, best_of, new_record, run_options, searched, trace_of
from autotune.tuning.similar import seeds
from autotune.tuning.site import HERE, Measuring, Site
from autotune.tuning.tally import Tally, TaskRun
from cost_model.metrics import pairwise_accuracy
from kernels_db.records import NewRecord, Record
from schedules.errors import AutotuneError
from schedules.model import Trace
from schedules.schedule import Schedule
from schedules.space.base import Candidate, Space
from schedules.space.base import trace_of as schedule_of

if TYPE_CHECKING:
    from autotune.measure.results import Measurement
    from autotune.search.llm import Proposing
    from cost_model.dataset import Dataset

# Trials a round: in the first, at least, at most.
FIRST_BATCH, SMALLEST_BATCH, LARGEST_BATCH = 16, 4, 128
SEEDS = 6  # of the first round: candidates of similar tasks
SEARCH_SHARE = 0.1  # of the time: batches grow while choosing them costs more
ROUND_SHARE = 0.1  # of the budget: batches shrink so that results come back sooner
RESERVE_SHARE = 0.1  # of the budget, for the finalists
DERIVE_SHARE = 0.2  # of the budget: a space that takes longer to derive has fewer sketches
# Longest first round while nothing was right, in rounds: then comes a first pick.
FRUITLESS = 4
# Duration of a round without any result after which its candidate is dropped (seconds).
HANGS_S = 1.0


class Chosen(NamedTuple):
    """Candidates to measure, what models predict of them (`SearchPolicy.predicted`), and the seconds that
    choosing one took."""

    candidates: list[Candidate]
    predicted: Mapping[str, Sequence[float]]
    search_s: float


class Session:
    """The state of one run of a task. A context manager that closes the run in the log. ``site``: the machine
    that measures."""

    fallbacks: Fallbacks  # known after `prepare`

    def __init__(self, run: TaskRun, site: Site = HERE) -> None:
        self.run, self.options = run, run.options
        self.stopped: str | None = None  # what ended the search for good
        self.so_far = Tally(run)
        self._left: Chosen | None = None  # cut off by a deadline; the search will not propose them again
        self._batch_size = FIRST_BATCH
        self.prepared = self._begun = False
        self._few: int | None = None  # configurations of a small space
        self._expectation = Stopping()
        self._llm: Proposing | None = None
        self._stack = contextlib.ExitStack()
        self._at(site)

    def _at(self, site: Site) -> None:
        """Be on a machine from now on."""
        self.site, self.spare, self.limit = site, site.spare(self.run.target), MachineLimit()
        self.finals = Finalists(self.so_far, site, self.limit, self._keep_final, self.report)

    def __enter__(self) -> Session:
        self._start()
        return self

    def _start(self) -> None:
        run, options = self.run, run_options(self.options)
        started = run.log.start_run(
            run.workload, run.target, self.site.machine(), seed=self.options.seed, options=options
        )
        self.uid = started.uid

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not issubclass(kind, KeyboardInterrupt):
            state = "failed"
        else:
            # a task among others that had a first pick and no more had a part of its share
            part = self.options.share_s is not None and not self._begun and self.stopped is None
            cut_off = part or kind is not None or self.stopped in ("interrupted", "reached")
            state = "interrupted" if cut_off else "done"
        try:
            self._stack.close()
        finally:
            with self.run.interrupts.hold():
                self.run.log.finish_run(self.uid, state)

    # -- phases ------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Derive the space and read earlier runs."""
        from autotune.search.columns import compile_columns
        from schedules.space import derive

        run, begin = self.run, time.monotonic()
        until = begin + DERIVE_SHARE * (self.options.share_s or self.options.budget_s)
        timed = self.options.trials is None  # else a seed repeats a run
        self.space: Space = derive(
            run.workload.canonical, run.target, compile_columns, lambda: timed and time.monotonic() > until
        )
        derived_s, space = time.monotonic() - begin, self.space
        self._few = small(space)
        tolerant = self.options.tolerance is not None
        self.earlier = resume.read(run.log, run.workload, run.target, space, tolerant=tolerant)
        self.so_far.resumed = self.earlier.trials
        self.allows = Allows(run.workload, run.target, self.options.in_place)
        self.earlier = self.allows.learnt(self.earlier, space)
        told = self.take, self.report, self.allows
        self.fallbacks = Fallbacks(self.so_far, space, self.earlier.digests, *told)
        self.so_far.look_up_the_best()
        if self.so_far.best_s:
            self.so_far.incumbents.add(run.log.top_k(run.workload, run.target, 1)[0].trace_digest)
            self._expectation.begin(1.0 / self.so_far.best_s)
        self._batch_size = max(FIRST_BATCH, min(len(space.sketches), LARGEST_BATCH))
        diagnostics.prepared(run.workload, space, self._few, derived_s, self.earlier, self.so_far.best_s)
        self.prepared = True

    def relocate(self, site: Site, measurer: Measuring) -> None:
        """Go on on another machine, as a run of its own. The best so far is measured there first, because
        times of two machines do not compare."""
        self.run.log.finish_run(self.uid, "interrupted")  # it had a part of its share
        self._at(site)
        self._start()
        if self._begun:
            self.measure_limit()
        run = self.run
        top = run.log.top_k(run.workload, run.target, FINALISTS)
        best = next((r for r in top if trace_of(r)), None)
        if best is None or not self.so_far.trials_left:
            return
        self.so_far.best_s = None
        for _, m in measurer.arrivals([best.trace], None, run.until):
            kept = {k: v for k, v in best.environment.items() if k == DECISIONS}
            self.take(m, best.sketch, best.trace, kept)

    def _begin_search(self) -> None:
        """Measure the limit, and tell a search what earlier runs found."""
        if self.peak_s is None:
            self.measure_limit()
        run, options, space = self.run, self.options, self.space
        policy = self._policy(neighbours.neighbours(run.log, run.workload, run.target, space, options))
        similar = seeds(run.workload, run.target, space, run.log.place, SEEDS)
        similar = [s for s in similar if self.allows(schedule_of(space, s.candidate))]
        policy = Seeded(policy, space, [s.candidate for s in similar])
        diagnostics.searching(run.workload, options, len(similar), self.peak_s)
        told = self.fallbacks.picked
        picked = [schedule_of(space, r.candidate).digest for r in told]
        policy.exclude({*self.earlier.digests, *picked, plain_loops.TRACE.digest})
        policy.tell([*self.earlier.results, *told])
        self._search = self._stack.enter_context(AskAhead(policy))
        self._begun = True

    def _policy(self, near: Dataset | None) -> SearchPolicy:
        """A fresh search. What proposes beside it is told the expression, in canonical names."""
        run, options, named = self.run, self.options, self.options.search
        text = str(Schedule(run.workload.canonical)) if policies.POLICIES[named].proposed_to else None
        made = policies.create(named, self.space, options.guide, options.seed, near, run.target, text)
        if text is not None:
            self._llm = cast("Proposing", made)
            self._stack.callback(self._llm.close)
        return made

    def measure_limit(self) -> None:
        """Measure the machine's limit, or measure it again."""
        if self.limit.measure is None:
            self.limit.measure = self.site.roofline(self.run.workload, self.run.target)
        self.limit.sample()

    def _news(self) -> dict[str, object]:
        """What was measured of the machine's limit since the last record, and what a language model said, as
        a part of an environment."""
        said = {} if self._llm is None else self._llm.exchanges()
        return {**self.limit.news(), **said}

    @property
    def peak_s(self) -> float | None:
        """The machine's limit (seconds), as far as it is known."""
        return self.limit.seconds

    @property
    def converged(self) -> bool:
        """Whether no further gain is expected. Never if the user gave a number of trials."""
        return self.options.trials is None and self._expectation.met

    def begin(self, measurer: Measuring, latest: float | None = None) -> bool:
        """Try the candidates of a first pick, once, where nothing is known but the plain loops. Returns
        whether it did. ``latest``: when it must be over."""
        due = self.options.begins_at_once and not (self.so_far.searched or self.fallbacks.begun)
        if due:
            in_time = time.monotonic() < self.run.until  # else a kernel comes first
            if self.options.trials != 0 and not self.options.short and in_time:
                self.measure_limit()
            self.fallbacks.pick(measurer, latest)
        if self.options.trials == 0 or not self.so_far.trials_left:
            self.stopped = "trials"
        return due

    def finish(self, measurer: Measuring, until: float | None = None) -> None:
        """Time the finalists, until the end of the run, or an earlier time. Before, try what needs no search,
        where nothing was right or it may win."""
        begin = time.monotonic()
        until = self.run.until if until is None else until
        self.fallbacks.last_resorts(measurer, until)
        self.finals.time(measurer, begin, until, 1.0 if self.each_s is None else self.each_s)

    def confirm(self, measurer: Measuring) -> None:
        """Time the best again, which was timed once, with those that are near."""
        self.limit.sample()
        each_s = 1.0 if self.each_s is None else self.each_s
        self.finals.time(measurer, time.monotonic(), self.run.until, each_s)

    def search(
        self,
        measurer: Measuring,
        until: Callable[[], float],
        *,
        enough: Callable[[], bool] = lambda: False,
        keep_on: bool = False,
    ) -> str | None:
        """Rounds of trials until ``until()``, or until ``enough()`` after a round. Returns what ended the
        search for good: "trials", "exhausted" or "converged" (not with ``keep_on``); else None."""
        fallbacks = self.fallbacks
        plain = fallbacks.plain
        self.begin(measurer)
        while self.stopped is None and time.monotonic() < until() and not enough():
            if not self._begun:
                self.report("preparing")
                with self.so_far.timed("prepare"):
                    self._begin_search()
            n = self._batch()
            if n < 1 and plain.pending and self.so_far.trials_left:  # the last trial is kept for plain loops
                if plain.in_reach(self.so_far.best_s):
                    fallbacks.try_plain_loops(measurer, until())
                plain.pending = False
                continue
            if n < 1:
                self.stopped = "trials"
                break
            chosen = self._left or self._ask(n, until)
            if self.options.trials is not None:  # what was chosen ahead knew no first pick
                left = self.options.trials - self.so_far.measured
                chosen = chosen._replace(candidates=chosen.candidates[:left])
            if not chosen.candidates:
                self.stopped = "exhausted"
                break
            self._round(measurer, chosen, self._patient(until))
            if self.so_far.best_s is None:
                before = len(fallbacks.picked)
                fallbacks.rescue(measurer, until())
                self._search.tell(fallbacks.picked[before:])
            if self.converged and not keep_on:
                self.stopped = "converged"
        return self.stopped

    def _patient(self, until: Callable[[], float]) -> Callable[[], float]:
        """When a round must end: sooner while nothing was right."""
        if self.so_far.best_s is not None or self.fallbacks.rescued:
            return until
        soon = time.monotonic() + FRUITLESS * self.run.round_s
        return lambda: min(until(), soon)

    def _ask(self, n: int, until: Callable[[], float]) -> Chosen:
        """What a search proposes next. It learns of schedules that are not allowed as of those that fail."""
        search = self._search
        self.report("searching")
        with self.so_far.timed("search"):
            while True:
                asked = search.ask(n)
                kept = [i for i, c in enumerate(asked) if self.allows(schedule_of(self.space, c))]
                search.tell([Result(c, 0.0) for i, c in enumerate(asked) if i not in set(kept)])
                if kept or not asked or time.monotonic() >= until():
                    break
        predicted = {model: [values[i] for i in kept] for model, values in search.predicted.items()}
        return Chosen([asked[i] for i in kept], predicted, search.seconds / max(len(asked), 1))

    def take(
        self, m: Measurement, sketch: str, trace: Trace, facts: Mapping[str, object], searched: float = 0.0
    ) -> float:
        """Log a trial and count it. Returns its throughput (runs a second)."""
        m = credible(m, self.peak_s)
        facts = {**facts, **self._news()}
        self._add(new_record(self.uid, self.so_far.measured, sketch, trace, m, facts, search_s=searched))
        reached = self.so_far.add(m, trace)
        diagnostics.trial(self.run.workload, self.so_far.measured, sketch, m)
        self._expectation.add(reached if m.status == "ok" else 0.0)
        self.report("measuring")
        return reached

    def _round(self, measurer: Measuring, chosen: Chosen, until: Callable[[], float]) -> None:
        """Measure a round and tell the policy. If a CPU is free, the next round is chosen meanwhile. Not if
        the user gave the size of rounds: a seed then repeats a run, because results are told in the order
        asked."""
        search, space = self._search, self.space
        asked, predicted, searched = chosen
        ahead = self.spare and self.options.batch is None
        traces = [schedule_of(space, c) for c in asked]
        results: dict[int, Result] = {}
        untold: set[int] = set()
        sized = chosen is self._left  # the rest of a round says nothing of the size of the next one
        measurements = measurer.arrivals(traces, self.so_far.best_s, until())
        started = last = time.monotonic()
        failed: list[AutotuneError] = []
        for number, (index, m) in enumerate(_until_failed(measurements, failed), 1):
            candidate, trace = asked[index], traces[index]
            name, decisions = space.sketches[candidate.sketch], list(candidate.row)
            facts = {DECISIONS: decisions, "round": self.so_far.rounds, **moved(space, candidate)}
            if self._llm is not None and self._llm.proposed(candidate):
                facts["chosen_by"] = self.options.search
            if predicted:
                facts[PREDICTED] = {k: round(float(v[index]), 6) for k, v in predicted.items()}
            results[index] = Result(candidate, self.take(m, name, trace, facts, searched), m.facts)
            untold.add(index)
            now = time.monotonic()
            self.so_far.spent["measure"] += now - last
            last = now
            left = (len(asked) - number) * (now - started) / number
            if ahead and search.due(left) and now + left < until():
                if not sized:
                    self._grow(now - started + left)
                    sized = True
                following = self._batch(len(asked) - number)
                if following:
                    search.tell([results[i] for i in sorted(untold)])
                    untold.clear()
                    search.begin(following)
        search.tell([results[i] for i in sorted(untold)])
        if not sized:
            self._grow(last - started)
        self.so_far.rounds += 1
        took_s = time.monotonic() - started
        done, best_s = self.so_far.rounds, self.so_far.best_s
        diagnostics.round_done(self.run.workload, done, len(asked), len(results), best_s, took_s)
        rest = [i for i in range(len(asked)) if i not in results]
        if not results and not failed and took_s > HANGS_S:  # it must not cost every turn its time
            rest = rest[1:]
        again = {model: [values[i] for i in rest] for model, values in predicted.items()}
        self._left = Chosen([asked[i] for i in rest], again, searched) if rest else None
        if predicted and len(results) > 1:
            guide = list(predicted.values())[-1]
            reached = [r.throughput for r in results.values()]
            self.so_far.pairwise = pairwise_accuracy([guide[i] for i in results], reached, gap=0.02)
        if failed:
            raise failed[0]

    def _grow(self, took_s: float) -> None:
        """Double the next round if choosing took too large a share of the time. Its duration hardly depends
        on the size of the round."""
        if self._search.seconds > SEARCH_SHARE * took_s:
            self._batch_size = min(LARGEST_BATCH, 2 * self._batch_size)

    # -- how much ----------------------------------------------------------------------------

    @property
    def each_s(self) -> float | None:
        """Seconds that a trial takes; None before there was one."""
        trials = self.so_far.measured - self.fallbacks.tried_plain - len(self.fallbacks.picked)
        return self.so_far.spent["measure"] / trials if trials else None

    def _batch(self, under_way: int = 0) -> int:
        """Trials of the next round, with ``under_way`` of this one to come; 0 when all are done."""
        batch = self._batch_size
        if self.options.batch is not None:
            batch = self.options.batch
        elif self.each_s is not None:
            fitting = self.run.round_s / max(self.each_s, 1e-9)
            batch = max(SMALLEST_BATCH, min(batch, int(min(fitting, LARGEST_BATCH))))
        if self.options.trials is not None:
            left_over = self.fallbacks.plain.pending and self.options.trials > 1  # for the plain loops
            batch = min(batch, self.options.trials - self.so_far.measured - under_way - left_over)
        return batch

    # -- keeping account ---------------------------------------------------------------------

    def _add(self, record: NewRecord) -> None:
        """Write a record to the log."""
        with self.run.interrupts.hold():
            self.run.log.add(record)

    def _keep_final(self, r: Record, trace: Trace, m: Measurement, facts: Mapping[str, object]) -> None:
        """Log a finalist by the record of its trial."""
        self._add(new_record(self.uid, r.trial, r.sketch, trace, m, {**facts, **self._news()}, "final"))

    def report(self, phase: str) -> None:
        """Give the caller a `Progress` for this phase."""
        if self.run.progress is not None:
            share, peak_of = self.limit.share(self.so_far.best_s), self.limit.instruction(self.run.workload)
            self.run.progress(self.so_far.progress(phase, share, peak_of))

    def result(self, stopped: str) -> TuneResult:
        """The result of the run. ``stopped``: why it ended."""
        run, so_far = self.run, self.so_far
        peak_of = self.limit.instruction(run.workload)
        best = best_of(run.workload, run.target, run.log, self.peak_s, peak_of)
        diagnostics.ended(run.workload, stopped, so_far.measured, so_far.failed, so_far.spent)
        return TuneResult(
            workload=run.workload,
            target=run.target,
            best=best,
            **so_far.counts(),
            elapsed_s=time.monotonic() - run.started,
            seed=self.options.seed,
            stopped=stopped,
            notes=notes(best, self._few, so_far.measured + so_far.resumed, stopped),
            error=None if best is not None else self._why(stopped),
            place=run.log.place,
            only_plain=best is not None and not searched(run.workload, run.target, run.log),
        )

    def _why(self, stopped: str) -> str:
        if self.prepared and self.allows.last and not self.so_far.failed:
            asked = dict(self.options.in_place)
            return f"no schedule that was looked at allows in_place={asked}: {self.allows.last}"
        return no_kernel.why(
            *(self.so_far.failed, self.so_far.reasons, stopped),
            prepared_s=self.so_far.spent["prepare"],
            elapsed_s=time.monotonic() - self.run.started,
            budget_s=self.options.budget_s,
            stopped_early=self.so_far.stopped_early,
        )


def _until_failed(
    measurements: Iterator[tuple[int, Measurement]], failed: list[AutotuneError]
) -> Iterator[tuple[int, Measurement]]:
    """Measurements until the machine is gone or cannot measure, which ``failed`` then says."""
    try:
        yield from measurements
    except AutotuneError as err:
        failed.append(err)
