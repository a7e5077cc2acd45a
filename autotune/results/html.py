"""Results as notebooks show them: small tables, without scripts.

All text is escaped, since names of tasks may come from a stranger's log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from autotune.results import text
from schedules.units import peak_share, seconds

if TYPE_CHECKING:
    from autotune.results.tuned import DynamicResult, FleetResult, SuiteResult, TuneResult

HEADS = ("task", "best", "rate", "of peak", "trials")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """A table of text."""
    head = "".join(f"<th>{escape(h)}</th>" for h in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(c)}</td>' for c in row)}</tr>" for row in rows)
    above = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{above}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def of(result: Any) -> str:
    """A result, as `rendering.Shown` knows it."""
    match result.shown_as:
        case "task":
            return of_result(result)
        case "sizes":
            return of_sizes(result)
        case "targets":
            return of_targets(result)
    return of_tasks(result)


def of_result(result: TuneResult) -> str:
    """A row, and the notes and the loop nest below it."""
    out = table(HEADS, [_row(result)], _ending(result))
    out += "".join(f"<p>{escape(note)}</p>" for note in filter(None, (result.error, *result.notes)))
    if result.best is not None:
        nest = escape(str(result.schedule()))
        out += f"<details><summary>loop nest</summary><pre>{nest}</pre></details>"
    return out


def of_sizes(result: DynamicResult) -> str:
    """A row for each size."""
    return table(HEADS, [_row(r) for r in result.by_size.values()], _ending(result))


def of_targets(result: FleetResult) -> str:
    """A row for each target, and for each of its sizes."""
    rows = [(name, *_row(part)) for name, r in result.by_target.items() for part in r.parts]
    return table(("target", *HEADS), rows, _ending(result))


def of_tasks(result: SuiteResult) -> str:
    """A row for each task, with its weight."""
    rows = [(*_row(t.result), f"{t.task.weight:g}", t.error or t.task.group) for t in result.tasks]
    return table((*HEADS, "weight", "group"), rows, str(result))


def _row(result: TuneResult) -> tuple[str, ...]:
    from autotune.run.describing import describe

    best = result.best
    time_s = None if best is None else best.time_s
    about = describe(result.workload, result.target.threads)
    part = peak_share(None if best is None else best.share_of_peak)
    return about, seconds(time_s), text.speed(result.workload, time_s), part, text.trials(result)


def _ending(result: TuneResult) -> str:
    return f"{result.elapsed_s:.1f} s ({text.ending(result.stopped)})"
