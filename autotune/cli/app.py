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
from autotune.cli.help import WIDTH, GroupedCommand
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
            message = err.format_message().removeprefix("Invalid value: ")  # type: ignore[attr-defined]
            if "unexpected extra argument" in message and "=" in message:
                given = ",".join(re.findall(r"[^\s()=]+=[^\s()]+", message)) or "m=512,n=512"
                message += f"; write parameters with commas between them: --shape {given}"
            status = _complain(message, arguments, command=_command_of(err))
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


def _command_of(err: Exception) -> str:
    """The command in which a mistake was made, such as ``autotune log stats``."""
    ctx = getattr(err, "ctx", None)
    return "autotune" if ctx is None else str(ctx.command_path)


def _complain(message: str, arguments: Sequence[str], status: int = 2, command: str = "") -> int:
    """Print a mistake where it will be seen: in the JSON document, else on stderr if that can be written
    to. ``command``: whose help says more."""
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
            if command:
                print(f"Try '{command} --help'.", file=out)
        out.flush()
    except OSError:
        streams.silence(out)
        if documented:
            _complain(message, (), status, command)
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
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH},
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


# {name: (function, a line for the list of commands in 80 columns, whether it needs arguments)}.
COMMANDS = {
    "tune": (tune.tune, "Search for a fast schedule of an operator.", True),
    "best": (best.best, "Show the best kernel of the log.", True),
    "explain": (explain.explain, "Say why a kernel or a model is as fast as it is.", True),
    "bench": (bench.bench, "Time kernels beside other libraries.", True),
    "generate": (generate.generate, "Make tokens with a language model.", True),
    "report": (report.report, "Write a page of HTML about the log.", False),
    "export": (export.export, "Write a kernel or model for C.", True),
    "replay": (replay.replay, "Search a recorded table.", True),
    "worker": (worker.worker, "Offer this machine to a fleet.", True),
    "fleet": (fleet.fleet, "Show the machines of a fleet.", True),
    "train": (train.train, "Make a cost model of tuning logs.", False),
    "evaluate": (evaluate.evaluate, "Say how well cost models order a log's candidates.", False),
    "ops": (ops.ops, "List the operators and their parameters.", False),
    "demo": (demo.demo, "Tune a product, and compare it with numpy.", False),
    "doctor": (doctor.doctor, "Say what works on this machine.", False),
}
for _name, (_run, _line, _needs) in COMMANDS.items():
    app.command(_name, cls=GroupedCommand, no_args_is_help=_needs, short_help=_line)(_run)
app.add_typer(log.app, name="log")
app.add_typer(cache.app, name="cache", short_help="Compiled kernels on disk: show, clear.")
app.command("completion", no_args_is_help=True, short_help="Print a script for completion by the shell.")(
    completion.completion
)
