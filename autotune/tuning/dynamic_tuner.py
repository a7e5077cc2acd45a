"""Tunes a program whose sizes vary: some of its sizes, evenly spaced on a logarithmic scale.

Each gets a first pick, the largest first, so that all have a kernel soon: the best schedules of sizes that
are near are tried (`tuning.first_pick`). Then they share the budget as tasks of a suite. At last, sizes
between them get first picks while there is time. A size that is left gets its pick when it is first called.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise, product

from autotune.measure.starting import shared_start
from autotune.run.dynamic_workload import DynamicWorkload, Sizes
from autotune.targets import TargetError
from autotune.tuning import preparation
from autotune.tuning.interrupts import Interrupts
from autotune.tuning.jobs import SuiteTask
from autotune.tuning.options import TuneOptions
from autotune.tuning.results import Progress, SuiteProgress, TuneResult, totals
from autotune.tuning.run_records import best_of
from autotune.tuning.site import HERE, Site
from autotune.tuning.tuner import tune, tune_suite
from kernels_db.errors import LogError
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
# Least seconds that are left for a first pick of one more size.
LEAST_LEFT_S = 2.0


@dataclass(frozen=True, repr=False)
class DynamicResult(TuneResult):
    """The result for the largest sizes, and ``by_size``: of all that were tuned or got a first pick, by the
    values of the sizes that vary. Numbers of trials and ``elapsed_s`` are of all together.

    Example: ``at.tune("matmul", m=at.dim(1, 512), n=64, k=64).by_size[(512,)].best.time_s``.
    """

    by_size: Mapping[Sizes, TuneResult] = field(default_factory=dict)

    def __str__(self) -> str:
        kernels = sum(r.best is not None for r in self.by_size.values())
        return f"{super().__str__()}; {kernels} sizes have a kernel"

    def _repr_html_(self) -> str:
        from autotune.progress import html

        return html.of_sizes(self)

    @property
    def parts(self) -> tuple[TuneResult, ...]:
        return (*self.by_size.values(),)


def tune_dynamic(
    dynamic: DynamicWorkload,
    target: Target,
    log: Log,
    options: TuneOptions | None = None,
    progress: Callable[[SuiteProgress], None] | None = None,
    *,
    interrupts: Interrupts | None = None,
    site: Site = HERE,
) -> DynamicResult:
    """Tune a program whose sizes vary until the budget is used up, or each chosen size has ``options.trials``
    new trials. A size that cannot be tuned has its ``error``, and costs the others nothing.

    Raises `TargetError` and `LogError`, and as `tune` does where no size can be tuned.
    """
    return _Run(dynamic, target, log, options or TuneOptions(), progress, interrupts, site).result()


class _Run:
    """A run: first picks for the chosen sizes, a suite of them, and first picks for sizes between."""

    def __init__(
        self,
        dynamic: DynamicWorkload,
        target: Target,
        log: Log,
        options: TuneOptions,
        progress: Callable[[SuiteProgress], None] | None,
        interrupts: Interrupts | None,
        site: Site,
    ) -> None:
        self.started = options.begin()
        self.dynamic, self.target, self.log = dynamic, target, log
        self.options = replace(options, started=None)  # of its parts
        self.progress, self.interrupts, self.site = progress, interrupts, site
        self.results: dict[Sizes, TuneResult] = {}
        self.errors: dict[Sizes, AutotuneError] = {}
        self.stopped = "budget"

    def result(self) -> DynamicResult:
        """Run, and give the result."""
        try:
            with shared_start():
                self._run()
        except KeyboardInterrupt:  # between the runs of two sizes
            self.stopped = "interrupted"
        return self._result()

    def _run(self) -> None:
        dims, options = self.dynamic.dims, self.options
        chosen = sizes_for(dims, options)
        if not self._pick(reversed(chosen), least_s=0.0 if options.trials == 0 else LEAST_LEFT_S):
            return
        if options.trials == 0:
            self.stopped = "trials"
            return
        share = TUNED_SHARE * options.budget_s - self._spent()
        if share > LEAST_LEFT_S:
            chosen = [s for s in chosen if s not in self.errors]
            self._tune(feasible(self.dynamic, chosen, share)[0], share)
        if self.stopped != "interrupted" and options.trials is None:
            self._pick(more_sizes(dims, chosen), least_s=LEAST_LEFT_S)

    def _tune(self, sizes: Sequence[Sizes], budget_s: float) -> None:
        """Tune sizes as tasks of a suite."""
        if not sizes:
            return
        suite = tune_suite(
            [task_of(self.dynamic, s) for s in sizes],
            *(self.target, self.log, replace(self.options, budget_s=budget_s), self.progress),
            interrupts=self.interrupts,
            site=self.site,
        )
        for s, t in zip(sizes, suite.tasks, strict=True):
            self.results[s] = _joined(self.results.get(s), t.result)
        self.stopped = suite.stopped

    def _spent(self) -> float:
        return time.monotonic() - self.started

    def _pick(self, sizes: Iterable[Sizes], least_s: float) -> bool:
        """A first pick for each size while ``least_s`` seconds are left. False: it was interrupted. Raises
        the error of the first size where `ALWAYS` sizes, or all of them, have one and no size has none."""
        for one in sizes:
            left = self.options.budget_s - self._spent()
            if len(self.results) >= ALWAYS and left < least_s:
                break
            options = replace(self.options, trials=0, budget_s=max(left, LEAST_LEFT_S))
            try:
                found = tune(
                    *(self.dynamic.at(one), self.target, self.log, options, self._report(one)),
                    interrupts=self.interrupts,
                    site=self.site,
                )
            except (LogError, TargetError):  # the other sizes would have the same
                raise
            except AutotuneError as err:
                self.errors[one] = err
                if len(self.errors) == len(self.results) + 1 == ALWAYS:
                    break
                found = failed(self.dynamic.at(one), self.target, self.log, options.seed, err)
            self.results[one] = found
            if found.stopped == "interrupted":
                self.stopped = "interrupted"
                return False
        if self.errors and len(self.errors) >= len(self.results):
            raise next(iter(self.errors.values()))
        return True

    def _report(self, sizes: Sizes) -> Callable[[Progress], None] | None:
        """Tells the progress of a first pick as that of the whole."""
        tell = self.progress
        if tell is None:
            return None
        before = sum(r.measured for r in self.results.values())
        number, ready = len(self.results), sum(r.best is not None for r in self.results.values())

        def report(one: Progress) -> None:
            spent, budget_s = self._spent(), self.options.budget_s
            tell(
                SuiteProgress(
                    number=number,
                    tasks=number + 1,
                    workload=self.dynamic.at(sizes),
                    task=replace(one, elapsed_s=spent, budget_s=budget_s),
                    weighted_s=None,
                    ready=ready,
                    measured=before + one.measured,
                    elapsed_s=spent,
                    budget_s=budget_s,
                )
            )

        return report

    def _result(self) -> DynamicResult:
        return result_of(
            self.dynamic, self.target, self.log, self.results, self.stopped, self._spent(), self.options.seed
        )


def feasible(
    dynamic: DynamicWorkload, sizes: Iterable[Sizes], budget_s: float, memory: bool = True
) -> tuple[list[Sizes], dict[Sizes, AutotuneError]]:
    """The sizes that can be tuned within a budget (seconds), and why the others cannot. ``memory``: as of
    `preparation.check_feasible`."""
    able, others = [], dict[Sizes, AutotuneError]()
    for one in sizes:
        try:
            preparation.check_feasible(dynamic.at(one), budget_s, memory)
        except AutotuneError as err:
            others[one] = err
        else:
            able.append(one)
    return able, others


def failed(workload: Workload, target: Target, log: Log, seed: int, err: AutotuneError) -> TuneResult:
    """The result of a size that cannot be tuned."""
    best = best_of(workload, target, log, None)
    return TuneResult(
        *(workload, target, best, 0, {}, 0, 0.0, seed, "failed"),
        error=None if best is not None else str(err),
        notes=() if best is None else (f"it was not tuned: {err}",),
        place=log.place,
    )


def result_of(
    dynamic: DynamicWorkload,
    target: Target,
    log: Log,
    results: Mapping[Sizes, TuneResult],
    stopped: str,
    elapsed_s: float,
    seed: int,
) -> DynamicResult:
    """The results of some sizes, as one."""
    workload = dynamic.at(dynamic.largest)
    whole = results.get(dynamic.largest) or TuneResult(
        *(workload, target, best_of(workload, target, log, None), 0, {}, 0, 0.0, seed, stopped),
        place=log.place,
    )
    own = {f.name: getattr(whole, f.name) for f in fields(TuneResult)}
    own |= totals(results.values()) | {"elapsed_s": elapsed_s, "stopped": stopped}
    return DynamicResult(**own, by_size=dict(sorted(results.items())))


def task_of(dynamic: DynamicWorkload, sizes: Sizes) -> SuiteTask:
    """A size as a task of a suite. Its weight makes all sizes count alike."""
    workload = dynamic.at(sizes)
    cost = workload.flops + FLOPS_A_BYTE * compulsory_bytes(workload.dag)
    named = ",".join(f"{d.name}={n}" for d, n in zip(dynamic.dims, sizes, strict=True))
    return SuiteTask(workload, 1.0 / max(cost, 1.0), named)


def _joined(before: TuneResult | None, after: TuneResult) -> TuneResult:
    """The result of two runs of a task, of which the second resumed the first."""
    if before is None:
        return after
    spent = Counter(before.spent_s)
    spent.update(after.spent_s)
    counts = totals([before, after]) | {"resumed": before.resumed}
    return replace(after, **counts, elapsed_s=before.elapsed_s + after.elapsed_s, spent_s=dict(spent))


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
