"""``autotune log``: look into the tuning log, carry it elsewhere, take others in."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli import options as opt
from autotune.cli.metrics import search_lines
from autotune.cli.output import console, counts, print_json, seconds, table, task_text

if TYPE_CHECKING:
    from kernels_db.store import Log

app = typer.Typer(
    help="The tuning log: stats, list, verify, export, import, merge.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

TopOption = Annotated[
    int | None, typer.Option("--top", metavar="K", min=1, help="Only the K best records of every task.")
]


@app.command("stats", short_help="Count what the log holds; how models predicted.")
def stats(db: opt.DbOption = None, json: opt.JsonOption = False) -> None:
    """Count what the log holds; how models predicted, and where time went.

    \b
    Example:
      autotune log stats --db tuning.db
    """
    with _existing(opt.db_of(db)) as log:
        from autotune import metrics

        found = log.stats() | {"search": metrics.of_log(log)}
        where = str(log.path)
    if json:
        print_json(found)
        return
    out = console()
    out.print(where, markup=False)
    for name in ("workloads", "targets", "machines", "runs", "records"):
        out.print(f"  {name:9} {found[name]}")
    if found["by_status"]:
        out.print(f"  {'of these':9} {counts(found['by_status'])}")
    for line in search_lines(found["search"]):
        out.print(f"  {line}")


@app.command("list", short_help="List every task and its best time.")
def list_(db: opt.DbOption = None, json: opt.JsonOption = False) -> None:
    """List every task of the log, its trials and its best time.

    \b
    Example:
      autotune log list --db tuning.db
    """
    with _existing(opt.db_of(db)) as log:
        tasks = [_task(log, workload, target) for workload, target in log.tasks()]
    tasks.sort(
        key=lambda t: (t["op"], str(t["params"]), t["dtype"], t["target"]["arch"], t["target"]["threads"])
    )
    if json:
        print_json({"tasks": tasks})
        return
    if not tasks:
        console().print("the log has no records")
        return
    table(
        console(),
        ("operator", "shape", "dtype", "target", ">threads", ">records", ">best", ">GFLOP/s"),
        [
            (
                t["op"],
                t["shape"] or t["workload"][:12],
                t["dtype"],
                t["target"]["arch"],
                str(t["target"]["threads"]),
                str(t["records"]),
                seconds(t["best_time_s"]),
                "-" if not t["best_gflops"] else f"{t['best_gflops']:.1f}",
            )
            for t in tasks
        ],
    )


def _task(log: Log, workload_digest: str, target_digest: str) -> dict[str, Any]:
    from autotune.workloads import param_text, shown_params

    workload, target = log.workload(workload_digest), log.target(target_digest)
    by_status = Counter(r.status for r in log.seen(workload_digest, target_digest))
    best = log.best(workload_digest, target_digest)
    time_s = None if best is None else best.time_s
    return {
        "workload": workload_digest,
        "op": workload.op,
        "params": dict(workload.params),
        "shape": " ".join(f"{k}={param_text(v)}" for k, v in shown_params(workload).items()),
        "dtype": workload.dag.params[0].dtype,
        "target": opt.target_summary(target),
        "records": sum(by_status.values()),
        "by_status": dict(sorted(by_status.items())),
        "best_time_s": time_s,
        "best_gflops": None if not time_s else workload.flops / time_s / 1e9,
        "best_record_id": None if best is None else best.uid,
    }


@app.command("export", no_args_is_help=True, short_help="Write the log as JSON Lines.")
def export(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Where to write; an existing export is replaced.")
    ],
    top: TopOption = None,
    db: opt.DbOption = None,
    json: opt.JsonOption = False,
) -> None:
    """Write the log as JSON Lines in canonical form: two logs are equal when their exports are.

    \b
    Examples:
      autotune log export all.jsonl
      autotune log export best.jsonl --top 1 --db tuning.db
    """
    with _existing(opt.db_of(db)) as log:
        n = log.export(file, top=top)
    if json:
        print_json({"path": str(file), "records": n})
    else:
        console().print(f"{n} records written to {file}", markup=False)


@app.command("import", no_args_is_help=True)
def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Exports.")],
    db: opt.DbOption = None,
    json: opt.JsonOption = False,
) -> None:
    """Take exports into the log. Lines that are not valid are refused and counted, and the exit status is 1.

    \b
    Example:
      autotune log import best.jsonl --db tuning.db
    """
    _merge(files, opt.db_of(db), json)


@app.command("merge", no_args_is_help=True, short_help="Take other logs into the log.")
def merge(
    files: Annotated[list[Path], typer.Argument(metavar="FILE_OR_DB...", help="Exports and logs.")],
    db: opt.DbOption = None,
    json: opt.JsonOption = False,
) -> None:
    """Take other logs, or exports of them, into the log; in any order and as often as you like.

    \b
    Example:
      autotune log merge other.db export.jsonl --db tuning.db
    """
    _merge(files, opt.db_of(db), json)


@app.command("verify", short_help="Check and time stored records again on this machine.")
def verify(
    top: Annotated[
        int, typer.Option("--top", metavar="K", min=1, help="The K best records of every task.")
    ] = 1,
    slower: Annotated[
        float, typer.Option("--slower", min=1.0, help="Times the stored time from which a record is slower.")
    ] = 1.25,
    db: opt.DbOption = None,
    json: opt.JsonOption = False,
) -> None:
    """Check the best records of every task against the reference, and time them, on this machine. Records
    for other machines are left out. The exit status is 1 if any result is wrong or any record fails.

    \b
    Examples:
      autotune log verify --db tuning.db
      autotune log verify --top 3 --slower 1.5 --json
    """
    from autotune.verify import verify as check

    found: Counter[str] = Counter()
    rows = []
    with _existing(opt.db_of(db)) as log:
        for v in check(log, top, slower):
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
            if not json:
                now = seconds(v.time_s) if v.time_s is not None else "-"
                was = seconds(v.record.time_s) if v.record.time_s is not None else "-"
                text = f"{v.status:7} {rows[-1]['task']}: {now}, stored {was}"
                console().print(f"{text}; {v.reason}" if v.reason else text, markup=False)
    if json:
        document = {"checked": found.total()} | {s: found[s] for s in ("ok", "slower", "wrong", "failed")}
        print_json(document | {"records": rows})
    else:
        console().print(f"{found.total()} records checked: {counts(found) or 'none can run here'}")
    if found["wrong"] or found["failed"]:
        raise typer.Exit(1)


def _merge(files: list[Path], db: str, json: bool) -> None:
    from kernels_db.errors import LogError
    from kernels_db.store import Log

    missing = [str(f) for f in files if not f.exists()]
    if missing:  # before anything is taken in
        raise LogError(f"there is no file {', '.join(missing)}; give the paths of exports or logs")
    new = known = 0
    refused: Counter[str] = Counter()
    with Log(db) as log:
        for file in files:
            result = log.merge(file)
            new += result.new
            known += result.known
            refused.update(result.refused)
    if json:
        print_json({"new": new, "known": known, "refused": dict(sorted(refused.items()))})
    else:
        out = console()
        out.print(f"{new} new records, {known} known already, {refused.total()} lines refused")
        for reason, n in refused.most_common():
            out.print(f"  {n:6}  {reason}", markup=False)
    if refused:
        raise typer.Exit(1)


def _existing(db: str) -> Log:
    """The log, which must exist; opened for writing where possible, since that upgrades an older one."""
    from kernels_db.connection import locate
    from kernels_db.errors import LogError
    from kernels_db.store import Log

    if not locate(db).exists():
        raise LogError(f"there is no tuning log at {db}; tune something first, or give its path with --db")
    try:
        return Log(db)
    except LogError:
        return Log(db, read_only=True)
