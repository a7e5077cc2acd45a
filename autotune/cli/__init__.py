"""The command line: one file a command, gathered in `app`. Heavy modules are imported by the
command that needs them, so that ``autotune --help`` is quick."""

from __future__ import annotations


def main() -> None:
    """Entry point of the console script ``autotune``."""
    try:
        from autotune.cli.app import app
    except KeyboardInterrupt:  # before there is a command that could answer it
        raise SystemExit(130) from None
    app()
