"""The records that a run writes to the log, and the best one that it reads at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from autotune.results.tuned import Best
from autotune.tuning import resume, run_state
from autotune.tuning.options import TuneOptions
from autotune.tuning.plain_loops import TRACE
from cost_model.saved import SavedModel
from kernels_db.records import NewRecord, Record
from schedules.model import Target, Trace, TraceError, Workload

if TYPE_CHECKING:
    from autotune.measure.results import Measurement
    from kernels_db.store import Log

# Finalists of a run.
FINALISTS = 8


def new_record(
    run: str,
    trial: int,
    sketch: str,
    trace: Trace,
    m: Measurement,
    environment: Mapping[str, object],
    kind: str = "trial",
    search_s: float = 0.0,
) -> NewRecord:
    """A record of a measurement. ``search_s``: seconds that choosing the candidate took."""
    seconds = {"search": search_s, "build": m.build_s, "check": m.check_s, "run": m.run_s}
    return NewRecord(
        run=run,
        trial=trial,
        sketch=sketch,
        trace=trace,
        status=m.status,
        reason=m.reason,
        times_s=m.times_s,
        time_s=m.time_s,
        error=m.error,
        environment={
            **environment,
            "reference_rate": m.reference_rate,
            "seconds": {k: round(v, 6) for k, v in seconds.items()},
            **({resume.FACTS: m.facts} if m.facts else {}),
        },
        kind=kind,
    )


def best_of(
    workload: Workload, target: Target, log: Log, peak_s: float | None, peak_of: str | None = None
) -> Best | None:
    """The best record of a task whose trace this version can read. ``peak_s``, ``peak_of``: as of
    `Best.of`."""
    top = log.top_k(workload, target, FINALISTS)
    record = next((r for r in top if r.time_s is not None and trace_of(r)), None)
    if record is None:
        return None
    return Best.of(workload, record, peak_s, peak_of)


def searched(workload: Workload, target: Target, log: Log) -> bool:
    """Whether the log has a kernel of a task beside its plain loops, or in their place."""
    return any(r.trace_digest != TRACE.digest for r in log.top_k(workload, target, 2))


def trace_of(record: Record) -> Trace | None:
    """The trace of a record, None if this version cannot read it."""
    try:
        return record.trace
    except TraceError:
        return None


def _model(options: TuneOptions) -> dict[str, object]:
    """The cost model, without the path of a file: logs are given away."""
    if isinstance(options.model, SavedModel):
        return {"model": "trained", "trained": options.model.digest[:16]}
    return {"model": options.model}


def run_options(options: TuneOptions) -> dict[str, object]:
    """The options of a run as JSON, and which process makes it."""
    process = run_state.own_process()
    return {
        "trials": options.trials,
        "budget_s": options.budget_s,
        "share_s": options.budget_s if options.share_s is None else options.share_s,
        "search": options.search,
        **_model(options),
        "batch": options.batch,
        **{k: v for k, v in (("rtol", options.rtol), ("atol", options.atol)) if v is not None},
        **({} if options.aim is None else {"until": str(options.aim)}),
        **({"arguments_in_place": options.in_place} if options.in_place else {}),
        **({} if process is None else {run_state.PROCESS: process}),
    }
