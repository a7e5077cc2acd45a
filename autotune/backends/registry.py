"""Which backends there are, and which one a target, a word or code belongs to."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from autotune.errors import CompileError
from autotune.targets.names import TargetError
from schedules.model import Target

if TYPE_CHECKING:
    from autotune.backends.base import Backend

BACKENDS = ("cpu", "emulator", "cuda", "opencl")  # files, in the order in which a target is offered to them

HOST = BACKENDS[0]  # the word for this host, which is meant where nothing is said


@cache
def named(name: str) -> Backend:
    """The backend of a file of this package. Raises LookupError for a name that is not of `BACKENDS`."""
    if name not in BACKENDS:
        raise LookupError(f"there is no backend {name!r}; there are {', '.join(BACKENDS)}")
    backend: Backend = import_module(f"autotune.backends.{name}").BACKEND
    return backend


def find(target: Target) -> Backend | None:
    """The backend of a target. None for a kind that this version does not know, as one in a log may be."""
    return next((named(n) for n in BACKENDS if named(n).owns(target)), None)


def of(target: Target) -> Backend:
    """The backend of a target. Raises TargetError for a kind that this version does not know."""
    found = find(target)
    if found is not None:
        return found
    raise TargetError(
        f"there is no backend for targets of kind {target.kind!r}; there are {', '.join(kinds())}"
    )


def of_code(code: bytes) -> Backend:
    """The backend that code was built by. Raises CompileError."""
    for name in BACKENDS:
        if named(name).takes(code):
            return named(name)
    raise CompileError(f"damaged code, or of another version: it begins with {code[:24]!r}")


def asked_for(text: str) -> Backend | None:
    """The backend whose first target a user means by a word, if there is one."""
    return next((named(n) for n in BACKENDS if named(n).name == text), None)


def kinds() -> list[str]:
    """The words that `asked_for` knows."""
    return [named(n).name for n in BACKENDS]
