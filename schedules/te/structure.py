"""How alike two expressions are: their structure without names and sizes, and how far their sizes are apart.

What is learnt of one task helps another where the same loops are scheduled: a user's own matrix product and
the library's, at whatever sizes, strides or padding, in whatever dtype. So the structure of a stage is its
arithmetic, its reduction, and of each axis which operands it walks, and whether alone; not where an axis
stands in a tensor, nor how many elements it has. Stages that only move data, as padding does, are left out:
schedules inline or copy them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schedules import affine
from schedules import expr as E
from schedules.expr import INDEX, Binary, Call, Compare, Const, Expr, Fma, Load
from schedules.loads import outside
from schedules.te.compute_dag import ComputeDAG, Stage

OTHER_ORDER = 4.0  # doublings that another order of dimensions counts as

# Of an axis: whether it is reduced, the operands that it walks, those among them where another axis is in the
# same index.
Role = tuple[bool, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Structure:
    """``key`` is equal for expressions of one structure. ``extents``: of all axes, in an order that is the
    same for all of one key. ``orders``: in which order operands have their axes."""

    key: tuple[Any, ...]
    extents: tuple[int, ...]
    orders: tuple[Any, ...]


def structure(dag: ComputeDAG) -> Structure:
    """The structure of an expression.

    >>> structure(a_matmul).key == structure(a_larger_one_of_other_names).key
    True
    """
    every = dag.largest.stages  # of a size in a value, the structure is that of a number
    stages = [s for s in every if s.reducer is not None or _operations(s)] or list(every)
    parts = [_stage(s) for s in stages]
    return Structure(
        tuple(key for key, _, _ in parts),
        tuple(n for _, extents, _ in parts for n in extents),
        tuple(orders for _, _, orders in parts),
    )


def distance(a: Structure, b: Structure) -> float:
    """Doublings between the extents of two expressions of one key, and `OTHER_ORDER` where their tensors have
    other orders of dimensions. Infinite for other keys."""
    if a.key != b.key:
        return math.inf
    total = sum(abs(math.log2(x / y)) for x, y in zip(a.extents, b.extents, strict=True))
    return total + (OTHER_ORDER if a.orders != b.orders else 0.0)


def _stage(s: Stage) -> tuple[Any, list[int], Any]:
    reads = list(dict.fromkeys(s.reads()))  # one element may be read more than once
    axes = [*((a, False) for a in s.axes), *((a, True) for a in s.reduce_axes)]
    index = [[E.variables(ix) for ix in x.indices] for x in reads]

    def role(name: str, reduced: bool) -> Role:
        walks = [n for n, each in enumerate(index) if any(name in v for v in each)]
        shares = [n for n in walks if any(name in v and len(v) > 1 for v in index[n])]
        return reduced, tuple(walks), tuple(shares)

    roles = [role(a.var, reduced) for a, reduced in axes]
    ordered = sorted(range(len(axes)), key=lambda n: (roles[n], n))
    place = {axes[n][0].var: k for k, n in enumerate(ordered)}
    orders = tuple(tuple(tuple(sorted(place[v] for v in vs)) for vs in each) for each in index)
    written = tuple(place[a.var] for a in s.axes)
    combine = None if s.reducer is None else tuple(_arithmetic(c) for c in s.reducer.combine)
    key = (len(s.outputs), combine, _operations(s), tuple(sorted(roles)), *_unusual(s, place))
    return key, [axes[n][0].extent for n in ordered], (orders, written)


def _unusual(s: Stage, place: Mapping[str, int]) -> tuple[Any, ...]:
    """What a stage has that few have; nothing of a plain one. Of a domain, which axes bound which from which
    side; of axes in order, their steps; of scattered results, along which dimensions."""
    if s.plain:
        return ()

    def sides(c: Expr) -> tuple[tuple[int, bool], ...]:
        a, b = (x for x in E.children(c))
        terms, _ = affine.linear(E.binary("-", a, b))
        signs = ((place[v], E.show(n).startswith("-")) for x, n in terms.items() for v in E.variables(x))
        return tuple(sorted(signs))

    scattered = tuple(i != E.Var(a.var) for i, a in zip(s.places, s.axes, strict=False))
    order = tuple((place[v], step) for v, step in s.scan)
    return (tuple(sorted(map(sides, s.where))), scattered, order)


def _operations(s: Stage) -> tuple[str, ...]:
    """The operations on values, not on indices, sorted."""
    found = [_name(x) for v in s.values for x in outside(v) if E.dtype_of(x) != INDEX]
    return tuple(sorted(x for x in found if x))


def _name(e: Expr) -> str:
    match e:
        case Binary(op=op):
            return op
        case Call(fn=fn):
            return fn
        case Fma():
            return "fma"
    return ""


def _arithmetic(e: Expr) -> Any:
    """An expression without its dtypes."""
    match e:
        case Load(buffer=b):
            return b
        case Const(value=v):
            return repr(v)
        case Binary(op=op) | Compare(op=op):
            return (op, *map(_arithmetic, E.children(e)))
    return (type(e).__name__, _name(e), *map(_arithmetic, E.children(e)))
