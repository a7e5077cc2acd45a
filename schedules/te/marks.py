"""Marked DAGs: compute DAGs whose shapes and axes hold an `Extent` where they depend on an open size. In their
values a size is its variable, as in others.

Rewrites of models compute new shapes of old ones, and extents carry their sizes along. A marked DAG means
what the unmarked one does, is equal to it, and has the same JSON: its ``open`` is read from its extents.
Kernels and spaces get unmarked ones, which have plain integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from schedules import expr as E
from schedules.expr import Const, Expr, Var
from schedules.te.dims import Dim, at_sizes, dims_of
from schedules.te.extent import Extent, is_open
from schedules.te.open_sizes import OpenExtent, OpenSize, OpenSizes
from schedules.te.sizes_in_values import variable
from schedules.te.unique import Taken

if TYPE_CHECKING:
    from schedules.te.compute_dag import Axis, ComputeDAG, Stage, Tensor

# What changes an extent: the number of an input or of a stage, that of its dimension or axis, the extent.
_Change = Callable[[int, int, int], int]


def opened_by(
    inputs: Sequence[Tensor], stages: Sequence[Stage]
) -> tuple[OpenSizes, tuple[Stage, ...]] | None:
    """What the extents of a DAG say of open sizes, and its stages with the variables of sizes for dimensions
    in their values; None where no extent is open. Sizes have the names of their dimensions, else ``n0``,
    ``n1``, .... Raises ValueError where an output is not as long as its axis at every size, or a value has an
    extent in the place of a number."""
    shapes = [(k, d, n) for k, t in enumerate(inputs) for d, n in enumerate(t.shape) if is_open(n)]
    axes = [
        (k, d, a.extent) for k, s in enumerate(stages) for d, a in enumerate(_axes(s)) if is_open(a.extent)
    ]
    if not shapes and not axes:
        if not any(is_open(n) for s in stages for o in s.outputs for n in o.shape):
            return None
    for s in stages:
        _check_marks(s)
    dims = dims_of([n.expr for _, _, n in (*shapes, *axes)])
    taken = Taken()
    names: dict[Any, Expr] = {d: Var(taken.add(d.name or f"n{i}")) for i, d in enumerate(dims)}

    def extent(k: int, d: int, n: Extent) -> OpenExtent:
        return OpenExtent(k, d, E.rewrite(n.expr, lambda x: names[x] if isinstance(x, Dim) else None))

    opened = OpenSizes(
        tuple(OpenSize(E.show(names[d]), d.lo, d.hi) for d in dims),
        tuple(extent(*x) for x in shapes),
        tuple(extent(*x) for x in axes),
    )
    variables: dict[Dim, Expr] = {d: Var(variable(E.show(names[d]))) for d in dims}
    return opened, tuple(_with_variables(s, variables) for s in stages)


def _with_variables(s: Stage, variables: Mapping[Dim, Expr]) -> Stage:
    values = tuple(at_sizes(v, variables) for v in s.values)
    return s if all(a is b for a, b in zip(values, s.values, strict=True)) else replace(s, values=values)


def _check_marks(s: Stage) -> None:
    for o in s.outputs:
        for a, n in zip(s.axes, o.shape, strict=True):
            if is_open(a.extent - n):
                raise ValueError(
                    f"stage {s.name}: axis {a.var} has {a.extent} points and {o.name} {n} elements along it, "
                    "which is not the same at every size"
                )
    for v in s.values:
        for x in E.walk(v):
            if isinstance(x, Const) and is_open(x.value):
                raise ValueError(
                    f"stage {s.name}: a value has the open extent {x.value} in the place of a number; only "
                    "extents may depend on a size: give it as an input, or fix the size"
                )


def is_marked(dag: ComputeDAG) -> bool:
    """Whether extents of the DAG know their sizes."""
    return any(map(is_open, _extents(dag)))


def marked(dag: ComputeDAG) -> ComputeDAG:
    """The DAG whose open extents know their sizes, by dimensions that have the names of these. No argument of
    it is `OpenSizes.roomy`."""
    if dag.open is None:
        return dag
    own = dims_of(n.expr for n in _extents(dag) if is_open(n))
    if [d.name for d in own] == [s.name for s in dag.open.sizes]:
        return dag
    dag = unmarked(dag)
    assert dag.open is not None
    dims: dict[str, Expr] = {s.name: Dim(s.name, s.least, s.most, True) for s in dag.open.sizes}
    shapes = {(x.of, x.at): Extent(E.substitute(x.extent, dims)) for x in dag.open.inputs}
    axes = {(x.of, x.at): Extent(E.substitute(x.extent, dims)) for x in dag.open.axes}
    return _with(dag, lambda k, d, n: shapes.get((k, d), n), lambda k, d, n: axes.get((k, d), n))


def unmarked(dag: ComputeDAG) -> ComputeDAG:
    """The DAG with integers for extents, those of the largest sizes. Its ``open`` says which are open."""
    if not is_marked(dag):
        return dag
    return _with(dag, lambda _k, _d, n: int(n), lambda _k, _d, n: int(n))


def closed(s: Stage) -> Stage:
    """A stage with integers for extents, those of the largest sizes."""
    return _with_extents(s, [int(a.extent) for a in _axes(s)])


def _with_extents(s: Stage, extents: Sequence[int]) -> Stage:
    every = tuple(replace(a, extent=n) for a, n in zip(_axes(s), extents, strict=True))
    shape = tuple(extents[: len(s.axes)])
    outputs = tuple(replace(o, shape=shape) for o in s.outputs)
    return replace(s, outputs=outputs, axes=every[: len(s.axes)], reduce_axes=every[len(s.axes) :])


def _with(dag: ComputeDAG, shape: _Change, axis: _Change) -> ComputeDAG:
    def changed(k: int, s: Stage) -> Stage:
        return _with_extents(s, [axis(k, d, a.extent) for d, a in enumerate(_axes(s))])

    inputs = (
        replace(t, shape=tuple(shape(k, d, n) for d, n in enumerate(t.shape)))
        for k, t in enumerate(dag.inputs)
    )
    stages = (changed(k, s) for k, s in enumerate(dag.stages))
    return replace(dag, inputs=tuple(inputs), stages=tuple(stages))


def _extents(dag: ComputeDAG) -> Iterator[int]:
    for t in dag.inputs:
        yield from t.shape
    for s in dag.stages:
        yield from (a.extent for a in _axes(s))


def _axes(s: Stage) -> tuple[Axis, ...]:
    return (*s.axes, *s.reduce_axes)
