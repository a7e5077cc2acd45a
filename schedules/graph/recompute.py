"""A cheap map that several stages read is computed by each of them, and is not stored.

Reading an element again may take longer than computing it from what the reader has in its caches anyway
(rematerialisation, as of Briggs, Cooper and Torczon, PLDI 1992, for registers)."""

from __future__ import annotations

from collections.abc import Iterator

from schedules import expr as E
from schedules.expr import Expr, Load
from schedules.graph.edit import alike, is_map, is_plain, is_product, mapped, points, readers, remade
from schedules.graph.graph import Graph, Group
from schedules.graph.partition import partition
from schedules.graph.rewrite import RewritePlace, Take, at_each, may_lose
from schedules.te.compute_dag import Stage
from schedules.te.extent import is_same

# Most nodes of an expression that is computed again, and most readers.
MOST_NODES, MOST_READERS = 24, 4


@may_lose(usual=False, lazy=True)
def recompute(graph: Graph, take: Take) -> Graph:
    """The graph with cheap maps of several readers in each of these."""
    return at_each(graph, take, _places, _applied)


def _places(graph: Graph) -> Iterator[RewritePlace]:
    read, kept = readers(graph.dag.stages), set(graph.dag.outputs)
    stored = {n for part in partition(graph) if isinstance(part, Group) for n in part.outputs}
    for s in graph.dag.stages:
        if s.name not in stored:
            continue  # one kernel makes it and reads it
        users = read.get(s.name, [])
        small = is_map(s) and len(s.values) == 1 and E.size(s.values[0])[0] <= MOST_NODES
        if small and s.name not in kept and 1 < len(users) <= MOST_READERS and _walks(s):
            if all(_fits(s, r) for r in users):
                yield RewritePlace(s.name, alike(s, *users))


def _walks(s: Stage) -> bool:
    """Whether a map is made of tensors, one to one: numbers and tables are copied by each reader anyway."""
    wide = [x for x in s.reads() if is_plain(x.indices) and len(x.indices) == len(s.axes)]
    return bool(wide)


def _fits(s: Stage, reader: Stage) -> bool:
    """Whether a reader takes a map in: it reads each element about as often as it has elements."""
    if is_product(reader) or not reader.plain:
        return False
    loads = {x for x in reader.reads() if x.buffer == s.name}
    return len(loads) == 1 and (reader.reducer is not None or is_same(points(reader), points(s)))


def _applied(graph: Graph, place: RewritePlace) -> Graph:
    s = next(x for x in graph.dag.stages if x.name == place.name)

    def inside(x: Load) -> Expr | None:
        if x.buffer != s.name:
            return None
        return E.substitute(s.values[0], {a.var: i for a, i in zip(s.axes, x.indices, strict=True)})

    return remade(graph, [mapped(r, inside) for r in graph.dag.stages if r.name != s.name])
