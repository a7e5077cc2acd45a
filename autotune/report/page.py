"""Makes one page of HTML of the sections of a log, and of a model.

The page has all that it needs in it and asks no network: its policy (CSP) allows none, and only the scripts
of this file. Plotly is packed, and unpacked by the browser. Figures are JSON, which the script of the page
draws when their task is looked at.
"""

from __future__ import annotations

import base64
import gzip
import json
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import ReportError
from autotune.report.data import LogData, LoggedTask
from autotune.report.parts import Figure, ReportSection, SectionPart, prose, short, text
from autotune.report.sections import SECTIONS
from autotune.report.sections import tasks as tasks_section
from schedules.space.gc_paused import gc_paused

if TYPE_CHECKING:
    from autotune.report.model_data import ModelData

# The oldest Plotly that the tests have drawn every plot with.
PLOTLY = "6.0"


@dataclass
class _Figures:
    """Numbers figures, and keeps them for the script."""

    all: list[dict[str, Any]] = field(default_factory=list)

    def html(self, figure: Figure) -> str:
        number = len(self.all)
        self.all.append({"data": figure.data, "layout": figure.layout})
        note = f'<p class="remark">{prose(figure.note)}</p>' if figure.note else ""
        return (
            f'<figure><figcaption>{text(figure.title)}</figcaption><div class="plot" data-figure="{number}" '
            f'style="height:{figure.height}px" role="img" '
            f'aria-label="{text(figure.title)}"></div>{note}</figure>'
        )


@gc_paused()
def page(log: LogData, model: ModelData | None = None) -> str:
    """The page, as text. Raises `ReportError` where Plotly is missing."""
    figures = _Figures()
    parts: list[str] = []
    contents: list[tuple[str, str]] = []
    if model is not None:
        from autotune.report.sections import model as model_section

        parts.append(_section(model_section.SECTION, model_section.of_model(model), figures))
        contents.append((model_section.SECTION.key, model_section.SECTION.title))
    for section in SECTIONS:
        part = None if section.of_log is None or not log.tasks else section.of_log(log)
        if part is not None:
            parts.append(_section(section, part, figures))
            contents.append((section.key, section.title))
    if log.tasks:
        parts.append(_chooser(log))
        contents.append(("task", "One task"))
        parts += (_task(log, n, task, figures) for n, task in enumerate(log.tasks))
    else:
        parts.append(_empty(log))
    return _page(log, model, contents, "\n".join(parts), figures.all)


def _section(section: ReportSection, part: SectionPart, figures: _Figures) -> str:
    return (
        f'<section id="{section.key}"><h2>{text(section.title)}</h2><p '
        f'class="reading">{prose(section.reading)}</p>'
        f"{_content(part, figures)}</section>"
    )


def _content(part: SectionPart, figures: _Figures) -> str:
    return part.before + "".join(map(figures.html, part.figures)) + part.after


def _chooser(log: LogData) -> str:
    options = "".join(f'<option value="{n}">{short(t.name, 140)}</option>' for n, t in enumerate(log.tasks))
    many = f'<span class="remark">{len(log.tasks):,} tasks</span>' if len(log.tasks) > 1 else ""
    choose = f'<select id="choose" aria-label="Task">{options}</select>'
    return f'<section id="task"><h2>One task</h2><div class="chooser">{choose}{many}</div></section>'


def _task(log: LogData, number: int, task: LoggedTask, figures: _Figures) -> str:
    made = [f"<h3>{short(task.name, 200)}</h3>", _content(tasks_section.of_task(log, task), figures)]
    for section in SECTIONS:
        if section.of_task is None or section is tasks_section.SECTION:
            continue
        part = section.of_task(log, task)
        if part is not None:
            # a task's own sections explain themselves where nothing of the log did
            reading = f'<p class="reading">{prose(section.reading)}</p>'
            made.append(f"<h4>{text(section.title)}</h4>{reading}{_content(part, figures)}")
    return f'<section class="task" id="task-{number}" hidden>{"".join(made)}</section>'


def _empty(log: LogData) -> str:
    which = "no task" if log.everything else "nothing of what was asked for"
    return (
        f'<section id="empty"><h2>Nothing to show yet</h2><p>The log has {which}. Tune something, and make '
        "the report "
        "again:</p><pre><code>autotune tune matmul --shape m=512,n=512,k=512 --budget 60s\nautotune report "
        "-o report.html</code></pre><p>Another log is named with <code>--db</code>; <code>autotune log "
        "stats</code> says what it has.</p></section>"
    )


def _page(
    log: LogData,
    model: ModelData | None,
    contents: Sequence[tuple[str, str]],
    body: str,
    figures: Sequence[dict[str, Any]],
) -> str:
    from schedules.distribution import VERSION

    nonce = secrets.token_urlsafe(16)
    title = "Tuning report" if model is None else f"Tuning report: {model.name}"
    links = "".join(f'<a href="#{key}">{text(words)}</a>' for key, words in contents)
    sub = "".join(
        f'<a class="sub" href="#" data-within="{n}">{text(s.title)}</a>'
        for n, s in enumerate(s for s in SECTIONS if s.of_task is not None and s is not tasks_section.SECTION)
    )
    facts = [
        log.place,
        f"{len(log.tasks):,} task{'s' * (len(log.tasks) != 1)}",
        f"{log.trials:,} trials",
        *_machines(log),
    ]
    chips = "".join(f"<span>{short(f, 160)}</span>" for f in facts)
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    policy = f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; img-src data: blob:"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="autotune {text(VERSION)}">
<link rel="icon" href="data:,">
<title>{text(title)}</title>
<style>{_asset("page.css")}</style>
</head>
<body>
<nav aria-label="Contents"><b>{text(title)}</b>{links}{sub if log.tasks else ""}</nav>
<main>
<header><h1>{text(title)}</h1><p class="chips">{chips}</p></header>
<noscript><p class="remark bad">Plots and sorting need JavaScript; all else is here without it.</p>
<style>section.task[hidden]{{display:block}}.plot{{display:none}}</style></noscript>
{body}
<footer>Made by autotune {text(VERSION)}, {made}. Plots: Plotly.js, MIT licence. The page asks no
network.</footer> </main>
<script type="application/json" id="figures">{embedded(figures)}</script>
<script type="text/plain" id="plotly">{_plotly() if figures else ""}</script>
<script nonce="{nonce}">{_asset("page.js")}</script>
</body>
</html>
"""


def embedded(value: object) -> str:
    """JSON that may stand in a script element of HTML: nothing in it ends the element or begins a comment."""
    made = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return made.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _machines(log: LogData) -> Iterable[str]:
    found = {m: info for t in log.tasks for m, info in t.machines.items()}
    lines = list(dict.fromkeys(tasks_section.machine_words(info) for info in found.values()))
    yield from lines[:2]
    if len(lines) > 2:
        yield f"and {len(lines) - 2} more machines"


def _asset(name: str) -> str:
    return (files("autotune.report") / "assets" / name).read_text("utf-8")


@cache
def _plotly() -> str:
    """Plotly's script, packed, in base64."""
    spec = find_spec("plotly")  # found, not imported, which takes longer
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    scripts = [p for f in folders if (p := Path(f) / "package_data" / "plotly.min.js").is_file()]
    if not scripts:
        raise ReportError(
            f"the report needs Plotly {PLOTLY} or newer for its plots, which is not installed; install it: "
            f'pip install "plotly>={PLOTLY}"'
        )
    return base64.b64encode(gzip.compress(scripts[0].read_bytes(), 6, mtime=0)).decode("ascii")
