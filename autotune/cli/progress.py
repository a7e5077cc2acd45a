"""The progress line of a tune: redrawn in place on a terminal, a plain line every few seconds in a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from autotune.cli.options import compulsory_bytes
from autotune.cli.output import console, counts, percent, rate, seconds, task_text

if TYPE_CHECKING:
    from autotune.tuning.suite_tuner import SuiteProgress
    from autotune.tuning.tuner import Progress
    from schedules.model import Workload

# Time between two lines in a pipe (seconds).
PLAIN_PERIOD_S = 5.0


def describe(progress: Progress, flops: int, moved_bytes: int) -> str:
    """One line: phase, best rate and its share of peak, trials, failures by cause, time left."""
    best = rate(flops, moved_bytes, progress.best_time_s)
    share = "" if progress.share_of_peak is None else f" ({percent(progress.share_of_peak)} of peak)"
    limit = "" if progress.trials is None else f"/{progress.trials}"
    failed = counts(progress.failed)
    left = max(0.0, progress.budget_s - progress.elapsed_s)
    new = not progress.resumed and progress.phase != "finalists"  # finalists may include earlier records
    once = ", timed once" if new and progress.best_time_s is not None else ""
    parts = [
        progress.phase,
        f"best {best}{share}{once}",
        f"{progress.measured}{limit} trials" + (f" + {progress.resumed} resumed" if progress.resumed else ""),
        *([f"failed: {failed}"] if failed else []),
        *([] if progress.pairwise is None else [f"model orders {percent(progress.pairwise)} of pairs"]),
        f"{left:.0f} s left",
    ]
    return " | ".join(parts)


@contextmanager
def reporter(
    workload: Workload, quiet: bool = False, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[Progress], None]]:
    """A function to call with every `Progress`. It writes to stderr, so that stdout has only the result.
    ``quiet``: it writes nothing."""
    flops, moved = workload.flops, compulsory_bytes(workload)
    with _line(quiet, clock) as show:
        yield lambda progress: show(lambda: describe(progress, flops, moved))


def describe_suite(progress: SuiteProgress) -> str:
    """One line: tasks that have a kernel, their weighted latency, the task of this turn, time left."""
    workload = progress.workload
    best = rate(workload.flops, compulsory_bytes(workload), progress.task.best_time_s)
    weighted = [] if progress.weighted_s is None else [f"weighted {seconds(progress.weighted_s)}"]
    parts = [
        f"{progress.ready} of {progress.tasks} tasks ready",
        *weighted,
        f"{progress.measured} trials",
        f"{progress.task.phase} {progress.number + 1}: {task_text(workload)}, best {best}",
        f"{max(0.0, progress.budget_s - progress.elapsed_s):.0f} s left",
    ]
    return " | ".join(parts)


@contextmanager
def suite_reporter(
    quiet: bool = False, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[SuiteProgress], None]]:
    """Like `reporter`, for a suite."""
    with _line(quiet, clock) as show:
        yield lambda progress: show(lambda: describe_suite(progress))


@contextmanager
def _line(quiet: bool, clock: Callable[[], float]) -> Iterator[Callable[[Callable[[], str]], None]]:
    """A function that shows a text, if the last one is old enough."""
    if quiet:
        yield lambda text: None
        return
    err = console(stderr=True)
    if err.is_terminal:
        with err.status("starting") as status:
            yield lambda text: status.update(text())
        return
    last = clock() - PLAIN_PERIOD_S

    def plain(text: Callable[[], str]) -> None:
        nonlocal last
        if clock() - last >= PLAIN_PERIOD_S:
            last = clock()
            err.print(text())

    yield plain
