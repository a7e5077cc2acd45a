"""What a command is given: rows of the table of options, read and checked once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import cached_property, wraps
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.settings import database
from schedules.errors import suggest

if TYPE_CHECKING:
    from autotune.run.dynamic_workload import DynamicWorkload
    from schedules.model import Target, Workload

# What is said of language models in files of GGUF alone.
OF_GGUF = ("cache", "activations", "depth", "prefill")
# Of a row whose value must be given.
REQUIRED: Any = ...
# Kinds of values that are numbers.
NUMBERS = (int, float)


@dataclass(frozen=True)
class OptionRow:
    """An option of commands, or with no ``flags`` an argument. ``name``: that of its value in `Given`.
    ``kind``: the type of the value, which may be None too where that is the ``default``. ``least``: of a
    number. ``choices``: the values that there are. ``read``: makes the value of what was typed, and of the
    name for errors. ``values``: what a shell offers for an operator and the word so far (None: the
    choices)."""

    name: str
    flags: tuple[str, ...]
    help: str
    kind: Any = str
    default: Any = None
    metavar: str | None = None
    least: float | None = None
    choices: Collection[str] | None = field(default=None, compare=False)
    read: Callable[[Any, str], Any] | None = None
    values: Callable[[str, str], Iterable[str]] | None = None

    @property
    def shown(self) -> str:
        """What an error calls it."""
        return self.flags[0].partition("/")[0] if self.flags else self.metavar or self.name

    @property
    def _metavar(self) -> str | None:
        """The name of the value in help; that of an option says what is typed, not its type in Python."""
        if self.metavar is not None or not self.flags or self.kind is bool:
            return self.metavar
        return "|".join(self.choices) if self.choices else "NUMBER"

    def parameter(self) -> inspect.Parameter:
        """As Typer reads it from a function."""
        kind = str if self.kind in NUMBERS else self.kind  # `value` reads it, whose errors are in our words
        kind = kind | None if self.default is None else kind
        told: dict[str, Any] = {"metavar": self._metavar, "help": self.help}
        info = typer.Option(*self.flags, **told) if self.flags else typer.Argument(**told)
        default = inspect.Parameter.empty if self.default is REQUIRED else self.default
        default = str(default) if self.kind in NUMBERS and default is not None else default
        annotation: Any = Annotated[kind, info]
        return inspect.Parameter(
            self.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )

    def value(self, typed: Any) -> Any:
        """The value of what was typed. Raises `typer.BadParameter`."""
        if typed is None:
            return None
        if self.kind in NUMBERS:
            return numeral(self.kind, self.shown, typed, self.least)
        if self.choices is not None:
            one_of(self.shown, typed, self.choices)
        return typed if self.read is None else self.read(typed, self.shown)

    def offered(self, op: str, word: str) -> Iterable[str]:
        """What a shell offers for an operator and the word so far."""
        return self.values(op, word) if self.values is not None else self.choices or ()


class Given:
    """The values of a command's rows, by their names."""

    def __init__(self, ctx: typer.Context, rows: Iterable[OptionRow], values: dict[str, Any]) -> None:
        self.ctx = ctx
        self.__dict__.update({row.name: row.value(values[row.name]) for row in rows})
        if "op" in values and not self.on_gguf:
            self.refuse([n for n in OF_GGUF if n in values], "goes with a file of GGUF alone")

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def has(self, name: str) -> bool:
        """Whether a value was given, and is not left at its default."""
        source = self.ctx.get_parameter_source(name)
        return source is not None and source.name != "DEFAULT"

    def refuse(self, names: Iterable[str], why: str) -> None:
        """Raises `typer.BadParameter` where one of these was given."""
        for name in names:
            if self.has(name):
                raise typer.BadParameter(f"--{name.replace('_', '-')} {why}")

    @cached_property
    def where(self) -> str:
        """The log. Raises `SettingsError`."""
        return database(self.db)

    @property
    def goal(self) -> Target:
        """The target with its threads. Raises `AutotuneError`."""
        from autotune.backends import parse

        return parse(self.target, self.threads)

    @property
    def on_model(self) -> bool:
        """Whether a model's file stands in the place of an operator's name."""
        return is_model(self.op)

    @property
    def on_gguf(self) -> bool:
        """Whether that file is a language model of GGUF."""
        return self.op is not None and self.op.lower().endswith(".gguf")

    def check_model(self, *others: str) -> None:
        """Raises `typer.BadParameter` for options that say what an operator computes, or are ``others``."""
        names = ("dtype", "layout", "constant_weights", "strides", "suite", *others)
        self.refuse(names, "does not go with a model; its file has what is computed")

    def check_program(self, *others: str) -> None:
        """Raises `typer.BadParameter` unless either an operator or a suite is given, and with a suite neither
        the options that its file replaces nor these ``others``."""
        if (self.op is None) == (self.suite is None):
            raise typer.BadParameter("give either an operator and its --shape, or --suite FILE[:NAME]")
        if self.suite is not None:
            names = ("shape", "dtype", "layout", "strides", *others)
            self.refuse(names, "does not go with --suite; the suite file has it")

    def workload(self) -> Workload:
        """The workload of an operator, or the user's own expression that has the name in the log. Raises
        `WorkloadError`, and `typer.BadParameter` for what is neither."""
        from autotune.run.workloads import as_workload, parse_strides
        from schedules import ops

        if self.op not in ops.REGISTRY:
            from autotune.run.own_names import find

            found = find(self.op, self.where)
            if found is not None:
                if self.shape or self.layout or self.constant_weights or self.strides:
                    raise typer.BadParameter(f"{self.op} is your own expression; leave out all but its name")
                return found
            _check_operator(self.op, self.where)
        shape = ops.parse_shape(self.shape)
        strides = parse_strides(self.strides)
        return as_workload(self.op, shape, self.dtype, self.layout, self.constant_weights, None, strides)

    def program(self) -> Workload | DynamicWorkload:
        """`workload`, or those of each size of a range: ``--shape m=1..512,fixed,…``. Says where a range is
        not open of which nobody said that it should not be."""
        if ".." not in self.shape:
            return self.workload()

        from autotune import backends
        from autotune.results.display import say
        from autotune.run.varying import as_asked, undecided, varying
        from autotune.run.workloads import parse_strides
        from schedules import ops

        params, strides = ops.parse_shape(self.shape), parse_strides(self.strides)
        grid = backends.names_grid(self.target) if self.has("fleet") else self.goal.grid
        told = (self.op, params, self.dtype, self.layout, self.constant_weights, None, strides, grid)
        return varying(*told).decided(say) if undecided(self.op, params) else as_asked(*told)


def takes(*rows: OptionRow) -> Callable[[Callable[[Given], None]], Callable[..., None]]:
    """Makes a command for Typer of a function of what is `Given`, which has these rows."""

    def made(command: Callable[[Given], None]) -> Callable[..., None]:
        @wraps(command)
        def run(ctx: typer.Context, **values: Any) -> None:
            command(Given(ctx, rows, values))

        own = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        parameters = [own, *(row.parameter() for row in rows)]
        run.__dict__.update(__signature__=inspect.Signature(parameters), rows=rows)
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return made


def one_of(option: str, value: str, known: Collection[str]) -> None:
    """Raises `typer.BadParameter` unless ``value`` is one of ``known``."""
    if value not in known:
        listed = ", ".join(known)
        raise typer.BadParameter(f"{option} {value!r} is not one of {listed}{suggest(value, known)}")


def numeral(kind: Callable[[str], float], option: str, text: str, least: float | None) -> float:
    """The number that was typed. Raises `typer.BadParameter`."""
    try:
        n = kind(text)
    except ValueError:
        what = "a whole number, such as 4" if kind is int else "a number, such as 1.5"
        raise typer.BadParameter(f"{option} {text!r} is not {what}") from None
    if not isfinite(n):
        raise typer.BadParameter(f"{option} {text!r} is not finite; give a number, such as 1.5")
    if least is not None and n < least:
        raise typer.BadParameter(f"{option} is at least {least:g}, not {text}")
    return n


def is_model(op: str | None) -> bool:
    """Whether what stands in the place of an operator's name is a model's file."""
    return op is not None and (op.lower().endswith((".onnx", ".gguf")) or "/" in op or "\\" in op)


def _check_operator(op: str, db: str) -> None:
    """Raises `typer.BadParameter` for a file in the place of an operator's name, and for what is nearly the
    name of an expression in a log ``db``."""
    from autotune.run import own_names
    from schedules import ops

    if is_model(op):
        raise typer.BadParameter(
            f"{op} is a model's file, and this command takes one operator; ops, tune, bench, explain, "
            "export and report take models, and in Python autotune.compile_model makes one callable, which "
            "it can save"
        )
    if "." in op:
        raise typer.BadParameter(
            f"{op!r} is no operator (see: autotune ops), and no model's file: its name would end in .onnx or "
            ".gguf"
        )
    if op not in ops.REGISTRY and not suggest(op, ops.REGISTRY):
        close = own_names.close(op, db) or "; autotune ops lists operators"
        raise typer.BadParameter(f"unknown operator {op!r}, and no expression of that name in {db}{close}")
