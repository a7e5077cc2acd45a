"""Tunes a program, also one whose sizes vary: some of its sizes, evenly spaced on a logarithmic scale.

They are tasks of a suite, so each gets a first pick before any is searched: the best schedules of sizes that
are near are tried (`tuning.first_pick`). At last, sizes between them get first picks while there is time. A
size that is left gets its pick when it is first called.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import islice, pairwise, product

from autotune.results.following import Tell
from autotune.results.tuned import DynamicResult, SuiteProgress, SuiteResult, SuiteTask, TuneResult, totals
from autotune.run.dynamic_workload import DynamicWorkload, Sizes
from autotune.tuning import preparation
from autotune.tuning.goal import whole
from autotune.tuning.interrupts import Interrupts
from autotune.tuning.jobs import Job
from autotune.tuning.makers import OneTask, with_error
from autotune.tuning.options import TuneOptions
from autotune.tuning.request import Run, TuneRequest
from autotune.tuning.run_records import best_of
from kernels_db.store import Log
from schedules.errors import AutotuneError
from schedules.model import Target, Workload
from schedules.ops.base import compulsory_bytes
from schedules.te.dims import Dim

# Seconds of the budget that a tuned size takes, and the share of the budget that tuned sizes get.
SECONDS_A_SIZE, TUNED_SHARE = 8.0, 0.75
# Most tuned sizes of one dimension for each doubling of its range, and of all together.
A_DOUBLING, MOST = 1, 64
# FLOPs that take about as long as moving a byte: what sizes are expected to take, relative to each other.
FLOPS_A_BYTE = 8.0
# Sizes that get a first pick however short the budget is.
ALWAYS = 2
# Least seconds that are left for first picks of more sizes, and of each of them.
LEAST_LEFT_S = 2.0


def tuning_of(program: Workload | DynamicWorkload, asked: TuneRequest) -> Run[TuneResult]:
    """What tunes a program of one size, or of a range."""
    if isinstance(program, DynamicWorkload):
        return partial(tune_range, program, asked)
    return asked.tuning(OneTask(program, asked.options, asked.goal is not None))


def tune_range(
    dynamic: DynamicWorkload,
    asked: TuneRequest,
    log: Log,
    progress: Tell | None = None,
    interrupts: Interrupts | None = None,
) -> Mapping[Target, DynamicResult]:
    """Tune a program whose sizes vary until the budget is used up, or each chosen size has the options'
    trials. A size that cannot be tuned has its ``error``, and costs the others nothing. On a fleet, sizes
    between the chosen ones get no first picks: each takes its own when it is first called.

    Raises as `tuner.tune_jobs`, and as `preparation.check_feasible` where no size can be tuned.
    """
    started, here = asked.options.begin(), asked.goal is not None
    options = replace(asked.options, started=started)
    picks_later = here and options.trials is None
    share = TUNED_SHARE * options.budget_s if picks_later else options.budget_s
    chosen = Range(dynamic, log, options, share, here=here)
    found = asked.tuning(chosen)(log, progress, interrupts)
    left = started + options.budget_s - time.monotonic()
    if not picks_later or left < LEAST_LEFT_S:
        return found
    ((target, result),) = found.items()
    if result.stopped in ("interrupted", "reached"):
        return found
    sizes = islice(more_sizes(dynamic.dims, chosen.sizes), int(left / LEAST_LEFT_S))
    picks = replace(options, trials=0, budget_s=left, started=None, until=None)
    between = Range(dynamic, log, picks, left, tuple(sizes), result)
    if not between.sizes:
        return found
    tell = None if progress is None else lambda p: progress(_of_whole(p, result, options))
    more = asked.tuning(between)(log, tell, interrupts)[target]
    return {target: replace(more, stopped=result.stopped if more.stopped != "interrupted" else more.stopped)}


class Range:
    """Makes a job of the sizes of a range. ``sizes``: which (None: those that the options have time for).
    ``budget_s``: seconds for all. ``before``: the result of sizes that were tuned before. ``here``: whether
    this machine measures, which has the arrays in its memory. Then what every size failed with is raised."""

    def __init__(
        self,
        dynamic: DynamicWorkload,
        log: Log,
        options: TuneOptions,
        budget_s: float,
        sizes: Sequence[Sizes] | None = None,
        before: DynamicResult | None = None,
        here: bool = True,
    ) -> None:
        self.dynamic, self.log, self.before, self.here = dynamic, log, before, here
        self.options = replace(options, budget_s=budget_s)
        self.sizes: list[Sizes] = []
        self.refused: dict[Sizes, AutotuneError] = {}
        for one in sizes_for(dynamic.dims, options) if sizes is None else sizes:
            try:
                preparation.check_feasible(dynamic.at(one), budget_s, memory=here)
                self.sizes.append(one)
            except AutotuneError as err:
                self.refused[one] = err
        if not self.sizes and before is None:
            raise next(iter(self.refused.values()))

    def job(self, target: Target) -> Job:
        always = ALWAYS if self.here and self.before is None else 0
        return Job([task_of(self.dynamic, s) for s in self.sizes], self.options, always, self._whole)

    def _whole(
        self, times: Mapping[str, float], limits: Mapping[str, float]
    ) -> tuple[float | None, float | None]:
        """The time of the largest size, and the share of the limit of all, where each has a kernel."""
        weights = {t.workload.digest: t.weight for t in (task_of(self.dynamic, s) for s in self.sizes)}
        time_s, share = whole(weights, times, limits)
        return None if time_s is None else times.get(self.dynamic.at(self.dynamic.largest).digest), share

    def result(self, target: Target, found: SuiteResult) -> DynamicResult:
        """Raises the error of the first size where no size could be tuned."""
        causes = [t.cause for t in found.tasks]
        if self.here and self.before is None and causes[0] is not None and None not in causes:
            raise causes[0]
        by_size = dict[Sizes, TuneResult]() if self.before is None else dict(self.before.by_size)
        if self.before is None:
            by_size |= {s: self._failed(s, target, e) for s, e in self.refused.items()}
        by_size |= {s: with_error(t) for s, t in zip(self.sizes, found.tasks, strict=True)}
        largest = by_size[self.dynamic.largest]
        if self.here:  # what was not tried takes its first pick when it is first called
            by_size = {s: r for s, r in by_size.items() if r.best is not None or r.stopped != "not begun"}
        own = {f.name: getattr(largest, f.name) for f in fields(TuneResult)}
        elapsed_s = found.elapsed_s + (0.0 if self.before is None else self.before.elapsed_s)
        aimed = found.aimed if self.before is None else self.before.aimed
        own |= totals(by_size.values())
        own |= {"elapsed_s": elapsed_s, "stopped": found.stopped, "aimed": aimed}
        return DynamicResult(**own, by_size=dict(sorted(by_size.items())))

    def _failed(self, sizes: Sizes, target: Target, err: AutotuneError) -> TuneResult:
        """The result of a size that cannot be tuned."""
        workload = self.dynamic.at(sizes)
        best = best_of(workload, target, self.log, None)
        return TuneResult(
            *(workload, target, best, 0, {}, 0, 0.0, self.options.seed, "failed"),
            error=None if best is not None else str(err),
            notes=() if best is None else (f"it was not tuned: {err}",),
            place=self.log.place,
        )


def _of_whole(p: SuiteProgress, before: DynamicResult, options: TuneOptions) -> SuiteProgress:
    """The progress of sizes between those that were tuned before, as that of all."""
    tuned = len(before.by_size)
    spent, budget_s = p.elapsed_s + before.elapsed_s, options.budget_s
    return replace(
        p,
        number=p.number + tuned,
        tasks=p.tasks + tuned,
        task=replace(p.task, elapsed_s=spent, budget_s=budget_s),
        ready=p.ready + sum(r.ready for r in before.by_size.values()),
        measured=p.measured + before.measured,
        weighted_s=None,
        elapsed_s=spent,
        budget_s=budget_s,
    )


def task_of(dynamic: DynamicWorkload, sizes: Sizes) -> SuiteTask:
    """A size as a task of a suite. Its weight makes all sizes count alike."""
    workload = dynamic.at(sizes)
    cost = workload.flops + FLOPS_A_BYTE * compulsory_bytes(workload.dag)
    named = ",".join(f"{d.name}={n}" for d, n in zip(dynamic.dims, sizes, strict=True))
    return SuiteTask(workload, 1.0 / max(cost, 1.0), named)


def sizes_for(dims: Sequence[Dim], options: TuneOptions) -> list[Sizes]:
    """The sizes to tune: evenly spaced on a logarithmic scale, the least and the largest among them. As many
    as the budget has time for."""
    time_for = int(TUNED_SHARE * options.budget_s / SECONDS_A_SIZE)
    most = min(max(time_for, 2), MOST)
    each = max(2, math.floor(most ** (1 / len(dims)) + 1e-9))
    return list(product(*(spread(d, each) for d in dims)))


def spread(d: Dim, number: int) -> list[int]:
    """At most ``number`` sizes of a dimension, evenly spaced on a logarithmic scale, both ends among them.

    >>> spread(dim(1, 512), 4)
    [1, 8, 64, 512]
    """
    doublings = math.log2(d.hi / d.lo)
    number = min(number, 1 + math.ceil(A_DOUBLING * doublings))
    if number < 2:
        return [d.hi]
    steps = (d.lo * (d.hi / d.lo) ** (i / (number - 1)) for i in range(number))
    return sorted({min(max(round(x), d.lo), d.hi) for x in steps})


def more_sizes(dims: Sequence[Dim], known: Sequence[Sizes]) -> Iterator[Sizes]:
    """Further sizes, each in the widest gap between those of one dimension that are known, until there is no
    gap. The other dimensions take their known sizes."""
    values = [sorted({s[k] for s in known} | {d.lo, d.hi}) for k, d in enumerate(dims)]
    while True:
        pairs = ((k, a, b) for k, v in enumerate(values) for a, b in pairwise(v))
        gaps = [(math.log2(b / a), k, a, b) for k, a, b in pairs if b > a + 1]
        if not gaps:
            return
        _, k, a, b = max(gaps)
        middle = min(max(round(math.sqrt(a * b)), a + 1), b - 1)
        yield from product(*(values[i] if i != k else [middle] for i in range(len(dims))))
        values[k] = sorted([*values[k], middle])
