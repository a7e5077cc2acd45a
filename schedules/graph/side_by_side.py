"""Products of one tensor whose widths differ become one, side by side: those of queries, keys and values.

Where queries have more heads than keys, the three products differ in the extent of one axis, that which the
weights alone walk. One product of all their weights reads its input once, and is one larger kernel. So are
what follows each of them, if that differs in constants alone: biases, sums over groups with their scales.
Each of the old results is then a part of the new one (`stack_unequal`), and lies there (`lie_in_whole`): who
reads it has strides. Products of equal widths are stacked (`schedules.graph.stack`), unless they are sums of
integers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from schedules import affine
from schedules import expr as E
from schedules.expr import Const, Expr, Load, Select, Var
from schedules.graph.edit import (
    alike,
    free_axis,
    in_topological_order,
    is_map,
    is_plain,
    is_product,
    mapped,
    points,
    readers,
    remade,
    simplified,
    without_names,
)
from schedules.graph.graph import Argument, Array, Graph
from schedules.graph.rewrite import RewritePlace, Take, may_lose
from schedules.graph.views import is_view, placed
from schedules.loads import with_loads
from schedules.strides import strides_of
from schedules.te.compute_dag import Axis, Stage, Tensor
from schedules.te.extent import is_open, is_same
from schedules.te.unique import Taken

AXIS = "z"  # along which stages lie side by side


@dataclass(frozen=True)
class _Wide:
    """A stage, and the same with the axes that only constants walk as one: ``flat``, whose axis ``at`` that
    is. ``own``: these axes of the stage, in order."""

    stage: Stage
    own: tuple[Axis, ...]
    flat: Stage
    at: int

    @property
    def axis(self) -> Axis:
        return self.flat.axes[self.at]

    def along(self, x: Load) -> int | None:
        """The dimension of a load of ``flat`` that the axis walks; None: none."""
        return next((d for d, i in enumerate(x.indices) if i == Var(self.axis.var)), None)


@may_lose()
def stack_unequal(graph: Graph, take: Take) -> Graph:
    """The graph with products of one tensor side by side, and with them what follows each. Results that
    callers get are left apart, and so is what is joined with others."""
    done: set[str] = set()
    while found := _found(graph, done):
        done |= {w.stage.name for levels in found for w in levels[0]}
        taken = [levels for levels in found if take(_place_of(levels[0]))]
        graph = _stacked(graph, taken) if taken else graph
    return graph


def _place_of(products: Sequence[_Wide]) -> RewritePlace:
    """Where products are that could lie side by side."""
    first = products[0].stage
    return RewritePlace(first.name, (tuple(int(w.axis.extent) for w in products), alike(first)))


def _found(graph: Graph, done: Collection[str]) -> list[list[list[_Wide]]]:
    """Sets of products that can be stacked, each with what follows them, level by level. No stage is in two
    of them, and none is ``done`` before."""
    read = readers(graph.dag.stages)
    classes: dict[Any, list[_Wide]] = {}
    for s in graph.dag.stages:
        if is_product(s) and s.name not in done and _may(s, graph):
            wide = _wide(s, graph, _alone(s, graph), graph.values)
            if wide is not None:
                classes.setdefault(_key(wide, graph, ()), []).append(wide)
    found: list[list[list[_Wide]]] = []
    taken: set[str] = set()
    for members in classes.values():
        every = [members, *_followers(members, graph, read)] if len(members) > 1 else []
        names = {w.stage.name for level in every for w in level}
        if every and names.isdisjoint(taken) and _pays(every, graph, read):
            found.append(every)
            taken |= names
    return found


def _may(s: Stage, graph: Graph) -> bool:
    """Whether a stage may become a part: its place is not told, but for rows of a state, which are copied."""
    told = s.name in graph.dag.outputs and s.name not in graph.views
    gathers = any(E.loads(i) for x in s.reads() for i in x.indices)
    return len(s.outputs) == 1 and not told and not gathers


def _alone(s: Stage, graph: Graph) -> tuple[Axis, ...]:
    """The axes of a product that constants alone walk."""
    data = {v for x in s.reads() if x.buffer not in graph.values for i in x.indices for v in E.variables(i)}
    return tuple(a for a in s.axes if a.var not in data)


def _wide(s: Stage, graph: Graph, own: tuple[Axis, ...], along: Collection[str]) -> _Wide | None:
    """A stage with its ``own`` axes as one; None where they are not walked together, from end to end, in
    tensors of ``along`` alone."""
    if not own or any(is_open(a.extent) for a in own):
        return None
    names = {a.var for a in own}
    axis = Axis(free_axis(AXIS, {a.var for a in (*s.axes, *s.reduce_axes)}), prod(a.extent for a in own))
    place = tuple(Var(a.var) for a in own)

    def one(x: Load) -> Expr | None:
        walked = [d for d, i in enumerate(x.indices) if E.variables(i) & names]
        if not walked or x.buffer not in along:
            return None
        lo, hi = walked[0], walked[-1] + 1
        shape = graph.dag.tensors[x.buffer].shape[lo:hi]
        if x.indices[lo:hi] != place or any(
            not is_same(a.extent, n) for a, n in zip(own, shape, strict=True)
        ):
            return None
        return replace(x, indices=(*x.indices[:lo], Var(axis.var), *x.indices[hi:]))

    values = tuple(with_loads(v, one) for v in s.values)
    if any(E.variables(v) & names for v in values):
        return None
    axes = [a for a in s.axes if a == own[0] or a not in own]
    at = axes.index(own[0])
    axes[at] = axis
    out = replace(s.outputs[0], shape=tuple(a.extent for a in axes), strides=None)
    return _Wide(s, own, replace(s, outputs=(out,), axes=tuple(axes), values=values), at)


def _key(w: _Wide, graph: Graph, parts: Collection[str]) -> Any:
    """What must be equal: everything but the width, and names of constants and of ``parts`` along it."""

    number: dict[str, int] = {}

    def anonymous(x: Load) -> Expr | None:
        d = w.along(x)
        if d is None:
            return None
        if x.buffer in parts:
            return replace(x, buffer="part")
        shape = graph.values[x.buffer].shape
        others = [*shape[:d], *shape[d + len(w.own) :]]
        return replace(x, buffer=f"constant {number.setdefault(x.buffer, len(number))} {others}")

    flat = replace(w.flat, values=tuple(with_loads(v, anonymous) for v in w.flat.values))
    axes = tuple(replace(a, extent=1) if n == w.at else a for n, a in enumerate(flat.axes))
    return without_names(replace(flat, axes=axes)), w.at, flat.outputs[0].dtype, is_product(w.stage)


def _followers(
    members: Sequence[_Wide], graph: Graph, read: Mapping[str, Sequence[Stage]]
) -> list[list[_Wide]]:
    """Stages of which each is the only one that reads one of ``members``, and which differ as these do; then
    those that follow them."""
    found: list[list[_Wide]] = []
    while True:
        users = [read.get(w.stage.name, ()) for w in members]
        names = {u[0].name for u in users if len(u) == 1}
        parts = {w.stage.name for w in members}
        if len(names) < len(members) or any(w.stage.name in graph.dag.outputs for w in members):
            return found
        after: list[_Wide] = []
        for w, (s,) in zip(members, users, strict=True):
            own = _walked(s, w)
            wide = _wide(s, graph, own, {w.stage.name, *graph.values}) if _may(s, graph) else None
            if wide is not None:
                after.append(wide)
        keys = {_key(w, graph, parts) for w in after}
        if len(after) < len(members) or len(keys) > 1:
            return found
        members = after
        found.append(after)


def _walked(s: Stage, part: _Wide) -> tuple[Axis, ...]:
    """The axes along which a stage walks a part from end to end, in the part's order; none where it does not
    walk each of the part's."""
    axes = {a.var: a for a in s.axes}
    at = [part.stage.axes.index(a) for a in part.own]
    for x in s.reads():
        if x.buffer == part.stage.name:
            found = [axes[i.name] for d in at if isinstance(i := x.indices[d], Var) and i.name in axes]
            return tuple(found) if len(found) == len(at) else ()
    return ()


def _pays(levels: Sequence[Sequence[_Wide]], graph: Graph, read: Mapping[str, Sequence[Stage]]) -> bool:
    """Whether stages are better side by side. Those of equal widths are stacked otherwise, where they can be.
    Sums of integers must go on to floats: who reads a part of integers cannot end the product's kernel."""
    first, last = levels[0], levels[-1]
    integers = [w.flat.outputs[0].dtype == "int32" for w in (first[0], last[0])]
    equal = len({int(w.axis.extent) for w in first}) == 1
    kept = any(w.stage.name in graph.dag.outputs for w in first)
    every = ((s, w.stage.name) for w in last for s in read.get(w.stage.name, ()))
    joined = any(_is_joined(s, name) for s, name in every if s.name not in graph.joins)
    if joined and (kept or _join(last, graph, read) is None):
        return False
    return not integers[1] and (integers[0] or kept or joined or not equal)


def _join(
    members: Sequence[_Wide], graph: Graph, read: Mapping[str, Sequence[Stage]]
) -> tuple[Stage, Load] | None:
    """(The stage that joins ``members`` and nothing else, its load of the stage of all of them, by the name
    of the first member's); None where no stage alone reads them, or it is not the whole of them."""
    users = {r.name: r for w in members for r in read.get(w.stage.name, ())}
    if len(users) != 1:
        return None
    (s,) = users.values()
    parts = {p.name: p for p in _parts(members, members[0].flat)}

    def through(x: Load) -> Expr | None:
        part = parts.get(x.buffer)
        if part is None:
            return None
        return E.substitute(part.values[0], {a.var: i for a, i in zip(part.axes, x.indices, strict=True)})

    def one(x: Expr) -> Expr | None:
        return x.a if isinstance(x, Select) and x.a == x.b else None

    value = E.rewrite(mapped(s, through).values[0], one) if is_map(s) and len(s.values) == 1 else None
    size = sum(points(w.stage) for w in members)
    whole = isinstance(value, Load) and is_plain(value.indices) and points(s) == size
    return (s, value) if whole and isinstance(value, Load) else None


def _is_joined(s: Stage, part: str) -> bool:
    """Whether a stage joins a part with others, so that it could lie in what is joined."""
    loads = {x for x in s.reads() if x.buffer == part}
    branches = (b for v in s.values for x in E.walk(v) if isinstance(x, Select) for b in (x.a, x.b))
    return is_map(s) and len(loads) == 1 and not loads.isdisjoint(branches)


def _stacked(graph: Graph, sets: Sequence[Sequence[Sequence[_Wide]]]) -> Graph:
    taken = Taken(graph.dag.tensors)
    values: dict[str, Array] = dict(graph.values)
    inputs: list[Tensor] = list(graph.dag.inputs)
    origins = dict(graph.origins)
    stages = list(graph.dag.stages)
    read = readers(stages)
    for levels in sets:
        made: list[Stage] = []
        for members in levels:
            made.append(_whole(members, made[-1:], taken, values, inputs))
            old = [origins[w.stage.name] for w in members if w.stage.name in origins]
            origins |= {made[-1].name: old[0]} if old else {}
        parts = {p.name: [p] for p in _parts(levels[-1], made[-1])}
        join = _join(levels[-1], graph, read)
        if join is not None:  # what is joined of all parts is the whole
            made[-1] = placed(made[-1], join[0], replace(join[1], buffer=made[-1].name))
            parts = {name: [] for name in (*parts, join[0].name)}
        gone = {w.stage.name for members in levels[:-1] for w in members}
        stages = [s for s in stages if s.name not in gone]
        first = min(n for n, s in enumerate(stages) if s.name in parts)
        after = [p for s in stages[first:] for p in parts.get(s.name, [s])]
        stages = [*stages[:first], *made, *after]
    return remade(replace(graph, origins=origins), in_topological_order(stages), inputs, values)


def _whole(
    members: Sequence[_Wide],
    before: Sequence[Stage],
    taken: Taken,
    values: dict[str, Array],
    inputs: list[Tensor],
) -> Stage:
    """The stage of all ``members``, with its constants among ``values`` and ``inputs``. ``before``: that of
    all stages of which each of them reads one."""
    first = members[0]
    loads = [[x for x in w.flat.reads() if w.along(x) is not None] for w in members]
    shapes = {t.name: t for t in inputs}
    known: dict[tuple[str, ...], str] = {}
    new: dict[str, str] = {}
    for every in zip(*loads, strict=True):
        names = tuple(x.buffer for x in every)
        if names[0] not in values:
            new[names[0]] = before[0].name
            continue
        if names not in known:
            known[names] = name = taken.add(f"{names[0]}_wide")
            pieces = [_merged(values[x.buffer], w, x) for w, x in zip(members, every, strict=True)]
            values[name] = np.concatenate(pieces, axis=first.along(every[0]))
            inputs.append(Tensor(name, values[name].shape, shapes[names[0]].dtype))
        new[names[0]] = known[names]

    def change(x: Load) -> Expr | None:
        return None if first.along(x) is None else replace(x, buffer=new[x.buffer])

    axis = replace(first.axis, extent=sum(w.axis.extent for w in members))
    axes = tuple(axis if n == first.at else a for n, a in enumerate(first.flat.axes))
    name = taken.add(f"{first.stage.name}_wide")
    out = replace(first.flat.outputs[0], name=name, shape=tuple(a.extent for a in axes))
    flat_values = tuple(with_loads(v, change) for v in first.flat.values)
    return replace(first.flat, outputs=(out,), axes=axes, values=flat_values)


def _merged(value: Array, w: _Wide, x: Load) -> Array:
    """A constant with the dimensions that the axis walks as one."""
    d = w.along(x)
    assert d is not None
    return value.reshape(*value.shape[:d], w.axis.extent, *value.shape[d + len(w.own) :])


def _parts(members: Sequence[_Wide], whole: Stage) -> list[Stage]:
    """The stages of ``members``, each of which reads its result in that of all."""
    found: list[Stage] = []
    start = 0
    for w in members:
        at: Expr = Const(0)
        for a in w.own:
            at = at * a.extent + Var(a.var)
        indices: list[Expr] = [Var(a.var) for a in w.stage.axes if a not in w.own]
        indices.insert(w.at, at + start)
        load = Load(whole.name, tuple(indices), whole.outputs[0].dtype)
        found.append(simplified(replace(w.stage, reduce_axes=(), values=(load,), reducer=None)))
        start += int(w.axis.extent)
    return found


def lie_in_whole(graph: Graph) -> Graph:
    """The graph whose parts of one tensor lie in it. No kernel makes them."""
    made = {t.name for s in graph.dag.stages for t in s.outputs}
    views, joins = dict(graph.views), dict(graph.joins)
    stages: list[Stage] = []
    for s in graph.dag.stages:
        found = _place(s, graph) if is_view(s) and s.name not in graph.dag.outputs else None
        if found is not None and found[0].tensor in made:
            at, steps = found
            views[s.name], joins[s.name] = at, (at.tensor,)
            s = replace(s, outputs=(replace(s.outputs[0], strides=steps),))
        stages.append(s)
    if len(views) == len(graph.views):
        return graph
    return replace(graph, dag=replace(graph.dag, stages=tuple(stages)), views=views, joins=joins)


def _place(s: Stage, graph: Graph) -> tuple[Argument, tuple[int, ...]] | None:
    """(Where the tensor of a view lies in what it reads, its strides); None for one that lies elsewhere."""
    (x,) = s.values
    assert isinstance(x, Load)
    if x.buffer in graph.views or x.buffer in graph.joins:
        return None
    place: Expr = Const(0)
    for i, step in zip(x.indices, strides_of(graph.dag.tensors[x.buffer]), strict=True):
        place = place + i * int(step)
    terms, start = affine.linear(place)
    if not isinstance(start, Const) or any(
        not isinstance(v, Var) or not isinstance(f, Const) for v, f in terms.items()
    ):
        return None
    steps = tuple(terms.get(Var(a.var), Const(0)) for a in s.axes)
    if any(not isinstance(f, Const) or f.value < 1 for f in steps):
        return None
    return Argument(x.buffer, int(start.value)), tuple(int(f.value) for f in steps if isinstance(f, Const))
