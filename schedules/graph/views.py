"""Transposes, reshapes and slices become indices of whoever reads them.

A view is a stage that only moves elements: its value is one load. A reader of a view can as well read what
the view reads. What a view alone reads may as well be computed where the view puts it, so that the view of an
output, which must stay, costs nothing either.
"""

from __future__ import annotations

from dataclasses import replace

from schedules import expr as E
from schedules.expr import Expr, Load
from schedules.graph.edit import free_axis, is_map, is_product, mapped, points, readers, remade, simplified
from schedules.graph.graph import Graph
from schedules.te.compute_dag import Stage


def is_view(stage: Stage) -> bool:
    """Whether a stage only moves elements of one tensor, by indices that are known without data."""
    return (
        is_map(stage)
        and len(stage.values) == 1
        and isinstance(stage.values[0], Load)
        and not any(E.loads(i) for i in stage.values[0].indices)
    )


def forward_views(graph: Graph) -> Graph:
    """The graph whose stages read through views. Views that are outputs stay."""
    views: dict[str, Stage] = {}
    stages = []

    def through(x: Load) -> Expr | None:
        view = views.get(x.buffer)
        if view is None:
            return None
        value = view.values[0]
        assert isinstance(value, Load)
        place = {a.var: i for a, i in zip(view.axes, x.indices, strict=True)}
        return Load(value.buffer, tuple(E.substitute(i, place) for i in value.indices), value.dtype)

    for s in graph.dag.stages:
        s = mapped(s, through)
        if is_view(s) and s.name not in graph.dag.outputs:
            views[s.name] = s
        stages.append(s)
    return remade(graph, stages) if views else graph


def compute_at_views(graph: Graph) -> Graph:
    """The graph in which what only a view of all its elements reads is computed in the view's place, but for
    products of which the view takes axes apart."""
    outputs = set(graph.dag.outputs)
    stages = {s.name: s for s in graph.dag.stages}
    origins = dict(graph.origins)
    for view in graph.dag.stages:
        if not is_view(stages[view.name]):
            continue
        value = stages[view.name].values[0]
        assert isinstance(value, Load)
        made = stages.get(value.buffer)
        if made is None or value.buffer in outputs or len(made.outputs) > 1:
            continue
        alone = len(readers(stages.values())[value.buffer]) == 1
        if not alone or points(view) > points(made) or (is_product(made) and _divides(value)):
            continue
        stages[view.name] = placed(made, view, value)
        del stages[made.name]
        if made.name in origins:
            origins[view.name] = origins[made.name]
    if len(stages) == len(graph.dag.stages):
        return graph
    return remade(replace(graph, origins=origins), tuple(stages.values()))


def _divides(value: Load) -> bool:
    """Whether a view takes axes apart. A product that did so would have no plain axes."""
    return any(isinstance(x, E.Binary) and x.op in ("//", "%") for i in value.indices for x in E.walk(i))


def placed(made: Stage, view: Stage, value: Load) -> Stage:
    """The stage that computes what ``made`` does where ``view`` has it."""
    taken = {a.var for a in view.axes}
    inner: dict[str, str] = {}
    for a in made.reduce_axes:
        inner[a.var] = free_axis(a.var, {*taken, *inner.values()})
    place: dict[str, Expr] = {a.var: i for a, i in zip(made.axes, value.indices, strict=True)}
    place |= {old: E.Var(new) for old, new in inner.items()}
    return simplified(
        replace(
            made,
            outputs=view.outputs,
            axes=view.axes,
            reduce_axes=tuple(replace(a, var=inner[a.var]) for a in made.reduce_axes),
            values=tuple(E.substitute(v, place) for v in made.values),
        )
    )
