"""``autotune doctor``: what works on this machine."""

from __future__ import annotations

import typer

from autotune.cli import options as opt
from autotune.cli.given import Given, takes
from autotune.cli.output import console, hanging, print_json

# {status of a finding: colour}.
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@takes(opt.DB, opt.JSON)
def doctor(o: Given) -> None:
    """Say what works on this machine, what does not, and what would make it work.

    Exit status 1: something that tuning needs does not work.

    \b
    Examples:
      autotune doctor
      autotune doctor --db tuning.db --json
    """
    from autotune.cli.checks import examine

    findings = examine(o.where)
    failed = sum(f.status == "fail" for f in findings)
    if o.json:
        print_json({"ok": not failed, "checks": [f.to_json() for f in findings]})
    else:
        out = console()
        width = max(len(f.name) for f in findings)
        for f in findings:
            colour = _COLOURS[f.status]
            word = "-" if f.status == "ok" and f.remedy else f.status  # absent, and not needed
            out.print(f"{word:4}", style=colour, end="")
            first, *rest = hanging(out, f"{word:4}  {f.name:{width}}  ", f.detail)
            for line in (first.removeprefix(f"{word:4}"), *rest):
                out.print(line)
            if f.remedy:
                out.print(f"{'':6}{'':{width}}  -> {f.remedy}")
        out.print(
            "everything that tuning needs works"
            if not failed
            else f"{failed} of {len(findings)} checks failed"
        )
    if failed:
        raise typer.Exit(1)
