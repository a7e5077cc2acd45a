"""The base of primitives: frozen arguments, a legality check, a rewriting, and a step of a trace."""

from __future__ import annotations

import dataclasses
import functools
import operator
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar

from schedules.errors import ScheduleError
from schedules.expr import Const, Expr, Hole
from schedules.instructions import INSTRUCTIONS, Instruction
from schedules.ir import Buffer, Loop, Nest, walk
from schedules.model import Step, Target

Factor = int | Hole  # a number, or an unknown of a sketch
R = TypeVar("R")  # what the method of a primitive returns
MAX_EXTENT = 2**63 - 1  # of a loop or a tile: indices are computed in 64 bits


@dataclass(frozen=True)
class Primitive(Generic[R]):
    """Contract: ``apply`` keeps the meaning of every nest that ``check`` accepts. Both raise
    `ScheduleError`, which names the loop or block, the reason and the remedy (`refused`). ``subject``: the
    field that errors name, if it is not the first."""

    name: ClassVar[str] = ""
    subject: ClassVar[str] = ""

    def check(self, nest: Nest, target: Target | None = None) -> None:
        """Raise ScheduleError if the primitive is not legal. ``target``: None for any target."""

    def apply(self, nest: Nest) -> Nest:
        """The transformed nest. ``check`` must have passed."""
        raise ScheduleError(f"{type(self).__name__} has no rewriting")

    def refused(self, why: str) -> ScheduleError:
        """The error for a use that is not legal. ``why``: the reason and the remedy."""
        of = getattr(self, self.subject or dataclasses.fields(self)[0].name)
        return ScheduleError(f"{self.name} {of}: {why}" if isinstance(of, str) else f"{self.name}: {why}")

    def sentence(self) -> str:
        """What it does, as a sentence for people: names in backquotes, a capital and a full stop. Every
        primitive of `schedules.primitives.PRIMITIVES` has one of its own."""
        return f"Apply {type(self).__name__}."

    def result(self) -> R:
        """What `Schedule` returns: names of new loops or blocks, or None."""
        return None  # type: ignore[return-value]

    def step(self) -> Step:
        """The step of a trace: name and arguments."""
        args = ((f.name, _encode(getattr(self, f.name))) for f in dataclasses.fields(self))
        return Step(self.name, tuple(sorted(args)))

    @classmethod
    def from_step(cls, step: Step) -> Primitive[R]:
        """Inverse of `step`. Raises ScheduleError when the arguments do not fit."""
        fields = _field_types(cls)  # type: ignore[arg-type]  # classes hash; mypy looks at their instances
        given = dict(step.args)
        if given.keys() != fields.keys():
            raise ScheduleError(
                f"step {step.primitive} takes {', '.join(fields)}, the trace gives {', '.join(given)}"
            )
        return cls(**{k: _decode(v, fields[k], f"{step.primitive}.{k}") for k, v in given.items()})


@dataclass(frozen=True)
class OfLoops(Primitive[R]):
    """A primitive of loops by name, as many as there are."""

    loops: tuple[str, ...]

    @classmethod
    def of(cls, *loops: str) -> Self:
        """As `Schedule` has it."""
        return cls(loops)


def require_intermediate(nest: Nest, buffer: str, what: str) -> None:
    """Raise ScheduleError unless ``buffer`` exists and is no argument. ``what``: name of the primitive."""
    own = [b.name for b in nest.buffers if b.name not in nest.params]
    if buffer in nest.params:
        raise ScheduleError(f"{what} {buffer}: an argument; use cache_read or cache_write")
    if buffer not in own:
        raise ScheduleError(
            f"{what}: there is no buffer {buffer!r}; intermediate buffers are {', '.join(own) or 'none'}"
        )


def require_buffer(nest: Nest, buffer: str, what: str) -> Buffer:
    """The buffer of this name. Raises ScheduleError if there is none. ``what``: name of the primitive."""
    found = next((b for b in nest.buffers if b.name == buffer), None)
    if found is None:
        have = ", ".join(b.name for b in nest.buffers)
        raise ScheduleError(f"{what}: there is no buffer {buffer!r}; the buffers are {have}")
    return found


@functools.cache
def _field_types(cls: type[Primitive[Any]]) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def _encode(v: Any) -> Any:
    if isinstance(v, Hole):
        return ("?", v.name)
    if isinstance(v, Instruction):
        return v.name
    return tuple(map(_encode, v)) if isinstance(v, tuple) else v


def _decode(v: Any, hint: Any, what: str) -> Any:
    """Check a JSON value against a field's type (int, str, bool, Hole, None, tuples, unions)."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for h in options:
        if h is types.NoneType and v is None:
            return None
        if h in (int, str, bool) and type(v) is h:
            return v
        if h is Hole and isinstance(v, tuple) and len(v) == 2 and v[0] == "?" and isinstance(v[1], str):
            return Hole(v[1])
        if h is Instruction and isinstance(v, str):
            if v in INSTRUCTIONS:
                return INSTRUCTIONS[v]
            raise ScheduleError(f"{what}: no instruction {v!r}; this version knows {', '.join(INSTRUCTIONS)}")
        if typing.get_origin(h) is tuple and isinstance(v, tuple):
            return tuple(_decode(x, typing.get_args(h)[0], what) for x in v)
    raise ScheduleError(f"{what}: {str(v)[:60]!r} is not a {hint}")


def typed(p: Primitive[R]) -> Primitive[R]:
    """The primitive with what a user gave as its fields have it: integers of numpy become ints, and lists
    tuples. Raises ScheduleError for other types."""
    hints = _field_types(type(p))  # type: ignore[arg-type]  # as in `from_step`
    return type(p)(**{name: _argument(getattr(p, name), hint, name, p) for name, hint in hints.items()})


def listed(names: Iterable[str], last: str = "and") -> str:
    """Names for a sentence: in backquotes, with commas, and ``last`` before the last one."""
    quoted = [f"`{n}`" for n in names]
    return f" {last} ".join(x for x in (", ".join(quoted[:-1]), "".join(quoted[-1:])) if x)


def scope_in_words(scope: str) -> str:
    """A storage scope for a sentence."""
    words = {
        "shared": "memory that the threads of a block share",
        "local": "memory of one thread (registers)",
        "fragment": "registers of the threads of a warp together",
    }
    return words.get(scope, "memory")


def as_tuple(values: Any) -> Any:
    """A sequence as a tuple. What is none is returned for `typed` to refuse."""
    return values if isinstance(values, str) or not isinstance(values, Iterable) else tuple(values)


def _argument(v: Any, hint: Any, field: str, p: Primitive[Any]) -> Any:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for h in options:
        if typing.get_origin(h) is tuple and isinstance(v, (tuple, list)):
            return tuple(_argument(x, typing.get_args(h)[0], field, p) for x in v)
        if h is int and hasattr(v, "__index__") and type(v).__name__ not in ("bool", "bool_"):
            return operator.index(v)
        if isinstance(h, type) and h is not int and isinstance(v, h):
            return v
    first = next(iter(vars(p).values()))
    subject = f"{p.name} {first}" if isinstance(first, str) and first is not v else p.name
    raise ScheduleError(
        f"{subject}: {field}: {repr(v)[:60]} is of type {type(v).__name__}; give {_wanted(options, field)}"
    )


def _wanted(options: tuple[Any, ...], field: str) -> str:
    """What an argument must be, in words."""
    if typing.get_origin(options[0]) is tuple:
        inner = typing.get_args(options[0])[0]
        parts = typing.get_args(inner) if isinstance(inner, types.UnionType) else (inner,)
        return f"a list of {'names' if str in parts else 'integers'}"
    if str in options:
        kind = field.removesuffix("s")
        return f"the name of a {kind}, a string" if kind in ("loop", "block", "buffer") else "a string"
    return "an integer or None" if types.NoneType in options else "an integer"


def as_expr(f: Factor) -> Expr:
    """A factor as an expression."""
    return f if isinstance(f, Expr) else Const(f)


def require_serial(loop: Loop, what: str) -> None:
    """Raise ScheduleError unless the loop is serial."""
    if loop.kind != "serial":
        raise ScheduleError(
            f"{what} {loop.var}: the loop is already {loop.kind}; {what} it before marking it {loop.kind}"
        )


def require_extent(count: int, what: str) -> None:
    """Raise ScheduleError if no loop can run ``count`` times."""
    if count > MAX_EXTENT:
        raise ScheduleError(
            f"{what}: the new loops would exceed 64 bits, the range of indices; choose factors near the "
            "extent of the loop"
        )


def extent_of(loop: Loop) -> int | None:
    """The loop's extent, None if it depends on holes."""
    return int(loop.extent.value) if isinstance(loop.extent, Const) else None


def require_new(nest: Nest, names: tuple[str, ...], what: str) -> None:
    """Raise ScheduleError if a loop of one of these names exists."""
    taken = {s.var for s in walk(nest.body) if isinstance(s, Loop)}
    for n in names:
        if n in taken:
            raise ScheduleError(
                f"{what}: a loop named {n!r} exists already; fuse or split the other one differently"
            )
