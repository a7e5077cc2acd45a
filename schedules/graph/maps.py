"""Elementwise operations in a row become one.

A map that only another map reads, or a reduction of rows, is computed there: what a model's file spells as
five nodes, such as GELU, is one expression. Products keep their factors, because schedules look for them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Const, Expr, Load
from schedules.graph.edit import is_map, is_plain, is_product, mapped, points, readers, remade, steps
from schedules.graph.graph import Graph
from schedules.te.compute_dag import Stage
from schedules.te.extent import is_same

# Nodes of an expression, above which it is left in parts.
MAX_NODES = 512


def inline_maps(graph: Graph) -> Graph:
    """The graph whose maps are joined with the one map, or reduction of rows, that reads them one to one. A
    map after a product stays for the product's kernel where a reduction reads it."""
    outputs = set(graph.dag.outputs)
    read = readers(graph.dag.stages)
    products = {s.name for s in graph.dag.stages if is_product(s)}
    inlined: dict[str, Stage] = {}
    stages: list[Stage] = []

    def inside(x: Load) -> Expr | None:
        s = inlined.get(x.buffer)
        if s is None:
            return None
        return E.substitute(s.values[0], {a.var: i for a, i in zip(s.axes, x.indices, strict=True)})

    for s in graph.dag.stages:
        s = mapped(s, inside)
        stages.append(s)
        users = read.get(s.name, ())
        if not is_map(s) or len(s.values) > 1 or s.name in outputs or len(users) != 1:
            continue
        reader = users[0]
        if not is_product(reader) and not _large(s, reader) and not _ends_kernel(s, reader, products, read):
            if _one_to_one(s, reader) or _is_gathered(s, reader, graph):
                inlined[s.name] = s
    return remade(graph, stages) if inlined else graph


def _ends_kernel(
    s: Stage, reader: Stage, products: Container[str], read: Mapping[str, Sequence[Stage]]
) -> bool:
    """Whether a map may be the end of a kernel: after a product, where a reduction reads it, or it makes
    bytes; and where it makes bytes of which wider numbers are made that are read several times. What comes
    after reads the bytes."""
    after = any(x.buffer in products for x in s.reads())
    if DTYPES[s.outputs[0].dtype].itemsize > 1 or s.outputs[0].dtype == "bool":
        return after and not is_map(reader)
    wider = DTYPES[reader.outputs[0].dtype].itemsize > 1
    return after or (wider and len(read.get(reader.name, ())) > 1)


def _is_gathered(s: Stage, reader: Stage, graph: Graph) -> bool:
    """Whether a map of constants alone, which was too large to be one, is read at fewer places than it has:
    rows of a table."""
    loads = {x for x in reader.reads() if x.buffer == s.name}
    known = all(x.buffer in graph.values for x in s.reads())
    return known and is_map(reader) and len(loads) == 1 and steps(reader) < points(s)


def _one_to_one(s: Stage, reader: Stage) -> bool:
    """Whether a reader reads each element once."""
    loads = {x for x in reader.reads() if x.buffer == s.name}
    indices = [i for i in next(iter(loads)).indices if not isinstance(i, Const)]
    return len(loads) == 1 and is_same(steps(reader), points(s)) and is_plain(indices)


def _large(s: Stage, reader: Stage) -> bool:
    """Whether the reader's expression would grow too large."""
    times = sum(x.buffer == s.name for x in reader.reads())
    size = E.size(s.values[0])[0] * times + sum(E.size(v)[0] for v in reader.values)
    return size > MAX_NODES
