"""Which loops over the rows of a state may end with the last valid one.

After a call wrote its rows, a state has ``end`` valid rows; those behind are stale. A loop over all rows may
end there if its stages, and all that read what they make, lose nothing: what they make of stale rows is read
by none but loops that end there too, and a reduction over it adds its neutral element: -inf to a maximum, 0
to a sum. That is proved by expressions (`schedules.graph.stale`), so that masks of any kind count, and a mask
that hides too little does not. What is not proved reads all rows.

The result differs from that of all rows only where stale rows, or what is computed of them, are not finite:
it is always what stale rows of zeros give. """

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from schedules import expr as E
from schedules.expr import Expr, Load, Var
from schedules.graph.edit import loads_of
from schedules.graph.facts import Facts
from schedules.graph.graph import Graph, ShortLoops
from schedules.graph.short_group import Place
from schedules.graph.stale import Stale, Unnumbered, unbounded
from schedules.strides import strides_of
from schedules.te.compute_dag import Stage


@dataclass(frozen=True)
class ValidRows:
    """Of dimension ``dim`` of a tensor, the elements from ``start + count`` on are stale: any finite numbers.
    ``start``: an integer expression of elements that a call has, each at most `FAR`. A call checks that
    ``start`` is at least 0, and that all rows lie inside."""

    tensor: str
    dim: int
    start: Expr
    count: int

    @property
    def end(self) -> Expr:
        """The number of valid rows."""
        return E.binary("+", self.start, self.count)


class Unproved(Exception):
    """Why a loop reads all rows."""


def valid_rows(graph: Graph, rows: Sequence[ValidRows]) -> tuple[tuple[ShortLoops, ...], dict[str, str]]:
    """(The loops that may end with the last valid row, {tensor of ``rows`` that is read as a whole: why}).

    Example: in ``scores[t] = select(t <= pos[0], dot(q, K[t]), -inf)`` and a softmax over ``t`` of which
    ``V[t]`` is the weighted sum, with ``ValidRows("K", 0, pos, 1)`` and ``ValidRows("V", 0, pos, 1)``, all
    loops over ``t`` end at ``pos + 1``."""
    looked = _Look(graph, rows)
    found: dict[tuple[Expr, int, int], set[Place]] = {}
    reasons: dict[str, str] = {}
    for r in rows:
        length = graph.dag.tensors[r.tensor].shape[r.dim]
        key = r.end, r.count, length
        try:
            axes = looked.axes(r)
            if any(axes & other for k, other in found.items() if k != key):
                raise Unproved("what reads it ends with the rows of another state")
            looked.prove(r, axes)
        except Unproved as err:
            reasons.setdefault(r.tensor, str(err))
            continue
        if axes and r.count < length:
            found.setdefault(key, set()).update(axes)
    cuts = []
    for n, ((end, count, length), axes) in enumerate(found.items()):
        others = {p for k, places in found.items() if k != (end, count, length) for p in places}
        every = looked.with_makers(axes) - others
        cuts.append(ShortLoops(f"rows{n}", end, count, length, frozenset(every)))
        found[end, count, length] = every
    return tuple(cuts), reasons


def end_with_valid_rows(graph: Graph) -> Graph:
    """The graph whose loops over rows of its states end with the last valid one, where that is proved."""
    if not graph.states:
        return graph
    return replace(graph, short=valid_rows(graph, rows_of_states(graph))[0])


def read_whole(graph: Graph) -> dict[str, str]:
    """{state of a graph after all rewrites, by its name for users: why each call reads all of its rows}.
    Those that are replaced whole are left out."""
    reasons = valid_rows(graph, rows_of_states(graph))[1]
    lies = {graph.views[new].tensor: why for new, why in reasons.items()}
    return {name: lies[s.tensor] for name, s in graph.states.items() if s.tensor in lies}


def rows_of_states(graph: Graph) -> tuple[ValidRows, ...]:
    """What calls write to states that lie in place, along each dimension in which the call tells where."""
    found: dict[ValidRows, None] = {}
    for new, (_, *parts) in graph.joins.items():
        if new not in graph.views or graph.views[new].tensor not in {s.tensor for s in graph.states.values()}:
            continue
        t = graph.dag.tensors[new]
        for move in (m for part in parts for m in graph.views[part].moves):
            for d, (extent, step) in enumerate(zip(t.shape, strides_of(t), strict=True)):
                if (extent, step) == (move.extent, move.stride):
                    found[ValidRows(new, d, move.index, move.rows)] = None
    return tuple(found)


class _Look:
    def __init__(self, graph: Graph, rows: Sequence[ValidRows]) -> None:
        self.graph, self.rows = graph, rows
        self.stages = {s.name: s for s in graph.dag.stages}
        self.made = {t.name: s for s in graph.dag.stages for t in s.outputs}
        self.loads = loads_of(graph.dag.stages)
        self.kept = {*graph.dag.outputs, *(r.tensor for r in rows)}
        self.infinite = unbounded(graph.dag.stages, graph.values)

    def axes(self, r: ValidRows) -> set[Place]:
        """The axes that walk dimension ``r.dim`` of ``r.tensor``, or of what is made of it one by one. Raises
        `Unproved`."""
        length = self.graph.dag.tensors[r.tensor].shape[r.dim]
        found: set[Place] = set()
        todo = [(r.tensor, r.dim)]
        while todo:
            name, d = todo.pop()
            for s, x in self.loads.get(name, ()):
                place = self._walking(s, x, d, length)
                if place in found:
                    continue
                found.add(place)
                for t, dim in self._written(place):
                    if t in self.kept:
                        raise Unproved(f"{t}, which the model keeps or returns, has an element for each row")
                    todo.append((t, dim))
        return found

    def _walking(self, s: Stage, x: Load, d: int, length: int) -> Place:
        ix = x.indices[d]
        extents = {a.var: a.extent for a in (*s.axes, *s.reduce_axes)}
        if not isinstance(ix, Var) or extents[ix.name] != length:
            raise Unproved(f"stage {s.name} reads {E.show(x)}, which is not row by row")
        return s.name, ix.name

    def _written(self, place: Place) -> Iterable[tuple[str, int]]:
        """The dimensions of outputs that an axis walks."""
        s = self.stages[place[0]]
        for d, a in enumerate(s.axes):
            if a.var == place[1]:
                yield from ((t.name, d) for t in s.outputs)

    # -- the proof ---------------------------------------------------------------------------

    def prove(self, r: ValidRows, axes: set[Place]) -> None:
        """Raise `Unproved` unless every reduction over one of ``axes`` is the same without stale rows."""
        for name, var in sorted(axes):
            s = self.stages[name]
            if any(a.var == var for a in s.reduce_axes):
                self._prove_neutral(r, s, var)

    def _prove_neutral(self, r: ValidRows, s: Stage, var: str) -> None:
        facts = Facts(self.graph, frozenset(E.loads(r.start)))
        facts.ranges |= {a.var: (0, a.extent - 1) for a in (*s.axes, *s.reduce_axes)}
        start = facts.number(r.start)
        if start is None:
            raise Unproved(f"the first row {E.show(r.start)} is no arithmetic of integers that a call checks")
        length = self.graph.dag.tensors[r.tensor].shape[r.dim]
        inside = E.compare("<=", 0, start), E.compare("<=", start + r.count, length)
        facts.bounded(inside, length - r.count)
        conds = (*inside, E.compare("<=", start + r.count, Var(var)))
        alike = frozenset(x.tensor for x in self.rows if (x.start, x.count) == (r.start, r.count))
        stale = Stale(facts, var, self.made, alike, self.infinite, length)
        assert s.reducer is not None
        for k, (v, start_of) in enumerate(zip(s.values, s.reducer.identity, strict=True)):
            worth = stale.worth(v, conds)
            if worth is None or isinstance(worth, Unnumbered) or worth != start_of.value:
                what = "nothing is known" if worth is None else f"the value is {worth}"
                op = s.reducer.operation(k) or s.reducer.name
                raise Unproved(
                    f"stage {s.name} reduces over all rows: of what it makes of a stale one {what}, where "
                    f"only {start_of.value!r} changes nothing in {op!r}"
                )

    # -- what only such loops read -----------------------------------------------------------

    def with_makers(self, axes: set[Place]) -> set[Place]:
        """``axes`` and those of stages of which no other element is read, such as of a mask."""
        found = set(axes)
        for s in reversed(self.graph.dag.stages):
            for d, a in enumerate(s.axes):
                read = [(u.name, x.indices[d]) for t in s.outputs for u, x in self.loads.get(t.name, ())]
                short = all(isinstance(ix, Var) and (u, ix.name) in found for u, ix in read)
                if read and short and not any(t.name in self.kept for t in s.outputs):
                    found.add((s.name, a.var))
        return found
