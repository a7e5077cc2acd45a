"""The explanation of one kernel."""

from __future__ import annotations

from dataclasses import replace

from autotune.report.data import Limit
from autotune.report.explain import counters, cpu, definition, gpu, warps
from autotune.results.explanation import Explanation, Section
from autotune.run.describing import describe
from schedules.model import Target, Workload
from schedules.schedule import Schedule


def of_schedule(
    workload: Workload,
    schedule: Schedule,
    target: Target,
    time_s: float | None = None,
    limit: Limit | None = None,
) -> Explanation:
    """The explanation of a schedule whose trace has no holes. ``time_s``: measured seconds, if known.
    ``limit``: of the machine that measured it."""
    title = f"{describe(workload, target.threads)} on {target.arch}"
    if workload.dag.open is not None:  # sizes are told by calls: of the largest ones, at which it is timed
        workload = replace(workload, dag=workload.dag.largest)
        schedule = Schedule.replay(workload.dag, schedule.trace, target)
    plain = Schedule(workload.dag).nest
    found: list[Section | None] = [definition.task(workload, target, time_s, limit)]
    if target.grid:
        found += gpu.sections(schedule, target)
        found += warps.sections(schedule)
    else:
        limited_by = None if time_s is None else definition.limited_by(workload, limit, time_s)
        found += cpu.sections(workload, plain, schedule.nest, target, limited_by)
        found.append(counters.section(schedule))
    found.append(definition.fusion(workload))
    return Explanation(title, tuple(s for s in found if s is not None))
