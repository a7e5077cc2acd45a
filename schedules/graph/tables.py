"""Functions of a byte that make bytes become tables of 256 bytes: a quantised GELU, a sigmoid.

What is computed of one byte and literals alone has 256 results, which are known ahead. A load from a table
that lies in the first cache takes less time than a function of floating point.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Binary, Call, Cast, Const, Expr, Load, Var
from schedules.graph.edit import is_map, remade
from schedules.graph.graph import Array, Graph
from schedules.graph.quantised import STORED
from schedules.loads import with_loads
from schedules.te.compute_dag import Axis, ComputeDAG, Stage, Tensor
from schedules.te.evaluator import evaluate
from schedules.te.tensors import held_inside
from schedules.te.unique import Taken

POINTS = 256


def tabulate(graph: Graph) -> Graph:
    """The graph whose maps load from a table where they computed a function of floating point, or divided, of
    one byte, to make a byte of it."""
    taken = Taken(graph.dag.tensors)
    maps = {s.name: s for s in graph.dag.stages if is_map(s) and len(s.values) == 1}
    tables: dict[str, Array] = {}

    def visit(e: Expr) -> Expr | None:
        if not isinstance(e, Cast) or e.dtype not in STORED:
            return None
        whole = _of_bytes(e, maps)
        byte = _byte(whole)
        if byte is None or not any(map(_is_slow, E.walk(whole))):
            return None
        name = taken.add("table")
        tables[name] = _table(whole, byte)
        shifted = E.widen(byte) - DTYPES[byte.dtype].range[0]
        return Load(name, (held_inside(shifted, POINTS),), e.dtype)

    stages = [
        replace(s, values=tuple(E.rewrite(v, visit) for v in s.values)) if is_map(s) else s
        for s in graph.dag.stages
    ]
    if not tables:
        return graph
    made = (Tensor(name, (POINTS,), t.dtype.name) for name, t in tables.items())
    return remade(graph, stages, (*graph.dag.inputs, *made), {**graph.values, **tables})


def _of_bytes(e: Expr, maps: dict[str, Stage]) -> Expr:
    """An expression with what dequantises one byte in place of loads of it."""

    def inside(x: Load) -> Expr | None:
        s = maps.get(x.buffer)
        if s is None or x.dtype in STORED or _byte(s.values[0]) is None:
            return None
        return E.substitute(s.values[0], {a.var: i for a, i in zip(s.axes, x.indices, strict=True)})

    return with_loads(e, inside)


def _byte(e: Expr) -> Load | None:
    """The one byte of which an expression is computed; None where there are others, or axes count."""
    loads = set(_outer_loads(e))
    if len(loads) != 1:
        return None
    (x,) = loads
    alone = E.rewrite(e, lambda y: Const(0, y.dtype) if y == x and isinstance(y, Load) else None)
    other = E.variables(alone) or E.holes(alone) or E.loads(alone)
    return x if x.dtype in STORED and not other else None


def _outer_loads(e: Expr) -> Iterator[Load]:
    """The loads of an expression, but those in indices."""
    if isinstance(e, Load):
        yield e
        return
    for k in E.children(e):
        yield from _outer_loads(k)


def _is_slow(e: Expr) -> bool:
    return (isinstance(e, Call) and e.fn != "round") or (isinstance(e, Binary) and e.op == "/")


def _table(e: Expr, byte: Load) -> Array:
    """The values of an expression for all values of the byte, from the least on."""
    every = (np.arange(POINTS) + DTYPES[byte.dtype].range[0]).astype(byte.dtype)
    one = Load("every", (Var("i"),), byte.dtype)
    value = E.rewrite(e, lambda x: one if x == byte and isinstance(x, Load) else None)
    out = Tensor("table", (POINTS,), E.dtype_of(e))
    stage = Stage((out,), (Axis("i", POINTS),), (), (value,))
    dag = ComputeDAG((Tensor("every", (POINTS,), byte.dtype),), (stage,), ("table",))
    return np.asarray(evaluate(dag, [every])[0])
