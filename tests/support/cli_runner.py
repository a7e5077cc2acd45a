"""Running the command line in a test."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from typer.testing import CliRunner

from autotune.cli.app import app


@dataclass(frozen=True)
class Ran:
    """What a command left: exit status and what it printed."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def run(*words: object) -> Ran:
    """Runs ``autotune WORDS...``. An exception that the command line did not expect is raised here."""
    result = CliRunner().invoke(app, [str(w) for w in words], catch_exceptions=False)
    return Ran(result.exit_code, result.stdout, result.stderr)
