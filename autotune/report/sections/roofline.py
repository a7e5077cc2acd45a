"""Section: rooflines. Williams, Waterman, Patterson: Roofline, CACM 52 (2009)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autotune.report import parts
from autotune.report.data import Limit, LogData, LoggedTask, number
from autotune.tuning.known_limits import MEMORY_BYTES
from kernels_db.records import Record
from schedules.units import of_peak, peak_share
from schedules.units import peak as of_what

# Axes that span more than this (ratio) have labels at powers of ten alone.
WIDE = 60.0
# Most plots of the whole log: kinds of machine, by their number of tasks.
KINDS = 4


def _roof(limits: Sequence[Limit], places: Sequence[float]) -> list[dict[str, Any]]:
    """Lines of the peak and of the bandwidths, over the range of ``places``."""
    most = max(limits, key=lambda x: x.flops_a_second or 0.0, default=None)
    peak = None if most is None else most.flops_a_second
    what = of_what(None if most is None else most.by)
    rates = sorted(x.bytes_a_second for x in limits if x.bytes_a_second)
    low, high = min(places) / 2, max(places) * 2
    if peak and rates:
        low, high = min(low, peak / rates[-1] / 2), max(high, peak / rates[0] * 4)
    made: list[dict[str, Any]] = []
    if peak:
        begin = low if not rates else max(low, peak / rates[-1])
        made.append(
            parts.line(
                f"{what}: {peak / 1e9:,.0f} GFLOP/s",
                [parts.rounded(begin), parts.rounded(high)],
                [parts.rounded(peak / 1e9)] * 2,
                parts.RED,
                hovertemplate=what + ": %{y:.4g} GFLOP/s<extra></extra>",
            )
        )
    ends = dict.fromkeys((rates[-1], rates[0]) if rates else ())
    names = ("bandwidth",) if len(ends) == 1 else ("highest bandwidth", "lowest bandwidth")
    for rate, dash, name in zip(ends, ("solid", "dash"), names):
        end = high if not peak else min(high, peak / rate)
        if end > low:
            made.append(
                parts.line(
                    f"{name}: {rate / 1e9:,.1f} GB/s",
                    [parts.rounded(low), parts.rounded(end)],
                    [parts.rounded(low * rate / 1e9), parts.rounded(end * rate / 1e9)],
                    parts.ORANGE,
                    dash=dash,
                    hovertemplate="bandwidth<extra></extra>",
                )
            )
    return made


def _layout(data: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Logarithmic axes, with a label for each power of ten where there are several."""

    def one(title: str, key: str) -> dict[str, Any]:
        values = [v for series in data for v in series[key] if v and v > 0]
        wide = max(values, default=1.0) > WIDE * min(values, default=1.0)
        return parts.axis(title, log=True, **({"dtick": 1} if wide else {}))

    return {
        "xaxis": one("arithmetic intensity: FLOPs a byte of memory traffic", "x"),
        "yaxis": one("GFLOP/s", "y"),
        "hovermode": "closest",
    }


def of_log(log: LogData) -> parts.SectionPart | None:
    """The winners of all tasks: a roofline for each number of threads of each CPU or GPU, and for each of the
    instructions that do their arithmetic, as their limits differ."""
    found = [t for t in log.tasks if t.best is not None and t.best.time_s and t.workload.flops]
    if len(found) < 2:
        return None
    kinds: dict[str, list[LoggedTask]] = {}
    for t in found:
        n = t.target.threads
        threads = "" if t.target.grid else f", {n} thread{'s' if n != 1 else ''}"
        by = "" if t.limit is None or t.limit.by is None else f", {t.limit.by}"
        kinds.setdefault(f"{parts.short(t.target.arch, 40)}{threads}{by}", []).append(t)
    drawn = sorted(kinds, key=lambda kind: -len(kinds[kind]))[:KINDS]
    unknown = (
        ""
        if any(t.limit for t in found)
        else "The log knows no limit of these machines, so there are no lines."
    )
    words = "Of each task, intensity is its FLOPs over the bytes of its arguments, each moved once."
    skipped = len(log.tasks) - len(found)
    rest = f"{skipped:,} tasks without a kernel or without FLOPs are not drawn." if skipped else ""
    others = sum(len(kinds[k]) for k in kinds if k not in drawn)
    more = f"{others:,} tasks on {len(kinds) - len(drawn)} other targets are not drawn." if others else ""
    return parts.SectionPart(
        "", [_of_kind(k, kinds[k]) for k in drawn], parts.paragraphs(words, unknown, rest, more)
    )


def _of_kind(kind: str, found: Sequence[LoggedTask]) -> parts.Figure:
    """The winners of tasks that have one limit of arithmetic."""
    x = [t.workload.flops / t.bytes for t in found]
    y = [t.workload.flops / (t.best.time_s or 1.0) / 1e9 for t in found if t.best is not None]
    limits = [t.limit for t in found if t.limit is not None]
    hover = [
        f"{parts.short(t.name, 80)}<br>{v:,.1f} GFLOP/s, "
        f"{parts.seconds(t.best.time_s if t.best else None)}, of limit: {peak_share(t.share, t.peak_of)}"
        for t, v in zip(found, y)
    ]
    kept = parts.thinned(len(found))
    points = parts.dots(
        "best of a task",
        [parts.rounded(x[i]) for i in kept],
        [parts.rounded(y[i]) for i in kept],
        parts.BLUE,
        hover=[hover[i] for i in kept],
        marker_size=8,
    )
    drawn = [*_roof(limits, x), points]
    title = f"Roofline of the best of each task: {kind}"
    return parts.Figure(title, drawn, _layout(drawn), parts.left_out(len(kept), len(found), "tasks"), 440)


def of_task(log: LogData, task: LoggedTask) -> parts.SectionPart | None:
    """Every candidate of a task."""
    flops = task.workload.flops
    measured = [r for r in task.trials if r.time_s and r.status in ("ok", "slow")]
    if not measured or task.best is None:
        return None
    if not flops:
        return parts.SectionPart(
            parts.paragraphs(
                "This task computes no floating-point operations, so that it has no roofline.", _of(task)
            )
        )
    stored = sum(number(r.environment.get(MEMORY_BYTES)) is not None for r in measured)
    moved = {r.trace_digest: log.memory_bytes(task, r) for r in measured}
    known = sum(moved[r.trace_digest] is not None for r in measured)
    kept = parts.thinned(len(measured))
    groups: dict[str, list[Record]] = {"ok": [], "slow": []}
    for i in kept:
        groups[measured[i].status].append(measured[i])

    def intensity(r: Record) -> float:
        return flops / (moved.get(r.trace_digest) or task.bytes)

    def points(name: str, of: Sequence[Record], colour: str, **more: object) -> dict[str, object]:
        return parts.dots(
            name,
            [parts.rounded(intensity(r)) for r in of],
            [parts.rounded(flops / (r.time_s or 1.0) / 1e9) for r in of],
            colour,
            hover=[parts.short(r.sketch, 80) for r in of],
            template="%{y:.4g} GFLOP/s, %{x:.3g} FLOPs a byte<br>%{text}",
            **more,  # type: ignore[arg-type]
        )

    best = task.best
    moved.setdefault(best.trace_digest, log.memory_bytes(task, best))
    data = [points("candidate", groups["ok"], parts.GREY, marker_size=5)]
    if groups["slow"]:
        data.append(points("stopped early", groups["slow"], parts.ORANGE, symbol="triangle-down-open"))
    data.append(points("winner", [best], parts.GREEN, symbol="star", marker_size=15, opacity=1.0))
    x = [intensity(r) for r in (*measured, best)]
    limits = [] if task.limit is None else [task.limit]
    source = _source(len(measured), known, stored)
    figure = parts.Figure(
        "Roofline of all candidates",
        drawn := [*_roof(limits, x), *data],
        _layout(drawn),
        parts.left_out(len(kept), len(measured), "candidates"),
        420,
    )
    return parts.SectionPart("", [figure], parts.paragraphs(source, _of(task)))


def _source(measured: int, known: int, stored: int) -> str:
    """Where the bytes of memory traffic come from: of so many candidates that were measured, for how many
    they are known, and for how many of those the log has them."""
    if not known:
        return (
            "The log has no estimate of what each candidate moves, so that all stand at the intensity of "
            "the arguments, each moved once. `autotune report OP --shape …` computes it from the decisions "
            "of the records."
        )
    how = (
        "as it was logged with each trial"
        if stored == known
        else "computed again from the decisions of the records"
    )
    source = f"Bytes of memory traffic are the estimate of the search, {how}; they are not measured."
    if missing := measured - known:
        source += f" {missing:,} candidates without one stand at the intensity of the arguments."
    return source


def _of(task: LoggedTask) -> str:
    if task.limit is None:
        return "The log does not know the limit of the machine, so there are no lines of it."
    best_s = task.best.time_s if task.best is not None else None
    of = "the limit" if task.peak_of is None else of_what(task.peak_of)
    return (
        f"The machine needs at least {parts.seconds(task.limit.seconds)} for this task; the winner takes "
        f"{parts.seconds(best_s)}{'' if task.share is None else ', ' + of_peak(task.share, of)}."
    )


SECTION = parts.ReportSection(
    "roofline",
    "Roofline",
    "A roofline says what bounds a kernel. To the left, memory does: no point can lie above the slanted "
    "line, which is the bandwidth. To the right, arithmetic does: none can lie above the flat line, the "
    "peak. A point far below both has something else to gain: vectors, reuse in registers, threads. A "
    "point can lie above the slanted line where its data stay in a cache that is faster than the one that "
    "was measured.",
    of_log,
    of_task,
)
