"""What the command line reports on stderr beside results and progress: the option ``--log-level``.

It stands before a command or after it. The level holds for the project's own loggers; of other libraries only
warnings are reported, since debug messages of a database library would hide ours.
"""

from __future__ import annotations

import copy
import logging
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import autotune
from autotune.cli.options import LOG_LEVEL
from schedules.units import visible_lines

PACKAGES = ("autotune", "cost_model", "kernels_db")
(OPTION,) = LOG_LEVEL.flags


class _Stderr(logging.StreamHandler[Any]):
    """Writes to what is stderr now: while a line is live in a terminal, that puts messages above it."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


_HANDLER = _Stderr()


def report(level: str) -> None:
    """Report messages of a level and above. ``level``: one of `LOG_LEVELS`. A process that has handlers of
    its own keeps them."""
    _HANDLER.setLevel(level.upper())
    logging.basicConfig(format="autotune: %(levelname)s: %(message)s", handlers=[_HANDLER])
    for name in PACKAGES:
        logging.getLogger(name).setLevel(level.upper())


_PYTHONS = warnings.formatwarning
# A warning has the line of the innermost caller outside of autotune. On the command line that is Typer's.
_OURS = tuple(f"{Path(path).parent}{os.sep}" for path in (autotune.__file__, typer.__file__))


def warning_text(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning as a process of the command line prints it: ours as other messages, without a line of code;
    one of another library as Python prints it."""
    if issubclass(category, UserWarning) and filename.startswith(_OURS):
        return f"autotune: WARNING: {visible_lines(str(message))}\n"
    return _PYTHONS(message, category, filename, lineno, line)


def _given(level: str | None) -> str | None:
    """Raises `typer.BadParameter` for a level that there is not."""
    if level is None:
        return None
    level = LOG_LEVEL.value(level.lower())
    report(level)
    return level


LevelOption = Annotated[
    str | None,
    typer.Option(OPTION, metavar=LOG_LEVEL.metavar, callback=_given, help=LOG_LEVEL.help),
]


def everywhere(params: list[Any], commands: Mapping[str, Any]) -> None:
    """Give the option of the root, one of its ``params``, to all commands below it too. Their functions do
    not get its value."""
    for option in params:
        if OPTION in option.opts:
            option = copy.copy(option)
            option.expose_value = False
            _give(option, commands)


def _give(option: Any, commands: Mapping[str, Any]) -> None:
    for command in commands.values():
        command.params.append(option)
        _give(option, getattr(command, "commands", {}))
