"""The run of many tasks, or of one: a session each, turns by the task scheduler, finalists at the end.

A machine takes turns of tasks: this one, or those of a fleet. A task that is alone has one turn, which takes
the whole budget.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from statistics import fmean
from types import TracebackType
from typing import TYPE_CHECKING

from autotune.results.tuned import Progress, SuiteProgress, SuiteResult, SuiteTask, TaskResult, TuneResult
from autotune.tuning.goal import CONFIRM_SHARE, Goal
from autotune.tuning.interrupts import Interrupts
from autotune.tuning.jobs import Job
from autotune.tuning.open_measurers import OpenMeasurers
from autotune.tuning.run_records import best_of, searched
from autotune.tuning.session import RESERVE_SHARE, ROUND_SHARE, Session
from autotune.tuning.site import Measuring, Site, SiteLost
from autotune.tuning.tally import TaskRun
from autotune.tuning.task_scheduler import GradientScheduler, ScheduledTask
from kernels_db.errors import LogError
from schedules.errors import AutotuneError
from schedules.model import Target, Workload
from schedules.te.structure import structure

if TYPE_CHECKING:
    from kernels_db.store import Log

# Turns of a task that the budget should allow on average, within bounds on a turn's length (seconds).
TURNS = 5
SHORTEST_S, LONGEST_S = 2.0, 20.0
# Least rounds of trials in a turn.
ROUNDS = 2
# Seconds that a first pick of a task is expected to take before one was made, and the share of it that must
# be left for another to begin.
PICK_S, MUST_BE_LEFT = 2.0, 0.5
# Share of a budget that the first picks of all tasks may take, where that budget is to be enough for them.
PICK_SHARE = 0.8

log = logging.getLogger(__name__)


class Lane:
    """A machine that takes turns of a suite's tasks, one at a time, and its open measurers. ``key``: which
    machine it is, the same when it comes again."""

    def __init__(self, site: Site, name: str, key: str, make: Callable[[Lane, Workload], Measuring]) -> None:
        self.site, self.name, self.key = site, name, key
        self.open = OpenMeasurers[int](lambda workload: make(self, workload))
        self.made: dict[str, Measuring] = {}  # the last one of each task, by the digest of its workload
        self.number: int | None = None  # of the task whose turn it is
        self.closed = False

    def close(self) -> None:
        """End its processes. What it had may be taken by others."""
        self.closed, self.number = True, None
        self.open.close()


class Suite:
    """Tasks of one target, and the machines that take turns of them: one, or several of a fleet, each in a
    thread of its own while no other is at work here. A task stays with the machine that began it, unless that
    leaves or cannot measure it: then others may take it. ``ended``: what ended the search."""

    def __init__(
        self,
        job: Job,
        target: Target,
        log: Log,
        progress: Callable[[SuiteProgress], None] | None,
        interrupts: Interrupts,
        started: float,
    ) -> None:
        self.tasks, self.options = tuple(job.tasks), job.options
        self.target, self.log = target, log
        self.progress, self.interrupts, self.started = progress, interrupts, started
        self.until = started + self.options.budget_s
        self.alone = len(self.tasks) == 1 and self.options.share_s is None
        self.always = max(job.always, int(self.alone))
        self.ended = "budget"
        self.goal = None if self.options.aim is None else Goal(self.options.aim, job, target, log)
        self.scheduler = GradientScheduler([self._scheduled(t) for t in self.tasks])
        self.sessions: dict[int, Session] = {}
        self.seconds = [0.0] * len(self.tasks)
        self.errors: dict[int, AutotuneError] = {}
        self.lanes: list[Lane] = []
        self._owner: dict[int, Lane] = {}
        self._picks: list[float] = []  # seconds that turns took in which tasks had their first picks
        self._unable: set[tuple[int, str]] = set()  # tasks, and keys of machines that cannot measure them

    def lane(self, site: Site, name: str = "", key: str = "") -> Lane:
        """A new machine. ``key``: as of `Lane`."""
        lane = Lane(site, name, key, self._measuring_for)
        self.lanes.append(lane)
        return lane

    @property
    def _machines(self) -> int:
        """How many machines there are now, at least one."""
        return max(sum(not x.closed for x in self.lanes), 1)

    @property
    def turn_s(self) -> float:
        """Seconds of a turn: longer where several machines share the tasks."""
        if self.alone:
            return self.options.budget_s
        share = max(len(self.tasks) / self._machines, 1.0)
        return min(max(self.options.budget_s / (TURNS * share), SHORTEST_S), LONGEST_S)

    def free(self, lane: Lane | None = None, key: str = "") -> list[int]:
        """The tasks that a machine may take: those that no other has, and which it can measure. Without a
        lane: a new machine of that key."""
        key = key if lane is None else lane.key
        return [
            n
            for n in range(len(self.tasks))
            if (self._owner.get(n, lane) is lane or self._owner[n].closed) and (n, key) not in self._unable
        ]

    def waits(self, key: str = "") -> bool:
        """Whether there is a task for another machine, which has that key."""
        number = None if self._met else self.scheduler.next(self.free(key=key))
        return number is not None and time.monotonic() < self._turns_until(number)

    # -- phases ------------------------------------------------------------------------------

    def serve(self, lane: Lane) -> None:
        """Give a machine turns until the budget or every task has ended, then time its finalists. Raises
        `SiteLost`."""
        self.ended = self.search(lane)
        self.finalists(lane)

    def search(self, lane: Lane) -> str:
        """Give turns until the budget or every task has ended, or the goal is reached. Returns which. Raises
        `SiteLost`."""
        while True:
            if self._enough(lane):
                return "reached"
            number = self.scheduler.next(self.free(lane))
            begins = number not in self.sessions and len(self.sessions) < self.always
            if number is not None and not begins and time.monotonic() >= self._turns_until(number):
                return "budget"
            if number is None:
                ends = {_end_of(s) for s in self.sessions.values()}
                return next((e for e in ("converged", "trials", "exhausted") if e in ends), "exhausted")
            begin, picked = time.monotonic(), False
            self._owner[number], lane.number = lane, number
            try:
                picked = self._turn(lane, number)
                self.errors.pop(number, None)
            except (LogError, SiteLost):  # the other tasks would lose their trials too
                raise
            except AutotuneError as err:
                self._failed(lane, number, err)
            took = time.monotonic() - begin
            self.seconds[number] += took
            self._picks += [took] if picked else []
            session = self.sessions.get(number)
            known = None if session is None else session.so_far.best_s
            self.scheduler.add(number, took, known, None if session is None else session.peak_s)
            if session is not None and session.stopped is not None:
                self.scheduler.end(number)
            elif session is not None:
                self.scheduler.settle(number, session.converged)

    def _failed(self, lane: Lane, number: int, why: AutotuneError) -> None:
        """A machine cannot measure a task. It may be the machine's fault: the others try it."""
        lane.open.drop(number)
        self.errors[number] = why
        self._unable.add((number, lane.key))
        session = self.sessions.get(number)
        others = any((number, x.key) not in self._unable for x in self.lanes if not x.closed)
        if session is not None and session.prepared and others:
            del self._owner[number]
        else:
            self.scheduler.end(number)

    def _turn(self, lane: Lane, number: int) -> bool:
        """A first pick of a task that has no kernel, and True: the others have theirs before one is searched.
        Else rounds of trials, for a turn's time."""
        task = self.tasks[number]
        log.debug("turn of task %d of %d: %s", number + 1, len(self.tasks), task.workload.op)
        session = self.sessions.get(number)
        if session is None:
            session = self._begun(lane, number)
        elif session.site is not lane.site:
            session.relocate(lane.site, lane.open.get(number, task.workload))
        measuring = lane.open.get(number, task.workload)
        late = len(self.sessions) > self.always  # the first ones may take longer
        some = late and any(s.so_far.searched for s in self.sessions.values())
        if session.begin(measuring, self.until if some else None):
            return True
        end = time.monotonic() + self.turn_s
        enough = partial(self._enough, lane) if self.alone else self._near
        until = lambda: min(end, self._search_until())  # noqa: E731
        session.search(measuring, until, enough=enough, keep_on=not self.alone)
        return False

    # -- the goal ----------------------------------------------------------------------------

    @property
    def _met(self) -> bool:
        return self.goal is not None and self.goal.met

    def _near(self) -> bool:
        """Whether the goal is reached if all times are right."""
        return self.goal is not None and self._may_confirm and self.goal.aimed(self.sessions).near

    @property
    def _may_confirm(self) -> bool:
        """Whether timing again has not yet taken more than its share of the time."""
        spent_s = 0.0 if self.goal is None else self.goal.spent_s
        return spent_s <= CONFIRM_SHARE * (time.monotonic() - self.started)

    def _enough(self, lane: Lane) -> bool:
        """Whether the goal is reached by times that were measured again. A machine measures its own tasks
        again: a lucky time of theirs ends no run. Raises `SiteLost`."""
        if self.goal is None or self.goal.met:
            return self._met
        own = [(n, s) for n, s in self.sessions.items() if self._owner.get(n) is lane and s.prepared]
        for n, session in own:
            if n not in self.errors and self.goal.needs_limit(session):
                session.measure_limit()
        if not self._near():
            return False
        begin = time.monotonic()
        for n, session in own:
            if session.so_far.provisional and n not in self.errors:
                with self._account(lane, n):
                    session.confirm(lane.open.get(n, session.run.workload))
        self.goal.spent_s += time.monotonic() - begin
        self.goal.met = self.goal.aimed(self.sessions).reached
        return self.goal.met

    def _begun(self, lane: Lane, number: int) -> Session:
        """The session of a task, prepared for its first turn."""
        task, options = self.tasks[number], self.options
        if not self.alone:
            options = replace(options, share_s=options.budget_s / len(self.tasks))
        if task.trials is not None:
            options = replace(options, trials=task.trials)
        round_s = ROUND_SHARE * options.budget_s if self.alone else self.turn_s / ROUNDS
        run = TaskRun(
            *(task.workload, self.target, self.log, options, self._report_of(number), self.interrupts),
            *(self.started, self.until, round_s),
        )
        session = Session(run, lane.site)
        session.__enter__()
        self.sessions[number] = session
        with session.so_far.timed("prepare"):
            session.report("preparing")
            lane.open.get(number, task.workload)
            session.prepare()
        return session

    def finalists(self, lane: Lane) -> None:
        """Time the finalists of each task of a machine while there is time, those of the heaviest tasks
        first. Before, let tasks without a kernel try what most likely gives one. Raises `SiteLost`."""
        if self._met:  # they were timed
            return
        own = {
            n: s for n, s in self.sessions.items() if self._owner.get(n) is lane and n not in self.errors
        }
        if self.alone:
            for session in own.values():
                with self._account(lane, 0):
                    session.limit.sample()  # next to the finalists, whose records keep it
                    session.finish(lane.open.get(0, session.run.workload))
            return
        for n, session in own.items():
            if session.so_far.best_s is None:
                with self._account(lane, n):
                    session.fallbacks.rescue(lane.open.get(n, session.run.workload))
        order = sorted(
            (n for n, s in own.items() if s.so_far.best_s),
            key=lambda n: -self.tasks[n].weight * (self.sessions[n].so_far.best_s or 0.0),
        )
        for k, number in enumerate(order):
            session = self.sessions[number]
            now = time.monotonic()
            left = self.until - now
            cost_s, all_s = session.finals.cost_s(), sum(self.sessions[n].finals.cost_s() for n in order[k:])
            if left <= 0:
                return
            until = now + max(left * cost_s / all_s, min(left, cost_s))
            with self._account(lane, number):
                session.finish(lane.open.get(number, session.run.workload), until)

    @contextlib.contextmanager
    def _account(self, lane: Lane, number: int) -> Iterator[None]:
        """Count the time of a task's last phase, whose errors cost nothing: its trials are in the log."""
        begin = time.monotonic()
        lane.number = number
        try:
            with self.sessions[number].so_far.timed("finalists"):
                yield
        except (LogError, SiteLost):
            raise
        except AutotuneError:
            pass
        self.seconds[number] += time.monotonic() - begin

    def leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """After an error, close the runs in the log, which `result` would have done."""
        if kind is None or issubclass(kind, KeyboardInterrupt):
            return
        for session in self.sessions.values():
            with contextlib.suppress(LogError):  # the log may be what failed
                session.__exit__(kind, error, trace)

    def result(self, stopped: str) -> SuiteResult:
        """Close the runs of all tasks. ``stopped``: why the search ended."""
        results: list[TaskResult] = []
        needed_s = self._needed_s()
        for n, task in enumerate(self.tasks):
            session = self.sessions.get(n)
            if session is None:
                best = best_of(task.workload, self.target, self.log, None)
                seen = sum(self.log.by_status(task.workload, self.target).values())
                end = "reached" if self._met and best is not None else "not begun"
                why = (
                    "the run was interrupted before its first turn"
                    if stopped == "interrupted"
                    else f"the budget ended before its first turn; give a larger budget: {needed_s:g} s"
                )
                one = TuneResult(
                    *(task.workload, self.target, best, 0, {}, seen, 0.0, self.options.seed, end),
                    error=None if best is not None else why,
                    place=self.log.place,
                    only_plain=best is not None and not searched(task.workload, self.target, self.log),
                )
            else:
                if stopped == "interrupted":
                    session.stopped = "interrupted"
                elif stopped == "reached":  # it had a part of its share
                    session.stopped = session.stopped or "reached"
                error = self.errors.get(n)
                if self.alone and error is None:
                    with contextlib.suppress(KeyboardInterrupt):  # nothing is left to be interrupted
                        session.report("done")
                end = _end_of(session) or stopped if error is None else "failed"
                one = session.result("reached" if self.alone and self._met else end)
                session.__exit__(None if error is None else AutotuneError, None, None)
            cause = self.errors.get(n)
            told = one.error if cause is None else str(cause)
            results.append(TaskResult(task, one, self.seconds[n], told, cause))
        kernels = [(r.task.weight, r.result.best) for r in results if r.result.ready]
        times = [(weight, best.time_s) for weight, best in kernels if best is not None]
        found = SuiteResult(
            tasks=tuple(results),
            weighted_s=sum(w * t for w, t in times) if len(times) == len(results) else None,
            measured=sum(r.result.measured for r in results),
            elapsed_s=time.monotonic() - self.started,
            budget_s=self.options.budget_s,
            seed=self.options.seed,
            stopped=stopped,
            aimed=None if self.goal is None else self.goal.aimed(self.sessions),
        )
        return replace(found, needed_s=needed_s) if stopped != "interrupted" and found.late else found

    # -- what it needs -----------------------------------------------------------------------

    def _scheduled(self, task: SuiteTask) -> ScheduledTask:
        """What the scheduler knows of a task. One that has only its plain loops counts as one without a
        kernel."""
        known = searched(task.workload, self.target, self.log)
        best = self.log.best(task.workload, self.target) if known else None
        known_s = None if best is None else best.time_s
        similar = structure(task.workload.dag).key
        return ScheduledTask(
            task.weight, task.workload.flops, similar, known_s=known_s, later=task.later and not known
        )

    def _turns_until(self, number: int) -> float:
        """When the next turn of a task must begin. First picks of tasks may take the time of the finalists,
        but need some themselves."""
        if number in self.sessions or self.scheduler.known_s(number) is not None:
            return self._search_until()
        return self.until - (MUST_BE_LEFT * fmean(self._picks) if self._picks else 0.0)

    def _needed_s(self) -> float:
        """A budget in which each task gets a first pick, as far as those that were made tell."""
        each = max(fmean(self._picks) if self._picks else 0.0, PICK_S)
        needed = each * len(self.tasks) / self._machines / PICK_SHARE
        return float(math.ceil(max(needed, self.options.budget_s / PICK_SHARE)))

    def _search_until(self) -> float:
        """When the last turn must end, so that finalists have time."""
        budget, each_s, most = self.options.budget_s, 0.0, 2.0
        if self.alone:
            session = self.sessions.get(0)
            if session is None or (not session.so_far.measured and session.so_far.best_s is None):
                return self.until
            each_s, most = min(session.each_s or 0.0, RESERVE_SHARE * budget), 2.5
        needed = sum(s.finals.cost_s() for s in self.sessions.values() if s.so_far.best_s) / self._machines
        return self.until - max(RESERVE_SHARE * budget, min(needed, most * RESERVE_SHARE * budget)) - each_s

    def _measuring_for(self, lane: Lane, workload: Workload) -> Measuring:
        """Its limits are those of the time that a task gets, not of the whole budget. How fast the machine
        normally runs, the first one says for all, and beside what a task is timed, the task's last one: the
        times of a task's turns are to compare."""
        share = self.options.budget_s / len(self.tasks)
        if not self.alone:
            share = max(share, 2 * self.turn_s)
        first = next(iter(lane.made.values()), None)
        before = lane.made.get(workload.digest)
        made = lane.site.measurer(
            *(workload, self.target, share),
            nominal=None if first is None else first.nominal,
            control=None if before is None else before.control,
            tolerance=self.options.tolerance,
        )
        lane.made[workload.digest] = made
        return made

    def _report_of(self, number: int) -> Callable[[Progress], None] | None:
        if self.progress is None:
            return None
        tell = self.progress

        def report(one: Progress) -> None:
            begun, number_of = self.sessions, range(len(self.tasks))
            best = [begun[n].so_far.best_s if n in begun else self.scheduler.known_s(n) for n in number_of]
            ready = sum(begun[n].so_far.searched if n in begun else best[n] is not None for n in number_of)
            weighted = None
            if None not in best:
                weighted = sum(t.weight * (s or 0.0) for t, s in zip(self.tasks, best, strict=True))
            now = time.monotonic()
            aimed = None if self.goal is None else self.goal.aimed(self.sessions)
            tell(
                SuiteProgress(
                    number=number,
                    tasks=len(self.tasks),
                    workload=self.tasks[number].workload,
                    task=replace(
                        one, elapsed_s=now - self.started, budget_s=self.options.budget_s, aimed=aimed
                    ),
                    weighted_s=weighted,
                    ready=ready,
                    measured=sum(s.so_far.measured for s in self.sessions.values()),
                    elapsed_s=now - self.started,
                    budget_s=self.options.budget_s,
                    provisional=any(s.so_far.provisional for s in self.sessions.values()),
                    machine=self._owner[number].name if number in self._owner else "",
                    aimed=aimed,
                )
            )

        return report


def _end_of(session: Session) -> str | None:
    """What ended a session's search; None if it was the budget of all."""
    return session.stopped or ("converged" if session.converged else None)
