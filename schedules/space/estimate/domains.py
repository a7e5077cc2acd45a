"""What part of a block's iterations runs where its domain is no box."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from schedules import affine
from schedules import expr as E
from schedules.expr import Binary, Const, Expr, Hole, Var
from schedules.ir import Block, Loop, const
from schedules.ir.nest import has_domain
from schedules.space.estimate.counting import Number, number, product
from schedules.space.holes import Columns
from schedules.te.domains import flaw_of_condition, points_inside

# Steps of a hole over which its slope is taken.
FAR = 16
# What a tile at the border costs, by one inside: it asks at every step.
AT_BORDER = 2.0


@dataclass(frozen=True, slots=True)
class Domain:
    """``filled``: the share of the box that is inside. ``borders``: for each condition how far a tile goes
    across its border, and how far the whole box does. ``slopes``: how much more of the box is inside with
    each step of a hole, which conditions on tiles have; ``filled`` is what it is where these are 1."""

    filled: float
    borders: tuple[tuple[Expr, int], ...]
    slopes: tuple[tuple[Hole, float], ...] = ()

    def share(self, env: Columns) -> Number:
        """The share of all iterations that run, those of tiles at the border counted as what they cost."""
        across = sum(number(tile, env) / whole for tile, whole in self.borders)
        more = sum((number(h, env) - 1) * slope for h, slope in self.slopes)
        return np.minimum(np.maximum(self.filled + more, 0.0) + AT_BORDER * across, 1.0)


def domain_of(b: Block, tile: Sequence[Loop]) -> Domain | None:
    """The domain of a block whose innermost loops are ``tile``; None where it is a box, or is not known."""
    extents = {i.var: const(i.extent) for i in b.iters}
    if not has_domain(b):
        return None
    holes = sorted(frozenset().union(*map(E.holes, b.where)))
    smooth = _smooth(b.where, dict.fromkeys(holes, 1))
    if any(flaw_of_condition(c) for c in smooth):
        return None
    named = frozenset().union(*map(E.variables, smooth))
    sizes = {v: n for v, n in extents.items() if v in named and n is not None}
    if not named <= sizes.keys():
        return None
    ends = {x.var: x.extent for x in tile}
    binds = dict(zip(extents, b.binds, strict=True))
    exact = [c for c in b.where if not _floors(c)]  # a tile is inside or outside of others as a whole
    borders = [x for c in exact if (x := _border(c, binds, ends, sizes))[1] > 0]

    def filled(at: Mapping[str, int]) -> float:
        return points_inside(sizes, _smooth(b.where, at)) / math.prod(sizes.values())

    first = filled(dict.fromkeys(holes, 1))
    slopes = [(Hole(h), (filled({**dict.fromkeys(holes, 1), h: 1 + FAR}) - first) / FAR) for h in holes]
    return Domain(first, tuple(borders), tuple(slopes))


def _floors(c: Expr) -> bool:
    return any(isinstance(x, Binary) and x.op == "//" for x in E.walk(c))


def _smooth(where: Sequence[Expr], at: Mapping[str, int]) -> tuple[Expr, ...]:
    """Conditions with holes filled, and with the beginnings of tiles as what they are on average."""

    def even(e: Expr) -> Expr | None:
        match e:
            case Binary(op="*", a=Binary(op="//", a=x, b=Const(value=n)), b=Const(value=m)) if n == m:
                return x - (int(n) - 1) // 2
        return None

    return tuple(E.rewrite(E.fill(c, at), even) for c in where)


def _border(
    c: Expr, binds: Mapping[str, Expr], ends: Mapping[str, Expr], sizes: Mapping[str, int]
) -> tuple[Expr, int]:
    """How far a tile goes across a condition, and how far the whole box does."""
    a, other = E.children(c)
    terms, _ = affine.linear(E.binary("-", a, other))
    far: Expr = Const(0)
    whole = 0
    for x, k in terms.items():
        assert isinstance(x, Var) and isinstance(k, Const)
        steps, inside = abs(int(k.value)), E.variables(binds[x.name])
        far = far + (product([n for v, n in ends.items() if v in inside]) - 1) * steps
        whole += steps * (sizes[x.name] - 1)
    return far, whole
