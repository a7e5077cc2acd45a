"""Equal stages side by side become one with one axis more: the products of queries, keys and values.

Stages that differ only in constants, or in a number that counts up in one index of what they read, compute
the same of other data. One stage over all of them reads its input once, and is one larger kernel in place of
several small ones.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from schedules import expr as E
from schedules.expr import Const, Expr, Load, Var
from schedules.graph.edit import (
    alike,
    factors,
    in_topological_order,
    is_product,
    is_sum,
    mapped,
    remade,
    without_names,
)
from schedules.graph.graph import Array, Graph
from schedules.graph.rewrite import RewritePlace, Take, may_lose
from schedules.te.compute_dag import Axis, Stage, Tensor
from schedules.te.unique import Taken

AXIS = "z"  # of the stages that were stacked


@may_lose()
def stack_equal(graph: Graph, take: Take) -> Graph:
    """The graph with equal products of one tensor stacked, and the maps after them."""
    apart: set[str] = set()  # products that stay as they are
    while found := _alike(graph, apart):
        for one in found:
            if _is_product(one.stages[0], graph) and not take(one.place):
                apart |= {s.name for s in one.stages}
            else:
                graph = _stacked(graph, one)
    return graph


@dataclass(frozen=True)
class _Alike:
    """Stages to stack. ``constants``: for each place of a constant in their expression, the names in order of
    the stages. ``counted``: {(place of a load, dimension): the first number}."""

    stages: tuple[Stage, ...]
    constants: tuple[tuple[str, ...], ...]
    counted: tuple[tuple[int, int, int], ...]

    @property
    def place(self) -> RewritePlace:
        """Where that is."""
        first = self.stages[0]
        return RewritePlace(first.name, (len(self.stages), alike(first)))


def _alike(graph: Graph, apart: Container[str]) -> list[_Alike]:
    """Stages that can be stacked: products of constants and the same tensor, or maps of what was stacked
    before. All sets of products, which change no place in each other; else one set of maps. ``apart``:
    stages that stay as they are."""
    outputs = set(graph.dag.outputs)
    classes: dict[Any, list[Stage]] = {}
    for s in graph.dag.stages:
        gathers = any(E.loads(i) for x in s.reads() for i in x.indices)
        integers = s.outputs[0].dtype == "int32" and is_product(s)  # each is made bytes by its own scale
        if len(s.outputs) == 1 and s.name not in outputs and not gathers and not integers:
            if s.name in apart:
                continue
            classes.setdefault(_shape(s, graph), []).append(s)
    alike = (_difference(stages, graph) for stages in classes.values() if len(stages) > 1)
    found = [one for one in alike if one is not None]
    products = [one for one in found if _is_product(one.stages[0], graph)]
    return products or found[:1]


def _is_product(s: Stage, graph: Graph) -> bool:
    """Whether a stage is a product, or a sum of a tensor's elements times those of a constant, as of a row
    of a matrix: several of them are a product."""
    known = [x.buffer in graph.values for x in factors(s.values[0])] if is_sum(s) else []
    return is_product(s) or sorted(known) == [False, True]


def _shape(s: Stage, graph: Graph) -> Any:
    """What must be equal: everything but constants' names and numbers in indices of loads."""

    def anonymous(x: Load) -> Expr:
        name = f"constant{list(graph.values[x.buffer].shape)}" if x.buffer in graph.values else x.buffer
        indices = (Const(0) if isinstance(i, Const) else i for i in x.indices)
        return Load(name, tuple(indices), x.dtype)

    return without_names(s, anonymous), is_product(s)


def _difference(stages: Sequence[Stage], graph: Graph) -> _Alike | None:
    """How stages of one shape differ; None where that is no constant's name and no count."""
    reads = [s.reads() for s in stages]
    constants: list[tuple[str, ...]] = []
    counted: list[tuple[int, int, int]] = []
    for place, loads in enumerate(zip(*reads, strict=True)):
        names = tuple(x.buffer for x in loads)
        if names[0] in graph.values:
            if not _same_numbers(loads):
                return None
            constants.append(names)
            continue
        for dim, numbers in enumerate(zip(*(x.indices for x in loads), strict=True)):
            if all(isinstance(i, Const) for i in numbers):
                first = [int(i.value) for i in numbers if isinstance(i, Const)]
                if len(set(first)) == 1:
                    continue
                if first != list(range(first[0], first[0] + len(first))):
                    return None
                counted.append((place, dim, first[0]))
    weights = any(len(set(names)) > 1 for names in constants)
    product = _is_product(stages[0], graph)
    if (product and weights and not counted) or (not product and counted):
        return _Alike(tuple(stages), tuple(constants), tuple(counted))
    return None


def _same_numbers(loads: Sequence[Load]) -> bool:
    numbers = [tuple(i.value for i in x.indices if isinstance(i, Const)) for x in loads]
    return len(set(numbers)) == 1


def _stacked(graph: Graph, found: _Alike) -> Graph:
    first = graph.dag.stage(found.stages[0].name)
    count = len(found.stages)
    taken = Taken(graph.dag.tensors)
    axis = Axis(Taken(a.var for a in (*first.axes, *first.reduce_axes)).add(AXIS), count)
    values: dict[str, Array] = dict(graph.values)
    inputs: list[Tensor] = list(graph.dag.inputs)
    joined: dict[tuple[str, ...], str] = {}
    for names in found.constants:
        if names in joined or len(set(names)) == 1:
            continue
        joined[names] = name = taken.add(f"{names[0]}_stacked")
        values[name] = np.stack([graph.values[n] for n in names])
        inputs.append(replace(graph.dag.tensors[names[0]], name=name, shape=values[name].shape))
    name = taken.add(f"{first.name}_stacked")
    places = iter(range(len(first.reads())))
    constants = iter(found.constants)
    counted = {(p, d) for p, d, _ in found.counted}
    starts = {(p, d): n for p, d, n in found.counted}

    def change(x: Load) -> Expr | None:
        place = next(places)
        if x.buffer in graph.values:
            new = joined.get(next(constants))
            return None if new is None else Load(new, (Var(axis.var), *x.indices), x.dtype)
        indices = tuple(
            Var(axis.var) + starts[place, d] if (place, d) in counted else i for d, i in enumerate(x.indices)
        )
        return replace(x, indices=indices)

    value = _in_order(first.values[0], change)
    shape = (count, *first.outputs[0].shape)
    stage = replace(
        first,
        outputs=(replace(first.outputs[0], name=name, shape=shape),),
        axes=(axis, *first.axes),
        values=(value,),
    )
    number = {s.name: n for n, s in enumerate(found.stages)}

    def read(x: Load) -> Expr | None:
        n = number.get(x.buffer)
        return None if n is None else Load(name, (Const(n), *x.indices), x.dtype)

    stages: list[Stage] = []
    for s in graph.dag.stages:
        if s.name == found.stages[-1].name:
            stages.append(stage)
        if s.name not in number:
            stages.append(s)
    stages = [mapped(s, read) for s in stages]
    origins = dict(graph.origins) | {name: graph.origins.get(first.name, first.name)}
    return remade(replace(graph, origins=origins), in_topological_order(stages), inputs, values)


def _in_order(e: Expr, change: Any) -> Expr:
    """`with_loads`, in the order of `Stage.reads`. Indices hold no loads."""

    def visit(x: Expr) -> Expr | None:
        if not isinstance(x, Load):
            return None
        made: Expr | None = change(x)
        return x if made is None else made

    return E.rewrite(e, visit)
