"""Small parts of a graph are replaced by equal ones that have fewer operations (`substitute`).

What is equal is not written here: `schedules.substitutions` enumerates small graphs, proves which of them are
equal, and finds the places. Only places are kept at which operations are saved, where what is made of weights
alone counts as nothing: it is computed ahead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import wraps
from math import prod

from schedules.dtypes import is_float, is_storage
from schedules.graph.common import eliminate_common
from schedules.graph.fold import fold_constants
from schedules.graph.graph import Graph
from schedules.graph.rewrite import MOST_TEXT, Choices, Rewrite, RewritePlace, Take, at_each, may_lose
from schedules.graph.substitution_places import Substitute, SubstitutionPlace
from schedules.graph.turned import turned, turned_back
from schedules.substitutions.rules import Substitution

# Places that are looked at closely.
MOST = 512
# Between the text of a substitution and the stages of a place, in the name of the place.
AT = " at "


@may_lose(usual=False, exact=False, lazy=True)
def substitute(graph: Graph, take: Take) -> Graph:
    """The graph with small parts replaced by equal ones of fewer operations, by generated substitutions."""
    return graph  # it knows none: `substituting` tells them


def substituting(rules: Sequence[Substitution], choices: Choices) -> Rewrite:
    """`substitute` with substitutions: those that ``choices`` name; all, where they look for places."""
    told = {place.partition(AT)[0] for name, place in choices.other if name == substitute.name}
    proved = (s for s in rules if s.proof != "tests")
    every = Substitute(tuple(s for s in proved if choices.looks or told & set(_texts(s))))

    @wraps(substitute.run)
    def run(graph: Graph, take: Take) -> Graph:
        def places(now: Graph) -> Iterator[RewritePlace]:
            return (place for place, _ in _places(turned(now), every))

        def apply(now: Graph, place: RewritePlace) -> Graph:
            plain = turned(now)
            at = next(at for other, at in _places(plain, every) if other.name == place.name)
            made = fold_constants(eliminate_common(every.apply(plain, at)))
            return turned_back(made, plain, now)

        return at_each(graph, take, places, apply)

    return replace(substitute, run=run)


def _texts(s: Substitution) -> tuple[str, str]:
    return f"{s.source} = {s.target}", f"{s.target} = {s.source}"


def _places(graph: Graph, rules: Substitute) -> Iterator[tuple[RewritePlace, SubstitutionPlace]]:
    """Where a substitution saves operations, each place with its name."""
    known, now = _known(graph), _work(graph)
    tried = 0
    for at in rules.places(graph, known):
        if not _may_change(graph, at):
            continue
        tried += 1
        if tried > MOST:
            return
        if _work(rules.apply(graph, at)) < now:  # what others read stays
            text = _texts(rules.rules[at.number][0])[at.backwards]
            name = f"{text}{AT}{' and '.join(at.stages)}"
            if len(name) <= MOST_TEXT:
                like = tuple((leaf, graph.dag.tensors[t].shape, t in known) for leaf, t in at.leaves)
                yield RewritePlace(name, (text, like)), at


def _may_change(graph: Graph, at: SubstitutionPlace) -> bool:
    """Whether all tensors of a place have one dtype in which sums are computed, and lie nowhere else."""
    tensors = [graph.dag.tensors[n] for n in (*at.stages, *(t for _, t in at.leaves))]
    dtypes = {t.dtype for t in tensors}
    one = len(dtypes) == 1 and all(is_float(d) and not is_storage(d) for d in dtypes)
    return one and (graph.views.keys() | graph.joins.keys()).isdisjoint(at.stages)


def _known(graph: Graph) -> frozenset[str]:
    """Constants, and what is made of them alone."""
    known = set(graph.values)
    for s in graph.dag.stages:
        if all(x.buffer in known for x in s.reads()):
            known |= {t.name for t in s.outputs}
    return frozenset(known)


def _work(graph: Graph) -> tuple[int, int]:
    """(Steps of sums, how many stages are sums) of a call."""
    known = _known(graph)
    sums = [s for s in graph.dag.stages if s.reducer is not None and s.name not in known]
    return sum(prod(int(a.extent) for a in (*s.axes, *s.reduce_axes)) for s in sums), len(sums)
