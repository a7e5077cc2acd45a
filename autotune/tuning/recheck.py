"""Checks and times stored records again, on this machine or on those of a fleet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autotune import backends, targets
from autotune.measure.process import MeasureError
from autotune.measure.results import Measurement
from autotune.tuning import preparation
from autotune.tuning.site import HERE, Site, SiteLost
from kernels_db.records import Record
from kernels_db.store import Log
from schedules import ops
from schedules.errors import AutotuneError
from schedules.model import Target, Trace, TraceError, Workload
from schedules.te.flops import count_flops

# Ratio to the stored time above which a record no longer holds.
SLOWER = 1.25
# Budget (seconds) whose measuring limits are used, and seconds that a draw with its reference may take. That
# is a tenth of a second for the largest operators, in part.
PATIENCE_S, REFERENCE_S = 60.0, 10.0


@dataclass(frozen=True)
class RecheckVerdict:
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
    able = backends.runnable(target) and target.threads <= targets.usable_cpus()
    return HERE if able else None


def verify(
    log: Log, top: int = 1, slower: float = SLOWER, site_of: Callable[[Target], Site | None] = here
) -> Iterator[RecheckVerdict]:
    """Verify the ``top`` best records of every task whose target a machine can run, best first; also the
    pinned record, and those that an earlier verification there rejected. Each is replayed through every
    legality check, compiled, checked against the reference and timed. ``slower``: see `SLOWER`. ``site_of``:
    the machine for a target, None if there is none.

    An error belongs to its task: the others are checked whatever a record or its workload holds. Verdicts are
    noted in the log if it is writable. A record from elsewhere then loses its mark, and a wrong or failing
    one is no longer chosen. Raises `MeasureError` if measuring works for none of them here, and `LogError`.
    """
    unable: MeasureError | None = None
    able = False
    for task, workload, target in log.readable_tasks():
        site = site_of(target)
        if site is None:
            continue
        machine = site.machine()
        pinned = log.pinned(*task)
        chosen = [*log.top_k(*task, top), *([pinned] if pinned else []), *log.doubted(*task, machine)]
        records = list({r.uid: r for r in chosen}.values())
        try:
            for verdict in _task(workload, target, records, slower, site) if records else ():
                able |= verdict.time_s is not None
                if not log.read_only and verdict.status != "skipped":
                    log.verified(verdict.record, machine, verdict.status, verdict.time_s)
                yield verdict
        except MeasureError as err:
            unable = err
    if unable is not None and not able:
        raise unable


def _task(
    workload: Workload, target: Target, records: list[Record], slower: float, site: Site
) -> Iterator[RecheckVerdict]:
    """The verdicts of one task. Raises `MeasureError` after them where measuring does not work here."""
    readable: list[tuple[Record, Trace]] = []
    for record in records:
        try:
            readable.append((record, record.trace))
        except TraceError as err:
            yield RecheckVerdict(record, workload, target, "failed", str(err), None)
    try:
        checked = workload
        if not ops.makes(workload):  # another log states its name and its arithmetic
            checked = Workload(workload.dag, flops=count_flops(workload.dag))
        preparation.check_feasible(checked, PATIENCE_S, site is HERE, REFERENCE_S)
    except Exception as err:
        for record, _ in readable:
            yield RecheckVerdict(record, workload, target, *_told(err), None)
        return
    found: dict[int, Measurement] = {}
    error = _measured(checked, target, dict(enumerate(t for _, t in readable)), site, found)
    for i, (record, trace) in enumerate(readable):
        own = error
        if i not in found and len(readable) > 1 and not isinstance(error, (SiteLost, MeasureError)):
            own = _measured(checked, target, {i: trace}, site, found)  # the error may be of another one
        if i in found:
            yield _verdict(record, workload, target, found[i], slower)
        else:
            told = ("skipped", "it was not measured") if own is None else _told(own)
            yield RecheckVerdict(record, workload, target, *told, None)
    if isinstance(error, MeasureError) and site is HERE:
        raise error


def _measured(
    workload: Workload, target: Target, traces: dict[int, Trace], site: Site, found: dict[int, Measurement]
) -> Exception | None:
    """Measure schedules, by their numbers, into ``found``. Returns what ended that early."""
    numbers = list(traces)
    try:
        with site.measurer(workload, target, PATIENCE_S) as measurer:
            for i, m in measurer.arrivals(list(traces.values())):
                found[numbers[i]] = m
    except Exception as err:
        return err
    return None


def _told(err: Exception) -> tuple[str, str]:
    """Status and reason of a record that could not be checked. Nothing is known of it where that lies in its
    size, or in the machine."""
    if isinstance(err, AutotuneError):
        return "skipped", str(err)
    known = isinstance(err, (OSError, MemoryError))
    return "skipped" if known else "failed", f"it cannot be checked: {type(err).__name__}: {str(err)[:200]}"


def _verdict(
    record: Record, workload: Workload, target: Target, m: Measurement, slower: float
) -> RecheckVerdict:
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
    return RecheckVerdict(record, workload, target, status, reason, m.time_s)
