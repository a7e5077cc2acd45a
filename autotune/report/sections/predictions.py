"""Section: what models predicted, against what was measured."""

from __future__ import annotations

from typing import Any

from autotune.report import parts
from autotune.report.data import LogData, LoggedTask, number
from autotune.tuning.prediction_quality import MOST, PREDICTED
from autotune.tuning.prediction_quality import of_task as quality
from kernels_db.records import Record
from schedules.units import percent

# {model in a record: (what it had learnt from, colour)}.
MODELS = {
    "model": ("model that learnt from this task's trials", parts.BLUE),
    "prior": ("model that knew other tasks alone", parts.ORANGE),
    "analytic": ("estimate, nothing measured", parts.VIOLET),
}


def _predicted(task: LoggedTask, model: str) -> list[Record]:
    return [
        r
        for r in task.trials
        if isinstance(told := r.environment.get(PREDICTED), dict)
        and number(told.get(model)) is not None
        and r.time_s
        and r.status in ("ok", "slow")
    ]


def _quality(task: LoggedTask, model: str) -> dict[str, float] | None:
    """As of `prediction_quality.of_task`, worked out once: the number of pairs grows with the square."""
    if model not in task.qualities:
        task.qualities[model] = quality(_predicted(task, model)[-MOST:], model)
    return task.qualities[model]


def of_task(log: LogData, task: LoggedTask) -> parts.SectionPart | None:
    """A plot of predicted against measured, and the quality of each model."""
    data: list[dict[str, Any]] = []
    rows: list[tuple[str, ...]] = []
    notes: list[str] = []
    for model, (name, colour) in MODELS.items():
        records = _predicted(task, model)
        if not records:
            continue
        best_s = min(r.time_s for r in records if r.time_s)
        scores = [number(r.environment[PREDICTED][model]) or 0.0 for r in records]
        top = max((s for s in scores if s > 0), default=1.0) if model == "analytic" else 1.0
        kept = parts.thinned(len(records))
        notes.append(parts.left_out(len(kept), len(records), f"trials ({name})"))
        data.append(
            parts.dots(
                name,
                [parts.rounded(scores[i] / top, 4) for i in kept],
                [parts.rounded(best_s / (records[i].time_s or 1.0), 4) for i in kept],
                colour,
                template="predicted %{x:.3f}, measured %{y:.3f}",
                visible="legendonly" if data else True,
            )
        )
        found = _quality(task, model)
        if found is not None:
            rows.append(
                (
                    parts.text(name),
                    f"{found['candidates']:,.0f}",
                    percent(found["pairwise"]),
                    percent(found["top1"]),
                    percent(found["top5"]),
                )
            )
    if not data:
        return None
    data.append(parts.line("as predicted", [0, 1], [0, 1], parts.GREY, dash="dot", hoverinfo="skip"))
    figure = parts.Figure(
        "Predicted against measured speed",
        data,
        {
            "xaxis": parts.axis("predicted: share of the best", rangemode="tozero"),
            "yaxis": parts.axis("measured: share of the best", rangemode="tozero"),
            "hovermode": "closest",
        },
        " ".join(n for n in notes if n),
    )
    headers = ("predicted by", ">trials", ">pairs in order", ">best of 1 pick", ">best of 5 picks")
    few = "" if rows else parts.paragraphs("Too few trials to say how well pairs are ordered: 8 are needed.")
    return parts.SectionPart("", [figure], (parts.table(headers, rows) if rows else "") + few)


def of_log(log: LogData) -> parts.SectionPart | None:
    """Pairwise accuracy of each task, in a plot."""
    if len(log.tasks) < 2:
        return None
    data, said = [], []
    for model, (name, colour) in MODELS.items():
        found = [
            (task, q["pairwise"], int(q["candidates"]))
            for task in log.tasks
            if (q := _quality(task, model)) is not None
        ]
        if not found:
            continue
        average = sum(p for _, p, _ in found) / len(found)
        said.append(f"{name}: {percent(average)} of pairs in order on average, {len(found):,} tasks.")
        data.append(
            parts.dots(
                name,
                [n for _, _, n in found],
                [parts.rounded(100 * p, 4) for _, p, _ in found],
                colour,
                hover=[
                    f"{parts.short(t.name, 80)}<br>{percent(p)} of pairs of {n} trials" for t, p, n in found
                ],
                marker_size=7,
            )
        )
    if not data:
        return None
    most = max(max(d["x"]) for d in data)
    data.append(parts.line("guessing", [8, most], [50, 50], parts.GREY, dash="dot", hoverinfo="skip"))
    figure = parts.Figure(
        "Pairs in order, by task",
        data,
        {
            "xaxis": parts.axis("trials of the task with a prediction", log=most > 200),
            "yaxis": parts.axis("pairs in order (%)", range=[0, 102]),
            "hovermode": "closest",
        },
    )
    return parts.SectionPart("", [figure], parts.paragraphs(*(s[0].upper() + s[1:] for s in said)))


SECTION = parts.ReportSection(
    "predictions",
    "Predicted against measured",
    "A search measures what its model predicts to be fast. Points near the diagonal were predicted well. "
    "What counts is the order: `pairs in order` is the share of pairs of candidates of which the faster "
    "one was predicted to be faster; 50 % is guessing. Click names in the legend to show or to hide models.",
    of_log,
    of_task,
)
