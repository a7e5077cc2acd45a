"""Substitutions as a rewrite of graphs: the places where they apply, and the graph after one of them."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from schedules import te
from schedules.errors import WorkloadError
from schedules.graph.edit import in_topological_order, remade
from schedules.graph.graph import Array, Graph
from schedules.graph.operator_stages import Reading, fitted, named, readings
from schedules.substitutions.operators import OPERATORS, TensorKind, kind_of, part_of
from schedules.substitutions.rules import Substitution
from schedules.substitutions.sizes import Numbers
from schedules.substitutions.steps import steps_of
from schedules.substitutions.terms import GraphTerm, leaves, nodes
from schedules.te.compute_dag import Stage, Tensor
from schedules.te.unique import Taken

# {leaf: (the tensor that it is, its kind)}
Bound = Mapping[str, tuple[str, TensorKind]]


@dataclass(frozen=True)
class SubstitutionPlace:
    """Where a substitution applies. ``number``: which of `Substitute.rules`; ``backwards``: its target is
    replaced by its source. ``stages``: the stage at the root; where the term joins two tensors that no stage
    joins, the two that make these. ``leaves``: (leaf, tensor)."""

    number: int
    backwards: bool
    stages: tuple[str, ...]
    leaves: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Substitute:
    """Verified substitutions. ``exact``: whether all of them leave the operations of each element.

    >>> at = Substitute(substitutions).places(graph)  # doctest: +SKIP
    >>> graph = Substitute(substitutions).apply(graph, at[0])  # doctest: +SKIP
    """

    substitutions: tuple[Substitution, ...]

    @property
    def exact(self) -> bool:
        """Whether results are rounded as they were, but for the order of each sum."""
        return all(s.exact for s in self.substitutions)

    @cached_property
    def rules(self) -> tuple[tuple[Substitution, ...], ...]:
        """The substitutions of the same two terms, which differ in the kinds of their leaves, together."""
        found: dict[tuple[GraphTerm, GraphTerm], list[Substitution]] = {}
        for s in self.substitutions:
            found.setdefault((s.source, s.target), []).append(s)
        return tuple(map(tuple, found.values()))

    @cached_property
    def _ways(self) -> tuple[tuple[int, bool, GraphTerm, GraphTerm], ...]:
        """(number, backwards, what is replaced, by what), for terms with an operator."""
        both = []
        for n, (s, *_) in enumerate(self.rules):
            both.append((n, False, s.source, s.target))
            if s.both_ways:
                both.append((n, True, s.target, s.source))
        return tuple(both)

    def places(
        self,
        graph: Graph,
        known: Container[str] | None = None,
        roots: Container[str] | None = None,
        ahead: bool = False,
    ) -> tuple[SubstitutionPlace, ...]:
        """The places of a graph where one of them applies, in the order of the substitutions. ``known``: of
        these, those of one root that have fewer steps of sums afterwards, or as many in fewer sums, if nobody
        else reads what is replaced. What is made of ``known`` tensors alone costs nothing. ``roots``: only at
        these stages. ``ahead``: instead, those that save nothing, but compute more of known tensors alone."""
        read = _Reader(graph)
        saves = _knows_more if ahead else _saves
        found = (
            SubstitutionPlace(n, backwards, stages, tuple(sorted((x, t) for x, (t, _) in bound.items())))
            for n, backwards, pattern, made in self._ways
            for stages, bound in read.every(pattern, self.rules[n], roots=roots, pairs=known is None)
            if not _is_same(graph, stages, made, bound)
            and (known is None or saves(pattern, made, bound, known))
        )
        return tuple(dict.fromkeys(found))

    def apply(self, graph: Graph, place: SubstitutionPlace) -> Graph:
        """The graph with one place replaced. Raises `WorkloadError` where the graph has no such place."""
        for n, backwards, pattern, made in self._ways:
            if (n, backwards) != (place.number, place.backwards):
                continue
            for stages, bound in _Reader(graph).every(pattern, self.rules[n], only=place.stages):
                if tuple(sorted((x, t) for x, (t, _) in bound.items())) == place.leaves:
                    return _replaced(graph, stages, pattern, made, bound)
        raise WorkloadError(
            f"substitution {place.number} does not apply at {', '.join(place.stages)}: "
            "the graph is another one; ask `places` of this graph"
        )


class _Reader:
    """What is known of a graph while places are looked for."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.stages: dict[str, Stage] = {s.name: s for s in graph.dag.stages}
        self._read: dict[str, tuple[Reading, ...]] = {}
        self._above: dict[str, frozenset[str]] = {}

    def readings(self, name: str) -> tuple[Reading, ...]:
        if name not in self._read:
            stage = self.stages.get(name)
            self._read[name] = () if stage is None else readings(stage, self.graph.dag.tensors)
        return self._read[name]

    @cached_property
    def _by_operator(self) -> Mapping[str, Sequence[str]]:
        """The stages that are each operator, in their order."""
        found: dict[str, dict[str, None]] = {}
        for name in self.stages:
            for r in self.readings(name):
                found.setdefault(r.operator, {})[name] = None
        return {operator: tuple(names) for operator, names in found.items()}

    def every(
        self,
        pattern: GraphTerm,
        forms: Sequence[Substitution],
        only: Sequence[str] | None = None,
        roots: Container[str] | None = None,
        pairs: bool = True,
    ) -> Iterator[tuple[tuple[str, ...], Bound]]:
        """(stages, leaves) of every place of a pattern. ``only``: of these stages together. ``roots``: of one
        of these stages. ``pairs``: also of two stages that nobody joins."""
        for name in self.stages if only or roots is not None else self._by_operator.get(pattern.head, ()):
            if (only is None or only == (name,)) and (roots is None or name in roots):
                for bound in self._matches(pattern, name, None, {}):
                    if any(_fits(s, bound) for s in forms):
                        yield (name,), bound
        if pairs and pattern.head in ("join0", "join1") and all(a.args for a in pattern.args):
            yield from self._joined(pattern, forms, only)

    def _joined(
        self, pattern: GraphTerm, forms: Sequence[Substitution], only: Sequence[str] | None
    ) -> Iterator[tuple[tuple[str, ...], Bound]]:
        """Two stages that nobody joins, in their order: of one leaf at least, and neither made of the
        other."""
        shared = sorted(set(leaves(pattern.args[0])) & set(leaves(pattern.args[1])))
        if not shared:
            return
        place = {name: n for n, name in enumerate(self.stages)}
        second: dict[Any, list[tuple[str, Bound]]] = {}
        for name in self._by_operator.get(pattern.args[1].head, ()):
            for bound in self._matches(pattern.args[1], name, None, {}):
                second.setdefault(tuple(bound[x] for x in shared), []).append((name, bound))
        for name in self._by_operator.get(pattern.args[0].head, ()):
            for bound in self._matches(pattern.args[0], name, None, {}):
                for other, more in second.get(tuple(bound[x] for x in shared), ()):
                    both = {**bound, **more}
                    if place[name] >= place[other] or (only is not None and tuple(only) != (name, other)):
                        continue
                    if any({name, other} & self.above(t) for t, _ in both.values()):
                        continue
                    if any(_fits(s, both) for s in forms):
                        yield (name, other), both

    def _matches(
        self, pattern: GraphTerm, tensor: str, kind: TensorKind | None, bound: Bound
    ) -> Iterator[Bound]:
        if not pattern.args:
            if kind is not None and bound.get(pattern.head, (tensor, kind)) == (tensor, kind):
                yield {**bound, pattern.head: (tensor, kind)}
            return
        for r in self.readings(tensor):
            if r.operator == pattern.head and (kind is None or r.kind == kind):
                yield from self._operands(pattern.args, r.tensors, r.kinds, bound)

    def _operands(
        self, patterns: Sequence[GraphTerm], tensors: Sequence[str], kinds: Sequence[TensorKind], bound: Bound
    ) -> Iterator[Bound]:
        if not patterns:
            yield bound
            return
        for one in self._matches(patterns[0], tensors[0], kinds[0], bound):
            yield from self._operands(patterns[1:], tensors[1:], kinds[1:], one)

    def above(self, tensor: str) -> frozenset[str]:
        """The stages that a tensor is made of, its own among them."""
        if tensor not in self._above:
            stage = self.stages.get(tensor)
            reads = () if stage is None else tuple(dict.fromkeys(x.buffer for x in stage.reads()))
            own = frozenset() if stage is None else frozenset({tensor})
            self._above[tensor] = own.union(*map(self.above, reads))
        return self._above[tensor]


def _saves(pattern: GraphTerm, made: GraphTerm, bound: Bound, known: Container[str]) -> bool:
    """Whether a term has fewer steps of sums than a pattern, or as many in fewer sums."""
    kinds = {leaf: kind for leaf, (_, kind) in bound.items()}
    ahead = {leaf for leaf, (tensor, _) in bound.items() if tensor in known}
    return steps_of(made, kinds, ahead) < steps_of(pattern, kinds, ahead)


def _knows_more(pattern: GraphTerm, made: GraphTerm, bound: Bound, known: Container[str]) -> bool:
    """Whether a term saves nothing, but more of its operators are of known leaves alone than in a pattern."""
    ahead = {leaf for leaf, (tensor, _) in bound.items() if tensor in known}

    def count(t: GraphTerm) -> int:
        return sum(bool(x.args) and ahead.issuperset(leaves(x)) for x in set(nodes(t)))

    return bool(ahead) and count(made) > count(pattern) and not _saves(pattern, made, bound, known)


def _fits(s: Substitution, bound: Bound) -> bool:
    """Whether tensors have the kinds and the extents of the leaves."""
    sizes: dict[str, int] = {}
    asked = []
    for leaf, kind in s.leaves:
        if leaf not in bound:
            continue
        own = bound[leaf][1]
        if own.name != kind.name:
            return False
        for e, n in zip(kind.shape, own.shape):
            if len(e.parts) == 1 and e.parts[0][0] not in sizes:
                symbol, times = e.parts[0]
                size, left = divmod(int(n) - e.constant, times)
                if left or size < 1:
                    return False
                sizes[symbol] = size
            else:
                asked.append((e, int(n)))
    return all(all(x in sizes for x, _ in e.parts) and e.at(sizes) == n for e, n in asked)


def _is_same(graph: Graph, stages: Sequence[str], made: GraphTerm, bound: Bound) -> bool:
    """Whether the place would be replaced by what stands there, as where two equal operands are swapped."""
    if len(stages) > 1 or not made.args or any(a.args for a in made.args):
        return False
    own = next(s for s in graph.dag.stages if s.name == stages[0])
    operands = [bound[a.head] for a in made.args]
    tensors = [graph.dag.tensors[t] for t, _ in operands]
    return any(
        r.operator == made.head and sorted(r.tensors) == sorted(t.name for t in tensors)
        for r in readings(own, graph.dag.tensors)
    )


def _replaced(
    graph: Graph, stages: tuple[str, ...], pattern: GraphTerm, made: GraphTerm, bound: Bound
) -> Graph:
    own = graph.dag.tensors
    dtype = own[stages[0]].dtype
    taken = Taken(own)
    kinds = {leaf: kind for leaf, (_, kind) in bound.items()}
    names: dict[GraphTerm, str] = {GraphTerm(leaf): name for leaf, (name, _) in bound.items()}
    shapes = {name: kind.shape for name, kind in bound.values()}  # for which stages are made
    new: list[Stage] = []
    units: dict[str, Array] = {}

    def add(name: str, of: te.Tensor) -> None:
        stage = named(of, name)
        there = {n: own[n].shape if n in own else shape for n, shape in shapes.items()}
        new.append(
            fitted(stage, shapes, there, own[name].shape if name in stages else stage.outputs[0].shape)
        )
        shapes.setdefault(name, stage.outputs[0].shape)

    def tensor(name: str) -> te.Tensor:
        return te.placeholder(shapes[name], own[name].dtype if name in own else dtype, name)

    for t in dict.fromkeys(nodes(made)):
        if t in names:
            continue
        if t.head == "unit":  # a constant: it is known ahead
            names[t] = name = taken.add(f"{stages[0]}_unit")
            shapes[name] = kind_of(t, kinds, Numbers()).shape
            units[name] = np.eye(shapes[name][0], dtype=dtype).reshape(shapes[name])
            continue
        operands = [kind_of(a, kinds, Numbers()) for a in t.args]
        names[t] = stages[0] if t == made and len(stages) == 1 else taken.add(f"{stages[0]}_{t.head}")
        given = {names[a]: tensor(names[a]) for a in t.args}
        add(names[t], OPERATORS[t.head].stage(operands, *(given[names[a]] for a in t.args)))
    whole = tensor(names[made])
    if len(stages) == 2:
        first = kind_of(pattern.args[0], kinds, Numbers()).shape
        d = 0 if len(first) == 1 else int(pattern.head[-1])
        for name, at, count in ((stages[0], 0, first[d]), (stages[1], first[d], whole.shape[d] - first[d])):
            add(name, part_of(whole, d, at, count, "part"))
    elif not made.args:  # the root is one of the leaves
        add(stages[0], te.compute(whole.shape, lambda *at: whole[at]))
    inputs = [*graph.dag.inputs, *(Tensor(n, x.shape, dtype) for n, x in units.items())]
    every = _with(graph, stages, new)
    origin = graph.origins.get(stages[0], stages[0])
    origins = {**{s.name: origin for s in new}, **graph.origins}
    return remade(replace(graph, origins=origins), every, inputs, {**graph.values, **units})


def _with(graph: Graph, stages: tuple[str, ...], new: Sequence[Stage]) -> list[Stage]:
    """The stages of a graph, with some in place of those of the same names, and others before them."""
    last = max(n for n, s in enumerate(graph.dag.stages) if s.name in stages)
    every: list[Stage] = []
    for n, s in enumerate(graph.dag.stages):
        if s.name not in stages:
            every.append(s)
        if n == last:
            every += new
    return in_topological_order(every)
