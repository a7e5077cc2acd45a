"""Products of one tensor that are added are one product, of weights that are added ahead.

So a convolution of 3 x 3 beside one of 1 x 1 beside the tensor itself is one convolution of 3 x 3 (Ding et
al., *RepVGG*, CVPR 2021). The widest window reads all that the others read. Where another window has no
weight, it has zero, and the tensor itself is a product with the unit matrix.

Windows are compared by what they read of the tensor that lies inside of their paddings. Around it all of them
read zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from schedules import affine
from schedules import expr as E
from schedules.dtypes import is_float, is_storage
from schedules.expr import Binary, Const, Expr, Load, Select, Var
from schedules.graph.biases import add_biases
from schedules.graph.edit import (
    in_topological_order,
    is_map,
    is_plain,
    is_product,
    mapped,
    points,
    ranges,
    readers,
    remade,
    terms,
    without_names,
)
from schedules.graph.fold import fold_constants
from schedules.graph.graph import Graph
from schedules.graph.kinds import is_guarded
from schedules.graph.rewrite import RewritePlace, Take, at_each, may_lose
from schedules.graph.scale import affine_in
from schedules.te.compute_dag import Axis, Stage, Tensor
from schedules.te.extent import is_open
from schedules.te.infeasible import impossible, negation
from schedules.te.unique import Taken


@may_lose()
def add_products(graph: Graph, take: Take) -> Graph:
    """The graph with products of one tensor that are added, and that tensor, as one product."""
    after = at_each(graph, take, _places, _applied)
    return graph if after is graph else fold_constants(add_biases(after))


@dataclass(frozen=True)
class _Index:
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
class _Term:
    """A term of a sum, by the axes of the map that adds. ``term``: as it stands there. ``buffer``, ``at``:
    what it reads, outside of which are zeros. ``weight``: what each element of that is multiplied with; None:
    1. ``product``: the stage; None of the tensor itself. ``shift``: what else stands in the term."""

    term: Expr
    buffer: str
    at: tuple[_Index, ...]
    weight: Expr | None
    product: Stage | None = None
    shift: Expr | None = None


@dataclass(frozen=True)
class _Sum:
    """A sum ``whole`` in the map ``stage``: ``base`` reads all that ``others`` read."""

    stage: Stage
    whole: Expr
    base: _Term
    others: tuple[_Term, ...]

    @property
    def name(self) -> str:
        """Of the product that stays."""
        assert self.base.product is not None
        return self.base.product.name


def _places(graph: Graph) -> Iterator[RewritePlace]:
    for s in _Finder(graph).sums():
        every = [t.product for t in (s.base, *s.others) if t.product is not None]
        like = tuple(without_names(p, lambda x: replace(x, buffer="")) for p in every)
        # with the tensor itself alone, it saves little
        yield RewritePlace(s.name, (like, len(s.others)), None if len(every) > 1 else False)


class _Finder:
    """Looks for sums of a graph whose terms can be one product."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.stages = {s.name: s for s in graph.dag.stages}
        kept = set(graph.dag.outputs)
        read = readers(graph.dag.stages).items()
        self.alone = {n for n, users in read if len(users) == 1 and n not in kept}
        self.products = {s.name for s in graph.dag.stages if is_product(s)}

    def sums(self) -> Iterator[_Sum]:
        """These, those of one map in order, the widest term of each as its base."""
        for s in self.stages.values():
            names = [x.buffer for x in s.reads()]
            if not is_map(s) or len(s.values) > 1 or self.products.isdisjoint(names) or _is_open(s):
                continue
            for whole in _wholes(s.values[0]):
                found = [t for e in terms(whole) for t in (self._term(e, s),) if t is not None]
                bases = [t for t in found if t.product is not None]
                for base in sorted(bases, key=lambda t: -prod(len(i.taps) for i in t.at)):
                    others = tuple(t for t in found if t is not base and _weight(base, t, s) is not None)
                    if others:
                        yield _Sum(s, whole, base, others)
                        break

    def _term(self, e: Expr, s: Stage) -> _Term | None:
        """What a term of a sum in a map is; None where it is neither a product nor the tensor of one."""
        if isinstance(e, Load) and e.buffer in self.products:
            return self._of_product(e, s)
        loads = {x for x in E.loads(e) if x.buffer not in self.graph.values}
        if len(loads) != 1 or E.holes(e):
            return None
        (x,) = loads
        parts, at = affine_in(e, x), self._read(x, ())
        if parts is None or at is None or is_storage(x.dtype):
            return None
        return _Term(e, *at, parts.factor, None, parts.shift)

    def _of_product(self, e: Load, s: Stage) -> _Term | None:
        """A product of floats and a constant that only the map reads, one to one, and once."""
        p = self.stages[e.buffer]
        value, dtype = p.values[0], p.outputs[0].dtype
        once = e.buffer in self.alone and sum(x == e for x in _every_load(s)) == 1
        if not once or not is_plain(e.indices) or points(p) != points(s) or _is_open(p):
            return None
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
        taken = Taken(a.var for a in s.axes)
        reduced = {a.var: replace(a, var=taken.add(a.var)) for a in p.reduce_axes}
        to_map: dict[str, Expr] = {a.var: i for a, i in zip(p.axes, e.indices, strict=True)}
        to_map |= {v: Var(a.var) for v, a in reduced.items()}
        at = self._read(_at(data, to_map), tuple(reduced.values()))
        return None if at is None else _Term(e, *at, _at(weight, to_map), p)

    def _read(self, x: Load, over: Sequence[Axis]) -> tuple[str, tuple[_Index, ...]] | None:
        """(What a load reads, where), through a padding with zeros; None where that is not even, or not each
        axis of ``over`` walks a dimension of its own."""
        x = self._unpadded(x)
        summed = {a.var: a for a in over}
        found: list[_Index] = []
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
            found.append(_Index(int(start.value), steps, *(own[0] if own else ())))
        return None if summed else (x.buffer, tuple(found))

    def _unpadded(self, x: Load) -> Load:
        """What a load reads where the stage that it reads does nothing but put zeros around it."""
        pad = self.stages.get(x.buffer)
        if pad is None or not is_guarded(pad) or _is_open(pad):
            return x
        match pad.values[0]:
            case Select(cond=cond, a=Load() as inner, b=Const(value=0)) if self._is_padding(cond, inner, pad):
                return _at(inner, {a.var: i for a, i in zip(pad.axes, x.indices, strict=True)})
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


def _is_open(s: Stage) -> bool:
    return any(is_open(a.extent) for a in (*s.axes, *s.reduce_axes))


def _at(x: Load, to: Mapping[str, Expr]) -> Load:
    return replace(x, indices=tuple(E.substitute(i, to) for i in x.indices))


def _every_load(s: Stage) -> Iterator[Expr]:
    return (x for v in s.values for x in E.walk(v) if isinstance(x, Load))


def _wholes(e: Expr) -> Iterator[Expr]:
    """The sums of floats in an expression, each whole."""
    if isinstance(e, Load) or E.dtype_of(e) == E.INDEX:
        return
    summed = isinstance(e, Binary) and e.op == "+"
    if summed:
        yield e
    for x in terms(e) if summed else E.children(e):
        yield from _wholes(x)


# -- one product of several ------------------------------------------------------------------------


def _weight(base: _Term, other: _Term, s: Stage) -> Expr | None:
    """What ``base`` multiplies with in place of ``other``, by the axes of its own weights; None where it does
    not read all that the other does, or its weights lack an axis. ``s``: the map that adds them."""
    assert base.weight is not None and base.product is not None
    if base.buffer != other.buffer:
        return None
    most = {a.var: int(a.extent) - 1 for a in s.axes}
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


def _applied(graph: Graph, place: RewritePlace) -> Graph:
    found = next(s for s in _Finder(graph).sums() if s.name == place.name)
    s, base, others = found.stage, found.base, found.others
    product, old = base.product, base.weight
    assert product is not None and isinstance(old, Load)
    axes = {a.var: a for a in (*s.axes, *(i.over for i in base.at if i.over is not None))}
    own = tuple(axes[i.name] for i in old.indices if isinstance(i, Var))
    value: Expr = old
    for t in others:
        more = _weight(base, t, s)
        assert more is not None
        value = value + more
    out = Tensor(Taken(graph.dag.tensors).add(f"{old.buffer}_added"), tuple(a.extent for a in own), old.dtype)
    gone = [t.term for t in others]
    left = [t for t in terms(found.whole) if t not in gone] + [t.shift for t in others if t.shift is not None]
    total = sum(left[1:], start=left[0])
    stages: list[Stage] = []
    for one in graph.dag.stages:
        if one.name == product.name:
            stages += [
                Stage((out,), own, (), (value,)),
                mapped(one, lambda x: replace(x, buffer=out.name) if x.buffer == old.buffer else None),
            ]
        elif one.name == s.name:
            put = E.rewrite(one.values[0], lambda x: total if x == found.whole else None)
            stages.append(replace(one, values=(put,)))
        else:
            stages.append(one)
    return remade(graph, in_topological_order(stages))
