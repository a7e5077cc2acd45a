"""Finds products of a tensor and a matrix that is known: the linear layers of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from schedules import expr as E
from schedules.dtypes import is_float
from schedules.expr import Binary, Cast, Const, Expr, Load, Var
from schedules.graph.edit import is_plain, is_product
from schedules.graph.graph import Array, Graph
from schedules.te.compute_dag import Axis, ComputeDAG, Stage
from schedules.te.evaluator import evaluate
from schedules.te.extent import is_open
from schedules.te.marks import closed
from schedules.te.sizes_in_values import speaks_of_sizes


@dataclass(frozen=True)
class ConstantProduct:
    """``stage`` is the sum over ``depth`` of ``x`` times ``weight``. ``x``: a factor, a load that is perhaps
    converted. ``rows``, ``outputs``: places of the stage's axes along which ``x`` and ``weight`` go, in
    their order. ``constants``: what the weight is made of."""

    stage: Stage
    x: Expr
    weight: Load
    depth: Axis
    rows: tuple[int, ...]
    outputs: tuple[int, ...]
    constants: tuple[str, ...]

    @property
    def weights(self) -> int:
        """Numbers in the matrix that is read."""
        axes = self.stage.axes
        return int(np.prod([axes[n].extent for n in self.outputs], dtype=np.int64)) * int(self.depth.extent)


@dataclass(frozen=True)
class OtherProduct:
    """A product with something known that is no `ConstantProduct`, and why."""

    stage: Stage
    constants: tuple[str, ...]
    why: str


class KnownTensors:
    """What a graph knows before a call: constants, and what its stages make of them alone."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._made: dict[str, Stage] = {}
        self._roots: dict[str, tuple[str, ...]] = {n: (n,) for n in graph.values}
        for s in graph.dag.stages:
            read = dict.fromkeys(x.buffer for x in s.reads())
            summed = any(is_open(a.extent) for a in s.reduce_axes)
            if read and not summed and not speaks_of_sizes(s) and all(n in self._roots for n in read):
                roots = tuple(dict.fromkeys(r for n in read for r in self._roots[n]))
                self._made |= {t.name: s for t in s.outputs}
                self._roots |= {t.name: roots for t in s.outputs}

    def __contains__(self, name: str) -> bool:
        return name in self._roots

    def roots(self, name: str) -> tuple[str, ...]:
        """The constants that a tensor is made of."""
        return self._roots[name]

    def value(self, name: str) -> Array:
        """The value of a tensor. Nothing is kept of it."""
        known = self.graph.values.get(name)
        return self.made(name, self.graph.dag.stages) if known is None else known

    def made(self, name: str, stages: Sequence[Stage]) -> Array:
        """The value of a tensor that some of these stages make of constants."""
        needed, run = {name}, []
        for s in reversed(stages):
            if any(t.name in needed for t in s.outputs):
                run.append(closed(s))
                needed |= {x.buffer for x in s.reads()}
        inputs = tuple(t for t in self.graph.dag.inputs if t.name in needed)
        part = ComputeDAG(inputs, tuple(reversed(run)), (name,))
        return evaluate(part, [self.graph.values[t.name] for t in inputs])[0]


def constant_products(graph: Graph, known: KnownTensors) -> list[ConstantProduct | OtherProduct]:
    """The products of a graph with something known, in order."""
    found = (_product(s, known) for s in graph.dag.stages if is_product(s))
    return [x for x in found if x is not None]


def _product(s: Stage, known: KnownTensors) -> ConstantProduct | OtherProduct | None:
    every = [x for x in s.reads() if x.buffer in known]
    if len(every) != 1 or len(s.reads()) != 2:
        return None
    weight = every[0]
    roots = known.roots(weight.buffer)
    if not is_float(weight.dtype):
        return OtherProduct(s, roots, f"its weights are {weight.dtype} already")
    match s.values[0]:
        case Binary(op="*", a=a, b=b) if bare(a) is not None and bare(b) is not None:
            x = b if bare(a) == weight else a
        case _:
            return OtherProduct(s, roots, "its elements are padded or guarded")
    load = bare(x)
    assert load is not None
    if s.outputs[0].dtype != "float32" or not is_float(load.dtype):
        return OtherProduct(s, roots, f"it is a product of {load.dtype} and {weight.dtype}")
    summed = [a for a in s.reduce_axes if a.extent > 1]
    if len(summed) != 1:
        return OtherProduct(s, roots, f"it sums over {len(s.reduce_axes)} axes, as convolutions do")
    (depth,) = summed
    if any(is_open(a.extent) and Var(a.var) in weight.indices for a in (*s.axes, depth)):
        return OtherProduct(s, roots, "how much of its matrix is read depends on an open size")
    weight = replace(weight, indices=tuple(_without(s, i) for i in weight.indices))
    place = {a.var: n for n, a in enumerate(s.axes)}
    walked = [i for i in weight.indices if not isinstance(i, Const)]
    if not is_plain(walked) or Var(depth.var) not in walked:
        return OtherProduct(s, roots, "its weights are not read element by element")
    outputs = tuple(place[i.name] for i in walked if isinstance(i, Var) and i.name != depth.var)
    variables = E.variables(x)
    rows = tuple(
        n for n, a in enumerate(s.axes) if a.var in variables or (a.extent == 1 and n not in outputs)
    )
    if not outputs or {*rows, *outputs} != set(range(len(s.axes))):
        return OtherProduct(s, roots, "it has an axis that neither factor has")
    return ConstantProduct(s, x, weight, depth, rows, outputs, roots)


def _without(s: Stage, index: Expr) -> Expr:
    """An index without axes of one element."""
    return Const(0) if any(index == Var(a.var) and a.extent == 1 for a in s.reduce_axes) else index


def bare(e: Expr) -> Load | None:
    """The load that a factor is, perhaps converted."""
    while isinstance(e, Cast):
        e = e.a
    return e if isinstance(e, Load) else None
