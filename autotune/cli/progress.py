"""The live line of a tune: redrawn in place on a terminal, one plain line now and then in a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from autotune.cli.options import compulsory_bytes
from autotune.cli.output import console, counts, percent, rate

if TYPE_CHECKING:
    from autotune.tuner import Progress
    from schedules.model import Workload

PLAIN_PERIOD_S = 5.0


def describe(progress: Progress, flops: int, moved_bytes: int) -> str:
    """One line: phase, best rate and its share of peak, trials, failures by cause, time left."""
    best = rate(flops, moved_bytes, progress.best_time_s)
    share = "" if progress.share_of_peak is None else f" ({percent(progress.share_of_peak)} of peak)"
    limit = "" if progress.trials is None else f"/{progress.trials}"
    failed = counts(progress.failed)
    left = max(0.0, progress.budget_s - progress.elapsed_s)
    parts = [
        progress.phase,
        f"best {best}{share}",
        f"{progress.measured}{limit} trials" + (f" + {progress.resumed} resumed" if progress.resumed else ""),
        *([f"failed: {failed}"] if failed else []),
        f"{left:.0f} s left",
    ]
    return " | ".join(parts)


@contextmanager
def reporter(
    workload: Workload, quiet: bool = False, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[Progress], None]]:
    """A function to call with every `Progress`. It writes to stderr, so that stdout has the result
    alone; ``quiet`` writes nothing."""
    flops, moved = workload.flops, compulsory_bytes(workload)
    if quiet:
        yield lambda progress: None
        return
    err = console(stderr=True)
    if err.is_terminal:
        with err.status("starting") as status:
            yield lambda progress: status.update(describe(progress, flops, moved))
        return
    last = clock() - PLAIN_PERIOD_S

    def plain(progress: Progress) -> None:
        nonlocal last
        if clock() - last >= PLAIN_PERIOD_S:
            last = clock()
            err.print(describe(progress, flops, moved))

    yield plain
