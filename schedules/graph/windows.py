"""What products of constants read of a tensor: windows, and which of them lie inside of others.

Windows are compared by what they read of the tensor that lies inside of their paddings. Around it all of them
read zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from schedules import affine
from schedules import expr as E
from schedules.dtypes import is_float, is_storage
from schedules.expr import Binary, Const, Expr, Load, Select, Var
from schedules.graph.edit import is_plain, is_product, ranges
from schedules.graph.graph import Graph
from schedules.graph.kinds import is_guarded
from schedules.loads import read_at
from schedules.te.compute_dag import Axis, Stage
from schedules.te.extent import is_open
from schedules.te.infeasible import impossible, negation
from schedules.te.unique import Taken


@dataclass(frozen=True)
class WindowIndex:
    """Where a dimension is read: at ``start``, and further by ``steps`` of axes of the result. ``over``: the
    axis that is summed there, ``step`` further with each of its elements; None: none is."""

    start: int
    steps: Mapping[str, int]
    over: Axis | None = None
    step: int = 1

    @property
    def taps(self) -> range:
        """What is read beside ``steps``."""
        n = 1 if self.over is None else int(self.over.extent)
        return range(self.start, self.start + self.step * (n - 1) + 1, self.step)


@dataclass(frozen=True)
class Window:
    """What is summed of a tensor, ``buffer``: at ``at``, outside of which are zeros, times ``weight``, by the
    axes of a result. None: 1. ``product``: the stage that does so; None for the tensor itself."""

    buffer: str
    at: tuple[WindowIndex, ...]
    weight: Expr | None
    product: Stage | None = None

    @property
    def size(self) -> int:
        """Elements of the window."""
        return prod(len(i.taps) for i in self.at)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """What is summed over."""
        return tuple(i.over for i in self.at if i.over is not None)


class WindowFinder:
    """Finds the windows of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.stages = {s.name: s for s in graph.dag.stages}

    def product(self, p: Stage, at: Sequence[Expr], axes: Sequence[Axis]) -> Window | None:
        """That of a product of floats and a constant, where element ``at`` of it is read in a stage of such
        ``axes``; None of any other stage."""
        if not is_product(p) or is_open_stage(p):
            return None
        value, dtype = p.values[0], p.outputs[0].dtype
        if not isinstance(value, Binary) or not is_float(dtype) or is_storage(dtype):
            return None
        a, b = value.a, value.b
        weight, data = (a, b) if isinstance(a, Load) and a.buffer in self.graph.values else (b, a)
        if not isinstance(weight, Load) or not isinstance(data, Load) or data.buffer in self.graph.values:
            return None
        own = {a.var for a in p.reduce_axes}
        plain = is_plain(weight.indices) and own <= E.variables(weight)
        if weight.buffer not in self.graph.values or not plain or not weight.dtype == data.dtype == dtype:
            return None
        taken = Taken(a.var for a in axes)
        reduced = {a.var: replace(a, var=taken.add(a.var)) for a in p.reduce_axes}
        to: dict[str, Expr] = {a.var: i for a, i in zip(p.axes, at, strict=True)}
        to |= {v: Var(a.var) for v, a in reduced.items()}
        found = self.read(read_at(data, to), tuple(reduced.values()))
        return None if found is None else Window(*found, read_at(weight, to), p)

    def read(self, x: Load, over: Sequence[Axis]) -> tuple[str, tuple[WindowIndex, ...]] | None:
        """(What a load reads, where), through a padding with zeros; None where that is not even, or not each
        axis of ``over`` walks a dimension of its own."""
        x = self._unpadded(x)
        summed = {a.var: a for a in over}
        found: list[WindowIndex] = []
        for i in x.indices:
            parts, start = affine.linear(i)
            steps = {
                v.name: int(f.value) for v, f in parts.items() if isinstance(v, Var) and isinstance(f, Const)
            }
            inner = [v for v in steps if v in summed]
            if len(steps) < len(parts) or not isinstance(start, Const) or len(inner) > 1:
                return None
            own = [(summed.pop(v), steps.pop(v)) for v in inner]
            if any(step < 1 for _, step in own):
                return None
            found.append(WindowIndex(int(start.value), steps, *(own[0] if own else ())))
        return None if summed else (x.buffer, tuple(found))

    def _unpadded(self, x: Load) -> Load:
        """What a load reads where the stage that it reads does nothing but put zeros around it."""
        pad = self.stages.get(x.buffer)
        if pad is None or not is_guarded(pad) or is_open_stage(pad):
            return x
        match pad.values[0]:
            case Select(cond=cond, a=Load() as inner, b=Const(value=0)) if self._is_padding(cond, inner, pad):
                return read_at(inner, {a.var: i for a, i in zip(pad.axes, x.indices, strict=True)})
        return x

    def _is_padding(self, cond: Expr, inner: Load, pad: Stage) -> bool:
        """Whether a condition holds just where a load is inside of its tensor."""
        shape = self.graph.dag.tensors[inner.buffer].shape
        if any(map(is_open, shape)):
            return False
        pairs = [*zip(inner.indices, shape, strict=True)]
        inside = [c for i, n in pairs for c in (E.compare("<=", 0, i), E.compare("<", i, int(n)))]
        asked, of = E.conjuncts(cond), ranges(pad)
        return all(impossible([*inside, negation(c)], of) for c in asked) and all(
            impossible([*asked, negation(c)], of) for c in inside
        )


def is_open_stage(s: Stage) -> bool:
    """Whether an extent of a stage varies."""
    return any(is_open(a.extent) for a in (*s.axes, *s.reduce_axes))


def weight_inside(base: Window, other: Window, axes: Sequence[Axis]) -> Expr | None:
    """What ``base`` multiplies with in place of ``other``, by the axes of its own weights; None where it does
    not read all that the other does, or its weights lack an axis. ``axes``: of the result."""
    assert base.weight is not None and base.product is not None
    if base.buffer != other.buffer:
        return None
    most = {a.var: int(a.extent) - 1 for a in axes}
    conds: list[Expr] = []
    to_base: dict[str, Expr] = {}  # {axis that the other sums over: what it is for the base}
    for mine, its in zip(base.at, other.at, strict=True):
        own = mine.taps
        apart = {v: its.steps.get(v, 0) - mine.steps.get(v, 0) for v in {**mine.steps, **its.steps}}
        apart = {v: n for v, n in apart.items() if n}
        if apart:  # where the base sums, the other reads one element for each of the result
            last = its.start + sum(n * most[v] for v, n in apart.items())
            even = mine.step == 1 and min(apart.values()) > 0 and its.start in own and last in own
            if mine.over is None or its.over is not None or not even:
                return None
            place = affine.from_linear(
                {Var(v): Const(n) for v, n in apart.items()}, Const(its.start - mine.start)
            )
            conds.append(E.compare("==", Var(mine.over.var), place))
            continue
        if any(t not in own for t in its.taps) or (mine.step != its.step and len(its.taps) > 1):
            return None
        before = own.index(its.start)
        here: Expr = Const(0) if mine.over is None else Var(mine.over.var) - before
        if before:
            conds.append(E.compare("<=", 0, here))
        if before + len(its.taps) < len(own):
            conds.append(E.compare("<", here, len(its.taps)))
        if its.over is not None:
            to_base[its.over.var] = here
    dtype = base.product.outputs[0].dtype
    weight = Const(1.0, dtype) if other.weight is None else E.substitute(other.weight, to_base)
    walked = E.variables(weight).union(*map(E.variables, conds))
    if E.dtype_of(weight) != dtype or not walked <= E.variables(base.weight):
        return None
    return Select(E.all_of(*conds), weight, Const(0.0, dtype)) if conds else weight
