"""The order in which nodes of an expression are evaluated on arrays: operands first, and what is read several
times once. A value is dropped when its last reader has it.

A node is evaluated at every point of a block, also where a select takes its other side. What has no value
there, as a load that leaves its tensor, is told beside the value (`Outside`). It is wrong only if it is
needed at such a point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any

import numpy as np

from schedules import expr as E
from schedules.errors import WorkloadError
from schedules.expr import Expr

# {what is wrong: at which points}. None: nothing is wrong anywhere.
Outside = Mapping[str, Any] | None
# The operands that the evaluation of a node asks for.
Parts = Callable[[Expr], tuple[Expr, ...]]

# What tells nodes of a class apart, beside their operands.
_LABELS: dict[type, Callable[[Any], Any]] = {
    E.Binary: attrgetter("op"), E.Compare: attrgetter("op"), E.Logic: attrgetter("op"),
    E.Call: attrgetter("fn"), E.Cast: attrgetter("dtype"), E.Bits: attrgetter("dtype"),
    E.Load: attrgetter("buffer"), E.Fma: lambda _: None, E.Select: lambda _: None,
}  # fmt: skip


@dataclass(frozen=True)
class NodeStep:
    """``operands``: numbers of the steps that make them. ``dropped``: those that no later step reads."""

    node: Expr
    operands: tuple[int, ...]
    dropped: tuple[int, ...]


def run(root: Expr, parts: Parts, evaluate: Callable[[Expr, list[Any]], Any]) -> Any:
    """What ``evaluate(node, what it made of the node's parts)`` makes of ``root``."""
    steps = steps_of(root, parts)
    made: list[Any] = [None] * len(steps)
    for n, s in enumerate(steps):
        made[n] = evaluate(s.node, [made[k] for k in s.operands])
        for k in s.dropped:
            made[k] = None
    return made[-1]


@lru_cache(maxsize=256)
def steps_of(root: Expr, parts: Parts) -> tuple[NodeStep, ...]:
    """The steps that evaluate ``root``, the last one itself. Equal nodes have one step."""
    numbers: dict[int, int] = {}  # of nodes, by identity
    equal: dict[Any, int] = {}
    nodes: list[tuple[Expr, tuple[int, ...]]] = []
    stack = [root]
    while stack:
        x = stack[-1]
        own = parts(x)
        missing = [k for k in own if id(k) not in numbers]
        if missing:
            stack.extend(reversed(missing))
            continue
        stack.pop()
        if id(x) in numbers:
            continue
        at = tuple(numbers[id(k)] for k in own)
        label = _LABELS.get(E.kind(x)) if own == E.children(x) else None
        key = x if label is None else (E.kind(x), label(x), at)
        n = numbers[id(x)] = equal.setdefault(key, len(nodes))
        if n == len(nodes):
            nodes.append((x, at))
    last = {k: n for n, (_, at) in enumerate(nodes) for k in at}
    dropped: dict[int, list[int]] = {}
    for k, n in last.items():
        dropped.setdefault(n, []).append(k)
    return tuple(NodeStep(x, at, tuple(dropped.get(n, ()))) for n, (x, at) in enumerate(nodes))


def either(found: Iterable[Outside]) -> Outside:
    """What is wrong in one of several."""
    known = [x for x in found if x]
    if len(known) < 2:
        return known[0] if known else None
    out: dict[str, Any] = {}
    for x in known:
        for what, where in x.items():
            out[what] = where if what not in out else out[what] | where
    return out


def within(found: Outside, mask: Any) -> Outside:
    """What is wrong at points of ``mask``."""
    left = {what: where & mask for what, where in found.items()} if found else {}
    return {what: where for what, where in left.items() if np.any(where)} or None


def refuse(found: Outside, mask: Any) -> None:
    """Raise `WorkloadError` if something is wrong at a point of ``mask``."""
    for what in within(found, mask) or ():
        raise WorkloadError(what)
