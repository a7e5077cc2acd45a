"""The contract of sections, and the elements that they share.

A section says what it is about in plain words (`ReportSection.reading`), and makes a `SectionPart` of a log,
of a task, or of both: escaped HTML, and figures. A figure is data for Plotly, whose colours and fonts the
page fills in.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.report.data import LogData, LoggedTask
from schedules import units

# Most points of a series that are drawn: a browser draws each as an element.
MOST_POINTS = 1500
# Colours that stand out on white and on black.
BLUE, GREEN, ORANGE, RED, VIOLET, GREY, CYAN = (
    "#3b82f6", "#10a37f", "#e8930c", "#e5484d", "#8b5cf6", "#8a93a3", "#0aa5c0",
)  # fmt: skip
COLOURS = (BLUE, ORANGE, GREEN, VIOLET, CYAN, RED, GREY)


@dataclass(frozen=True)
class Figure:
    """A plot. ``title`` names it to those who do not see it; ``note`` says what is left out."""

    title: str
    data: Sequence[dict[str, Any]]
    layout: dict[str, Any]
    note: str = ""
    height: int = 380


@dataclass(frozen=True)
class SectionPart:
    """What a section has to say. ``before``, ``after``: HTML around the figures."""

    before: str = ""
    figures: Sequence[Figure] = ()
    after: str = ""


@dataclass(frozen=True)
class ReportSection:
    """A section. ``key``: its anchor. ``reading``: what it shows and how to read it. ``of_log``, ``of_task``:
    None where it has nothing to say of them; they return None where the log has nothing for it."""

    key: str
    title: str
    reading: str
    of_log: Callable[[LogData], SectionPart | None] | None = None
    of_task: Callable[[LogData, LoggedTask], SectionPart | None] | None = None


def text(value: object) -> str:
    """Any text for HTML, and for what Plotly shows, which reads a few tags."""
    return html.escape(str(value), quote=True)


def short(value: object, most: int = 90) -> str:
    """The beginning of a text, escaped."""
    plain = str(value)
    return text(plain if len(plain) <= most else plain[: most - 1] + "…")


def prose(sentence: str) -> str:
    """A sentence with names in backquotes, as HTML."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text(sentence))


def paragraphs(*sentences: str) -> str:
    """A paragraph of sentences, those that are not empty."""
    said = " ".join(s for s in sentences if s)
    return f'<p class="remark">{prose(said)}</p>' if said else ""


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "plain") -> str:
    """A table of cells that are HTML already. Headers that begin with ``>`` are of numbers."""
    right = [h.startswith(">") for h in headers]
    classes = [' class="number"' if r else "" for r in right]
    head = "".join(f"<th{c}>{text(h.removeprefix('>'))}</th>" for h, c in zip(headers, classes))
    body = "".join(
        "<tr>" + "".join(f"<td{c}>{cell}</td>" for cell, c in zip(row, classes)) + "</tr>" for row in rows
    )
    rows_ = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table class="{kind}">{rows_}</table></div>'


def thinned(count: int, keep: Iterable[int] = (), most: int = MOST_POINTS) -> list[int]:
    """At most about ``most`` of so many indices, evenly spaced, with those to keep."""
    if count <= most:
        return list(range(count))
    step = count / most
    return sorted({*(int(i * step) for i in range(most)), *keep, count - 1})


def left_out(drawn: int, count: int, what: str, kept: str = "") -> str:
    """A sentence about points that are not drawn; empty where all are."""
    if drawn >= count:
        return ""
    return f"{drawn:,} of {count:,} {what} are drawn, evenly spaced{kept}; the figures in words count all."


def seconds(value: float | None) -> str:
    """A duration with three digits and a fitting unit."""
    return units.seconds(value).replace(" us", " µs")


def speed(task: LoggedTask, time_s: float | None) -> float | None:
    """GFLOP/s of a task, or GB/s where bytes bound it (`LoggedTask.by_bytes`)."""
    if not time_s:
        return None
    return (task.bytes if task.by_bytes else task.workload.flops) / time_s / 1e9


def unit(task: LoggedTask) -> str:
    """The unit of `speed`."""
    return "GB/s" if task.by_bytes else "GFLOP/s"


def rate(task: LoggedTask, time_s: float | None) -> str:
    """`speed` with its unit."""
    value = speed(task, time_s)
    return "–" if value is None else f"{value:,.1f} {unit(task)}"


def rounded(value: float | None, digits: int = 5) -> float | None:
    """A number with fewer digits, as pages become smaller by it."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{digits}g}")


def axis(title: str, log: bool = False, **more: Any) -> dict[str, Any]:
    """An axis."""
    extra: dict[str, Any] = {"type": "log", "exponentformat": "power"} if log else {}
    return {"title": {"text": title}, **extra, **more}


def dots(
    name: str,
    x: Sequence[Any],
    y: Sequence[Any],
    colour: str,
    *,
    hover: Sequence[str] | None = None,
    template: str = "%{text}",
    symbol: str = "circle",
    marker_size: float = 6,
    opacity: float = 0.65,
    **more: Any,
) -> dict[str, Any]:
    """A series of points. ``hover``: what each says, escaped. ``template``: what is shown of a point, with
    ``%{x}``, ``%{y}`` and ``%{text}`` of ``hover``."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": list(x),
        "y": list(y),
        "marker": {"color": colour, "size": marker_size, "symbol": symbol, "opacity": opacity},
        **({} if hover is None else _texts(hover)),
        "hovertemplate": f"{template}<extra></extra>",
        **more,
    }


def bars(name: str, y: Sequence[str], x: Sequence[Any], colour: str, template: str) -> dict[str, Any]:
    """A series of bars that lie. ``template``: what is shown of one."""
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": list(y),
        "x": list(x),
        "marker": {"color": colour},
        "hovertemplate": f"{template}<extra></extra>",
    }


def _texts(hover: Sequence[str]) -> dict[str, Any]:
    """Texts of points; those that come often once, with their places, which the page puts together."""
    different = list(dict.fromkeys(hover))
    if 2 * len(different) > len(hover):
        return {"text": list(hover)}
    places = {t: n for n, t in enumerate(different)}
    return {"texts": different, "text_at": [places[t] for t in hover]}


def line(
    name: str, x: Sequence[Any], y: Sequence[Any], colour: str, *, dash: str = "solid", **more: Any
) -> dict[str, Any]:
    """A line."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(x),
        "y": list(y),
        "line": {"color": colour, "width": 2, "dash": dash, **more.pop("line", {})},
        **more,
    }
