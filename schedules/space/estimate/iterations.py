"""How many iterations of a block's loops run, and how many of these compute what no other one does: exactly,
from extents, binds and guards."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from schedules import expr as E
from schedules.expr import Const, Expr
from schedules.ir import Block, Nest, const
from schedules.ir.nest import bound, loops_of

MOST = 1 << 22  # iterations of loops that depend on each other, which are looked at one by one


@dataclass(frozen=True, slots=True)
class Iterations:
    """``all``: of the loops around a block. ``run``: those that guards let through. ``points``: different
    points of the block's axes among these."""

    all: int
    run: int
    points: int

    @property
    def guarded(self) -> float:
        """The share of iterations that guards keep off."""
        return 1.0 - self.run / self.all if self.all else 0.0

    @property
    def again(self) -> float:
        """How often a point is computed."""
        return self.run / self.points if self.points else 1.0


def iterations(nest: Nest, b: Block, most: int = MOST) -> Iterations | None:
    """The iterations of a block of a nest whose holes are filled. Loops whose binds and guards have nothing
    in common are counted apart and multiplied. None where data guards it, or where more than ``most``
    iterations of loops that depend on each other would have to be looked at.

    >>> s.split("y_i", 8)  # of 33
    >>> iterations(s.nest, block)
    Iterations(all=40, run=33, points=33)
    """
    extents = {x.var: const(x.extent) for x in loops_of(nest, b.name)}
    if None in extents.values() or any(E.loads(w) for w in b.where):
        return None
    lengths = {k: int(n) for k, n in extents.items() if n is not None}
    guards = [bound(b, w) for w in b.where]
    total = math.prod(lengths.values())
    run = points = 1
    counted: set[str] = set()
    for group in _groups([*b.binds, *guards]):
        names = sorted(frozenset().union(*map(E.variables, group)) & lengths.keys())
        size = math.prod(lengths[v] for v in names)
        if size > most:
            return None
        env = dict(zip(names, np.indices([lengths[v] for v in names]).reshape(len(names), size), strict=True))
        here, different = _count(b, group, env, size)
        run, points = run * here, points * different
        counted.update(names)
    run *= math.prod(n for v, n in lengths.items() if v not in counted)
    return Iterations(total, run, points)


def _count(b: Block, group: list[Expr], env: dict[str, np.ndarray], size: int) -> tuple[int, int]:
    """(Iterations that run, different points among them) of binds and guards."""
    passes = np.ones(size, dtype=bool)
    place = np.zeros(size, dtype=np.int64)
    for e in group:
        value = np.broadcast_to(np.asarray(E.evaluate(e, env)), (size,))
        owner = [i for i, bind in zip(b.iters, b.binds, strict=True) if bind is e]
        if not owner:
            passes = passes & value.astype(bool)
            continue
        for i in owner:
            extent = const(i.extent) or 1
            passes = passes & (value >= 0) & (value < extent)
            place = place * extent + value
    return int(passes.sum()), len(np.unique(place[passes]))


def _groups(parts: Iterable[Expr]) -> list[list[Expr]]:
    """Expressions that share variables, together."""
    groups: list[tuple[frozenset[str], list[Expr]]] = []
    for e in parts:
        if isinstance(e, Const):
            continue
        names, members = E.variables(e), [e]
        apart = []
        for known, found in groups:
            if known & names:
                names, members = names | known, [*found, *members]
            else:
                apart.append((known, found))
        groups = [*apart, (names, members)]
    return [members for _, members in groups]
