"""Results of tuning as JSON documents, and the reasons why a run ended in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.cli import options as opt
from autotune.cli.output import counts, percent, rate, seconds

if TYPE_CHECKING:
    from autotune.tuning.options import TuneResult

# {reason why a run ended: words for it}.
ENDINGS = {
    "trials": "all trials done",
    "budget": "budget used",
    "interrupted": "interrupted; everything measured is kept",
    "exhausted": "nothing left to try",
    "converged": "nothing better to expect",
    "frozen": "the log as it is",
    "tuned": "tuned before",
}


def cells(result: TuneResult) -> tuple[str, str, str, str, str]:
    """Of a row of a table: the best time, its rate, its share of the peak, trials, and failures."""
    workload, best = result.workload, result.best
    best_s = None if best is None else best.time_s
    failed = counts(result.failed)
    return (
        seconds(best_s),
        rate(workload.flops, opt.compulsory_bytes(workload), best_s),
        percent(None if best is None else best.share_of_peak),
        f"{result.measured}{f'+{result.resumed}' if result.resumed else ''}",
        f"failed: {failed}" if failed else "",
    )


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
            "resumed": result.resumed,
            **({"throttled": dict(result.throttled)} if result.throttled else {}),
        },
        "best": None
        if best is None
        else {
            "time_s": best.time_s,
            "gflops": best.gflops,
            "share_of_peak": best.share_of_peak,
            "trace": opt.trace_value(best.trace),
            "record_id": best.record_id,
        },
        "elapsed_s": result.elapsed_s,
        "seed": result.seed,
        "stopped": result.stopped,
        "notes": list(result.notes),
    }
