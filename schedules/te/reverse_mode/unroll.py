"""Sums over the few places of a window become the terms themselves.

What a pool hands on is chosen by comparisons, or the same for all places: no product that is worth a tile of
registers. Written out, each term has its own conditions, and the whole is a stage without a reduction, which
its readers take in."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence

from schedules import expr as E
from schedules.expr import Binary, Const
from schedules.te.reverse_mode.graph import added, guards, like, loads, placed, ranges_of, rebuilt, tidy
from schedules.te.tensors import Op, Tensor

# Most terms.
FEW = 9


def written_out(roots: Sequence[Tensor], fixed: Collection[Op]) -> list[Tensor]:
    """The same tensors; sums over small windows that are no products are written out."""

    def change(old: Op, new: Op) -> Tensor | None:
        if old in fixed or new.reducer is None or new.places or not _is_window(new):
            return None
        names = [v for v, _ in new.reduce_axes]
        places = itertools.product(*(map(Const, range(n)) for _, n in new.reduce_axes))
        envs = (dict(zip(names, at, strict=True)) for at in places)
        terms = (tidy(placed(new.values[0], env), ranges_of(new)) for env in envs)
        return like(new, added(terms), reduce_axes=())

    return rebuilt(roots, change)


def _is_window(op: Op) -> bool:
    """Whether a sum is over few places that move with the element, and multiplies nothing."""
    if op.reducer is None or op.reducer.name != "sum" or math.prod(n for _, n in op.reduce_axes) > FEW:
        return False
    value = guards(op.values[0])[1]
    if any(isinstance(x, Binary) and x.op == "*" and loads(x.a) and loads(x.b) for x in E.walk(value)):
        return False
    spatial, reduce = {v for v, _ in op.axes}, {v for v, _ in op.reduce_axes}
    moving = [i for x in loads(value) for i in x.indices if E.variables(i) & spatial]
    return all(any(v in E.variables(i) for i in moving) for v in reduce)
