"""Results of tuning as JSON documents and as rows of tables."""

from __future__ import annotations

import errno
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from autotune.cli import options as opt
from autotune.cli import streams
from schedules.units import counts, disturbed, peak_share, rate, seconds

if TYPE_CHECKING:
    from autotune.results.tuned import TuneResult
    from autotune.tuning.interrupts import Interrupts


def cells(result: TuneResult) -> tuple[str, str, str, str, str]:
    """Of a row of a table: the best time, its rate, its share of the peak, trials, and failures."""
    workload, best = result.workload, result.best
    best_s = None if best is None else best.time_s
    failed = counts(result.failed)
    error = f"error: {(result.error or '').partition(chr(10))[0]}" if result.stopped == "failed" else ""
    plain = "plain loops alone" if result.only_plain else ""
    early = f"{result.stopped_early} stopped early" if result.stopped_early else ""
    return (
        seconds(best_s),
        rate(workload.flops, opt.compulsory_bytes(workload), best_s),
        peak_share(None if best is None else best.share_of_peak),
        f"{result.measured}{f'+{result.resumed}' if result.resumed else ''}",
        "; ".join(filter(None, (error, plain, early, f"failed: {failed}" if failed else ""))),
    )


@contextmanager
def interruptible() -> Iterator[Interrupts]:
    """For a command that tunes. The first signal that ends it is an interrupt, so that the log is closed and
    the best is printed; a second one does not cut that off. After SIGTERM or SIGHUP the exit status is 128
    and its number, as a shell has it."""
    from autotune.tuning.interrupts import ENDING, Interrupts

    interrupts = Interrupts(to_the_end=True, signals=ENDING)
    try:
        with interrupts:
            yield interrupts
    except (KeyboardInterrupt, typer.Exit, OSError) as err:
        number = interrupts.number
        if number is None or number == signal.SIGINT:
            raise
        if isinstance(err, OSError):
            if err.errno != errno.EIO or err.filename is not None:
                raise
            streams.silence(sys.stdout)  # the terminal is gone
        raise typer.Exit(128 + number) from None


def status(results: Iterable[TuneResult], stopped: str) -> int:
    """The exit status of a run. ``stopped``: why it ended."""
    found = [r.best is not None for r in results]
    if all(found):
        return 0
    return 130 if stopped == "interrupted" and not any(found) else 1


def document(result: TuneResult, dtype: str) -> dict[str, Any]:
    """The document that ``tune --json`` prints."""
    best = result.best
    return {
        "task": {
            "op": result.workload.op,
            "params": dict(result.workload.params),
            "dtype": dtype,
            "target": opt.target_summary(result.target),
        },
        "trials": {
            "measured": result.measured,
            "failed": dict(result.failed),
            "stopped_early": result.stopped_early,
            "resumed": result.resumed,
            **({"throttled": dict(result.throttled)} if result.throttled else {}),
        },
        "best": None
        if best is None
        else {
            "time_s": best.time_s,
            "gflops": best.gflops,
            "share_of_peak": best.share_of_peak,
            "peak_disturbed": disturbed(best.share_of_peak),
            "trace": opt.trace_value(best.trace),
            "record_id": best.record_id,
        },
        **({"only_plain_loops": True} if result.only_plain else {}),
        "elapsed_s": result.elapsed_s,
        "seed": result.seed,
        "stopped": result.stopped,
        "notes": list(result.notes),
        **({} if result.error is None else {"error": result.error}),
    }
