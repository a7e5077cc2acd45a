"""Section: how the search came to its best, by trial and by second, and what failed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.report import parts
from autotune.report.data import CAUSES, NO_FAILURES, LogData, LoggedTask
from kernels_db.records import Record

# Most reasons of failures that are listed.
REASONS = 12
# Of failures, by their place among the causes.
SYMBOLS = ("x", "cross", "diamond-x", "square-x", "circle-x", "star")


def _why(r: Record) -> str:
    return f"{parts.text(CAUSES.get(r.status, r.status))}: {parts.short(r.reason, 110)}"


def of_task(log: LogData, task: LoggedTask) -> parts.SectionPart | None:
    """The figures of a task, and its failures in words."""
    if not task.trials:
        return None
    good = [r for r in task.trials if r.status == "ok" and r.time_s]
    if not good:  # there is no time to draw
        return parts.SectionPart("", (), _failures(task))
    steps = _improvements(good)
    numbers = {r.uid: n for n, r in enumerate(task.trials, 1)}
    by_trace = {r.trace_digest: n for n, r in enumerate(task.trials, 1)}
    when = {r.uid: parts.rounded(task.second(r), 4) for r in (*task.trials, *task.finals)}
    places: dict[str, Mapping[str, float | int | None]] = {"trial": numbers, "second": when}
    figures = [_figure(task, good, steps, by, at, by_trace) for by, at in places.items()]
    return parts.SectionPart("", figures, _failures(task))


def _improvements(good: Sequence[Record]) -> list[Record]:
    found: list[Record] = []
    for r in good:
        if not found or r.time_s < found[-1].time_s:  # type: ignore[operator]
            found.append(r)
    return found


@dataclass(frozen=True)
class _Plot:
    """What the series of a figure have in common. ``by``: "trial" or "second"; ``place``: where each record
    stands, by its uid; ``scale``: of seconds; ``bottom``: the longest time, in that scale."""

    by: str
    place: Mapping[str, float | int | None]
    scale: float
    unit: str
    bottom: float

    def at(self, records: Sequence[Record]) -> list[float | int | None]:
        return [self.place[r.uid] for r in records]

    def times(self, records: Sequence[Record]) -> list[float | None]:
        return [parts.rounded((r.time_s or 0) * self.scale) for r in records]


# A series, with a sentence about what of it is not drawn.
_Series = tuple[dict[str, Any], str]


def _sample(records: Sequence[Record], what: str) -> tuple[list[Record], str]:
    some = [records[i] for i in parts.thinned(len(records))]
    return some, parts.left_out(len(some), len(records), what)


def _figure(
    task: LoggedTask,
    good: Sequence[Record],
    steps: Sequence[Record],
    by: str,
    place: Mapping[str, float | int | None],
    by_trace: Mapping[str, int],
) -> parts.Figure:
    times = [r.time_s for r in good if r.time_s]
    longest, shortest = max(times, default=1.0), min(times, default=1.0)
    scale, unit = _unit(shortest)
    plot = _Plot(by, place, scale, unit, longest * scale)
    best = _best(plot, steps, task.trials[-1])
    series = [
        _measured(plot, good, steps),
        *_stopped(plot, task.trials),
        *_failed(plot, task.trials),
        (best, ""),
        *_finals(plot, task, by_trace),
    ]
    if task.limit is not None:
        series.append((_limit(plot, task.limit.seconds, best["x"]), ""))
    words = "trial" if by == "trial" else "seconds since the run began (runs one after another)"
    return parts.Figure(
        f"Time of a call by {by}",
        [data for data, _ in series],
        {
            "xaxis": parts.axis(words),
            "yaxis": parts.axis(f"{unit} a call", log=longest > 2 * shortest),
            "hovermode": "closest",
        },
        " ".join(note for _, note in series if note),
    )


def _measured(plot: _Plot, good: Sequence[Record], steps: Sequence[Record]) -> _Series:
    index = {id(r): i for i, r in enumerate(good)}
    shown = [good[i] for i in parts.thinned(len(good), (index[id(r)] for r in steps))]
    by_trial = plot.by == "trial"
    series = parts.dots(
        "trial",
        plot.at(shown),
        plot.times(shown),
        parts.GREY,
        hover=[parts.short(r.sketch, 80) for r in shown] if by_trial else None,
        template=f"trial %{{x}}: %{{y:.4g}} {plot.unit}<br>%{{text}}"
        if by_trial
        else f"%{{y:.4g}} {plot.unit} after %{{x:.4g}} s",
        marker_size=5,
    )
    return series, parts.left_out(len(shown), len(good), "trials", ", with each that was the best so far")


def _stopped(plot: _Plot, trials: Sequence[Record]) -> Iterator[_Series]:
    early = [r for r in trials if r.status != "ok" and r.status in NO_FAILURES]
    if not early:
        return
    some, note = _sample(early, "trials stopped early")
    most = plot.bottom * 1.2
    series = parts.dots(
        f"stopped early ({len(early):,})",
        plot.at(some),
        [parts.rounded(min((r.time_s or plot.bottom / plot.scale) * plot.scale, most)) for r in some],
        parts.ORANGE,
        hover=[_why(r) for r in some],
        template=f"{plot.by} %{{x}}: %{{text}}",
        symbol="triangle-down-open",
        opacity=0.8,
    )
    yield series, note


def _failed(plot: _Plot, trials: Sequence[Record]) -> Iterator[_Series]:
    """A series for each cause, the most frequent first."""
    failed: defaultdict[str, list[Record]] = defaultdict(list)
    for r in trials:
        if r.status not in NO_FAILURES:
            failed[r.status].append(r)
    for k, (status, each) in enumerate(sorted(failed.items(), key=lambda x: -len(x[1]))):
        cause = CAUSES.get(status, status)
        some, note = _sample(each, f"failures ({cause})")
        series = parts.dots(
            f"{parts.text(cause)} ({len(each):,})",
            plot.at(some),
            [parts.rounded(plot.bottom * 1.45)] * len(some),
            parts.RED,
            hover=[_why(r) for r in some],
            template=f"{plot.by} %{{x}}: %{{text}}",
            symbol=SYMBOLS[k % len(SYMBOLS)],
            marker_size=7,
            opacity=0.9,
        )
        yield series, note


def _best(plot: _Plot, steps: Sequence[Record], last: Record) -> dict[str, Any]:
    """The best so far, up to the last trial."""
    x, y = plot.at(steps), plot.times(steps)
    end = max(plot.place[last.uid] or 0, x[-1] or 0)
    hover = f"best so far: %{{y:.4g}} {plot.unit}<extra></extra>"
    return parts.line(
        "best so far", [*x, end], [*y, y[-1]], parts.BLUE, line={"shape": "hv"}, hovertemplate=hover
    )


def _finals(plot: _Plot, task: LoggedTask, by_trace: Mapping[str, int]) -> Iterator[_Series]:
    """The finals, by the trial of their trace or by the clock."""
    by_trial = plot.by == "trial"
    finals = [r for r in task.finals if r.time_s and (r.trace_digest in by_trace or not by_trial)]
    if not finals:
        return
    some, note = _sample(finals, "finals")
    series = parts.dots(
        f"final ({len(finals):,})",
        [by_trace[r.trace_digest] for r in some] if by_trial else plot.at(some),
        plot.times(some),
        parts.GREEN,
        template=f"final: %{{y:.4g}} {plot.unit}",
        symbol="diamond",
        marker_size=8,
        opacity=0.95,
    )
    yield series, note


def _limit(plot: _Plot, limit_s: float, x: Sequence[Any]) -> dict[str, Any]:
    hover = f"limit: %{{y:.4g}} {plot.unit}<extra></extra>"
    ends, y = [x[0], x[-1]], [parts.rounded(limit_s * plot.scale)] * 2
    return parts.line("limit of the machine", ends, y, parts.COLOURS[3], dash="dot", hovertemplate=hover)


def _unit(least: float) -> tuple[float, str]:
    return next(
        ((s, u) for s, u, t in ((1.0, "s", 1.0), (1e3, "ms", 1e-3), (1e6, "µs", 1e-6)) if least >= t),
        (1e9, "ns"),
    )


def _failures(task: LoggedTask) -> str:
    """Failures by cause, with their reasons."""
    if not task.failed and not task.by_status["slow"]:
        return '<p class="remark">No trial failed.</p>'
    said = []
    if task.by_status["slow"]:
        said.append(f"{task.by_status['slow']:,} trials were stopped early, as far from the best.")
    if not task.failed:
        return parts.paragraphs(*said, "No trial failed.")
    reasons = Counter((r.status, r.reason) for r in task.trials if r.status not in NO_FAILURES)
    rows = [
        (parts.text(CAUSES.get(status, status)), f"{n:,}", parts.short(reason, 260))
        for (status, reason), n in reasons.most_common(REASONS)
    ]
    rest = len(reasons) - REASONS
    more = f'<p class="remark">{rest:,} more reasons.</p>' if rest > 0 else ""
    said.append(f"{task.failed:,} of {len(task.trials):,} trials failed:")
    return parts.paragraphs(*said) + parts.table(("cause", ">trials", "reason"), rows) + more


SECTION = parts.ReportSection(
    "convergence",
    "Convergence",
    "Each grey dot is a trial: how long a call of that candidate took. The blue line is the best so far; "
    "where it is flat for long, more trials promise little. Green diamonds are finals: the best were timed "
    "once more, in turns, and the fastest of them wins, as the luckiest single trial may not be the best. "
    "Crosses at the top failed. The second plot has the same by the clock.",
    of_task=of_task,
)
