"""The same loops with fewer dimensions: those of extent 1 are dropped, and neighbours that are always used
together are merged.

A convolution of 1×1 over an image is a matrix product over its pixels, and an elementwise operation walks one
dimension. Only dimensions that go on in memory are merged, so that tensors lie there as before. What remains
is the same for groups that differ only in how dimensions were written, which so are one task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from schedules import affine
from schedules import expr as E
from schedules.expr import Const, Expr, Load, Var
from schedules.graph.edit import simplified
from schedules.loads import with_loads
from schedules.te.compute_dag import Axis, ComputeDAG, Stage, Tensor
from schedules.te.extent import is_open, is_same


def tidy(dag: ComputeDAG) -> ComputeDAG:
    """The DAG without dimensions that change nothing."""
    dag = drop_units(dag)
    while (made := _merged(dag)) is not None:
        dag = made
    return dag


def drop_units(dag: ComputeDAG, fixed: Collection[str] = ()) -> ComputeDAG:
    """The DAG without dimensions and axes of one point. Tensors that are ``fixed`` keep their shape, as do
    those of stages that are not plain."""
    fixed = {*fixed, *(t.name for s in dag.stages if not s.plain for t in s.outputs)}

    def used(x: Load) -> Expr | None:
        shape = dag.tensors[x.buffer].shape
        if 1 not in shape or x.buffer in fixed:
            return None
        return replace(x, indices=tuple(i for i, n in zip(x.indices, shape, strict=True) if n > 1))

    def stage(s: Stage) -> Stage:
        if not s.plain:
            values, places = (tuple(with_loads(v, used) for v in every) for every in (s.values, s.places))
            return replace(s, values=values, places=places)
        stays = any(t.name in fixed for t in s.outputs)
        gone = [a for a in (*(() if stays else s.axes), *s.reduce_axes) if a.extent == 1]
        one: dict[str, Expr] = {a.var: Const(0) for a in gone}
        values = tuple(with_loads(E.substitute(v, one), used) for v in s.values)
        axes = tuple(a for a in s.axes if a.var not in one)
        reduce_axes = tuple(a for a in s.reduce_axes if a.var not in one)
        reducer = s.reducer if reduce_axes else None  # one value alone is what it is reduced to
        outputs = s.outputs if stays else tuple(map(shrunk, s.outputs))
        return simplified(
            replace(s, outputs=outputs, axes=axes, reduce_axes=reduce_axes, values=values, reducer=reducer)
        )

    def shrunk(t: Tensor) -> Tensor:
        if t.name in fixed or 1 not in t.shape:
            return t
        left = [d for d, n in enumerate(t.shape) if n > 1]
        steps = None if t.strides is None else tuple(t.strides[d] for d in left)
        return replace(t, shape=tuple(t.shape[d] for d in left), strides=steps)

    return replace(dag, inputs=tuple(map(shrunk, dag.inputs)), stages=tuple(map(stage, dag.stages)))


@dataclass(frozen=True)
class _Axes:
    """Two axes of a stage that are always used as neighbours."""

    stage: str
    first: str
    second: str


@dataclass(frozen=True)
class _Dims:
    """Dimensions ``dim`` and ``dim + 1`` of a tensor."""

    tensor: str
    dim: int


Link = tuple[_Axes, _Dims]


def _merged(dag: ComputeDAG) -> ComputeDAG | None:
    """The DAG with one set of axes and dimensions merged that belong together; None where there is none."""
    links: list[Link] = []
    wrong: set[_Axes | _Dims] = set()
    for s in dag.stages:
        _look(s, dag, links, wrong)
    beside: dict[_Axes | _Dims, set[_Axes | _Dims]] = {}
    for one, other in links:
        beside.setdefault(one, set()).add(other)
        beside.setdefault(other, set()).add(one)
    seen: set[_Axes | _Dims] = set()
    for start in beside:
        if start in seen:
            continue
        found, todo = {start}, [start]
        while todo:
            new = beside[todo.pop()] - found
            found |= new
            todo += new
        seen |= found
        if not found & wrong:
            return _with(dag, found)
    return None


def _look(s: Stage, dag: ComputeDAG, links: list[Link], wrong: set[_Axes | _Dims]) -> None:
    """Add the links of a stage, and what cannot be merged because of it."""
    extents = {a.var: a.extent for a in (*s.axes, *s.reduce_axes)}
    spatial, reduced = [a.var for a in s.axes], {a.var for a in s.reduce_axes}
    total: dict[str, int] = {}
    paired: dict[_Axes, int] = {}
    for v in s.values:
        for e in E.walk(v):
            if isinstance(e, Var):
                total[e.name] = total.get(e.name, 0) + 1
            if not isinstance(e, Load):
                continue
            for pair in (x for i in e.indices for x in _digits(s.name, i, extents)):
                paired[pair] = paired.get(pair, 0) + 1
            t = dag.tensors[e.buffer]
            for d in range(len(t.shape) - 1):
                dims = _Dims(e.buffer, d)
                a, b = e.indices[d : d + 2]
                if (
                    not (isinstance(a, Var) and isinstance(b, Var))
                    or a == b
                    or not is_same(extents[b.name], t.shape[d + 1])
                    or not _goes_on(t, d)
                ):
                    wrong.add(dims)
                    continue
                pair = _Axes(s.name, a.name, b.name)
                paired[pair] = paired.get(pair, 0) + 1
                links.append((pair, dims))
    if not s.plain:
        wrong |= _fixed(s, paired)
    for t in s.outputs:
        for d, (x, y) in enumerate(pairwise(spatial)):
            links.append((_Axes(s.name, x, y), _Dims(t.name, d)))
            if not _goes_on(t, d):
                wrong.add(_Dims(t.name, d))
            paired.setdefault(_Axes(s.name, x, y), 0)
    for pair, times in paired.items():
        a_, b_ = pair.first, pair.second
        apart = total.get(a_, 0) != times or total.get(b_, 0) != times
        together = (a_, b_) in pairwise(spatial) or (a_ in reduced and b_ in reduced)
        if apart or not together:
            wrong.add(pair)


def _fixed(s: Stage, paired: Collection[_Axes]) -> set[_Axes | _Dims]:
    """What cannot be merged because the domain, the places or the order of a stage name an axis of it:
    pairs with such an axis, and the dimensions that they walk."""
    named = {v for e in (*s.where, *s.places) for v in E.variables(e)}
    if s.places or s.scan:
        named |= {a.var for a in s.axes}
    wrong: set[_Axes | _Dims] = {p for p in paired if {p.first, p.second} & named}
    for d, (x, y) in enumerate(pairwise(a.var for a in s.axes)):
        if {x, y} & named:
            wrong.update((_Axes(s.name, x, y), *(_Dims(t.name, d) for t in s.outputs)))
    loads = (x for v in s.places for x in E.loads(v))
    return wrong.union(_Dims(x.buffer, d) for x in loads for d in range(len(x.indices) - 1))


def _digits(stage: str, index: Expr, extents: Mapping[str, int]) -> Iterator[_Axes]:
    """Axes of which an index has the second where a step of the first ends: two digits of a number."""
    if isinstance(index, (Var, Const)):
        return
    steps, _ = affine.steps_of(index)
    for a, far in steps.items():
        for b, near in steps.items():
            if a != b and not is_open(extents[b]) and far == near * extents[b]:
                yield _Axes(stage, a, b)


def _goes_on(t: Tensor, d: int) -> bool:
    """Whether dimension ``d`` of a tensor goes on in memory where the next one ends, at every size."""
    if is_open(t.shape[d + 1]):
        return False
    return t.strides is None or t.strides[d] == t.strides[d + 1] * t.shape[d + 1]


def _as_one(index: Expr, pairs: Mapping[str, str]) -> Expr:
    """An index of which pairs of axes are digits, by the axes that they become."""
    used = {a: b for a, b in pairs.items() if b in E.variables(index)}
    if not used or isinstance(index, Var):
        return index
    terms, const = affine.linear(index)
    near: dict[Expr, Expr] = {Var(a): terms[Var(b)] for a, b in used.items()}
    left = {v: near.get(v, c) for v, c in terms.items() if v not in {Var(b) for b in used.values()}}
    return affine.from_linear(left, const)


def _with(dag: ComputeDAG, found: set[_Axes | _Dims]) -> ComputeDAG:
    """The DAG with axes and dimensions merged, of which no two share one."""
    dims = {f.tensor: f.dim for f in found if isinstance(f, _Dims)}

    def smaller(t: Tensor) -> Tensor:
        if t.name not in dims:
            return t
        d = dims[t.name]
        steps = None if t.strides is None else (*t.strides[:d], *t.strides[d + 1 :])
        shape = (*t.shape[:d], t.shape[d] * t.shape[d + 1], *t.shape[d + 2 :])
        return replace(t, shape=shape, strides=steps)

    def stage(s: Stage) -> Stage:
        pairs = {f.first: f.second for f in found if isinstance(f, _Axes) and f.stage == s.name}

        def used(x: Load) -> Expr | None:
            d, indices = dims.get(x.buffer), tuple(_as_one(i, pairs) for i in x.indices)
            return replace(x, indices=indices if d is None else (*indices[: d + 1], *indices[d + 2 :]))

        gone = set(pairs.values())
        extents = {a.var: a.extent for a in (*s.axes, *s.reduce_axes)}

        def axes(old: tuple[Axis, ...]) -> tuple[Axis, ...]:
            left = (a for a in old if a.var not in gone)
            return tuple(
                Axis(a.var, a.extent * (extents[pairs[a.var]] if a.var in pairs else 1)) for a in left
            )

        return replace(
            s,
            outputs=tuple(map(smaller, s.outputs)),
            axes=axes(s.axes),
            reduce_axes=axes(s.reduce_axes),
            values=tuple(with_loads(v, used) for v in s.values),
        )

    return replace(dag, inputs=tuple(map(smaller, dag.inputs)), stages=tuple(map(stage, dag.stages)))
