"""The Typer application and its one error handler.

Exit status: 0 done; 1 it ran but the goal was not met; 2 wrong usage or input; 130 interrupted.
"""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from autotune import settings
from autotune.cli import (
    bench,
    best,
    cache,
    completion,
    demo,
    doctor,
    evaluate,
    explain,
    export,
    fleet,
    generate,
    log,
    ops,
    replay,
    report,
    streams,
    train,
    tune,
    verbosity,
    worker,
)
from autotune.cli.output import error_document, print_whatever_the_encoding
from autotune.errors import KernelNotFound, refused
from schedules.errors import AutotuneError
from schedules.units import visible_lines

# click's base class of usage errors. Some versions of Typer carry a private copy of it.
_USAGE_ERROR: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


# Errors of a full disk or quota. They come from stdout without a file name.
_UNWRITABLE = (errno.ENOSPC, errno.EIO, errno.EDQUOT)


class CommandGroup(TyperGroup):
    """Turns a user's mistake into a message and exit status 2. Unexpected errors keep their traceback. All
    commands have the option ``--log-level``."""

    def __init__(self, **told: Any) -> None:
        super().__init__(**told)
        verbosity.everywhere(self.params, self.commands)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        arguments = list(sys.argv[1:] if args is None else args)
        fault = streams.prepare()
        print_whatever_the_encoding()
        try:
            if fault is not None:
                sys.exit(_complain(f"stdout is {fault}; redirect it, to /dev/null at least", ()))
            status = super().main(arguments, "autotune", complete_var, False, **extra)
            sys.stdout.flush()  # errors of writing show here
        except _USAGE_ERROR as err:
            message = err.format_message()  # type: ignore[attr-defined]
            if "unexpected extra argument" in message and "=" in message:
                given = ",".join(re.findall(r"[^\s()=]+=[^\s()]+", message)) or "m=512,n=512"
                message += f"; write parameters with commas between them: --shape {given}"
            status = _complain(message, arguments, usage=True)
        except KernelNotFound as err:
            status = _complain(err.message, arguments, status=1)
        except AutotuneError as err:
            status = _complain(str(err), arguments)
        except BrokenPipeError:
            streams.silence(sys.stdout)
            status = 1
        except OSError as err:
            if err.filename is not None:
                status = _complain(f"{err.filename}: {refused(err)}", arguments)
            elif err.errno in (errno.EMFILE, errno.ENFILE):
                status = _complain(refused(err), arguments)
            elif err.errno in _UNWRITABLE:
                streams.silence(sys.stdout)
                status = _complain(f"the output cannot be written: {err.strerror}", ())
            else:
                raise
        except (typer.Abort, KeyboardInterrupt):
            status = 130
        if not standalone_mode:
            return status
        sys.exit(status if isinstance(status, int) else 0)


def _complain(message: str, arguments: Sequence[str], status: int = 2, usage: bool = False) -> int:
    """Print a mistake where it will be seen: in the JSON document, else on stderr if that can be written
    to."""
    documented = "--json" in arguments
    out = sys.stdout if documented else sys.stderr
    message = message if documented else visible_lines(message)
    try:
        if documented:
            print(error_document(message, status))
        elif message.startswith("Usage:"):  # the help of a command without arguments
            print(message, file=out)
        else:
            print(f"autotune: {message}", file=out)
            if usage:
                print("Try 'autotune --help', or '--help' after a command.", file=out)
        out.flush()
    except OSError:
        streams.silence(out)
        if documented:
            _complain(message, (), status, usage)
    return status


app = typer.Typer(
    name="autotune",
    cls=CommandGroup,
    help="""Tune tensor operators for the machine at hand, and use the kernels that were found.

    \b
    Examples:
      autotune tune matmul --shape m=512,n=512,k=512 --budget 60s
      autotune bench matmul --shape m=512,n=512,k=512 --against numpy
    """,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from schedules.distribution import VERSION

        print(f"autotune {VERSION}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    log_level: verbosity.LevelOption = None,
) -> None:
    """What every command begins with."""
    if log_level is None:
        verbosity.report(settings.log_level())


# One line each, short enough for the list of commands in 80 columns.
app.command("tune", no_args_is_help=True, short_help="Search for a fast schedule of an operator.")(tune.tune)
app.command("best", no_args_is_help=True, short_help="Show the best kernel of the log.")(best.best)
app.command("explain", no_args_is_help=True, short_help="Say why a kernel or a model is as fast as it is.")(
    explain.explain
)
app.command("bench", no_args_is_help=True, short_help="Time kernels beside other libraries.")(bench.bench)
app.command("generate", no_args_is_help=True, short_help="Make tokens with a language model.")(
    generate.generate
)
app.command("report", short_help="Write a page of HTML about the log.")(report.report)
app.command("export", no_args_is_help=True, short_help="Write a kernel for C programs.")(export.export)
app.command("replay", no_args_is_help=True, short_help="Search a recorded table.")(replay.replay)
app.command("worker", no_args_is_help=True, short_help="Offer this machine to a fleet.")(worker.worker)
app.command("fleet", no_args_is_help=True, short_help="Show the machines of a fleet.")(fleet.fleet)
app.command("train", short_help="Make a cost model of tuning logs.")(train.train)
app.command("evaluate", short_help="Say how well cost models order a log's candidates.")(evaluate.evaluate)
app.command("ops", short_help="List the operators and their parameters.")(ops.ops)
app.command("demo", short_help="Tune a product, and compare it with numpy.")(demo.demo)
app.command("doctor", short_help="Say what works on this machine.")(doctor.doctor)
app.add_typer(log.app, name="log")
app.add_typer(cache.app, name="cache", short_help="Compiled kernels on disk: show, clear.")
app.command("completion", no_args_is_help=True, short_help="Print a script for completion by the shell.")(
    completion.completion
)
