"""Products of one tensor that are added are one product, of weights that are added ahead.

So a convolution of 3 x 3 beside one of 1 x 1 beside the tensor itself is one convolution of 3 x 3 (Ding et
al., *RepVGG*, CVPR 2021). The widest window reads all that the others read (`schedules.graph.windows`). Where
another window has no weight, it has zero, and the tensor itself is a product with the unit matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from schedules import expr as E
from schedules.dtypes import is_storage
from schedules.expr import Binary, Expr, Load, Var
from schedules.graph.biases import add_biases
from schedules.graph.edit import (
    alike,
    in_topological_order,
    is_map,
    is_plain,
    is_product,
    mapped,
    points,
    readers,
    remade,
    terms,
)
from schedules.graph.fold import fold_constants
from schedules.graph.graph import Graph
from schedules.graph.rewrite import RewritePlace, Take, at_each, may_lose
from schedules.graph.scale import affine_in
from schedules.graph.windows import Window, WindowFinder, is_open_stage, weight_inside
from schedules.te.compute_dag import Stage, Tensor
from schedules.te.unique import Taken


@may_lose()
def add_products(graph: Graph, take: Take) -> Graph:
    """The graph with products of one tensor that are added, and that tensor, as one product."""
    after = at_each(graph, take, _places, _applied)
    return graph if after is graph else fold_constants(add_biases(after))


@dataclass(frozen=True)
class _Term:
    """A term of a sum, ``term`` as it stands there. ``window``: what it reads, by the axes of the map that
    adds. ``shift``: what else is added in the term."""

    term: Expr
    window: Window
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
        assert self.base.window.product is not None
        return self.base.window.product.name


def _places(graph: Graph) -> Iterator[RewritePlace]:
    for s in _Finder(graph).sums():
        every = [t.window.product for t in (s.base, *s.others) if t.window.product is not None]
        # with the tensor itself alone, it saves little
        yield RewritePlace(s.name, (alike(*every), len(s.others)), None if len(every) > 1 else False)


class _Finder:
    """Looks for sums of a graph whose terms can be one product."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.windows = graph, WindowFinder(graph)
        self.stages = {s.name: s for s in graph.dag.stages}
        kept = set(graph.dag.outputs)
        read = readers(graph.dag.stages).items()
        self.alone = {n for n, users in read if len(users) == 1 and n not in kept}
        self.products = {s.name for s in graph.dag.stages if is_product(s)}

    def sums(self) -> Iterator[_Sum]:
        """These, those of one map in order, the widest term of each as its base."""
        for s in self.stages.values():
            names = [x.buffer for x in s.reads()]
            if not is_map(s) or len(s.values) > 1 or self.products.isdisjoint(names) or is_open_stage(s):
                continue
            for whole in _wholes(s.values[0]):
                found = [t for e in terms(whole) for t in (self._term(e, s),) if t is not None]
                bases = [t for t in found if t.window.product is not None]
                for base in sorted(bases, key=lambda t: -t.window.size):
                    others = tuple(t for t in found if t is not base and _inside(base, t, s) is not None)
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
        parts, at = affine_in(e, x), self.windows.read(x, ())
        if parts is None or at is None or is_storage(x.dtype):
            return None
        return _Term(e, Window(*at, parts.factor), parts.shift)

    def _of_product(self, e: Load, s: Stage) -> _Term | None:
        """A product that only the map reads, one to one, and once."""
        p = self.stages[e.buffer]
        once = e.buffer in self.alone and sum(x == e for x in _every_load(s)) == 1
        if not once or not is_plain(e.indices) or points(p) != points(s):
            return None
        window = self.windows.product(p, e.indices, s.axes)
        return None if window is None else _Term(e, window)


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


def _inside(base: _Term, other: _Term, s: Stage) -> Expr | None:
    return weight_inside(base.window, other.window, s.axes)


def _applied(graph: Graph, place: RewritePlace) -> Graph:
    found = next(s for s in _Finder(graph).sums() if s.name == place.name)
    s, base, others = found.stage, found.base, found.others
    product, old = base.window.product, base.window.weight
    assert product is not None and isinstance(old, Load)
    axes = {a.var: a for a in (*s.axes, *base.window.axes)}
    own = tuple(axes[i.name] for i in old.indices if isinstance(i, Var))
    value: Expr = old
    for t in others:
        more = _inside(base, t, s)
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
