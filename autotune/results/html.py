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
    from autotune.results.tuned import TuneResult

HEADS = ("task", "best", "rate", "of peak", "trials")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """A table of text."""
    head = "".join(f"<th>{escape(h)}</th>" for h in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(c)}</td>' for c in row)}</tr>" for row in rows)
    above = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{above}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def of(result: Any) -> str:
    """A result, as `rendering.Shown` knows it: a row for each task or size, on a fleet of each target. Below
    one task its notes and its loop nest."""
    match result.shown_as:
        case "one of tasks":
            return of(result.result)
        case "sizes":
            return table(HEADS, map(_row, result.parts), text.spent(result))
        case "targets":
            rows = [(name, *_row(part)) for name, r in result.by_target.items() for part in r.parts]
            return table(("target", *HEADS), rows, text.spent(result))
        case "tasks" | "model":
            rows = [(*_row(t.result), f"{t.task.weight:g}", t.error or t.task.group) for t in result.tasks]
            return table((*HEADS, "weight", "group"), rows, str(result))
    out = table(HEADS, [_row(result)], text.spent(result))
    out += "".join(f"<p>{escape(note)}</p>" for note in filter(None, (result.error, *result.notes)))
    if result.best is not None:
        nest = escape(str(result.schedule()))
        out += f"<details><summary>loop nest</summary><pre>{nest}</pre></details>"
    return out


def _row(result: TuneResult) -> tuple[str, ...]:
    best = result.best
    time_s = None if best is None else best.time_s
    share = peak_share(None) if best is None else peak_share(best.share_of_peak, best.peak_of)
    return result.about, seconds(time_s), text.speed(result.workload, time_s), share, text.trials(result)
