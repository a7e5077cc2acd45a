"""`Profile`: where a model's time goes, and how long its kernels take inside it beside alone.

A kernel is tuned with its arrays in the caches, and finds them there or not by what ran before it. The
quotient of both times says how much that costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from autotune.models.outline import KernelCall
from autotune.models.program import Program, Times
from autotune.results.html import table
from autotune.run.describing import describe
from schedules.graph.graph import Island
from schedules.model import Trace
from schedules.units import number, percent, seconds, some

NOTHING_IS_TUNED = "no kernel was tuned"
SHOWN = 8  # nodes in a line


@dataclass(frozen=True)
class ProfileRow:
    """A step. ``group``: its number. ``nodes``: names of the model's nodes. ``task``: the number of its task,
    None of an island. ``what``: the task, or the island's operator. ``in_place_s``: seconds inside the model.
    ``tuned_s``: seconds of the kernel when it was tuned, None where it was not. ``share``: of the whole.
    ``chosen_by``: as of `Kernel`; "island" of an island. ``plain``: whether it is the plain loops, without a
    schedule, which may take many times as long as a tuned kernel."""

    group: int
    nodes: tuple[str, ...]
    task: int | None
    what: str
    in_place_s: float
    tuned_s: float | None
    share: float
    chosen_by: str
    plain: bool = False

    @property
    def ratio(self) -> float | None:
        """Time in place over tuned time."""
        return None if self.tuned_s is None else self.in_place_s / self.tuned_s


@dataclass(frozen=True)
class Profile:
    """``rows``: in the order in which they run. ``total_s``: median seconds of all steps together.
    ``call_s``: median seconds of a run on the clock of the wall, of which copies of inputs are no part.
    ``copies``: names of inputs that were copied, since they lie otherwise in memory than the model reads
    them."""

    rows: tuple[ProfileRow, ...]
    total_s: float
    call_s: float
    copies: tuple[str, ...]

    @property
    def islands(self) -> tuple[ProfileRow, ...]:
        """Steps that are no kernels."""
        return tuple(r for r in self.rows if r.task is None)

    @property
    def in_place_over_tuned(self) -> float | None:
        """Time in place over tuned time, of all kernels that were tuned; None if none was."""
        tuned = [(r.in_place_s, r.tuned_s) for r in self.rows if r.tuned_s is not None]
        return sum(a for a, _ in tuned) / sum(b for _, b in tuned) if tuned else None

    def __str__(self) -> str:
        head = ("", "in place", "tuned", "ratio", "share", "chosen by", "nodes")
        cells = [head, *(_cells(r) for r in self.rows)]
        widths = [max(len(c[i]) for c in cells) for i in range(len(head))]
        right = (0, 1, 2, 3, 4)
        lines = [
            "  ".join(
                c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths))
            ).rstrip()
            for row in cells
        ]
        ratio = self.in_place_over_tuned
        lines.append(
            f"{_ms(self.total_s)} ms in {number(len(self.rows), 'step')}; "
            + (f"in place ÷ tuned: {ratio:.2f}" if ratio is not None else NOTHING_IS_TUNED)
        )
        if plain := [r for r in self.rows if r.plain]:
            share = percent(sum(r.share for r in plain))
            lines.append(f"{share} in plain loops, which no schedule makes faster: tune {_named(plain)}")
        if self.copies:
            names = ", ".join(self.copies)
            lines.append(f"copied, since they lie otherwise in memory than the model reads them: {names}")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = [
            (str(r.group), r.what, seconds(r.in_place_s), seconds(r.tuned_s), percent(r.share), r.chosen_by)
            for r in self.rows
        ]
        caption = f"{seconds(self.total_s)} in {len(rows)} steps"
        return table(("step", "what", "in place", "tuned", "share", "chosen by"), rows, caption)


def profile(
    program: Program,
    tuned_s: Sequence[float | None],
    run: Callable[[Times], None],
    repeat: int,
    copies: Sequence[str],
) -> Profile:
    """Time ``repeat`` runs. ``tuned_s``: by task. ``run``: runs the program once and adds its times up."""
    ol = program.outline
    alone = all(k.target.threads == 1 for k in program.kernels)  # as kernels are timed when they are tuned
    run(Times(ol, alone))  # warms up
    calls: list[list[int]] = []
    islands: list[dict[str, int]] = []
    walls = []
    for _ in range(repeat):
        times = Times(ol, alone)
        begin = time.perf_counter()
        run(times)
        walls.append(time.perf_counter() - begin)
        calls.append(list(times.calls))
        islands.append(times.islands)
    seconds: list[float] = []
    number = 0
    for step in ol.steps:
        if isinstance(step, Island):
            seconds.append(median(t[step.name] for t in islands) * 1e-9)
        else:
            seconds.append(median(t[number] for t in calls) * 1e-9)
            number += 1
    whole = sum(seconds)
    rows = tuple(
        _row(program, n, step, s, tuned_s, s / max(whole, 1e-12))
        for n, (step, s) in enumerate(zip(ol.steps, seconds, strict=True))
    )
    return Profile(rows, whole, median(walls), tuple(copies))


def _row(
    program: Program,
    n: int,
    step: KernelCall | Island,
    s: float,
    tuned_s: Sequence[float | None],
    share: float,
) -> ProfileRow:
    if isinstance(step, Island):
        return ProfileRow(n, (step.name,), None, step.op, s, None, share, "island")
    kernel = program.kernels[step.task]
    what = describe(kernel.workload)
    nodes, tuned = step.origins or step.writes[:1], tuned_s[step.task]
    plain = kernel.trace == Trace()
    return ProfileRow(n, nodes, step.task, what, s, tuned, share, kernel.chosen_by, plain)


def _named(rows: Sequence[ProfileRow]) -> str:
    """The nodes of some rows."""
    return some(list(dict.fromkeys(n for r in rows for n in r.nodes)), SHOWN)


def _cells(r: ProfileRow) -> tuple[str, ...]:
    nodes = " ".join(r.nodes)
    return (
        str(r.group),
        _ms(r.in_place_s),
        "" if r.tuned_s is None else _ms(r.tuned_s),
        "" if r.ratio is None else f"{r.ratio:.2f}",
        f"{r.share:.1%}",
        f"{r.chosen_by}, plain loops" if r.plain else r.chosen_by,
        nodes if len(nodes) <= 60 else nodes[:57] + "...",
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4f}"
