"""The command line: one file for each command, gathered in `app`. Heavy modules are imported by the command
that needs them, so that ``autotune --help`` is quick."""

from __future__ import annotations

import sys
import time
import warnings


def main() -> None:
    """Entry point of the console script ``autotune``. Commands have in ``ctx.obj`` when it began."""
    begun = time.monotonic()
    try:
        from autotune.cli.app import app
        from autotune.cli.verbosity import warning_text

        if sys.argv[1:2] == ["--complete"]:  # the shell asks
            from typer.main import get_command

            from autotune.cli.completion import answer

            for found in answer(get_command(app), " ".join(sys.argv[2:])):
                print(found)
            return
        if sys.argv[1:2] == ["tune"]:
            # xgboost imports scikit-learn where it is installed, which takes longer than itself; tuning
            # uses none of it
            sys.modules.setdefault("sklearn", None)  # type: ignore[arg-type]
    except KeyboardInterrupt:  # before a command handles it
        raise SystemExit(130) from None
    warnings.formatwarning = warning_text
    app(obj=begun)
