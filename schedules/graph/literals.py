"""Scales and zero points become constants with names: kernels of equal layers are one.

A file has its scales as numbers, and importers make literals of them, which rewrites compare and multiply. A
literal belongs to the expression of a kernel: each layer of a network would be another one, to be tuned by
itself, and again after each calibration. A constant is what a kernel is called with.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Binary, Call, Cast, Const, Expr, Load
from schedules.graph.edit import factors, is_map, is_product, remade
from schedules.graph.graph import Array, Graph
from schedules.graph.quantised import STORED, SUMS
from schedules.te.compute_dag import Stage, Tensor
from schedules.te.unique import Taken

# Numbers of at most so many bits stay: 1/2 of a GELU, 255 of a range. What is measured has more.
WRITTEN_BITS = 8


def name_literals(graph: Graph) -> Graph:
    """The graph whose maps of quantised numbers load their scales and zero points, each from a constant of
    one element. Numbers that a formula has, the ends of dtypes, and what pads stay as they are. A graph
    without products of 8-bit integers stays as it is."""
    stages = graph.dag.stages
    if not any(map(_of_bytes, stages)):
        return graph
    taken = Taken(graph.dag.tensors)
    values: dict[str, Array] = {}
    named = [_named(s, taken, values) for s in stages]
    made = (Tensor(n, (), v.dtype.name) for n, v in values.items())
    return remade(graph, named, (*graph.dag.inputs, *made), {**graph.values, **values}) if values else graph


def _of_bytes(s: Stage) -> bool:
    return is_product(s) and all(x.dtype in STORED for x in factors(s.values[0]))


def _named(s: Stage, taken: Taken, values: dict[str, Array]) -> Stage:
    """A stage that loads its scales and zero points, which become ``values``."""
    dtypes = {t.dtype for t in s.outputs} | {x.dtype for x in s.reads()}
    if not is_map(s) or not dtypes & {*STORED, SUMS}:
        return s
    known: dict[Expr, Expr] = {}

    def visit(e: Expr) -> Expr | None:
        if isinstance(e, Load):
            return e  # an index is of no quantised number
        if not isinstance(e, Binary) or (place := _parameter(e)) is None:
            return None
        if e not in known:
            both = [e.a, e.b]
            c = both[place]
            assert isinstance(c, Const)
            name = taken.add(f"{s.name}_{'scale' if e.op in '*/' else 'zero'}")
            values[name] = np.array(c.value, DTYPES[c.dtype].numpy)
            both[place], both[1 - place] = Load(name, (), c.dtype), E.rewrite(both[1 - place], visit)
            known[e] = Binary(e.op, *both)
        return known[e]

    return replace(s, values=tuple(E.rewrite(v, visit) for v in s.values))


def _parameter(e: Binary) -> int | None:
    """Which operand is a scale, or a zero point of what is rounded or a byte; None for neither."""
    match e:
        case Binary(op="*" | "/", b=Const(dtype="float32") as c) if not _is_written(c):
            return 1
        case Binary(op="*", a=Const(dtype="float32") as c) if not _is_written(c):
            return 0
        case Binary(op="+", a=Call(fn="round"), b=Const(value=z)) if z:
            return 1
        case Binary(op="+", a=Const(value=z), b=Call(fn="round")) if z:
            return 0
        case Binary(op="-" | "+", a=Cast(dtype="int32", a=a), b=Const()) if E.dtype_of(a) in STORED:
            return 1
    return None


def _is_written(c: Const) -> bool:
    """Whether a formula may have the number: it has few bits."""
    return (math.frexp(c.value)[0] * 2.0**WRITTEN_BITS).is_integer()
