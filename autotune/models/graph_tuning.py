"""Chooses the graph of a model within a run of `autotune.tune_model`: what `graph_search` finds is tuned, the
choice is kept in the log, and the whole model has the last word."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from autotune.errors import ModelError
from autotune.measure.memory import free_bytes
from autotune.models.fallback import run_island
from autotune.models.graph_choices import MOST_TRIED, ModelKey, exactly, found_choices, keep
from autotune.models.graph_search import (
    FASTER,
    FASTER_UNSEEN,
    LEAST_S,
    LOOKING,
    SHARE,
    Alternative,
    ArenaLimits,
    Tried,
    alternatives,
    arena_bytes,
    decided,
    hopeful,
    total,
)
from autotune.models.in_place import random_arguments, task_times
from autotune.models.outline import Outline
from autotune.models.preparation import PreparedModel, Seconds
from autotune.models.program import Program
from autotune.results.tuned import SuiteTask
from autotune.run.asked import Asked
from autotune.run.stored import stored
from autotune.tuning.goal import Known
from autotune.tuning.site import HERE
from schedules.graph.rewrite import AskedPlace
from schedules.model import Target, Workload

if TYPE_CHECKING:
    from kernels_db.store import Log

# Rounds in which two graphs of a model take turns, and the seconds that they take at most.
ROUNDS, TURNS_S = 7, 4.0
# The share by which times of whole graphs differ from one comparison to the next.
NOISE = 0.02
# A budget within this much of what an earlier run had is not larger (rounding).
SAME = 0.999


@dataclass(frozen=True)
class GraphSpace:
    """The programs of a model as they usually are rewritten, and of each what could be decided otherwise.
    ``needed_s``: the budget of the model in which there is time to look at all kinds of places, and to tune
    what is found; None where there was."""

    bases: tuple[PreparedModel, ...]
    found: tuple[tuple[Alternative, ...], ...]
    needed_s: float | None = None

    @staticmethod
    def of(
        bases: Sequence[PreparedModel],
        exact: bool,
        budget_s: float,
        target: Target | None,
        known_s: Seconds = lambda _: None,
    ) -> GraphSpace:
        """What there is time for in ``budget_s``. ``exact``: rewrites whose results are less exact are left
        out. ``target``: of this machine; None: other machines measure, whose limits are not known here.
        ``known_s``: the seconds of tasks that a log has."""
        from schedules.graph.optimize import MAY_LOSE

        def refused(a: AskedPlace) -> bool:
            return exact and not MAY_LOSE[a.rewrite].exact

        began = time.monotonic()
        looked = [alternatives(base, refused, began + LOOKING * budget_s) for base in bases]
        looked_s = time.monotonic() - began
        limits: Seconds = (lambda _: None) if target is None else _Limits(target)
        every = [one for x in looked for one in x.found]
        chosen = hopeful(every, limits, budget_s, known_s)
        tasks = {digest for one in every for digest in one.workloads}
        seen, kinds = (sum(n) for n in zip(*((x.seen, x.kinds) for x in looked)))
        needed_s = None
        if len(chosen) < len(every) or seen < kinds:  # what was not seen takes as long, and finds as much
            whole_s = max(len(tasks) * LEAST_S, looked_s / LOOKING) * kinds / max(seen, 1)
            needed_s = math.ceil(whole_s / SHARE)
        taken = tuple(tuple(x for x in each.found if x in chosen) for each in looked)
        return GraphSpace(tuple(bases), taken, needed_s)

    @property
    def tasks(self) -> list[SuiteTask]:
        """What must be tuned to decide, each task once."""
        tasks: dict[str, SuiteTask] = {}
        for one in (x for found in self.found for x in found):
            for digest, workload in one.workloads.items():
                weight = float(max(one.usual.get(digest, 0), one.other.get(digest, 0)))
                old = tasks.get(digest, SuiteTask(workload, 0.0, one.name))
                tasks[digest] = replace(old, weight=max(weight, old.weight))
        return [*tasks.values()]

    def decided(
        self, target: Target, log: Log, faster: float = FASTER, most_bytes: int | None = None
    ) -> tuple[list[PreparedModel], list[list[Tried]]]:
        """The programs that are the fastest by the log, and of each what became of alternatives.
        ``faster``: as of `graph_search.decided`; ``most_bytes``: `ArenaLimits.most`."""

        pairs = zip(self.bases, self.found, strict=True)
        limits, known_s = ArenaLimits.of(target, most_bytes), seconds_in(log, target)
        each = [decided(base, found, known_s, faster, limits) for base, found in pairs]
        return [ready for ready, _ in each], [tried for _, tried in each]


@dataclass(frozen=True)
class Before:
    """What an earlier run left of a program. ``ready``: as it is rewritten. ``looked_s``: the budget that it
    had for alternatives, of all rewrites that may be tried now; 0 where that is not known."""

    ready: PreparedModel
    looked_s: float

    @staticmethod
    def of(base: PreparedModel, exact: bool, target: Target, where: str) -> Before | None:
        """Of a program as it usually is rewritten; None where the log has no such run. ``exact``: without
        rewrites whose results are less exact. Raises `LogError`."""
        found = found_choices(base.model.graph, where, target, target.threads)
        if found is None:
            return None
        try:
            ready = base.with_choices(exactly(found.choices) if exact else found.choices)
        except ModelError:
            return None  # what a log says may not be cut
        return Before(ready, found.looked_s if found.known >= set(_tried(exact)) else 0.0)


@dataclass
class ComparedGraphs:
    """The graphs of a model in a run, for one target. ``bases``: its programs as they usually are rewritten.
    ``part_s``: the budget of alternatives. ``here``: whether this machine measures."""

    bases: Sequence[PreparedModel]
    exact: bool
    part_s: float
    where: str
    log: Log
    target: Target
    here: bool
    most_bytes: int | None = None  # as of `ArenaLimits`
    tried: Sequence[Sequence[Tried]] = ()  # of each program, after `decided`

    @cached_property
    def before(self) -> list[Before | None]:
        """What earlier runs left of each program."""
        return [Before.of(base, self.exact, self.target, self.where) for base in self.bases]

    @property
    def running(self) -> list[PreparedModel]:
        """The programs as the log had them before."""
        pairs = zip(self.bases, self.before, strict=True)
        return [base if before is None else before.ready for base, before in pairs]

    @cached_property
    def _space(self) -> GraphSpace | None:
        """None where an earlier run had as much time."""
        if all(x is not None and x.looked_s >= SAME * self.part_s for x in self.before):
            return None
        here = self.target if self.here else None
        return GraphSpace.of(self.bases, self.exact, self.part_s, here, seconds_in(self.log, self.target))

    @cached_property
    def tasks(self) -> list[SuiteTask]:
        """What must be tuned to decide."""
        return [] if self._space is None else self._space.tasks

    @property
    def needed_s(self) -> float | None:
        """As of `GraphSpace`."""
        return None if self._space is None else self._space.needed_s

    def decided(self) -> Sequence[PreparedModel]:
        """The programs that are the fastest by what is in the log now. Where nothing could be compared, those
        of earlier runs."""
        if self._space is None or not self.tasks:
            return self.running
        faster = FASTER if self._times_whole else FASTER_UNSEEN
        ready, self.tried = self._space.decided(self.target, self.log, faster, self.most_bytes)
        return ready

    @property
    def _times_whole(self) -> bool:
        """Whether whole programs can run: on this machine's CPU."""
        return self.here and not self.target.grid

    def confirmed(
        self, base: PreparedModel, chosen: PreparedModel
    ) -> tuple[PreparedModel, Mapping[str, float]]:
        """(The graph that is kept, seconds of both where they could be compared)."""
        if not self._times_whole:
            return self.with_kernels(base, chosen), {}
        return confirmed(base, chosen, self.target, self.log, self.where)

    def record(
        self,
        base: PreparedModel,
        kept: PreparedModel,
        tried: Sequence[Tried],
        whole: Mapping[str, float],
        ended: bool,
    ) -> None:
        """Keep in the log how a graph is rewritten. ``whole``: what `confirmed` found, for people. ``ended``:
        by Ctrl-C, so that the last word is not spoken."""
        key = ModelKey.of(base.model.graph)
        if key is not None:
            first = sorted((x.under(kept.choices) for x in tried), key=lambda x: not x.taken)[:MOST_TRIED]
            told: dict[str, Any] = {"tried": [asdict(x.told) for x in first], "whole": dict(whole)}
            told |= {"looked_s": 0.0 if ended else self.part_s, "known": _tried(self.exact)}
            machine = HERE.machine() if self.here else {}  # those of a fleet are several
            keep(self.log, key, self.target, machine, kept.choices, told)

    def with_kernels(self, base: PreparedModel, chosen: PreparedModel) -> PreparedModel:
        """As of `running`."""
        return running(base, chosen, self.target, self.log)


def _tried(exact: bool) -> list[str]:
    """The rewrites that a run may try."""
    from schedules.graph.optimize import MAY_LOSE

    return sorted(name for name, rewrite in MAY_LOSE.items() if rewrite.exact or not exact)


class _Limits:
    """The least seconds that this machine needs for a workload, each measured once."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.known: dict[str, float | None] = {}

    def __call__(self, workload: Workload) -> float | None:
        if workload.digest not in self.known:
            measure = HERE.roofline(workload, self.target)
            self.known[workload.digest] = (measure() or None) if measure is not None else None
        return self.known[workload.digest]


def seconds_in(log: Log, target: Target) -> Seconds:
    """The seconds of a task that a log has for a target."""
    return lambda workload: Known.of(workload, target, log).time_s


def confirmed(
    base: PreparedModel, chosen: PreparedModel, target: Target, log: Log, where: str
) -> tuple[PreparedModel, Mapping[str, float]]:
    """(The graph that is kept, seconds of both and bytes of their arenas where they could be compared): the
    usual one where the other is no faster as a whole, or lacks kernels that the usual one has; of two that
    are about as fast, that of the smaller arena. Programs run in turns on random inputs. ``where``: the log's
    place."""
    chosen = running(base, chosen, target, log)
    if chosen.choices == base.choices:
        return base, {}
    programs = [_program(one, target, log, where) for one in (base, chosen)]
    if any(p is None for p in programs):
        return chosen, {}
    usual, other = _in_turns([p for p in programs if p is not None])
    before, after = (arena_bytes(one) for one in (base, chosen))
    told = {"usual_s": usual, "other_s": other, "usual_bytes": before, "other_bytes": after}
    level = abs(other - usual) <= NOISE * usual and before != after
    return (chosen if (after < before if level else other < usual) else base), told


def running(base: PreparedModel, chosen: PreparedModel, target: Target, log: Log) -> PreparedModel:
    """The graph that was chosen, or the usual one where that alone has all its kernels."""
    known, other = (total(one, seconds_in(log, target)) for one in (base, chosen))
    return base if other is None and known is not None else chosen


def _program(ready: PreparedModel, target: Target, log: Log, where: str) -> Program | None:
    """A program of the best kernels of a log; None while one is missing, or memory is short."""
    weights = sum(v.nbytes for v in ready.graph.values.values())
    if 3 * weights > free_bytes():
        return None
    return best_program(ready, ready.outline(seconds_in(log, target)), target, where)


def best_program(ready: PreparedModel, outline: Outline, target: Target, where: str) -> Program | None:
    """A program of an outline of a model, of the best kernels of a log, ``where``; None while one is
    missing."""
    kernels = []
    for workload in outline.tasks:
        found, _ = stored(workload, Asked.of(target, None, where))
        if found is None or found.target != target:
            return None
        kernels.append(found)
    return Program.of(outline, kernels, ready.graph.values.__getitem__, run_island)


def _in_turns(programs: Sequence[Program]) -> tuple[float, float]:
    """Medians of the seconds of a call of two programs."""
    arguments = [random_arguments(p.outline) for p in programs]
    for p, (inputs, _) in zip(programs, arguments, strict=True):
        p.told.settle(p.outline, inputs)
    alone = all(k.target.threads == 1 for p in programs for k in p.kernels)
    times: list[list[float]] = [[], []]
    end = time.monotonic() + TURNS_S
    while len(times[1]) < ROUNDS and (len(times[1]) < 3 or time.monotonic() < end):
        for n in (0, 1) if len(times[1]) % 2 else (1, 0):
            times[n].append(sum(task_times(programs[n], *arguments[n], alone).values()))
    return statistics.median(times[0]), statistics.median(times[1])
