"""The same program on smaller arrays, with the same names, so that a schedule's trace fits it too.

What is an axis of one length wherever it occurs gets another length there: `m`, `n` and `k` of a product, the
channels of a convolution. An axis whose index is compared or added to others, as those of a window, is cut by
computing a part of the outputs (`schedules.te.part`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from schedules import expr as E
from schedules.errors import AutotuneError
from schedules.expr import Expr, Load, Var
from schedules.te.compute_dag import Axis, ComputeDAG, Tensor
from schedules.te.part import part

# (stage, axis) with its variable, or (tensor, dimension) with its number.
Place = tuple[str, str | int]


@dataclass(frozen=True, slots=True)
class Length:
    """A length that may be changed. ``name``: of an axis that has it. ``places``: all axes and dimensions
    that have it; empty for a dimension ``output`` of the outputs that is cut instead."""

    name: str
    extent: int
    places: frozenset[Place] = frozenset()
    output: int | None = None


def lengths(dag: ComputeDAG) -> tuple[Length, ...]:
    """The lengths of a DAG that `with_length` changes, those above 1.

    >>> [(x.name, x.extent) for x in lengths(ops.workload("matmul", {"m": 8, "n": 4, "k": 2}).dag)]
    [('i', 8), ('j', 4), ('k', 2)]
    """
    groups, fixed = _groups(dag)
    extents: dict[Place, int] = {}
    for t in dag.tensors.values():
        extents |= {(t.name, d): n for d, n in enumerate(t.shape)}
    for s in dag.stages:
        extents |= {(s.name, a.var): a.extent for a in (*s.axes, *s.reduce_axes)}
    found = []
    for group in dict.fromkeys(groups.values()):
        axes = [p for p in extents if p in group and isinstance(p[1], str)]
        same = {extents[p] for p in group}
        if axes and not group & fixed and len(same) == 1 and max(same) > 1:
            found.append(Length(str(axes[0][1]), max(same), group))
    free = frozenset().union(*(x.places for x in found))
    if len(dag.outputs) == 1:
        stage = dag.stage(dag.outputs[0])
        found += [
            Length(a.var, a.extent, output=d)
            for d, a in enumerate(stage.axes)
            if a.extent > 1 and (stage.name, a.var) not in free
        ]
    return tuple(found)


def with_length(dag: ComputeDAG, length: Length, extent: int) -> ComputeDAG | None:
    """The DAG with another length; None where it would not be a program."""
    try:
        if length.output is not None:
            box = [(0, n) for n in dag.tensors[dag.outputs[0]].shape]
            box[length.output] = (0, extent)
            return part(dag, [tuple(box)]).dag
        return _with_extents(dag, dict.fromkeys(length.places, extent))
    except (AutotuneError, ValueError):  # a load that is not proved inside what is left
        return None


def _with_extents(dag: ComputeDAG, extents: Mapping[Place, int]) -> ComputeDAG:
    def tensor(t: Tensor) -> Tensor:
        return replace(t, shape=tuple(extents.get((t.name, d), n) for d, n in enumerate(t.shape)))

    def axes(stage: str, of: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(Axis(a.var, extents.get((stage, a.var), a.extent)) for a in of)

    stages = tuple(
        replace(
            s,
            outputs=tuple(map(tensor, s.outputs)),
            axes=axes(s.name, s.axes),
            reduce_axes=axes(s.name, s.reduce_axes),
        )
        for s in dag.stages
    )
    return ComputeDAG(tuple(map(tensor, dag.inputs)), stages, dag.outputs, dag.constants)


def _groups(dag: ComputeDAG) -> tuple[dict[Place, frozenset[Place]], set[Place]]:
    """({place: all places of its length}, places whose length is fixed)."""
    groups: dict[Place, frozenset[Place]] = {}
    fixed: set[Place] = set()

    def unite(*places: Place) -> None:
        whole = frozenset().union(*(groups.get(p, frozenset([p])) for p in places))
        groups.update(dict.fromkeys(whole, whole))

    for t in dag.tensors.values():
        if t.strides is not None:
            fixed.update((t.name, d) for d in range(len(t.shape)))
    for s in dag.stages:
        for a in s.reduce_axes:
            unite((s.name, a.var))
        for d, a in enumerate(s.axes):
            unite((s.name, a.var), *((t.name, d) for t in s.outputs))
        for load in s.reads():
            for d, index in enumerate(load.indices):
                if isinstance(index, Var):
                    unite((s.name, index.name), (load.buffer, d))
                else:
                    fixed.add((load.buffer, d))
        fixed.update((s.name, v) for value in (*s.values, *s.places) for v in _used(value))
        for c in s.where:  # a triangle stays one where both sides change alike
            unite(*((s.name, v) for v in E.variables(c)))
    return groups, fixed


def _used(e: Expr) -> Iterator[str]:
    """Variables that are used otherwise than as an index by themselves."""
    if isinstance(e, Var):
        yield e.name
    for x in E.children(e):
        if not (isinstance(e, Load) and isinstance(x, Var)):
            yield from _used(x)
