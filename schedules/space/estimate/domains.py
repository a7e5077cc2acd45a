"""What part of a block's iterations runs where its domain is no box."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from schedules import affine
from schedules import expr as E
from schedules.expr import Const, Expr, Var
from schedules.ir import Block, Loop, const
from schedules.ir.nest import has_domain
from schedules.space.estimate.counting import Number, number, product
from schedules.space.holes import Columns
from schedules.te.domains import flaw_of_condition, points_inside

# What a tile at the border costs, by one inside: it asks at every step.
AT_BORDER = 2.0


@dataclass(frozen=True, slots=True)
class Domain:
    """``filled``: the share of the box that is inside. ``borders``: for each condition how far a tile goes
    across its border, and how far the whole box does."""

    filled: float
    borders: tuple[tuple[Expr, int], ...]

    def share(self, env: Columns) -> Number:
        """The share of all iterations that run, those of tiles at the border counted as what they cost."""
        across = sum(number(tile, env) / whole for tile, whole in self.borders)
        return np.minimum(self.filled + AT_BORDER * across, 1.0)


def domain_of(b: Block, tile: Sequence[Loop]) -> Domain | None:
    """The domain of a block whose innermost loops are ``tile``; None where it is a box, or is not known."""
    extents = {i.var: const(i.extent) for i in b.iters}
    if not has_domain(b) or any(flaw_of_condition(c) or E.holes(c) for c in b.where):
        return None
    named = frozenset().union(*map(E.variables, b.where))
    sizes = {v: n for v, n in extents.items() if v in named and n is not None}
    if not named <= sizes.keys():
        return None
    ends = {x.var: x.extent for x in tile}
    binds = dict(zip(extents, b.binds, strict=True))
    borders = [x for c in b.where if (x := _border(c, binds, ends, sizes))[1] > 0]
    return Domain(points_inside(sizes, b.where) / math.prod(sizes.values()), tuple(borders))


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
