"""Times that no machine can reach are taken back to what was measured.

A time is normalised: what a run took, times the speed of a control beside it over the control's normal speed
(`autotune.measure.timing`). On a loaded machine the control may have been disturbed where the candidate was
not, with several threads most of all, as one of them waits for the other. The product then is below what the
candidate took, down to `timing.SLOWEST` of it, and may be below the machine's limit. No slower clock explains
that.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.measure.results import Measurement

# Share of the limit by which noise may take a time below it.
NOISE = 0.03


def credible(m: Measurement, limit_s: float | None) -> Measurement:
    """The measurement with times of at least the limit, or of what was measured where that is less.

    ``limit_s``: least seconds that the machine needs for the workload (`Site.roofline`); None: unknown. Times
    within `NOISE` of it stay. The fact ``normalised_s`` says what the time was before."""
    rate = m.reference_rate
    if limit_s is None or m.time_s is None or not rate or rate >= 1:
        return m
    least = limit_s * (1 - NOISE)
    if m.time_s >= least:
        return m

    def raised(t: float) -> float:
        return max(t, min(t / rate, least))

    facts = {**m.facts, "normalised_s": m.time_s}
    return replace(m, times_s=tuple(map(raised, m.times_s)), time_s=raised(m.time_s), facts=facts)
