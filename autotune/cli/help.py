"""The help of a command: its options in groups, as wide as the terminal up to `WIDTH` columns."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand

from autotune.cli.options import GROUPS

# Most columns of help.
WIDTH = 120
# Commands with fewer options have one list of them.
FEW_OPTIONS = 8
# Of options that are in no other group.
OTHERS = "Other options"


class GroupedCommand(TyperCommand):
    """A command whose help has its options in groups (`GROUPS`), and headings in bold on a terminal."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        lists: dict[str, list[tuple[str, str]]] = {"Arguments": [], **{g: [] for g in GROUPS}, OTHERS: []}
        named = {name: group for group, names in GROUPS.items() for name in names}
        options = [p for p in self.get_params(ctx) if p.param_type_name == "option"]
        for p in self.get_params(ctx):
            record = p.get_help_record(ctx)
            if record is None:
                continue
            if p.param_type_name == "argument":
                lists["Arguments"].append((record[0].removesuffix(" <str>"), record[1]))
            elif len(options) < FEW_OPTIONS:
                lists.setdefault("Options", []).append(record)
            else:
                lists[named.get(p.name or "", OTHERS)].append(record)
        for heading, records in lists.items():
            if records:
                with formatter.section(typer.style(heading, bold=True)):
                    formatter.write_dl(records)
