"""Which finalist of a task with open sizes is the best: that which takes the least at several (ADR 79).

A record's time is that of the largest sizes, and a log ranks by it. A finalist that leads there, and takes
more than another by the geometric mean of what both take at all sizes, is logged as "slow", as what was given
up: so a log ranks it no more, whoever reads it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from autotune.measure.open_checks import sizes_to_rank
from autotune.measure.results import SIZES_S, Measurement
from autotune.tuning.resume import FACTS
from kernels_db.records import SHORTEST_S, Record
from schedules.te.compute_dag import ComputeDAG
from schedules.te.flops import count_flops
from schedules.te.open_sizes import at
from schedules.units import seconds

# How much more than the best a finalist may take in the geometric mean (factor) and still lead at the largest
# sizes: what a measurement does not tell apart, and what a rough one does not.
ALIKE, ROUGHLY_ALIKE = 1.02, 1.1


def work_at_sizes(dag: ComputeDAG) -> list[float]:
    """The share of the work of the largest sizes that each size has at which finalists are timed too. None
    without open sizes."""
    whole = max(count_flops(dag.largest), 1)
    return [count_flops(at(dag, sizes)) / whole for sizes in sizes_to_rank(dag)]


def together(passes: Sequence[Measurement]) -> Measurement:
    """The median of a finalist's passes, of which the last says whether it was right, with the times of
    all."""
    last = passes[-1]
    if not last.ok or len(passes) == 1:
        return last
    timed = [p for p in passes if p.time_s]
    times = tuple(t for p in passes for t in p.times_s)
    found = replace(last, times_s=times, time_s=statistics.median(p.time_s or 0.0 for p in timed))
    each = [_at_sizes(p) for p in timed]
    if not all(each):
        return found
    sizes = {k: statistics.median(x[k] for x in each if k in x) for k in each[-1]}
    return replace(found, facts={**last.facts, SIZES_S: sizes})


def behind(found: Mapping[str, Measurement], rough: bool = False) -> dict[str, Measurement]:
    """The measurements, of which those are "slow" that lead at the largest sizes alone. ``found``: what is
    known of each finalist. ``rough``: whether it is known roughly only.

    >>> first = Measurement("ok", "", (1.0,), 1.0, facts={"sizes_s": {"m=1": 0.4}})
    >>> second = Measurement("ok", "", (1.1,), 1.1, facts={"sizes_s": {"m=1": 0.1}})
    >>> behind({"a": first, "b": second})["a"].status
    'slow'
    """
    means = {k: mean for k, m in found.items() if (mean := mean_s(m)) is not None}
    out = dict(found)
    if not means:
        return out
    best = min(means, key=lambda k: means[k])
    most, lead = ROUGHLY_ALIKE if rough else ALIKE, found[best].time_s or 0.0
    for k, mean in means.items():
        factor = mean / means[best]
        if factor > most and (found[k].time_s or 0.0) <= lead * most:
            said = ", ".join(f"{seconds(s)} at {words}" for words, s in _at_sizes(found[k]).items())
            reason = f"{factor:.2f} times the best in the mean over the sizes: {said}"
            out[k] = replace(found[k], status="slow", reason=reason)
    return out


def measured(r: Record) -> Measurement:
    """What a record says of a candidate."""
    facts = r.environment.get(FACTS)
    told = {k: v for k, v in facts.items() if k == SIZES_S} if isinstance(facts, Mapping) else {}
    return Measurement(r.status, r.reason or "", r.times_s, r.time_s, r.error, facts=told)


def mean_s(m: Measurement) -> float | None:
    """The geometric mean of what a candidate takes at the largest sizes and at smaller ones; None where that
    is not known."""
    sizes = _at_sizes(m)
    if not m.ok or not m.time_s or not sizes:
        return None
    return math.exp(statistics.mean(map(math.log, (m.time_s, *sizes.values()))))


def _at_sizes(m: Measurement) -> dict[str, float]:
    """What a finalist takes at smaller sizes. Nothing where that is no such thing: a machine elsewhere may
    say anything."""
    told = m.facts.get(SIZES_S)
    if not isinstance(told, Mapping) or not told:
        return {}
    fine = all(isinstance(s, float) and SHORTEST_S <= s < math.inf for s in told.values())
    return dict(told) if fine else {}
