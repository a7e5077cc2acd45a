"""Results of tuning as JSON documents and as tables: whatever was tuned, and wherever."""

from __future__ import annotations

import errno
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import typer

from autotune.cli import streams
from autotune.cli.output import console, print_json, table, target_summary, task_text, trace_value
from autotune.results import text
from schedules.units import counts, disturbed, of_peak, peak, peak_share, seconds

if TYPE_CHECKING:
    from autotune.results.tuned import DynamicResult, TuneResult
    from autotune.tuning.interrupts import Interrupts
    from schedules.model import Target


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


# -- documents -------------------------------------------------------------------------------


def _rewrites(result: Any) -> dict[str, Any]:
    """What a document says of rewrites that may lose."""
    return {
        "rewrites": [asdict(t.told) for t in result.rewrites],
        "rewrites_needed_s": result.rewrites_needed_s,
    }


def print_documents(found: Mapping[Target, Any], dynamic: Any) -> None:
    """Print the results of a run as one document; for several targets it has one for each."""
    each = [document(r, t, dynamic) for t, r in found.items()]
    print_json(each[0] if len(each) == 1 else {"targets": each})


def document(result: Any, target: Target, dynamic: Any = None) -> dict[str, Any]:
    """The document that ``tune --json`` prints of a result: of a range (``dynamic``) that of the largest
    size, with ranges, and each of ``sizes``; of a suite or a model each of ``tasks``, and more."""
    if result.shown_as == "task":
        return _of_task(result)
    if result.shown_as == "sizes":
        whole, names = _of_task(result), [d.name for d in dynamic.dims]
        whole["task"]["params"] |= {d.name: f"{d.lo}..{d.hi}" for d in dynamic.dims}
        sizes = [
            {"size": dict(zip(names, size, strict=True)), **_of_task(r)} for size, r in result.by_size.items()
        ]
        return whole | {"sizes": sizes}
    model = result.shown_as == "model"
    tasks = [
        {
            "group": t.task.group,
            "weight": t.task.weight,
            "seconds": round(t.seconds, 3),
            **_of_task(t.result),
            "error": t.error,
        }
        for t in result.tasks
    ]
    return {
        **({"model": result.name} if model else {}),
        "target": target_summary(target),
        "tasks": tasks,
        "latency_s" if model else "weighted_latency_s": result.weighted_s,
        "no_time": [t.task.about for t in result.late],
        "needed_budget_s": result.needed_s,
        "only_plain_loops": [t.task.about for t in result.tasks if t.result.only_plain],
        "trials": {"measured": result.measured, "resumed": sum(t.result.resumed for t in result.tasks)},
        **({"own_latency_s": dict(result.own_s)} if model and result.own_s else {}),
        **({"skipped": result.skipped} if model else {}),
        **(_rewrites(result) if model else {}),
        "elapsed_s": result.elapsed_s,
        "budget_s": result.budget_s,
        "seed": result.seed,
        "stopped": result.stopped,
        **_aimed(result),
    }


def _of_task(result: TuneResult) -> dict[str, Any]:
    from autotune.run.workloads import dtype_of

    best = result.best
    return {
        "task": {
            "op": result.workload.op,
            "params": dict(result.workload.params),
            "dtype": dtype_of(result.workload),
            "target": target_summary(result.target),
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
            **({} if best.peak_of is None else {"peak_of": best.peak_of}),
            "trace": trace_value(best.trace),
            "record_id": best.record_id,
        },
        **({"only_plain_loops": True} if result.only_plain else {}),
        "elapsed_s": result.elapsed_s,
        "seed": result.seed,
        "stopped": result.stopped,
        **_aimed(result),
        "notes": list(result.notes),
        **({} if result.error is None else {"error": result.error}),
    }


def _aimed(result: Any) -> dict[str, Any]:
    """What ``--until`` asks for and what is reached of it, where it was given."""
    found = result.aimed
    if found is None:
        return {}
    aim = {"time_s": found.aim.time_s, "share": found.aim.share}
    return {"until": {**aim, "reached": found.reached, "now_s": found.time_s, "now_share": found.share}}


# -- tables ----------------------------------------------------------------------------------


def show(result: Any, where: str, dynamic: Any = None) -> None:
    """Print a result, and the log, ``where``. ``dynamic``: as of `document`."""
    if result.shown_as == "task":
        _show_task(result)
    elif result.shown_as == "sizes":
        _show_sizes(result, dynamic)
    else:
        _show_tasks(result)
    _show_end(result, where)


def show_targets(found: Mapping[Target, Any], where: str, dynamic: Any = None) -> None:
    """Print the results of a fleet: of each target, as `show` does, or in a line that of one task."""
    out = console()
    for target, result in found.items():
        out.print(f"{target.kind} {target.arch}, threads: {target.threads}", style="bold")
        if result.shown_as != "task":
            show(result, where, dynamic)
        else:
            out.print(f"  {text.of_result(result)}")
            _show_notes(result)
    each = [r for r in found.values() if r.shown_as == "task"]
    if each:
        _show_end(replace(each[0], notes=(), elapsed_s=max(r.elapsed_s for r in each)), where)


def _show_end(result: Any, where: str) -> None:
    from kernels_db.place import locate  # its text hides a URL's password

    console().print(f"  time     {text.spent(result)}")
    if result.aimed is not None:
        console().print(f"  {result.aimed}")
    if result.shown_as == "task":
        _show_notes(result)
    console().print(f"  log      {locate(where)}")


def _show_task(result: TuneResult) -> None:
    out = console()
    out.print(task_text(result.workload, result.target.threads), style="bold")
    if result.best is None:
        why = f": {result.error}" if result.error else ""
        out.print(f"  no valid kernel found{why}")
    else:
        b = result.best
        share = "" if b.share_of_peak is None else f", {of_peak(b.share_of_peak, peak(b.peak_of))}"
        out.print(f"  best     {seconds(b.time_s)}, {text.speed(result.workload, b.time_s)}{share}")
        out.print(f"  record   {b.record_id}")
    failures = counts(result.failed)
    out.print(
        f"  trials   {result.measured} measured"
        + (f", {result.stopped_early} of them stopped early" if result.stopped_early else "")
        + (f", failed: {failures}" if failures else ", none failed")
        + (f"; {result.resumed} resumed from the log" if result.resumed else "")
    )
    if result.throttled:
        why = counts(result.throttled)
        out.print(f"  clocks   the device was throttled beside trials: {why}; their times are too long")


def _show_sizes(result: DynamicResult, dynamic: Any) -> None:
    """A table of the sizes."""
    out = console()
    n = result.target.threads
    out.print(f"{dynamic}, {n} thread{'s' if n != 1 else ''}", style="bold")
    heads = [f">{d.name}" for d in dynamic.dims]
    table(
        out,
        (*heads, ">best", ">rate", ">of peak", ">trials", "remarks"),
        [(*map(str, size), *cells(r)) for size, r in result.by_size.items()],
    )
    out.print("  a size between these takes the schedule of one that is near, at its first call")


def _show_tasks(result: Any) -> None:
    """A table of the tasks of a suite or a model, and what they take together."""
    out = console()
    model = result.shown_as == "model"
    if model:
        out.print(result.name, style="bold")
    rows: list[tuple[str, ...]] = []
    for t in result.tasks:
        best, speed, share, trials, failed = cells(t.result)
        weight, took, remark = f"{t.task.weight:g}", f"{t.seconds:.1f}", t.error or failed
        if model:
            rows.append((weight, best, speed, share, trials, took, t.task.group, remark))
        else:
            about = (t.task.group, task_text(t.task.workload))
            rows.append((*about, best, speed, share, weight, trials, took, remark))
    figures = (">best", ">rate", ">of peak")
    heads = (
        (">calls", *figures, ">trials", ">seconds", "nodes", "remarks")
        if model
        else ("group", "task", *figures, ">weight", ">trials", ">seconds", "remarks")
    )
    table(out, heads, rows)
    out.print(f"  {text.kernels(result)}; {result.measured} trials")
    if missing := text.no_time(result):
        out.print(f"  {missing}")
    if model and result.rewrites:
        out.print("  rewrites that may lose, timed with what differs of a call:")
        for tried in result.rewrites:
            out.print(f"    {tried}")
    if model and result.rewrites_needed_s is not None:
        out.print(f"  not all rewrites were tried: --budget {result.rewrites_needed_s:g}s has the time")
    if model and result.rewrites_untried:
        out.print(f"  no rewrites were tried: {result.rewrites_untried}")
    if model and result.skipped:
        out.print(f"  {result.skipped} tasks had their share before: more with a larger --budget or --trials")
    if result.weighted_s is not None:
        time_s = seconds(result.weighted_s)
        out.print(f"  kernels  {time_s} a call, each alone" if model else f"  weighted latency {time_s}")
    for at, own_s in result.own_s.items() if model else ():
        if own_s is not None:
            out.print(f"  kernels  {seconds(own_s)} a call of {at}, each alone")


def _show_notes(result: TuneResult) -> None:
    for note in result.notes:
        console().print(f"  note     {note}")


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
        text.speed(workload, best_s),
        peak_share(None) if best is None else peak_share(best.share_of_peak, best.peak_of),
        f"{result.measured}{f'+{result.resumed}' if result.resumed else ''}",
        "; ".join(filter(None, (error, plain, early, f"failed: {failed}" if failed else ""))),
    )
