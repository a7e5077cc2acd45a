"""Stored records, checked and timed again on this machine: which of them still hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autotune import targets
from autotune.building.generator_version import this_machine
from autotune.settings import SettingsError
from autotune.tuning import preparation
from kernels_db.records import Record
from kernels_db.store import Log
from schedules import ops
from schedules.errors import WorkloadError
from schedules.model import Target, Trace, TraceError, Workload
from schedules.te.flops import count_flops

SLOWER = 1.25  # times the stored time, and a record no longer holds
PATIENCE_S = 60.0  # limits of measuring are those of a tune of this budget


@dataclass(frozen=True)
class Verdict:
    """``status``: "ok", "slower", "wrong" (another result, or memory not its own), "failed" (not legal, not
    compiled, no answer) or "skipped" (too large to be checked here, or measuring failed). ``time_s``:
    measured now, None where it was not."""

    record: Record
    workload: Workload
    target: Target
    status: str
    reason: str
    time_s: float | None


def verify(log: Log, top: int = 1, slower: float = SLOWER) -> Iterator[Verdict]:
    """The ``top`` best records of every task whose target this machine can run, best first, what is pinned,
    and what an earlier verification here took out; each replayed through every legality check, compiled,
    checked against the reference and timed.

    What is found is noted in the log, if it may be written: a record from elsewhere is then no longer marked
    as such, and one that is wrong or fails is no longer taken. Raises `MeasureError` where measuring itself
    does not work.
    """
    machine = this_machine()
    for workload_digest, target_digest in log.tasks():
        workload, target = log.workload(workload_digest), log.target(target_digest)
        if not targets.runnable(target) or target.threads > targets.usable_cpus():
            continue
        task = (workload_digest, target_digest)
        pinned = log.pinned(*task)
        chosen = [*log.top_k(*task, top), *([pinned] if pinned else []), *log.doubted(*task, machine)]
        records = list({r.uid: r for r in chosen}.values())
        for verdict in _task(workload, target, records, slower) if records else ():
            if not log.read_only and verdict.status != "skipped":
                log.verified(verdict.record, machine, verdict.status, verdict.time_s)
            yield verdict


def _task(workload: Workload, target: Target, records: list[Record], slower: float) -> Iterator[Verdict]:
    readable: list[tuple[Record, Trace]] = []
    for record in records:
        try:
            readable.append((record, record.trace))
        except TraceError as err:
            yield Verdict(record, workload, target, "failed", str(err), None)
    checked = workload
    if not ops.makes(workload):  # its name and its arithmetic are what another log says
        checked = Workload(workload.dag, flops=count_flops(workload.dag))
    try:
        preparation.check_feasible(checked, PATIENCE_S)
    except (WorkloadError, SettingsError) as err:
        for record, _ in readable:
            yield Verdict(record, workload, target, "skipped", str(err), None)
        return
    with preparation.measurer(checked, target, PATIENCE_S) as measurer:
        for (record, _), m in zip(readable, measurer.measure([t for _, t in readable]), strict=False):
            status, reason = "failed", m.reason or m.status
            if m.status in ("wrong_result", "out_of_bounds"):
                status = "wrong"
            elif m.status == "error":  # of measuring: nothing was found out
                status = "skipped"
            elif m.time_s is not None and record.time_s is not None:
                ratio = m.time_s / record.time_s
                status, reason = "ok", ""
                if ratio > slower:
                    status, reason = "slower", f"{ratio:.2f} times its stored time"
            yield Verdict(record, workload, target, status, reason, m.time_s)
