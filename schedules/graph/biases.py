"""Constants that are added up are one constant: the biases of two convolutions whose results are added."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from schedules import expr as E
from schedules.expr import Binary, Expr, Load, Var
from schedules.graph.edit import is_map, remade, terms
from schedules.graph.graph import Graph
from schedules.te.compute_dag import Stage, Tensor
from schedules.te.unique import Taken


def add_biases(graph: Graph) -> Graph:
    """The graph whose maps add one constant where they added several, or computed one of several. The new
    constants are stages, which `fold` computes. None is larger than one of those that it is made of."""
    stages: list[Stage] = []
    taken = Taken(graph.dag.tensors)
    for s in graph.dag.stages:
        made: list[Stage] = []

        def visit(x: Expr, s: Stage = s, made: list[Stage] = made) -> Expr | None:
            if isinstance(x, Load) or E.dtype_of(x) == E.INDEX:
                return x  # where an element lies is no value
            if not isinstance(x, Binary) or x.op != "+":
                return None
            parts = terms(x)
            fixed = [t for t in parts if _is_constant(t, graph.values)]
            others = [E.rewrite(t, visit) for t in parts if t not in fixed]
            if others and _pays(fixed):
                total, name = sum(fixed[1:], start=fixed[0]), taken.add(f"{s.name}_bias")
                stage, value = _bias(total, s, E.dtype_of(x), name)
                made.append(stage)
                fixed = [value]
            every = [*others[:1], *fixed, *others[1:]]
            return sum(every[1:], start=every[0])

        if is_map(s):
            values = tuple(E.rewrite(v, visit) for v in s.values)
            s = replace(s, values=values) if made else s
        stages += [*made, s]
    return remade(graph, stages) if len(stages) > len(graph.dag.stages) else graph


def _is_constant(e: Expr, constants: Container[str]) -> bool:
    loads = E.loads(e)
    return bool(loads) and not E.holes(e) and all(x.buffer in constants for x in loads)


def _pays(fixed: list[Expr]) -> bool:
    """Whether there is something to compute ahead, and it is no larger than what it is made of."""
    if len(fixed) < 2 and all(isinstance(t, Load) for t in fixed):
        return False
    axes = {v for t in fixed for v in E.variables(t)}
    return any(E.variables(x) == axes for t in fixed for x in E.loads(t))


def _bias(value: Expr, s: Stage, dtype: str, name: str) -> tuple[Stage, Load]:
    """(the stage of a constant of that name, its load)."""
    axes = tuple(a for a in s.axes if a.var in E.variables(value))
    made = Stage((Tensor(name, tuple(a.extent for a in axes), dtype),), axes, (), (value,))
    return made, Load(name, tuple(Var(a.var) for a in axes), dtype)
