"""The first schedule of a workload that nobody tuned: a few candidates, checked and timed in seconds.

Candidates come from the schedules of similar tasks, else from the model's estimate; the plain loops are tried
last, if they may be faster. The fastest is taken. Loading imports this module when a log has no record and
nothing else (ADR 44).
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from autotune import backends, targets
from autotune.measure.process import MeasureError
from autotune.measure.starting import may_be_late_s, was_late
from autotune.search.evolutionary import EvolutionarySearch, EvolutionOptions, model_features
from autotune.tuning import plain_loops
from autotune.tuning.allowed import Allows
from autotune.tuning.plain_loops import PlainLoops
from autotune.tuning.preparation import CHECKS, FASTEST
from autotune.tuning.ranking import mean_s
from autotune.tuning.similar import Seed, seeds
from autotune.tuning.site import HERE, Measuring, Site
from cost_model.analytic import AnalyticModel
from kernels_db.place import LogPlace
from schedules.model import Target, Trace, Workload
from schedules.space import derive
from schedules.space.base import Space, trace_of

if TYPE_CHECKING:
    from autotune.measure.results import Measurement

# Seconds that a first pick may take. What it loses because others have the CPUs does not count, up to
# LATEST_S in all: on a busy machine it takes longer, and picks what it picks on a quiet one.
LIMIT_S, LATEST_S = 3.0, 60.0
# Candidates that are tried at most, and of similar tasks.
PICKS, SIMILAR = 8, 6
# With so many of similar tasks no model is asked, but in a run of many tasks. So many are compared, if need
# be in MORE_S seconds after the limit: one alone may be several times slower than the next.
ENOUGH, MORE_S = 3, 5.0
# A short evolution: most of the time of a first choice is spent in the features of a sketch's first rows.
SHORT = EvolutionOptions(population=256, generations=1)
# Share of the limit that a reference may take; one that takes longer is computed in part.
REFERENCE_SHARE = 0.1
# Share of it after which the space must do with the sketches that there are.
DERIVE_SHARE = 0.3
# Builds and runs have the limits of a tuning run of so many seconds. While nothing was right, a first pick
# may take so many seconds more.
PATIENT_S, GRACE_S = 30.0, 5.0
# Seconds before the limit at which the last candidate may begin.
MARGIN_S = 0.5

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pick:
    """A schedule under canonical names that was checked here. ``chosen_by``: as of `Seed`, or "default"
    for the plain loops. ``time_s``: of a run; None: there was no time to check it. ``why_alone``: what became
    of the others, where no other was right."""

    trace: Trace
    chosen_by: str
    time_s: float | None
    why_alone: str = ""


def proposals(
    workload: Workload, target: Target, space: Space, where: str | LogPlace, both: bool = False
) -> list[Seed]:
    """At most `PICKS` candidates, those of similar tasks first. ``both``: `ENOUGH` of these and `PICKS` of
    the model, in turns: in a run of many tasks, similar ones may have had first picks only. ``where``: the
    log. Raises `LogError`."""
    found = seeds(workload, target, space, where, ENOUGH if both else SIMILAR)
    if both or len(found) < ENOUGH:
        search = EvolutionarySearch(space, AnalyticModel(model_features(space)), 0, SHORT)
        known = {p.candidate for p in found}
        asked = search.ask(PICKS if both else PICKS - len(found))
        guessed = [Seed(c, "model") for c in asked if c not in known]
        pairs = zip_longest(found, guessed) if both else [(p, None) for p in (*found, *guessed)]
        found = [p for pair in pairs for p in pair if p is not None]
    return found


def first_pick(
    workload: Workload,
    target: Target,
    where: str | LogPlace,
    *,
    limit_s: float = LIMIT_S,
    site: Site = HERE,
    in_place: Mapping[str, str] | None = None,
) -> Pick | None:
    """The fastest of a few candidates: where sizes are open, by the geometric mean of what one takes at
    several. None if none was right.

    ``where``: the log whose tasks may be similar. ``limit_s``: seconds, more while others have the CPUs (as
    far as `shared_start` lets it be late), or few were compared. Each candidate is checked against the
    reference; of large workloads a few parts of the outputs are. Where there was no time for any, or
    measuring does not work, it is the best as the estimate has it, not checked: plain loops may be hundreds
    of times slower. ``in_place``: outputs that are inputs, which schedules then allow. Raises `LogError`,
    `WorkloadError` where no candidate can be checked, and `ScheduleError` if there is no space.
    """
    started = time.monotonic()
    until, allows = started + limit_s - MARGIN_S, Allows.of(workload, target, in_place)
    latest = started + max(min(LATEST_S, limit_s + may_be_late_s()), limit_s)
    best: Pick | None = None
    best_s: float | None = None
    least_s = math.inf  # of a run, or where sizes are open the mean over sizes
    tried: set[Trace] = set()
    failed: Counter[str] = Counter()

    def run(planned: Sequence[tuple[Trace, str]]) -> None:
        nonlocal best, best_s, least_s
        traces = [trace for trace, _ in planned]
        for i, m in race(measurer, traces, until, grace_s(workload), best_s, latest, ENOUGH):
            tried.add(traces[i])
            best_s = _better(best_s, m)
            if m.status not in ("ok", "slow"):
                failed[f"{m.status} ({m.reason[:80]})" if m.reason else m.status] += 1
            took_s = (mean_s(m) or m.time_s or math.inf) if m.status == "ok" else math.inf
            if took_s < least_s:
                best, least_s = Pick(*planned[i], m.time_s), took_s

    with ThreadPoolExecutor(1, "autotune-first-pick") as thread:
        planning = thread.submit(_planned, workload, target, where, limit_s, allows)  # as processes start
        try:
            reference_s = REFERENCE_SHARE * limit_s
            with site.measurer(workload, target, PATIENT_S, reference_s=reference_s) as measurer:
                measurer.start()
                run(planning.result())
                untried = any(trace not in tried for trace, _ in planning.result())
                plain = PlainLoops(workload, target, not allows(plain_loops.TRACE)).worth(best_s)
                if plain and (best is not None or not untried):
                    alone = best is None
                    run([(plain_loops.TRACE, "default")])
                    if alone and best is not None:
                        best = replace(best, why_alone="; ".join(f"{n} {what}" for what, n in failed.items()))
        except MeasureError as err:
            log.warning("first picks of %s cannot be measured: %s", workload.op, err)
        was_late(max(time.monotonic() - started - limit_s, 0.0))
        if best is not None:
            return best
        return next((Pick(*p, None) for p in planning.result() if p[0] not in tried), None)


def pick_elsewhere(workload: Workload, target: Target, where: str | LogPlace) -> Pick | None:
    """A schedule for a target that this machine is not: of the candidates of `first_pick`, in the order that
    the log and the estimate give, the first whose results are right here, compiled for what this processor
    has of the target's extensions. None if none was right; `Pick.time_s` is None. Raises as `first_pick`
    does."""
    here = backends.parse(backends.HOST, min(target.threads, targets.usable_cpus()))
    stand_in = replace(here, features=tuple(f for f in target.features if f in here.features))
    planned = _planned(workload, target, where, LIMIT_S, Allows.of(workload, target, None))
    with HERE.measurer(workload, stand_in, PATIENT_S, reference_s=REFERENCE_SHARE * LIMIT_S) as measurer:
        measurer.start()
        until = time.monotonic() + LIMIT_S
        for i, m in race(measurer, [t for t, _ in planned], until, grace_s(workload)):
            if m.status in ("ok", "slow"):
                return Pick(*planned[i], None)
    return None


def race(
    measurer: Measuring,
    traces: Sequence[Trace],
    until: float,
    grace_s: float,
    best_s: float | None = None,
    latest: float | None = None,
    enough: int = 1,
) -> Generator[tuple[int, Measurement], None, None]:
    """(index, measurement) of candidates, all at once until a time (`time.monotonic`); then one by one, for
    ``grace_s`` more while none was right, and for `MORE_S` while fewer than ``enough`` were compared.
    ``best_s``: the best time so far (seconds). ``latest``: until when all of this is put off while others
    have the CPUs (None: not at all)."""
    left = dict(enumerate(traces))
    compared = 0
    for i, m in measurer.arrivals(traces, best_s, until, latest=latest):
        del left[i]
        best_s = _better(best_s, m)
        compared += m.status in ("ok", "slow")
        yield i, m
    for i, trace in left.items():
        if best_s is not None and compared >= enough:
            return
        more_s = grace_s if best_s is None else MORE_S
        for _, m in measurer.arrivals([trace], best_s, until + more_s, latest=latest):
            best_s = _better(best_s, m)
            compared += m.status in ("ok", "slow")
            yield i, m


def grace_s(workload: Workload) -> float:
    """Seconds after the limit in which a first pick goes on while nothing was right."""
    return GRACE_S + 2 * CHECKS * workload.flops / FASTEST


def _planned(
    workload: Workload, target: Target, where: str | LogPlace, limit_s: float, allows: Allows
) -> list[tuple[Trace, str]]:
    """``limit_s``: seconds of a first pick, of which this thread has a share for the space, however busy the
    machine is."""
    until = time.thread_time() + DERIVE_SHARE * limit_s
    space = derive(workload.canonical, target, enough=lambda: time.thread_time() > until)
    found = proposals(workload, target, space, where)
    made = [(trace_of(space, p.candidate), p.chosen_by) for p in found]
    return [m for m in made if allows(m[0])]


def _better(best_s: float | None, m: Measurement) -> float | None:
    if m.status != "ok" or m.time_s is None:
        return best_s
    return m.time_s if best_s is None else min(best_s, m.time_s)
