"""Which inputs of a compute DAG are read as indices, and how much is read through them."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from schedules import expr as E
from schedules.dtypes import DTYPES, is_integer
from schedules.expr import Expr, Load
from schedules.te.compute_dag import ComputeDAG


def indexed_extents(dag: ComputeDAG) -> dict[str, int]:
    """{input whose elements are used as indices, directly or through stages: extent of the dimension that
    they index}, the shortest of several.

    >>> indexed_extents(te.dag([W, ids, te.compute((5, 3), lambda i, j: W[ids[i], j])]))
    {'ids': 7}
    """
    known: dict[str, int] = {}

    def note(e: Expr, extent: int) -> None:
        for x in _values(e):
            if is_integer(x.dtype):
                known[x.buffer] = min(extent, known.get(x.buffer, extent))

    for stage in reversed(dag.stages):
        for load in stage.reads():
            for index, n in zip(load.indices, dag.tensors[load.buffer].shape, strict=True):
                note(index, n)
        for t, value in zip(stage.outputs, stage.values, strict=True):
            if t.name in known:
                note(value, known[t.name])
    return {t.name: known[t.name] for t in dag.inputs if t.name in known}


def compared_extents(dag: ComputeDAG) -> dict[str, int]:
    """{input of integers that conditions compare with an axis, directly or through stages: extent of that
    axis}, the longest of several. So is the position of a mask.

    >>> x, pos = te.placeholder((8,), name="x"), te.placeholder((1,), "int64", "pos")
    >>> seen = te.compute((8,), lambda t: te.select(te.cast(t, "int64") <= pos[0], x[t], 0.0))
    >>> compared_extents(te.dag([x, pos, seen]))
    {'pos': 8}
    """
    known: dict[str, int] = {}
    for stage in reversed(dag.stages):
        extents = {a.var: a.extent for a in (*stage.axes, *stage.reduce_axes)}
        for value in stage.values:
            for x in E.walk(value):
                if isinstance(x, E.Compare):
                    sides = [[*_values(side)] for side in (x.a, x.b)]
                    axes = [_axes(side) & extents.keys() for side in (x.a, x.b)]
                    longest = max((extents[v] for both in axes for v in both), default=0)
                    for loads in sides if longest else ():
                        for load in loads:
                            if is_integer(load.dtype):
                                known[load.buffer] = max(longest, known.get(load.buffer, 0))
        for t, value in zip(stage.outputs, stage.values, strict=True):
            for load in _values(value) if t.name in known else ():
                if is_integer(load.dtype):
                    known[load.buffer] = max(known[t.name], known.get(load.buffer, 0))
    return {t.name: known[t.name] for t in dag.inputs if t.name in known}


def _axes(e: Expr) -> set[str]:
    """The axes of an expression that are no part of an index."""
    if isinstance(e, Load):
        return set()
    return {e.name} if isinstance(e, E.Var) else set().union(*map(_axes, E.children(e)))


def _values(e: Expr) -> Iterator[Load]:
    """The loads of an expression that are part of its value, not indices of others or conditions."""
    if isinstance(e, Load):
        yield e
    else:
        for x in (e.a, e.b) if isinstance(e, E.Select) else E.children(e):
            yield from _values(x)


def most_read(dag: ComputeDAG) -> dict[str, int]:
    """{input: bytes of it that the expression may read at most}. An index that is read from a tensor goes to
    no more places than there are points.

    >>> most_read(te.dag([W, ids, te.compute((5, 3), lambda i, j: W[ids[i], j])]))  # 5 rows of 3 float32
    {'W': 60, 'ids': 40}
    """
    elements: dict[str, int] = {}  # of tensors that are only gathered from
    whole: set[str] = set()
    for stage in dag.stages:
        extents = {a.var: a.extent for a in (*stage.axes, *stage.reduce_axes)}
        for x in dict.fromkeys(stage.reads()):
            if not any(map(E.loads, x.indices)):
                whole.add(x.buffer)
                continue
            elements[x.buffer] = elements.get(x.buffer, 0) + prod(
                min(n, prod(extents[v] for v in E.variables(i) & extents.keys())) if E.loads(i) else n
                for i, n in zip(x.indices, dag.tensors[x.buffer].shape, strict=True)
            )
    picked = {n: k * DTYPES[dag.tensors[n].dtype].itemsize for n, k in elements.items() if n not in whole}
    return {t.name: min(t.own_bytes, picked.get(t.name, t.own_bytes)) for t in dag.inputs}
