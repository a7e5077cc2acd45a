"""``autotune train``: a cost model of a team's own tuning logs. What it shares with ``autotune evaluate`` is
here too."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from autotune.cli import options as opt
from autotune.cli.given import Given, takes
from autotune.cli.output import console, print_json
from autotune.settings import database
from schedules.units import size

if TYPE_CHECKING:
    from autotune.tuning.measured import Learnable

OF_XGBOOST = ("xgb", "scratch")


@takes(opt.LOGS, opt.OUT, opt.LEARNER, opt.DB, opt.SEED, opt.JSON)
def train(o: Given) -> None:
    """Learn a cost model from the measured candidates of tuning logs, for tuning with --cost-model FILE.

    It begins with the shipped model and learns its errors on the log. Candidates that this version's spaces
    still offer are learnt from; the same record in several logs counts once. A log of GPUs and one of CPUs
    make two models. The file is data: trees as arrays, and digests of the workloads that it has learnt from.

    \b
    Examples:
      autotune train --out model.json
      autotune train ours.db theirs.jsonl.xz --out model.json
      autotune tune matmul --shape m=512,n=512,k=512 --cost-model model.json
    """
    check_writable(o.out)
    places = places_of(o.logs, o.db)
    with needing_extra("train --model " + o.model):
        if o.model not in OF_XGBOOST:
            import sklearn  # noqa: F401  # before the logs are read, which takes long
        from autotune.targets import usable_cpus
        from cost_model.training import train as run
        from schedules.distribution import VERSION

        found = read(places, o.json)
        announce(f"training {opt.LEARNERS[o.model]} on {found.rows:,} candidates", o.json)
        trained = run(
            found.tasks,
            o.model,
            o.seed,
            usable_cpus(),
            provenance={"made_by": f"autotune {VERSION}"} | facts(found),
        )
    trained.save(o.out)
    document = {
        "path": str(o.out), "model": o.model, "serves": trained.serves, "bytes": o.out.stat().st_size,
        "digest": trained.digest, "seed": o.seed, **summary(found),
    }  # fmt: skip
    if o.json:
        print_json(document)
        return
    out = console()
    out.print(f"{o.out}: {opt.LEARNERS[o.model]} for {trained.serves}, {size(document['bytes'])}")
    print_read(found)
    out.print(f"  to tune with it:    autotune tune OP --shape … --cost-model {o.out}")
    out.print("  how good such are:  autotune evaluate LOG…")


def check_writable(out: Path) -> None:
    """Raises `typer.BadParameter` where no file can be, and `LogError` where one must stay, such as the log:
    found before an hour of work."""
    from kernels_db.replacing import check_replaceable

    if out.is_dir():
        raise typer.BadParameter(f"--out {out} is a directory; give a file in it")
    if not out.parent.is_dir():
        raise typer.BadParameter(f"--out {out}: there is no directory {out.parent}; make it first")
    if not os.access(out.parent, os.W_OK):  # a new file takes the place of an old one
        raise typer.BadParameter(f"--out {out}: the directory cannot be written; choose another with --out")
    check_replaceable(out)


def places_of(logs: list[str] | None, db: str | None) -> list[str]:
    """The logs that are named, else that of ``--db`` or the settings. Raises `typer.BadParameter` for
    both."""
    if logs and db is not None:
        raise typer.BadParameter("give logs as arguments or --db, not both")
    return logs or [database(db)]


@contextlib.contextmanager
def needing_extra(command: str) -> Iterator[None]:
    """Turn a missing scikit-learn into `MissingExtraError`."""
    from autotune.errors import MissingExtraError
    from schedules.distribution import install

    try:
        yield
    except ImportError as err:
        if (err.name or "").split(".")[0] not in ("sklearn", "scipy", "joblib"):
            raise
        raise MissingExtraError(
            f"{err}; autotune {command} needs the extra train: {install('train')}"
        ) from err


def read(places: list[str], quiet: bool) -> Learnable:
    """What the logs have to learn from. On a terminal it says how far it is."""
    from autotune.tuning.measured import of_places

    progress: Callable[[int, int], None] | None = None
    if not quiet and sys.stderr.isatty():

        def progress(done: int, tasks: int) -> None:
            print(f"\rreading task {done + 1} of {tasks} ", end="", file=sys.stderr, flush=True)

    try:
        return of_places(places, progress)
    finally:
        if progress is not None:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def announce(what: str, quiet: bool) -> None:
    """Say on stderr what takes long."""
    if not quiet:
        console(stderr=True).print(what)


def facts(found: Learnable) -> dict[str, Any]:
    """What a model's file says of its training. No path and no name of a machine."""
    return {
        "workloads": found.workloads,
        "candidates": found.rows,
        "targets": sorted({f"{t.target.kind} {t.target.arch}" for t in found.tasks}),
    }


def summary(found: Learnable) -> dict[str, Any]:
    """What was read, for JSON documents."""
    return {
        "tasks": len(found.tasks),
        "workloads": len(found.workloads),
        "candidates": found.rows,
        "candidates_in_logs": found.candidates,
        "tasks_left_out": dict(found.left_out),
    }


def print_read(found: Learnable) -> None:
    """What was read, for people."""
    o = console()
    o.print(
        f"  {found.rows:,} candidates of {len(found.tasks)} tasks ({len(found.workloads)} workloads); "
        f"the logs have {found.candidates:,}"
    )
    for reason, tasks in sorted(found.left_out.items()):
        o.print(f"  {tasks} tasks left out: {reason}")
