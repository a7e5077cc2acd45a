"""A model of open sizes, of imports of one program for a few of the sizes.

An importer computes with numbers. It runs once for each of a few sizes, and what it makes is compared:
numbers that depend on a size become expressions of it (`schedules.te.generalise`). So no operator knows of
open sizes, and what each import says is what the model says at that size (ADR 88).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from autotune.errors import ModelError
from autotune.models.frame import SHOWN
from autotune.models.model import Model
from autotune.models.operators.base import Array
from schedules.errors import AutotuneError
from schedules.graph.digits import split_digits
from schedules.graph.graph import Graph
from schedules.graph.views import forward_views
from schedules.te.generalise import NoCommonForm, Obstacle, Sample, check_end, generalised, sample_sizes
from schedules.te.open_sizes import OpenSize

# Makes the model for one number for each size.
Import = Callable[[Mapping[str, int]], Model]


def open_model(make: Import, sizes: Sequence[OpenSize], taken: Callable[[int], bool], remedy: str) -> Model:
    """The model of open ``sizes`` that ``make`` gives at each of them.

    ``taken``: whether a number is one of the program, such as an extent of a weight, so that no size is tried
    that is equal to it by chance. ``remedy``: what to do where a size cannot stay open. Raises `ModelError`
    that names the nodes for which it cannot.
    """
    points = list(sample_sizes(sizes, taken))
    models = [_made(make, p, remedy) for p in points]
    first, graphs = models[0], [m.graph for m in models]
    _check_ports(models, remedy)
    top = cache(lambda: make({s.name: s.most for s in sizes}))
    try:
        graph = _common(graphs, points, sizes, top)
    except NoCommonForm as err:
        try:  # axes of several sizes together may be axes of their own
            graph = _common([split_digits(forward_views(g)) for g in graphs], points, sizes, top)
        except NoCommonForm:
            raise _refusal(models, sizes, err.obstacles, remedy) from err
    ends = ({s.name: s.least for s in sizes}, {s.name: s.most for s in sizes})
    makers: tuple[Callable[[], Model], ...] = (lambda: make(ends[0]), top)
    try:
        for end, of_end in zip(ends, makers, strict=True):
            if end not in points and (known := _at_end(of_end)) is not None:
                _check_end(graph, known, end)
    except NoCommonForm as err:
        raise _refusal(models, sizes, err.obstacles, remedy) from err
    inputs, outputs = (
        tuple(replace(p, shape=(t := graph.dag.tensors[p.tensor]).shape, strides=t.strides) for p in ports)
        for ports in (first.inputs, first.outputs)
    )
    return replace(first, graph=graph, inputs=inputs, outputs=outputs)


def _made(make: Import, sizes: Mapping[str, int], remedy: str) -> Model:
    """The model of numbers for the sizes. Raises ModelError that tells them."""
    try:
        return make(sizes)
    except ModelError as err:
        told = ", ".join(f"{name} = {n}" for name, n in sizes.items())
        raise ModelError(f"{err}\n(where {told}, which the import tries; {remedy})") from err


def _common(
    graphs: Sequence[Graph],
    points: Sequence[Mapping[str, int]],
    sizes: Sequence[OpenSize],
    top: Callable[[], Model],
) -> Graph:
    """The graph of open sizes that is each of ``graphs`` at its sizes, one of ``points``. ``top``: the model
    of the largest sizes. Raises NoCommonForm."""
    graphs = _with_strides(_with_constants(graphs, top))
    dag = generalised([Sample(p, g.dag) for p, g in zip(points, graphs, strict=True)], sizes)
    return replace(graphs[0], dag=dag)


def _at_end(make: Callable[[], Model]) -> Model | None:
    """The model at an end of the ranges; None where that is none, as may be at 1."""
    try:
        return make()
    except AutotuneError:
        return None


def _check_end(graph: Graph, known: Model, end: Mapping[str, int]) -> None:
    """Raise NoCommonForm where a graph of open sizes is another one at an end of their ranges."""
    there = known.graph
    if graph.dag.constants == there.dag.constants:
        check_end(graph.dag, Sample(end, there.dag))


def _refusal(
    models: Sequence[Model], sizes: Sequence[OpenSize], obstacles: Sequence[Obstacle], remedy: str
) -> ModelError:
    """What cannot be open, by node."""
    origins = {stage: node for m in reversed(models) for stage, node in m.graph.origins.items()}
    nodes: dict[str, str] = {}
    for o in obstacles:
        node = origins.get(o.stage, o.stage)
        nodes.setdefault(f"node {node}: " if node else "", o.why)
    told = [f"  {node}{why}" for node, why in nodes.items()]
    more = [f"  and {len(told) - SHOWN} more"] if len(told) > SHOWN else []
    names = ", ".join(f"{s.name} ({s.least} to {s.most})" for s in sizes)
    head = f"{models[0].source}: the size{'s' * (len(sizes) > 1)} {names} cannot stay open:"
    return ModelError("\n".join([head, *told[:SHOWN], *more, remedy]))


def _check_ports(models: Sequence[Model], remedy: str) -> None:
    """Raise ModelError unless models take and return the same but for sizes."""
    first = models[0]
    if any(m.graph.islands for m in models):
        island = next(i for m in models for i in m.graph.islands)
        raise ModelError(f"{first.source}: island {island.name} ({island.op}) has fixed sizes: {remedy}")
    for m in models[1:]:
        if m.signature != first.signature:
            raise ModelError(
                f"{first.source}: what it takes or returns beside tensors depends on a size, such as a "
                f"number that is one, or a tensor without elements: return tensors alone, or {remedy}"
            )
        for a, b in zip((*first.inputs, *first.outputs), (*m.inputs, *m.outputs), strict=True):
            if (a.name, a.tensor, a.dtype, len(a.shape)) != (b.name, b.tensor, b.dtype, len(b.shape)):
                raise ModelError(f"{first.source}: {a} is {b} at another size: {remedy}")
        for name, state in first.graph.states.items():
            shapes = [list(x.graph.dag.tensors[state.tensor].shape) for x in (first, m)]
            if shapes[0] != shapes[1]:
                raise ModelError(
                    f"{first.source}: state {name!r} is {shapes[0]}, and {shapes[1]} at another size; what "
                    f"is kept from call to call has one size: {remedy}"
                )


def _with_strides(graphs: Sequence[Graph]) -> list[Graph]:
    """Graphs whose inputs are row-major where strides depend on a size."""
    every = list(zip(*(g.dag.inputs for g in graphs), strict=True))
    plain = {t[0].name for t in every if len({x.strides for x in t}) > 1}
    if not plain:
        return list(graphs)
    out = []
    for g in graphs:
        inputs = tuple(replace(t, strides=None) if t.name in plain else t for t in g.dag.inputs)
        out.append(replace(g, dag=replace(g.dag, inputs=inputs)))
    return out


# --- constants --------------------------------------------------------------------------------


def _with_constants(graphs: Sequence[Graph], largest: Callable[[], Model]) -> list[Graph]:
    """Graphs of the same constants: one that depends on a size is the first part of that of the ``largest``
    sizes. Raises NoCommonForm."""
    first = graphs[0]
    names = first.dag.constants
    if any(g.dag.constants != names for g in graphs):
        odd = next(g.dag.constants for g in graphs if g.dag.constants != names)
        name = next(iter({*odd} ^ {*names}), "")
        raise NoCommonForm(Obstacle("", f"constant {name} is there at some sizes alone"))
    whole: dict[str, Array] = {}
    top: Mapping[str, Array] | None = None
    obstacles = []
    for name in names:
        each = [g.values[name] for g in graphs]
        if all(_equal(each[0], x) for x in each[1:]):
            continue
        top = _values(largest) if top is None else top
        found = top.get(name)
        if found is None or not all(_begins(found, x) for x in each):
            reader = next((s.name for s in first.dag.stages if any(x.buffer == name for x in s.reads())), "")
            obstacles.append(
                Obstacle(
                    reader,
                    f"the elements of its constant {name}, which are known ahead, depend on a size, and are "
                    "not the first ones of those at the largest size",
                )
            )
            continue
        whole[name] = np.ascontiguousarray(found)
    if obstacles:
        raise NoCommonForm(*obstacles)
    return [_replaced(g, whole) for g in graphs] if whole else list(graphs)


def _values(largest: Callable[[], Model]) -> Mapping[str, Array]:
    """The constants at the largest sizes; none where that is no model."""
    try:
        return largest().graph.values
    except AutotuneError:
        return {}


def _replaced(graph: Graph, values: Mapping[str, Array]) -> Graph:
    """A graph with other values for some constants, of other shapes."""
    inputs = tuple(
        replace(t, shape=values[t.name].shape) if t.name in values else t for t in graph.dag.inputs
    )
    return replace(graph, dag=replace(graph.dag, inputs=inputs), values={**graph.values, **values})


def _equal(a: Array, b: Array) -> bool:
    if a is b:
        return True
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.__array_interface__["data"] == b.__array_interface__["data"] and a.strides == b.strides:
        return True
    return a.tobytes() == b.tobytes()


def _begins(whole: Array, x: Array) -> bool:
    """Whether an array is the part of another one that lies at its beginning along every axis."""
    if whole.dtype != x.dtype or whole.ndim != x.ndim or any(n > m for n, m in zip(x.shape, whole.shape)):
        return False
    return _equal(np.ascontiguousarray(whole[tuple(map(slice, x.shape))]), np.ascontiguousarray(x))
