"""Section: where the time of tuning went."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.report import parts
from autotune.report.data import LogData, LoggedTask, number, seconds_between
from kernels_db.records import Record

# {phase of a record: (words for it, colour)}.
PHASES = {
    "search": ("choosing candidates", parts.VIOLET),
    "build": ("building", parts.BLUE),
    "check": ("checking results", parts.ORANGE),
    "run": ("timing trials", parts.GREEN),
}
FINALS = "timing finals"
# Most tasks that have a bar.
BARS = 30


def spent(task: LoggedTask) -> dict[str, float]:
    """Seconds by phase of a task's trials, and of its finals."""
    found = {phase: _sum(task.trials, phase) for phase in PHASES}
    return found | {FINALS: _sum(task.finals, "run")}


def _sum(records: Sequence[Record], phase: str) -> float:
    every = (r.environment.get("seconds") for r in records)
    return sum((max(0.0, number(x.get(phase)) or 0.0) for x in every if isinstance(x, dict)), 0.0)


def wall_s(task: LoggedTask) -> float:
    """Seconds of the task's runs by the clock, those that ended."""
    return sum(max(0.0, seconds_between(r.started, r.ended)) for r in task.runs if r.ended)


def _bars(names: list[str], each: list[dict[str, float]]) -> list[dict[str, object]]:
    kinds = {**PHASES, FINALS: (FINALS, parts.GREY)}
    return [
        parts.bars(words, names, [parts.rounded(s[phase], 4) for s in each], colour, f"{words}: %{{x:.3g}} s")
        for phase, (words, colour) in kinds.items()
    ]


def _words(found: dict[str, float]) -> str:
    total = sum(found.values())
    kinds = {**{k: v[0] for k, v in PHASES.items()}, FINALS: FINALS}
    said = [f"{kinds[k]} {parts.seconds(s)} ({s / total:.0%})" for k, s in found.items() if s > 0.0]
    return f"Together {parts.seconds(total)}: {', '.join(said)}."


OVERLAP = "Building goes on while others are timed, so that these may be more than the clock has."


def of_task(log: LogData, task: LoggedTask) -> parts.SectionPart | None:
    """A bar of a task."""
    found = spent(task)
    if not sum(found.values()):
        return None
    figure = parts.Figure(
        "Seconds by phase",
        _bars(["this task"], [found]),
        {"barmode": "stack", "xaxis": parts.axis("seconds"), "yaxis": {"showticklabels": False}},
        height=190,
    )
    clock = wall_s(task)
    took = (
        f"Its runs took {parts.seconds(clock)} by the clock, those of a suite with turns of other tasks."
        if clock
        else ""
    )
    return parts.SectionPart("", [figure], parts.paragraphs(_words(found), took, OVERLAP))


def of_log(log: LogData) -> parts.SectionPart | None:
    """The bars of all tasks, those that took longest first."""
    if len(log.tasks) < 2:
        return None
    each = sorted(((t, spent(t)) for t in log.tasks), key=lambda x: -sum(x[1].values()))
    total = {phase: sum(s[phase] for _, s in each) for phase in each[0][1]}
    if not sum(total.values()):
        return None
    shown = each[:BARS][::-1]
    rest = len(each) - len(shown)
    names = [
        f"{parts.short(t.name, 46)}<span style='font-size:1px'> {i}</span>" for i, (t, _) in enumerate(shown)
    ]
    figure = parts.Figure(
        "Seconds by phase and task",
        _bars(names, [s for _, s in shown]),
        {"barmode": "stack", "xaxis": parts.axis("seconds"), "yaxis": {"automargin": True}},
        f"The {BARS} tasks that took longest have bars; the sum in words is of all {len(each):,}."
        if rest > 0
        else "",
        140 + 22 * len(shown),
    )
    return parts.SectionPart("", [figure], parts.paragraphs(_words(total), OVERLAP))


SECTION = parts.ReportSection(
    "time",
    "Where the time went",
    "Seconds of trials by phase. Choosing is the search and its model. Building compiles. Checking "
    "compares a candidate's result with the reference before it is timed. A search that is well used "
    "spends most of its time on timing.",
    of_log,
    of_task,
)
