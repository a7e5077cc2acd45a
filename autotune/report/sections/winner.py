"""Section: the schedule that won: in words, why it is fast, as a loop nest, as a trace, as code."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable

from autotune.report.data import DERIVED, LogData, LoggedTask
from autotune.report.parts import ReportSection, SectionPart, paragraphs, prose, rate, seconds, short, text
from schedules.errors import AutotuneError
from schedules.model import Trace, TraceError
from schedules.primitives import PRIMITIVES

# Most tasks whose loop nests are shown: each is made by replaying the schedule, hundredths of a second.
NESTS = 24
# Longest loop nest and code that is shown (characters).
LONGEST = 60_000
# What replaying a trace of a log may raise.
REFUSED = (AutotuneError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError)


def in_words(trace: Trace) -> list[str]:
    """A sentence for each step; a step that this version does not know says so."""
    said = []
    for step in trace.steps:
        try:
            said.append(PRIMITIVES[step.primitive].from_step(step).sentence())
        except KeyError:
            said.append(f"A step that this version does not know: {step.primitive}.")
        except REFUSED:
            said.append(f"A step that this version cannot read: {step.primitive}.")
    return said


def of_task(log: LogData, task: LoggedTask) -> SectionPart | None:
    """The winner of a task."""
    best = task.best
    if best is None:
        return None
    head = (
        f"<p>{seconds(best.time_s)} a call, {rate(task, best.time_s)}; sketch "
        f"<code>{short(best.sketch, 200) or '–'}</code>, record <code>{text(best.uid)}</code>, "
        f"{text(best.created[:19].replace('T', ' '))} UTC.</p>"
    )
    try:
        canonical = best.trace
    except TraceError as err:
        return SectionPart(head + paragraphs(f"Its schedule cannot be read by this version: {err}."))
    if log.place_of(task) >= NESTS:
        return SectionPart(head + paragraphs(_elsewhere(task)))
    from schedules.trace_names import to_named

    try:
        trace = to_named(task.workload, canonical)
    except REFUSED:
        trace = canonical
    sentences = "".join(f"<li>{prose(s)}</li>" for s in in_words(trace))
    words = (
        f'<ol class="steps">{sentences}</ol>'
        if sentences
        else "<p>No step: the loops as the expression has them.</p>"
    )
    steps = "\n".join(
        f"{s.primitive}({', '.join(f'{k}={json.dumps(v, ensure_ascii=False)}' for k, v in s.args)})"
        for s in trace.steps
    )
    few = len(log.tasks) <= DERIVED

    def shown(title: str, made: Callable[[LoggedTask, Trace], str], refusal: str, open_: bool = False) -> str:
        try:
            return _block(title, made(task, trace), open_)
        except REFUSED as err:
            return _block(title, f"{refusal}: {err}", open_)

    return SectionPart(
        head
        + f"<h4>The schedule in words</h4>{words}"
        + (shown("Why it is fast", _explanation, "It cannot be explained by this version") if few else "")
        + shown("The loop nest", _nest, "The schedule cannot be replayed by this version", open_=True)
        + _block("The trace", steps or "(empty)")
        + (shown("The generated code", _code, "The code cannot be generated here") if few else "")
    )


def _elsewhere(task: LoggedTask) -> str:
    known = " ".join(["autotune report", task.workload.op, "--shape …"])
    return f"The first {NESTS} tasks have their schedules here. For this one: `{known}`."


def _nest(task: LoggedTask, trace: Trace) -> str:
    from schedules.schedule import Schedule

    return _cut(str(Schedule.replay(task.workload.dag, trace, task.target)))


def _explanation(task: LoggedTask, trace: Trace) -> str:
    from autotune.report.explain.kernel import of_schedule
    from schedules.schedule import Schedule

    schedule = Schedule.replay(task.workload.dag, trace, task.target)
    return str(of_schedule(task.workload, schedule, task.target, task.best.time_s if task.best else None))


def _code(task: LoggedTask, trace: Trace) -> str:
    from autotune.run.kernels import source_of

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _cut(source_of(task.workload, task.target, trace))


def _cut(code: str) -> str:
    if len(code) <= LONGEST:
        return code
    return f"{code[:LONGEST]}\n… {len(code) - LONGEST:,} more characters: autotune best OP --ir --source"


def _block(title: str, code: str, open_: bool = False) -> str:
    begin = f"<details{' open' if open_ else ''}><summary>{text(title)}</summary>"
    return f"{begin}<pre><code>{text(code)}</code></pre></details>"


SECTION = ReportSection(
    "winner",
    "The winner",
    "The schedule of the best kernel. Each step of its trace is a sentence, in the order in which steps "
    "are applied to the plain loops. The loop nest is what comes out: parallel loops are shared among "
    "threads, vectorized ones run as lanes, and unrolled ones are written out.",
    of_task=of_task,
)
