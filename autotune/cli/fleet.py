"""``autotune fleet``: who is in a fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from autotune.cli import options as opt
from autotune.cli.given import Given, takes
from autotune.cli.output import console, print_json, table, target_summary

if TYPE_CHECKING:
    from autotune.fleet.members import Member


@takes(opt.ADDRESS, opt.JSON)
def fleet(o: Given) -> None:
    """Show the machines of a fleet: their targets, what they do, and their versions.

    Exit status 1: no worker can be used.

    \b
    Examples:
      autotune fleet tcp://host:8786
      autotune fleet tls://host:8786 --json
    """
    from autotune.fleet import connection
    from autotune.fleet.client import Fleet
    from autotune.results.display import say

    connection.warn_of_plain(o.address, say)
    with Fleet(connection.connect(o.address), o.address) as found:
        members = found.members()
        link = str(found.client.dashboard_link or "")
    ready = [m for m in members if not m.problem]
    if o.json:
        print_json({"address": o.address, "dashboard": link, "workers": [_document(m) for m in members]})
    else:
        out = console()
        if members:
            table(
                out,
                ("worker", "machine", "targets", ">slots", ">busy", "autotune", "python", "llvm"),
                map(_row, members),
            )
        for m in members:
            if m.problem:
                out.print(f"  {m.name} gets no work: {m.problem}")
        out.print(f"  {len(ready)} of {len(members)} workers can be used")
        if not members:
            out.print(f"  start one on each machine with: autotune worker {o.address}")
        if link:
            out.print(f"  dashboard of Dask: {link}")
    if not ready:
        raise typer.Exit(1)


def _row(m: Member) -> tuple[str, ...]:
    offered = ", ".join(f"{o.asked} ({o.target.arch}, threads: {o.target.threads})" for o in m.offers)
    facts = m.facts
    return (
        m.name,
        str(facts.get("cpu", "-")),
        offered or "-",
        "1",
        str(m.busy),
        *(str(facts.get(k, "-")) for k in ("autotune", "python", "llvm")),
    )


def _document(m: Member) -> dict[str, Any]:
    return {
        "name": m.name,
        "address": m.address,
        "machine": dict(m.facts),
        "targets": [{"asked": o.asked, **target_summary(o.target)} for o in m.offers],
        "slots": 1,
        "busy": m.busy,
        "builds": m.builds,
        "problem": m.problem or None,
    }
