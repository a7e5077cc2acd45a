"""Dimensions that are read digit by digit become dimensions of their own.

A head of attention is ``h * 64 + d`` of a product's columns; a flattened image is ``(c * 7 + y) * 7 + x``.
Where every access of a dimension is such a number in two digits, the dimension is split into two, and its
arithmetic vanishes: of a tensor between stages and of a constant by another shape, of a reduction by two
axes.
What callers see keeps its shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from schedules import affine
from schedules import expr as E
from schedules.expr import Binary, Const, Expr, Load, Var
from schedules.graph.edit import free_axis, loads_of, mapped, ranges, remade
from schedules.graph.graph import Graph
from schedules.te.compute_dag import Axis, Stage, Tensor
from schedules.te.contraction import in_two
from schedules.te.extent import is_multiple


@dataclass(frozen=True)
class _Split:
    """Dimension ``dim`` of ``tensor`` into its quotient and its remainder by ``by``."""

    tensor: str
    dim: int
    by: int


def split_digits(graph: Graph) -> Graph:
    """The graph without dimensions and reductions that are read digit by digit."""
    graph = _reductions(graph)
    while found := _splits(graph):
        graph = _reductions(_apply(graph, found))
    return graph


def _reductions(graph: Graph) -> Graph:
    """Reduction axes that are used as a quotient or a remainder, as two axes each."""
    stages = tuple(map(_reduced, graph.dag.stages))
    return graph if stages == graph.dag.stages else remade(graph, stages)


def _reduced(stage: Stage) -> Stage:
    for axis in stage.reduce_axes:
        by = next(_divisors(stage, axis), None)
        if by is not None:
            return _reduced(split_axis(stage, axis, by))
    return stage


def _divisors(stage: Stage, axis: Axis) -> Iterator[int]:
    """By what an axis is divided in the stage's indices, with no remainder left of its extent."""
    for x in stage.reads():
        for i in x.indices:
            for e in E.walk(i):
                match e:
                    case Binary(op="//" | "%", a=Var(name=name), b=Const(value=int(c))) if name == axis.var:
                        if 1 < c < axis.extent and is_multiple(axis.extent, c):
                            yield c


def split_axis(stage: Stage, axis: Axis, by: int) -> Stage:
    """The stage with an axis as two: its quotient and its remainder by ``by``. Outputs are split with it."""
    names = {a.var for a in (*stage.axes, *stage.reduce_axes)}
    new = in_two(stage, axis, by, free_axis(axis.var + "o", names), free_axis(axis.var + "i", names))
    shape = tuple(a.extent for a in new.axes)
    return replace(new, outputs=tuple(replace(t, shape=shape) for t in stage.outputs))


def _splits(graph: Graph) -> dict[str, _Split]:
    """{tensor: a dimension that may be split}: of constants, and of tensors between stages."""
    seen = _Seen(graph)
    found: dict[str, _Split] = {}
    for t in graph.dag.tensors.values():
        together = next(seen.splits(t), [])
        if all(found.get(s.tensor, s) == s for s in together):
            found |= {s.tensor: s for s in together}
    return found


class _Seen:
    """What is known of the tensors of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.constants, self.outputs = graph.values, set(graph.dag.outputs)
        self.loads = loads_of(graph.dag.stages)
        self.made = {t.name: s for s in graph.dag.stages for t in s.outputs}

    def may(self, name: str) -> bool:
        """Whether a tensor may have another shape."""
        if name in self.outputs or not (name in self.constants or name in self.made):
            return False
        return name in self.constants or len(self.made[name].outputs) == 1

    def splits(self, t: Tensor) -> Iterator[list[_Split]]:
        """The dimensions of a tensor that may be split, each with those that must be split with it."""
        if not self.may(t.name):
            return
        made = self.made.get(t.name)
        for dim, extent in enumerate(t.shape):
            used = [x.indices[dim] for _, x in self.loads.get(t.name, ())]
            divided = [] if made is None else list(_divisors(made, made.axes[dim]))
            composite = [i for i in used if not isinstance(i, (Var, Const))]
            for by in sorted({*divided, *(c for i in composite for c in _steps(i))}, reverse=True):
                found: dict[tuple[str, int], _Split] = {}
                if 1 < by < extent and is_multiple(extent, by):
                    if self._together(t.name, dim, by, found, follow=by in divided):
                        yield list(found.values())

    def _together(
        self, name: str, dim: int, by: int, found: dict[tuple[str, int], _Split], follow: bool
    ) -> bool:
        """Whether a dimension may be split, and with it those of which stages walk both, one by one, if asked
        to ``follow`` these. Adds all to ``found``."""
        if (name, dim) in found:
            return True
        if any(other == name for other, _ in found):
            return False
        found[name, dim] = _Split(name, dim, by)
        for s, x in self.loads.get(name, ()):
            i = x.indices[dim]
            if _two_digits(s, i, by):
                continue
            at = next((d for d, a in enumerate(s.axes) if i == Var(a.var)), None)
            if not follow or at is None or not self.may(s.name):
                return False
            if not self._together(s.name, at, by, found, follow):
                return False
        return True


def _steps(index: Expr) -> set[int]:
    """The factors of axes in an index."""
    terms, const = affine.linear(index)
    found = {abs(int(c.value)) for c in terms.values() if isinstance(c, Const)}
    if isinstance(const, Const) and const.value > 1:
        found.add(int(const.value))
    return found


def _two_digits(stage: Stage, index: Expr, by: int) -> bool:
    """Whether quotient and remainder of an index by ``by`` need no division. An axis that is reduced needs
    none either, because it can be split itself, and so can one that walks nothing else in its stage."""
    inside = ranges(stage)
    if isinstance(index, Var):
        return any(a.var == index.name and is_multiple(a.extent, by) for a in stage.reduce_axes)
    if E.loads(index):
        return False
    both = (affine.simplify(Binary(op, index, Const(by)), inside) for op in ("//", "%"))
    return not any(isinstance(x, Binary) and x.op in ("//", "%") for e in both for x in E.walk(e))


def _apply(graph: Graph, splits: Mapping[str, _Split]) -> Graph:
    """The graph with a dimension of each of these tensors split."""

    def digits(x: Load) -> Expr | None:
        split = splits.get(x.buffer)
        if split is None:
            return None
        i, by = x.indices[split.dim], Const(split.by)
        two = (Binary("//", i, by), Binary("%", i, by))
        return Load(x.buffer, (*x.indices[: split.dim], *two, *x.indices[split.dim + 1 :]), x.dtype)

    stages = []
    for s in graph.dag.stages:
        s = mapped(s, digits)
        if s.name in splits:
            s = split_axis(s, s.axes[splits[s.name].dim], splits[s.name].by)
        stages.append(s)
    inputs, values = list(graph.dag.inputs), dict(graph.values)
    for n, t in enumerate(inputs):
        if t.name in splits:
            dim, by = splits[t.name].dim, splits[t.name].by
            shape = (*t.shape[:dim], t.shape[dim] // by, by, *t.shape[dim + 1 :])
            inputs[n] = replace(t, shape=shape)
            values[t.name] = values[t.name].reshape(shape)
    return remade(graph, stages, inputs, values)
