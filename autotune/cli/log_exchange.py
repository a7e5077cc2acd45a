"""``autotune log export``, ``import`` and ``merge``: moving logs between machines."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from autotune.cli import options as opt
from autotune.cli.given import Given, takes
from autotune.cli.output import console, input_path, output_place, print_json
from schedules.units import number

if TYPE_CHECKING:
    from kernels_db.store import Log


@takes(opt.EXPORT_FILE, opt.ONLY_BEST, opt.FORMAT, opt.DB, opt.JSON)
def export(o: Given) -> None:
    """Write the log as JSON Lines in canonical form: two logs are equal when their exports are.

    One record is one line, sorted, so that a change is a small difference in a repository.

    \b
    Examples:
      autotune log export all.jsonl
      autotune log export best.jsonl --top 1 --db tuning.db
      autotune log export results.json --format t4
      autotune log export - | autotune log import - --db other.db
    """
    place = output_place(o.file, o.json)
    with existing(o.where) as log:
        n = log.export(place, top=o.top, form=o.format)
    if o.json:
        print_json({"path": str(o.file), "records": n})
    else:
        # A pipe must get nothing but the log.
        console(stderr=not o.file.is_file()).print(
            f"{number(n, 'record')} written to {'stdout' if place is sys.stdout else o.file}"
        )


@takes(opt.EXPORTS, opt.DB, opt.JSON)
def import_(o: Given) -> None:
    """Take exports into the log, packed (gzip, xz) or not. Lines that are not valid are refused and counted,
    and the exit status is 1.

    \b
    Example:
      autotune log import best.jsonl --db tuning.db
    """
    _merge([str(input_path(f)) for f in o.files], o.where, o.json)


@takes(opt.SOURCES, opt.DB, opt.JSON)
def merge(o: Given) -> None:
    """Take other logs, or exports of them, into the log; in any order and as often as you like.

    \b
    Examples:
      autotune log merge other.db export.jsonl --db tuning.db
      autotune log merge tuning.db --db postgresql+psycopg://tuner@host/team
    """
    _merge([str(input_path(Path(s))) if s == "-" else s for s in o.sources], o.where, o.json)


def _merge(sources: list[str], db: str, json: bool) -> None:
    from kernels_db.errors import LogError
    from kernels_db.passwords import masked
    from kernels_db.place import locate
    from kernels_db.store import Log

    missing = [masked(s) for s in sources if not locate(s).exists()]
    if missing:  # before anything is merged
        raise LogError(f"there is no file {', '.join(missing)}; give the paths of exports or logs")
    new = known = 0
    refused: Counter[str] = Counter()
    with Log(db) as log:
        for source in sources:
            try:
                result = log.merge(source)
            except KeyboardInterrupt:
                print("interrupted; what came in is kept, merging again takes the rest", file=sys.stderr)
                raise
            new += result.new
            known += result.known
            refused.update(result.refused)
    if json:
        print_json({"new": new, "known": known, "refused": dict(sorted(refused.items()))})
    else:
        out = console()
        out.print(
            f"{number(new, 'new record')}, {known} known already, {number(refused.total(), 'line')} refused"
        )
        for reason, n in refused.most_common():
            out.print(f"  {n:6}  {reason}")
    if refused:
        raise typer.Exit(1)


def existing(db: str) -> Log:
    """The log, which must exist. Opened for writing if possible, because that upgrades an older one."""
    from kernels_db.errors import LogError
    from kernels_db.place import locate
    from kernels_db.store import Log

    place = locate(db)
    if not place.exists():
        raise LogError(f"there is no tuning log at {place}; tune something first, or give its path with --db")
    try:
        return Log(db)
    except LogError:
        return Log(db, read_only=True)
