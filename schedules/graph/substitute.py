"""Small parts of a graph are replaced by equal ones that have fewer operations (`substitute`).

What is equal is not written here: `schedules.substitutions` enumerates small graphs, proves which of them are
equal, and finds the places. Only places are kept at which operations are saved, where what is made of weights
alone counts as nothing: it is computed ahead.

A place may have two steps: one that saves nothing, but makes more of weights alone, and one behind it that
then saves. So a product beside one of two narrow factors becomes one product.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import wraps
from itertools import islice
from math import prod

from schedules.dtypes import is_float, is_storage
from schedules.graph.common import eliminate_common
from schedules.graph.edit import readers
from schedules.graph.fold import fold_constants
from schedules.graph.graph import Graph
from schedules.graph.rewrite import MOST_TEXT, Choices, Rewrite, RewritePlace, Take, at_each, may_lose
from schedules.graph.substitution_places import Substitute, SubstitutionPlace
from schedules.graph.turned import turned, turned_back
from schedules.substitutions.rules import Substitution

# Places that are looked at closely.
MOST = 512
# How far behind a first step a second one may stand (stages), and how many equal first steps are tried of
# which none has one.
BEHIND, VAIN = 2, 2
# In the name of a place: between the text of a substitution and its stages, and between two steps.
AT, THEN = " at ", " then "
# The steps of a place, each in the graph that the one before it made.
Steps = tuple[SubstitutionPlace, ...]


@may_lose(usual=False, exact=False, lazy=True)
def substitute(graph: Graph, take: Take) -> Graph:
    """The graph with small parts replaced by equal ones of fewer operations, by generated substitutions."""
    return graph  # it knows none: `substituting` tells them


def substituting(rules: Sequence[Substitution], choices: Choices) -> Rewrite:
    """`substitute` with substitutions: those that ``choices`` name; all, where they look for places."""
    names = [place for name, place in choices.other if name == substitute.name]
    told = {step.partition(AT)[0] for name in names for step in name.split(THEN)}
    proved = (s for s in rules if s.proof != "tests")
    every = Substitute(tuple(s for s in proved if choices.looks or told & set(_texts(s))))
    first = None if choices.looks else {name.partition(THEN)[0] for name in names if THEN in name}

    @wraps(substitute.run)
    def run(graph: Graph, take: Take) -> Graph:
        def places(now: Graph) -> Iterator[RewritePlace]:
            return (place for place, _ in _places(turned(now), every, first))

        def apply(now: Graph, place: RewritePlace) -> Graph:
            made = plain = turned(now)
            for step in next(at for other, at in _places(plain, every, first) if other.name == place.name):
                made = every.apply(made, step)
            return turned_back(fold_constants(eliminate_common(made)), plain, now)

        return at_each(graph, take, places, apply)

    return replace(substitute, run=run)


def _texts(s: Substitution) -> tuple[str, str]:
    return f"{s.source} = {s.target}", f"{s.target} = {s.source}"


def _places(
    graph: Graph, rules: Substitute, first: Container[str] | None
) -> Iterator[tuple[RewritePlace, Steps]]:
    """Where a substitution saves operations, each place with its name; then where two do. ``first``: names of
    the first steps of these; None: all that may be."""
    known, now = _known(graph), _work(graph)
    alone = set[str]()
    for at in islice((x for x in rules.places(graph, known) if _may_change(graph, x)), MOST):
        if _work(rules.apply(graph, at)) < now:  # what others read stays
            alone.add(_named(rules, at))
            yield from _place(graph, rules, known, at)
    if first is not None and not first:
        return
    vain = Counter[object]()  # equal layers have equal steps
    for at in rules.places(graph, known, ahead=True):
        kind = _alike(graph, rules, known, at)
        if (
            not _may_change(graph, at)
            or vain[kind] >= VAIN
            or not (first is None or _named(rules, at) in first)
        ):
            continue
        made, saves = rules.apply(graph, at), False
        for then in rules.places(made, _known(made), _behind(made, at.stages)):
            if _may_change(made, then) and _work(rules.apply(made, then)) < now:
                saves = True
                if _named(rules, then) not in alone:
                    yield from _place(graph, rules, known, at, then)
        vain[kind] += not saves and first is None


def _place(
    graph: Graph, rules: Substitute, known: Container[str], *steps: SubstitutionPlace
) -> Iterator[tuple[RewritePlace, Steps]]:
    """A place of some steps, unless its name is too long."""
    name = THEN.join(_named(rules, at) for at in steps)
    if len(name) <= MOST_TEXT:
        yield RewritePlace(name, tuple(_alike(graph, rules, known, at) for at in steps)), steps


def _alike(graph: Graph, rules: Substitute, known: Container[str], at: SubstitutionPlace) -> Hashable:
    """Equal where the same substitution meets equal tensors; those of a step before are told by that."""
    tensors = graph.dag.tensors
    like = tuple((leaf, tensors[t].shape, t in known) for leaf, t in at.leaves if t in tensors)
    return _text(rules, at), like


def _text(rules: Substitute, at: SubstitutionPlace) -> str:
    return _texts(rules.rules[at.number][0])[at.backwards]


def _named(rules: Substitute, at: SubstitutionPlace) -> str:
    return f"{_text(rules, at)}{AT}{' and '.join(at.stages)}"


def _behind(graph: Graph, stages: Iterable[str]) -> set[str]:
    """Some stages, and those that read them, as far as a second step is looked for."""
    found, read_by = set(stages), readers(graph.dag.stages)
    for _ in range(BEHIND):
        found |= {s.name for name in found for s in read_by.get(name, ())}
    return found


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
