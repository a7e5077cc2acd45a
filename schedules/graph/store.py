"""A map in front of a product, a convolution or a pool is stored, where it would be computed too often.

Such a map joins the kernel of what reads it. That saves a store and a load of each element. But a convolution
of 3 × 3 with 64 channels reads each element 576 times, and one of a tile of 48 channels computes it 12 times,
one by one, where a kernel of its own computes it once, in vectors. Which is better is a choice, as *inline*
and *root* are in Halide (Ragan-Kelley et al., PLDI 2013).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from schedules import expr as E
from schedules.expr import Load
from schedules.functions import is_costly
from schedules.graph.edit import alike, factors, is_map, is_product, points, steps
from schedules.graph.graph import Graph
from schedules.graph.kinds import is_row_reduction
from schedules.graph.partition import EarlyMap, early_maps
from schedules.graph.rewrite import RewritePlace, Take, may_lose
from schedules.loads import outside
from schedules.te.compute_dag import Stage

# Least operations and further loads of a map that is stored: one runs beside the products at no cost.
# Least times that an element is read, and that the other factor's are, which is bound by memory otherwise.
WORK, READ, ROWS = 2, 16, 8


@may_lose()
def store_maps(graph: Graph, take: Take) -> Graph:
    """The graph with maps that have a kernel of their own, though their readers could compute them."""
    stored = {place.name for place in _places(graph) if take(place)}
    return replace(graph, recut=graph.recut | stored) if stored else graph


def _places(graph: Graph) -> Iterator[RewritePlace]:
    for x in early_maps(graph):
        known = all(y.buffer in graph.values for y in x.stage.reads())  # of weights: codes of few bits
        if not known and any(_reads_again(x, r) for r in x.readers):
            yield RewritePlace(x.stage.name, alike(x.stage, *x.padding, *x.readers), _pays(x, graph))


def _reads_again(x: EarlyMap, reader: Stage) -> bool:
    """Whether a reader computes elements of a map several times: not one that walks rows, which are in the
    first cache, and not one that only repeats them along an axis."""
    if _times(x.stage, reader) < 2 or is_row_reduction(reader):
        return False
    own = {y for y in reader.reads() if y.buffer == x.stage.name}
    return not is_map(reader) or len(own) > 1


def _pays(x: EarlyMap, graph: Graph) -> bool:
    """Whether a map is stored where nothing was measured: many results of a product need one element of it,
    and many one of the other factor."""
    if _work(x.stage) + len(x.padding) < WORK or is_costly(x.stage.values):
        return False  # the kernel of a product stores what is costly anyway
    own = {x.stage.name, *(p.name for p in x.padding)}

    def is_shared(reader: Stage) -> bool:
        other = [y for y in factors(reader.values[0]) if y.buffer not in own] if is_product(reader) else []
        sizes = [prod(map(int, graph.dag.tensors[y.buffer].shape)) for y in other]
        rows = all(steps(reader) >= ROWS * n for n in sizes)
        return bool(sizes) and rows and _times(x.stage, reader) >= READ

    return any(map(is_shared, x.readers))


def _times(s: Stage, reader: Stage) -> int:
    """How often a stage reads an element of a map."""
    return int(steps(reader)) // max(1, int(points(s)))


def _work(s: Stage) -> int:
    """Operations of an element, and loads but one."""
    every = [x for v in s.values for x in outside(v)]
    loads = {x for x in every if isinstance(x, Load)}
    return sum(isinstance(x, E.Binary | E.Call | E.Select | E.Cast) for x in every) + max(0, len(loads) - 1)
