"""Section: how the search came to its best, by trial and by second, and what failed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from autotune.report.data import CAUSES, NO_FAILURES, LogData, Task
from autotune.report.parts import (
    BLUE,
    COLOURS,
    GREEN,
    GREY,
    ORANGE,
    RED,
    Figure,
    Part,
    Section,
    axis,
    dots,
    left_out,
    line,
    prose,
    rounded,
    short,
    table,
    text,
    thinned,
)
from kernels_db.records import Record

# Most reasons of failures that are listed.
REASONS = 12


def _why(r: Record) -> str:
    return f"{text(CAUSES.get(r.status, r.status))}: {short(r.reason, 110)}"


def of_task(log: LogData, task: Task) -> Part | None:
    """The figures of a task, and its failures in words."""
    if not task.trials:
        return None
    trials = list(enumerate(task.trials, 1))
    good = [(n, r) for n, r in trials if r.status == "ok" and r.time_s]
    steps = _improvements(good)
    when = {r.uid: rounded(task.second(r), 4) for _, r in trials}
    when |= {r.uid: rounded(task.second(r), 4) for r in task.finals}
    by_trace = {r.trace_digest: n for n, r in trials}
    if not good:  # there is no time to draw
        return Part("", (), _failures(task))
    figures = [
        _figure(task, trials, good, steps, "trial", {r.uid: n for n, r in trials}, by_trace),
        _figure(task, trials, good, steps, "second", when, by_trace),
    ]
    return Part("", figures, _failures(task))


def _improvements(good: Sequence[tuple[int, Record]]) -> list[tuple[int, Record]]:
    found: list[tuple[int, Record]] = []
    for n, r in good:
        if not found or r.time_s < found[-1][1].time_s:  # type: ignore[operator]
            found.append((n, r))
    return found


def _figure(
    task: Task,
    trials: Sequence[tuple[int, Record]],
    good: Sequence[tuple[int, Record]],
    steps: Sequence[tuple[int, Record]],
    by: str,
    place: dict[str, float | int | None],
    by_trace: dict[str, int],
) -> Figure:
    times = [r.time_s for _, r in good if r.time_s]
    scale, unit = _unit(times)
    index = {id(r): i for i, (_, r) in enumerate(good)}
    kept = thinned(len(good), (index[id(r)] for _, r in steps))
    shown = [good[i] for i in kept]
    early = [(n, r) for n, r in trials if r.status not in ("ok",) and r.status in NO_FAILURES]
    notes = [left_out(len(shown), len(good), "trials", ", with each that was the best so far")]
    data = [
        dots(
            "trial",
            [place[r.uid] for _, r in shown],
            [rounded((r.time_s or 0) * scale) for _, r in shown],
            GREY,
            hover=[short(r.sketch, 80) for _, r in shown] if by == "trial" else None,
            template=f"trial %{{x}}: %{{y:.4g}} {unit}<br>%{{text}}"
            if by == "trial"
            else f"%{{y:.4g}} {unit} after %{{x:.4g}} s",
            marker_size=5,
        )
    ]
    bottom = max(times, default=1.0) * scale
    if early:
        some = [early[i] for i in thinned(len(early))]
        notes.append(left_out(len(some), len(early), "trials stopped early"))
        data.append(
            dots(
                f"stopped early ({len(early):,})",
                [place[r.uid] for _, r in some],
                [rounded(min((r.time_s or bottom / scale) * scale, bottom * 1.2)) for _, r in some],
                ORANGE,
                hover=[_why(r) for _, r in some],
                template=f"{by} %{{x}}: %{{text}}",
                symbol="triangle-down-open",
                opacity=0.8,
            )
        )
    failed: defaultdict[str, list[tuple[int, Record]]] = defaultdict(list)
    for n, r in trials:
        if r.status not in NO_FAILURES:
            failed[r.status].append((n, r))
    for k, (status, each) in enumerate(sorted(failed.items(), key=lambda x: -len(x[1]))):
        some = [each[i] for i in thinned(len(each))]
        notes.append(left_out(len(some), len(each), f"failures ({CAUSES.get(status, status)})"))
        data.append(
            dots(
                f"{text(CAUSES.get(status, status))} ({len(each):,})",
                [place[r.uid] for _, r in some],
                [rounded(bottom * 1.45)] * len(some),
                RED,
                hover=[_why(r) for _, r in some],
                template=f"{by} %{{x}}: %{{text}}",
                symbol=("x", "cross", "diamond-x", "square-x", "circle-x", "star")[k % 6],
                marker_size=7,
                opacity=0.9,
            )
        )
    last = trials[-1][1]
    x = [place[r.uid] for _, r in steps] + [max((place[last.uid] or 0), (place[steps[-1][1].uid] or 0))]
    y = [rounded((r.time_s or 0) * scale) for _, r in steps]
    data.append(
        line(
            "best so far",
            x,
            [*y, y[-1]],
            BLUE,
            line={"shape": "hv"},
            hovertemplate=f"best so far: %{{y:.4g}} {unit}<extra></extra>",
        )
    )
    finals = [r for r in task.finals if r.time_s and (r.trace_digest in by_trace or by == "second")]
    if finals:
        some_finals = [finals[i] for i in thinned(len(finals))]
        notes.append(left_out(len(some_finals), len(finals), "finals"))
        data.append(
            dots(
                f"final ({len(finals):,})",
                [by_trace[r.trace_digest] if by == "trial" else place[r.uid] for r in some_finals],
                [rounded((r.time_s or 0) * scale) for r in some_finals],
                GREEN,
                template=f"final: %{{y:.4g}} {unit}",
                symbol="diamond",
                marker_size=8,
                opacity=0.95,
            )
        )
    if task.limit is not None and x:
        data.append(
            line(
                "limit of the machine",
                [x[0], x[-1]],
                [rounded(task.limit.seconds * scale)] * 2,
                COLOURS[3],
                dash="dot",
                hovertemplate="limit: %{y:.4g} " + unit + "<extra></extra>",
            )
        )
    words = "trial" if by == "trial" else "seconds since the run began (runs one after another)"
    wide = max(times, default=1.0) > 2 * min(times, default=1.0)
    return Figure(
        f"Time of a call by {by}",
        data,
        {"xaxis": axis(words), "yaxis": axis(f"{unit} a call", log=wide), "hovermode": "closest"},
        " ".join(n for n in notes if n),
    )


def _unit(times: Sequence[float]) -> tuple[float, str]:
    least = min(times, default=1.0)
    return next(
        ((s, u) for s, u, t in ((1.0, "s", 1.0), (1e3, "ms", 1e-3), (1e6, "µs", 1e-6)) if least >= t),
        (1e9, "ns"),
    )


def _failures(task: Task) -> str:
    """Failures by cause, with their reasons."""
    if not task.failed and not task.by_status["slow"]:
        return '<p class="remark">No trial failed.</p>'
    said = []
    if task.by_status["slow"]:
        said.append(f"{task.by_status['slow']:,} trials were stopped early, as far from the best.")
    if not task.failed:
        return f'<p class="remark">{prose(" ".join([*said, "No trial failed."]))}</p>'
    reasons = Counter((r.status, r.reason) for r in task.trials if r.status not in NO_FAILURES)
    rows = [
        (text(CAUSES.get(status, status)), f"{n:,}", short(reason, 260))
        for (status, reason), n in reasons.most_common(REASONS)
    ]
    rest = len(reasons) - REASONS
    more = f'<p class="remark">{rest:,} more reasons.</p>' if rest > 0 else ""
    said.append(f"{task.failed:,} of {len(task.trials):,} trials failed:")
    return f'<p class="remark">{prose(" ".join(said))}</p>{table(("cause", ">trials", "reason"), rows)}{more}'


SECTION = Section(
    "convergence",
    "Convergence",
    "Each grey dot is a trial: how long a call of that candidate took. The blue line is the best so far; "
    "where it is flat for long, more trials promise little. Green diamonds are finals: the best were timed "
    "once more, in turns, and the fastest of them wins, as the luckiest single trial may not be the best. "
    "Crosses at the top failed. The second plot has the same by the clock.",
    of_task=of_task,
)
