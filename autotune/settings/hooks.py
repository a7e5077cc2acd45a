"""Functions of upper rooms that lower ones call, by name. `autotune/__init__` fills the table.

A result does not know what reports it, and loading does not know what picks a schedule. Both ask here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_filled: dict[str, Callable[..., Any]] = {}


def fill(**functions: Callable[..., Any]) -> None:
    """Set functions. ``report(result, path)`` writes a page of HTML, ``explain(result)`` says why the best
    schedule is as fast as it is, ``first_pick(workload, target, where)`` picks a schedule of what nobody
    tuned, ``fleet(address, target, threads)`` is a fleet to tune on."""
    _filled.update(functions)


def hook(name: str) -> Callable[..., Any]:
    """The function of a name."""
    return _filled[name]
