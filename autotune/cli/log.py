"""``autotune log``: look into the tuning log, check it, pin it, prune it. See also `log_exchange`."""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import typer

from autotune.cli import log_exchange
from autotune.cli import options as opt
from autotune.cli.given import Given, takes
from autotune.cli.log_exchange import existing
from autotune.cli.metrics import search_lines
from autotune.cli.output import (
    console,
    hang,
    input_path,
    output_place,
    print_json,
    table,
    target_summary,
    task_text,
)
from schedules.units import counts, seconds

if TYPE_CHECKING:
    from autotune.tuning.site import Site
    from kernels_db.pins import Pin
    from kernels_db.store import Log
    from schedules.model import Target, Workload

app = typer.Typer(
    help="""The tuning log: look into it, check, pin, share it.

    \b
    Examples:
      autotune log stats
      autotune log export kernels.jsonl --top 1
      autotune log import kernels.jsonl
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command("stats", short_help="Count what the log holds; how models predicted.")
@takes(opt.DB, opt.JSON)
def stats(o: Given) -> None:
    """Count what the log holds; how models predicted, and where time went.

    \b
    Example:
      autotune log stats --db tuning.db
    """
    with existing(o.where) as log:
        from autotune.tuning import prediction_quality, run_state

        found = log.stats() | {"runs_by_state": run_state.states(log), "by_machine": _machines(log)}
        found["search"] = prediction_quality.of_log(log)
        where = log.path
    if o.json:
        print_json(found)
        return
    out = console()
    out.print(where)
    for name in ("workloads", "targets", "machines", "runs", "records"):
        out.print(f"  {name:9} {found[name]}")
        of_these = counts(found.get({"runs": "runs_by_state", "records": "by_status"}.get(name, ""), {}))
        if of_these:
            out.print(f"  {'of these':9} {of_these}")
    if len(found["by_machine"]) > 1:
        for m in found["by_machine"]:
            called = f"{m['name']} ({m['cpu']})" if m["name"] else m["cpu"]
            out.print(f"  {'machine':9} {called}: {m['records']} records")
    for line in search_lines(found["search"]):
        hang(out, "  ", line)


def _machines(log: Log) -> list[dict[str, Any]]:
    """Machines with the number of their records. Other software makes no other machine."""
    found: Counter[tuple[str, str]] = Counter()
    for machine, count in log.by_machine():
        found[str(machine.info.get("name") or ""), str(machine.info.get("cpu") or "unknown")] += count
    return [{"name": name or None, "cpu": cpu, "records": n} for (name, cpu), n in found.most_common()]


@app.command("list", short_help="List every task and its best time.")
@takes(opt.DB, opt.JSON)
def list_(o: Given) -> None:
    """List every task of the log, its trials and its best time.

    \b
    Example:
      autotune log list --db tuning.db
    """
    with existing(o.where) as log:
        tasks = _tasks(log)
    tasks.sort(
        key=lambda t: (t["op"], str(t["params"]), t["dtype"], t["target"]["arch"], t["target"]["threads"])
    )
    if o.json:
        print_json({"tasks": tasks})
        return
    if not tasks:
        console().print("the log has no records")
        return
    table(
        console(),
        ("operator", "shape", "dtype", "target", ">threads", ">records", ">best", ">GFLOP/s", "origin"),
        [
            (
                t["op"],
                _shape(t),
                t["dtype"],
                t["target"]["arch"],
                str(t["target"]["threads"]),
                str(t["records"]),
                seconds(t["best_time_s"]),
                "-" if not t["best_gflops"] else f"{t['best_gflops']:.1f}",
                _where_from(t),
            )
            for t in tasks
        ],
    )
    if unclosed := counts(sum((Counter(t["open_runs"]) for t in tasks), Counter())):
        console().print(f"open runs: {unclosed}")


def _shape(task: dict[str, Any]) -> str:
    """The shape, with the inputs known ahead. Of a user's own expression what it computes, and a part of its
    digest."""
    ahead = f"constant {', '.join(task['constants'])}" if task["constants"] else ""
    lie = f"strides {task['strides']}" if task["strides"] else ""
    what = task["shape"] or f"{task['computes']} {task['workload'][:12]}"
    return " ".join(filter(None, (what, ahead, lie)))


def _where_from(task: dict[str, Any]) -> str:
    """The origin of a task's best record, in a few words."""
    origin = task["origin"] or {}
    words = "here"
    if origin.get("elsewhere"):
        words = f"elsewhere: {origin['cpu'] or 'no name'}"
    elif origin.get("imported"):
        words = "verified here" if origin.get("verified") else "here, imported"
    if not origin:
        words = "-"
    return f"{words}, pinned" if task["pinned"] else words


def _tasks(log: Log) -> list[dict[str, Any]]:
    from autotune.backends.building.generator_version import this_machine
    from autotune.tuning import run_state

    here = this_machine()
    pins = {(p.workload, p.target): p.record for p in log.pins()}
    unclosed: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for run, last in log.open_runs():
        unclosed[run.workload, run.target][run_state.state_of(run, last)] += 1
    return [
        {**_task(log, task, w, t, pins.get(task), here), "open_runs": dict(unclosed[task])}
        for task, w, t in log.readable_tasks()
    ]


def _task(
    log: Log,
    digests: tuple[str, str],
    workload: Workload,
    target: Target,
    pinned: str | None,
    here: Mapping[str, Any],
) -> dict[str, Any]:
    from autotune.run.describing import made
    from autotune.run.workloads import dtype_of, param_text, shown_params, strides_text

    by_status = log.by_status(*digests)
    best = log.best(*digests) if pinned is None else log.get(pinned)
    origin = None if best is None else log.origin(best)
    time_s = None if best is None else best.time_s
    gflops = workload.flops / time_s / 1e9 if time_s else math.nan
    return {
        "workload": digests[0],
        "op": workload.op,
        "params": dict(workload.params),
        "shape": " ".join(f"{k}={param_text(v)}" for k, v in shown_params(workload).items()),
        "computes": made(workload),
        "constants": list(workload.dag.constants),
        "strides": strides_text(workload),
        "dtype": dtype_of(workload),
        "target": target_summary(target),
        "records": sum(by_status.values()),
        "by_status": by_status,
        "best_time_s": time_s,
        "best_gflops": gflops if math.isfinite(gflops) else None,
        "best_record_id": None if best is None else best.uid,
        "pinned": pinned is not None,
        "origin": None if origin is None else origin.document(here),
    }


@app.command("verify", short_help="Check and time stored records again on this machine.")
@takes(opt.BEST_K, opt.SLOWER, opt.FLEET, opt.DB, opt.JSON)
def verify(o: Given) -> None:
    """Check the best records of every task against the reference, and time them, on this machine, or with
    --fleet on the machines of a fleet that offer their targets. Records for other machines are left out, and
    tasks that are too large for the machine are skipped. A record from
    elsewhere that holds is no longer marked as such; one that is wrong or fails is no longer taken. The exit
    status is 1 if any result is wrong or any record fails.

    \b
    Examples:
      autotune log verify --db tuning.db
      autotune log verify --top 3 --slower 1.5 --json
      autotune log verify --fleet tcp://host:8786
    """
    from autotune.tuning import recheck

    found: Counter[str] = Counter()
    rows = []
    with existing(o.where) as log, ExitStack() as stack:
        site_of: Callable[[Target], Site | None] = recheck.here
        if o.fleet is not None:
            from autotune.fleet.tuning import FleetPlace
            from autotune.results.display import say

            site_of = stack.enter_context(FleetPlace(o.fleet, say=say).reached()).site_of
        for v in recheck.verify(log, o.top, o.slower, site_of):
            found[v.status] += 1
            rows.append(
                {
                    "record_id": v.record.uid,
                    "task": task_text(v.workload, v.target.threads),
                    "status": v.status,
                    "reason": v.reason,
                    "stored_s": v.record.time_s,
                    "time_s": v.time_s,
                }
            )
            if not o.json:
                now = seconds(v.time_s) if v.time_s is not None else "-"
                was = seconds(v.record.time_s) if v.record.time_s is not None else "-"
                text = f"{v.status:7} {rows[-1]['task']}: {now}, stored {was}"
                console().print(f"{text}; {v.reason}" if v.reason else text)
    checked = found.total() - found["skipped"]
    if o.json:
        statuses = ("ok", "slower", "wrong", "failed", "skipped")
        print_json({"checked": checked} | {s: found[s] for s in statuses} | {"records": rows})
    else:
        console().print(f"{checked} records checked: {counts(found) or 'none can run here'}")
    if found["wrong"] or found["failed"]:
        raise typer.Exit(1)


@app.command("pin", short_help="Have the best of now taken from now on.")
@takes(opt.LOCK_FILE, opt.LOCKED, opt.REMOVE, opt.DB, opt.JSON)
def pin(o: Given) -> None:
    """Pin every task to its best record of now: at.load, best and tune --frozen take it, whatever is
    measured or merged later. A lock file carries the pins to another log that has the records; with one
    that it lacks nothing is pinned, and the exit status is 2.

    \b
    Examples:
      autotune log pin --db tuning.db
      autotune log pin autotune.lock            # beside: autotune log export best.jsonl --top 1
      autotune log import best.jsonl && autotune log pin --from autotune.lock
    """
    from dataclasses import replace

    from kernels_db import pins

    if (o.remove and (o.file or o.source)) or (o.file and o.source):
        raise typer.BadParameter("give one of FILE, --from FILE and --remove")
    place = None if o.file is None else output_place(o.file, o.json)
    with existing(o.where) as log:
        if o.remove:
            n, said = log.unpin(), "pins removed"
        else:
            made = log.pin(None if o.source is None else pins.read(input_path(o.source)))
            n, said = len(made), "tasks pinned"
            if place is not None:
                pins.write(place, [replace(p, task=_named(log, p)) for p in made])
    if o.json:
        print_json({"removed" if o.remove else "pinned": n, "file": None if o.file is None else str(o.file)})
    else:
        written = "" if o.file is None else f", written to {'stdout' if place is sys.stdout else o.file}"
        console(stderr=place is sys.stdout).print(f"{n} {said}{written}")


def _named(log: Log, pin: Pin) -> str:
    target = log.target(pin.target)
    return f"{task_text(log.workload(pin.workload), target.threads)} on {target.arch}"


@app.command("prune", short_help="Remove all but the best records.")
@takes(opt.KEEP, opt.APPLY, opt.DB, opt.JSON)
def prune(o: Given) -> None:
    """Remove all records but the K best of every task, what is pinned, and what found a schedule wrong.
    How graphs of models are rewritten is kept. Without --apply it only says what would go. Later runs resume
    from what is kept.

    \b
    Examples:
      autotune log prune --keep 20
      autotune log prune --keep 20 --apply
    """
    with existing(o.where) as log:
        found = log.prune(o.keep, o.apply)
    if o.json:
        print_json({"applied": o.apply, "kept": found.kept, "removed": found.removed, "runs": found.runs})
        return
    would = "" if o.apply else "would be "
    out = console()
    out.print(f"{found.removed} records and {found.runs} runs {would}removed, {found.kept} records kept")
    if not o.apply and found.removed:
        out.print("nothing was changed; do it with --apply")


app.command("export", no_args_is_help=True, short_help="Write the log as JSON Lines.")(log_exchange.export)
app.command("import", no_args_is_help=True, short_help="Take exports into the log.")(log_exchange.import_)
app.command("merge", no_args_is_help=True, short_help="Take other logs into the log.")(log_exchange.merge)
