"""The command line: one file for each command, gathered in `app`. Heavy modules are imported by the command
that needs them, so that ``autotune --help`` is quick."""

from __future__ import annotations


def main() -> None:
    """Entry point of the console script ``autotune``."""
    try:
        from autotune.cli.app import app
    except KeyboardInterrupt:  # before a command handles it
        raise SystemExit(130) from None
    app()
