"""What the rewrites share: loads replaced, indices simplified, unused parts dropped."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Binary, Expr, Load, Var
from schedules.graph.graph import Array, Graph
from schedules.loads import with_loads
from schedules.te.compute_dag import ComputeDAG, Stage, Tensor
from schedules.te.extent import written

OnLoad = Callable[[Load], Expr | None]


def ranges(stage: Stage) -> dict[str, affine.Range]:
    """{axis of a stage: its least and its largest value}. What they prove at the largest sizes holds at all,
    because an axis is shorter there."""
    return {a.var: (0, int(a.extent) - 1) for a in (*stage.axes, *stage.reduce_axes)}


def simplified(stage: Stage) -> Stage:
    """A stage with the arithmetic on its axes simplified."""
    inside = ranges(stage)
    return replace(stage, values=tuple(affine.simplify(v, inside) for v in stage.values))


def mapped(stage: Stage, change: OnLoad) -> Stage:
    """A stage with loads replaced, simplified where any was."""
    values = tuple(with_loads(v, change) for v in stage.values)
    return stage if values == stage.values else simplified(replace(stage, values=values))


def renamed(stages: Iterable[Stage], names: Mapping[str, str]) -> list[Stage]:
    """Stages of one output each with other names, and loads of them."""

    def load(x: Load) -> Expr | None:
        return replace(x, buffer=names[x.buffer]) if x.buffer in names else None

    return [
        replace(
            s,
            outputs=(replace(s.outputs[0], name=names[s.name]),),
            values=tuple(with_loads(v, load) for v in s.values),
        )
        for s in stages
    ]


def readers(stages: Iterable[Stage]) -> dict[str, list[Stage]]:
    """{tensor: stages that read it, in their order}."""
    found: dict[str, list[Stage]] = {}
    for s in stages:
        for name in dict.fromkeys(x.buffer for x in s.reads()):
            found.setdefault(name, []).append(s)
    return found


def loads_of(stages: Iterable[Stage]) -> dict[str, list[tuple[Stage, Load]]]:
    """{tensor: loads of it, each with its stage}."""
    found: dict[str, list[tuple[Stage, Load]]] = {}
    for s in stages:
        for x in s.reads():
            found.setdefault(x.buffer, []).append((s, x))
    return found


def in_topological_order(stages: Sequence[Stage]) -> list[Stage]:
    """Stages in topological order, as they stood where that is one."""
    made = {t.name: s for s in stages for t in s.outputs}
    done: dict[str, Stage] = {}

    def visit(s: Stage) -> None:
        todo = [s]
        while todo:
            one = todo[-1]
            before = [made[x.buffer] for x in one.reads() if x.buffer in made]
            missing = [b for b in before if b.name not in done]
            if missing:
                todo += missing
            else:
                done.setdefault(todo.pop().name, one)

    for s in stages:
        visit(s)
    return list(done.values())


def points(stage: Stage) -> int:
    """Elements of an output of a stage."""
    return prod(a.extent for a in stage.axes)


def steps(stage: Stage) -> int:
    """Elements of an output of a stage, times the terms of each."""
    return points(stage) * prod(a.extent for a in stage.reduce_axes)


def is_map(stage: Stage) -> bool:
    """Whether a stage makes each element from others without a reduction."""
    return stage.reducer is None and stage.plain


def is_plain(indices: Sequence[Expr]) -> bool:
    """Whether indices are different axes and nothing else."""
    names = [i.name for i in indices if isinstance(i, E.Var)]
    return len(names) == len(indices) == len(set(names))


def is_sum(stage: Stage) -> bool:
    """Whether a stage adds up one value."""
    one = stage.reducer is not None and len(stage.values) == 1 and stage.plain
    return one and stage.reducer is not None and stage.reducer.operation(0) == "+"


def is_product(stage: Stage) -> bool:
    """Whether a stage is a sum of products of two tensors that walk different axes: a matrix product, a
    convolution. A sum of squares is none."""
    if not is_sum(stage):
        return False
    walked = [frozenset(v for i in x.indices for v in E.variables(i)) for x in factors(stage.values[0])]
    return len(set(walked)) == 2


def is_sum_of_products(stage: Stage, product: Stage) -> bool:
    """Whether a stage is a sum of the results of ``product``, each read once, such as sums of groups, which
    have a scale each: both are one product."""
    if not is_sum(stage) or not is_product(product):
        return False
    loads = [x for x in stage.reads() if x.buffer == product.name]
    walked = {a.var for a in (*stage.axes, *stage.reduce_axes) if a.extent > 1}
    return len(loads) == 1 and is_plain(loads[0].indices) and E.variables(loads[0]) >= walked


def factors(e: Expr) -> tuple[Load, ...]:
    """The loads of a product of two loads, each perhaps converted, guarded by a condition on axes, or a
    number that is a part of a byte. The product may be guarded by a condition that makes it 0. Empty for what
    is no such product."""
    if isinstance(e, E.Select) and e.b == E.Const(0.0, E.dtype_of(e)) and not E.loads(e.cond):
        return factors(e.a)
    if isinstance(e, E.Binary) and e.op == "*":
        both = [x for side in (e.a, e.b) for x in (_factor(side),) if x is not None]
        return tuple(both) if len(both) == 2 else ()
    return ()


def _factor(e: Expr) -> Load | None:
    match e:
        case Load():
            return e
        case E.Cast(a=a):
            return _factor(a)
        case E.Select(a=a, b=E.Const(), cond=c) if not E.loads(c):
            return _factor(a)
    return _code(e)


def _code(e: Expr) -> Load | None:
    """The byte of which an expression takes some bits, as of a code of 4 bits."""
    loads = E.loads(e)
    bits = any(isinstance(x, Binary) and x.op in ("&", ">>") for x in E.walk(e))
    return loads[0] if bits and len(loads) == 1 and DTYPES[loads[0].dtype].itemsize == 1 else None


def terms(e: Expr) -> list[Expr]:
    """The terms of a sum, from left to right."""
    return [*terms(e.a), *terms(e.b)] if isinstance(e, E.Binary) and e.op == "+" else [e]


def free_axis(name: str, taken: Container[str]) -> str:
    """``name``, with underscores where it is taken: a new axis of a stage."""
    while name in taken:
        name += "_"
    return name


def remade(
    graph: Graph,
    stages: Sequence[Stage],
    inputs: Sequence[Tensor] | None = None,
    values: Mapping[str, Array] | None = None,
    renamed: Mapping[str, str] | None = None,
) -> Graph:
    """The graph with other stages, inputs and values of constants. What no output needs is dropped; those of
    ``graph.inputs`` stay. ``renamed``: {tensor: the equal one that now stands for it}."""
    names = renamed or {}
    known = dict(graph.values if values is None else values)
    kept = tuple(dict.fromkeys(names.get(n, n) for n in graph.dag.outputs))
    if any(n in known for n in kept):  # what stands apart reads is known
        made = {t.name for s in stages for t in s.outputs}
        kept = tuple(n for n in kept if n in made)
    needed, live = set(kept), []
    for s in reversed(stages):
        if any(t.name in needed for t in s.outputs):
            live.append(s)
            needed |= {x.buffer for x in s.reads()}
    live.reverse()
    every = graph.dag.inputs if inputs is None else inputs
    given = {*graph.inputs, *(t.name for i in graph.islands for t in i.writes)}
    given |= {names.get(n, n) for i in graph.islands for n in i.reads}
    given |= {s.tensor for s in graph.states.values()}
    left = tuple(t for t in every if t.name in needed or t.name in given)
    constants = tuple(t.name for t in left if t.name in known)
    alive = {s.name for s in live}
    return Graph(
        ComputeDAG(left, tuple(live), kept, constants),
        {n: known[n] for n in constants},
        graph.inputs,
        tuple(names.get(n, n) for n in graph.outputs),
        {n: o for n, o in graph.origins.items() if n in alive},
        tuple(replace(i, reads=tuple(names.get(n, n) for n in i.reads)) for i in graph.islands),
        # what lies elsewhere is an output, which stays itself
        views={n: a for n, a in graph.views.items() if n in alive},
        joins={n: of for n, of in graph.joins.items() if n in alive},
        states=graph.states,
        recut=graph.recut & alive,
    )


def alike(*stages: Stage) -> Any:
    """What is equal for stages that do the same with other tensors: all but names."""
    return tuple(without_names(s, lambda x: replace(x, buffer="")) for s in stages)


def without_names(s: Stage, load: Callable[[Load], Expr] | None = None) -> Any:
    """A stage without its names of axes and outputs, its loads as ``load`` makes them."""
    axes = {a.var: Var(f"a{n}") for n, a in enumerate((*s.axes, *s.reduce_axes))}
    values = tuple(E.substitute(v, axes) for v in s.values)
    return (
        *(() if s.plain else (id(s),)),  # equal to itself alone
        tuple(written(a.extent) for a in s.axes),
        tuple(written(a.extent) for a in s.reduce_axes),
        values if load is None else tuple(with_loads(v, load) for v in values),
        None if s.reducer is None else (s.reducer.identity, s.reducer.combine),
    )
