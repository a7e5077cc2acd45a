"""Marked DAGs: compute DAGs whose shapes and axes hold an `Extent` where they depend on an open size, and
whose values hold a `SizeHole`.

Rewrites of models compute new shapes of old ones, and extents carry their sizes along. A marked DAG means
what the unmarked one does, is equal to it, and has the same JSON: its ``open`` is read from its extents.
Kernels and spaces get unmarked ones, which have plain integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from schedules import expr as E
from schedules.expr import Const, Expr, Hole, Var
from schedules.te.dims import Dim, SizeHole, dims_of
from schedules.te.extent import Extent, is_open, is_same
from schedules.te.open_sizes import OpenExtent, OpenSize, OpenSizes
from schedules.te.sizes_in_values import speaks_of_sizes, variable
from schedules.te.unique import Taken

if TYPE_CHECKING:
    from schedules.te.compute_dag import Axis, ComputeDAG, Stage, Tensor

# What changes an extent: the number of an input or of a stage, that of its dimension or axis, the extent.
_Change = Callable[[int, int, int], int]


def opened_by(
    inputs: Sequence[Tensor], stages: Sequence[Stage]
) -> tuple[OpenSizes, tuple[Stage, ...]] | None:
    """What the extents and values of a DAG say of open sizes, and its stages with a `SizeHole` for each
    dimension in their values; None where nothing is open. Sizes have the names of their dimensions, else
    ``n0``, ``n1``, .... Raises ValueError where an output is not as long as its axis at every size, or a
    value has an extent in the place of a number."""
    shapes = [(k, d, n) for k, t in enumerate(inputs) for d, n in enumerate(t.shape) if is_open(n)]
    axes = [
        (k, d, a.extent) for k, s in enumerate(stages) for d, a in enumerate(_axes(s)) if is_open(a.extent)
    ]
    spoken = _in_values(stages)
    if not shapes and not axes and not spoken:
        if not any(is_open(n) for s in stages for o in s.outputs for n in o.shape):
            return None
    for s in stages:
        _check_marks(s)
    dims = list(dict.fromkeys([*dims_of([n.expr for _, _, n in (*shapes, *axes)]), *spoken]))
    taken = Taken()
    names: dict[Any, Expr] = {d: Var(taken.add(d.name or f"n{i}")) for i, d in enumerate(dims)}

    def extent(k: int, d: int, n: Extent) -> OpenExtent:
        return OpenExtent(k, d, E.rewrite(n.expr, lambda x: names[x] if isinstance(x, Dim) else None))

    opened = OpenSizes(
        tuple(OpenSize(E.show(names[d]), d.lo, d.hi) for d in dims),
        tuple(extent(*x) for x in shapes),
        tuple(extent(*x) for x in axes),
    )
    holes = {d: SizeHole(variable(E.show(names[d])), d) for d in dims}

    def known(x: Expr) -> Expr | None:
        d = x if isinstance(x, Dim) else x.dim if isinstance(x, SizeHole) else None
        return None if d is None else holes.get(d)

    return opened, tuple(_rewritten(s, known) for s in stages)


def _in_values(stages: Sequence[Stage]) -> list[Dim]:
    """The dimensions of the sizes that values speak of."""
    values = (v for s in stages for v in (*s.values, *s.where, *s.places) if E.holes(v))
    return list(dict.fromkeys(x.dim for v in values for x in E.walk(v) if isinstance(x, SizeHole)))


def _rewritten(s: Stage, f: Callable[[Expr], Expr | None]) -> Stage:
    values, where, places = (
        tuple(E.rewrite(v, f) for v in every) for every in (s.values, s.where, s.places)
    )
    pairs = zip((*values, *where, *places), (*s.values, *s.where, *s.places), strict=True)
    same = all(a is b for a, b in pairs)
    return s if same else replace(s, values=values, where=where, places=places)


def _check_marks(s: Stage) -> None:
    for o in s.outputs:
        for a, n in zip(s.axes, o.shape, strict=True):
            if a.extent is not n and not is_same(a.extent, n):
                raise ValueError(
                    f"stage {s.name}: axis {a.var} has {a.extent} points and {o.name} {n} elements along it, "
                    "which is not the same at every size"
                )
    for v in (*s.values, *s.where, *s.places):
        for x in E.walk(v):
            if isinstance(x, Const) and is_open(x.value):
                raise ValueError(
                    f"stage {s.name}: a value has the open extent {x.value} in the place of a number; only "
                    "extents may depend on a size: give it as an input, or fix the size"
                )


def as_index(extent: int) -> Expr:
    """An extent as index arithmetic, with a `SizeHole` for each of its sizes, which have names."""
    if not is_open(extent):
        return Const(int(extent))
    return E.rewrite(
        extent.expr, lambda x: SizeHole(variable(x.name), x) if isinstance(x, Dim) else None
    )


def is_marked(dag: ComputeDAG) -> bool:
    """Whether extents and values of the DAG know their sizes."""
    return any(map(is_open, _extents(dag))) or bool(_in_values(dag.stages))


def marked(dag: ComputeDAG) -> ComputeDAG:
    """The DAG whose open extents know their sizes, by dimensions that have the names of these. No argument of
    it is `OpenSizes.roomy`."""
    if dag.open is None:
        return dag
    own = dict.fromkeys([*dims_of(n.expr for n in _extents(dag) if is_open(n)), *_in_values(dag.stages)])
    if [d.name for d in own] == [s.name for s in dag.open.sizes]:
        return dag
    dag = unmarked(dag)
    assert dag.open is not None
    dims = {s.name: Dim(s.name, s.least, s.most, True) for s in dag.open.sizes}
    holes = {variable(name): SizeHole(variable(name), d) for name, d in dims.items()}
    shapes = {(x.of, x.at): Extent(E.substitute(x.extent, dims)) for x in dag.open.inputs}
    axes = {(x.of, x.at): Extent(E.substitute(x.extent, dims)) for x in dag.open.axes}
    return _with(
        dag,
        lambda k, d, n: shapes.get((k, d), n),
        lambda k, d, n: axes.get((k, d), n),
        lambda x: holes[x.name] if isinstance(x, Hole) else None,
    )


def unmarked(dag: ComputeDAG) -> ComputeDAG:
    """The DAG with integers for extents, those of the largest sizes. Its ``open`` says which are open."""
    if not is_marked(dag):
        return dag
    return _with(dag, lambda _k, _d, n: int(n), lambda _k, _d, n: int(n), _unmarked)


def _unmarked(x: Expr) -> Expr | None:
    return Hole(x.name) if isinstance(x, SizeHole) else None


def closed(s: Stage) -> Stage:
    """A stage with integers for extents, those of the largest sizes."""
    return _rewritten(_with_extents(s, [int(a.extent) for a in _axes(s)]), _unmarked)


def _with_extents(s: Stage, extents: Sequence[int]) -> Stage:
    every = tuple(replace(a, extent=n) for a, n in zip(_axes(s), extents, strict=True))
    shape = tuple(extents[: len(s.axes)])
    outputs = tuple(replace(o, shape=shape) for o in s.outputs)
    return replace(s, outputs=outputs, axes=every[: len(s.axes)], reduce_axes=every[len(s.axes) :])


def _with(dag: ComputeDAG, shape: _Change, axis: _Change, value: Callable[[Expr], Expr | None]) -> ComputeDAG:
    def changed(k: int, s: Stage) -> Stage:
        s = _with_extents(s, [axis(k, d, a.extent) for d, a in enumerate(_axes(s))])
        return _rewritten(s, value) if speaks_of_sizes(s) else s

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
