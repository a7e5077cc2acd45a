"""Checks and times stored records again, on this machine or on those of a fleet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autotune import targets
from autotune.measure.process import MeasureError
from autotune.measure.results import Measurement
from autotune.settings import SettingsError
from autotune.tuning import preparation
from autotune.tuning.site import HERE, Site, SiteLost
from kernels_db.records import Record
from kernels_db.store import Log
from schedules import ops
from schedules.errors import WorkloadError
from schedules.model import Target, Trace, TraceError, Workload
from schedules.te.flops import count_flops

# Ratio to the stored time above which a record no longer holds.
SLOWER = 1.25
# Budget (seconds) whose measuring limits are used.
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Verdict:
    """``status``: "ok", "slower", "wrong" (another result or an access out of bounds), "failed" (not legal,
    not compiled or no answer) or "skipped" (too large to check here, or measuring failed). ``time_s``:
    seconds measured now, None if it was not."""

    record: Record
    workload: Workload
    target: Target
    status: str
    reason: str
    time_s: float | None


def here(target: Target) -> Site | None:
    """This machine, if it can run code for a target."""
    able = targets.runnable(target) and target.threads <= targets.usable_cpus()
    return HERE if able else None


def verify(
    log: Log, top: int = 1, slower: float = SLOWER, site_of: Callable[[Target], Site | None] = here
) -> Iterator[Verdict]:
    """Verify the ``top`` best records of every task whose target a machine can run, best first; also the
    pinned record, and those that an earlier verification there rejected. Each is replayed through every
    legality check, compiled, checked against the reference and timed. ``slower``: see `SLOWER`. ``site_of``:
    the machine for a target, None if there is none.

    Verdicts are noted in the log if it is writable. A record from elsewhere then loses its mark, and a wrong
    or failing one is no longer chosen. Raises `MeasureError` if measuring itself does not work here; records
    that another machine cannot measure are skipped.
    """
    for workload_digest, target_digest in log.tasks():
        workload, target = log.workload(workload_digest), log.target(target_digest)
        site = site_of(target)
        if site is None:
            continue
        machine = site.machine()
        task = (workload_digest, target_digest)
        pinned = log.pinned(*task)
        chosen = [*log.top_k(*task, top), *([pinned] if pinned else []), *log.doubted(*task, machine)]
        records = list({r.uid: r for r in chosen}.values())
        for verdict in _task(workload, target, records, slower, site) if records else ():
            if not log.read_only and verdict.status != "skipped":
                log.verified(verdict.record, machine, verdict.status, verdict.time_s)
            yield verdict


def _task(
    workload: Workload, target: Target, records: list[Record], slower: float, site: Site
) -> Iterator[Verdict]:
    readable: list[tuple[Record, Trace]] = []
    for record in records:
        try:
            readable.append((record, record.trace))
        except TraceError as err:
            yield Verdict(record, workload, target, "failed", str(err), None)
    checked = workload
    if not ops.makes(workload):  # another log states its name and its arithmetic
        checked = Workload(workload.dag, flops=count_flops(workload.dag))
    try:
        preparation.check_feasible(checked, PATIENCE_S, memory=site is HERE)
    except (WorkloadError, SettingsError) as err:
        for record, _ in readable:
            yield Verdict(record, workload, target, "skipped", str(err), None)
        return
    found: dict[int, Measurement] = {}
    lost = ""
    with site.measurer(checked, target, PATIENCE_S) as measurer:
        try:
            found.update(measurer.arrivals([t for _, t in readable]))
        except SiteLost as err:
            lost = str(err)
        except MeasureError as err:
            if site is HERE:
                raise
            lost = str(err)  # such as arrays that do not fit in memory there
        for i, (record, _) in enumerate(readable):
            m = found.get(i, Measurement("error", lost or "it was not measured"))
            status, reason = "failed", m.reason or m.status
            if m.status in ("wrong_result", "out_of_bounds"):
                status = "wrong"
            elif m.status == "error":  # measuring failed: nothing is known of the record
                status = "skipped"
            elif m.time_s is not None and record.time_s is not None:
                ratio = m.time_s / record.time_s
                status, reason = "ok", ""
                if ratio > slower:
                    status, reason = "slower", f"{ratio:.2f} times its stored time"
            yield Verdict(record, workload, target, status, reason, m.time_s)
