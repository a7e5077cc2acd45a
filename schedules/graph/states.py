"""States lie in place: rows that are written to a state are computed where they belong.

A graph with states stays one pure DAG, which makes the new value of a state out of the old one. A rewrite,
`write_in_place`, sees to it that nothing copies a state. It finds what each update writes
(`schedules.graph.updates`), and has a stage of its own make these rows. The update itself becomes
``select(start <= t < start + n, rows[t - start], old[t])``. The rows lie in the state, from a place on that
each call tells (`Graph.views`), and the new value lies where the state lies. No kernel makes it: it is joined
of what was there and the rows (`Graph.joins`). All of these are outputs of the DAG, so that later rewrites
leave them as they are.

Whoever reads the new value comes after the rows are written, whoever reads the old one comes before. A state
for which that is not so is replaced whole, as every state is whose update writes no rows: its new value is
computed apart, and copied when the call ends. That is done for small ones only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter

from schedules import affine
from schedules import expr as E
from schedules.expr import Const, Expr, Load, Var
from schedules.graph.edit import is_map, readers, remade
from schedules.graph.graph import Argument, Graph, GraphState, PlaceMove
from schedules.graph.updates import RowSpan, Update, UpdateRows, held, updates
from schedules.strides import strides_of
from schedules.te.compute_dag import Axis, Stage, Tensor
from schedules.te.extent import is_same
from schedules.te.marks import as_index
from schedules.te.unique import Taken

# Bytes of a state up to which it may be replaced whole.
WHOLE = 1 << 16


def write_in_place(graph: Graph) -> Graph:
    """The graph whose states lie where their old values do, and whose rows are written there. Raises
    ValueError that names a state, and what writes it, where it is replaced whole and too large for that."""
    if not graph.states:
        return graph
    placed = _placed(graph, [*graph.states])
    if placed is not None:
        return placed
    for name in graph.states:
        one = _placed(graph, [name])
        if one is None and (t := graph.dag.tensors[graph.states[name].tensor]).nbytes > WHOLE:
            raise ValueError(_why_not(graph, name, t))
        graph = graph if one is None else one
    return graph


def _why_not(graph: Graph, name: str, t: Tensor) -> str:
    """Why a state is not kept, with the remedy."""
    state = graph.states[name]
    by = graph.origins.get(state.new) or state.new
    if not updates(graph, state):
        return (
            f"state {name!r} of {t.nbytes} bytes is replaced by {by}, not by rows from a place on that the "
            f"call gives (so may be what has up to {WHOLE} bytes): write rows, as index_copy_ and slices do; "
            "or take the state as an input, and return its new value"
        )
    return (
        f"state {name!r} is written by {by}, and what it was before is read together with what is new, or is "
        "returned: read the state before it is written, or after that, and return a part of it"
    )


def _placed(graph: Graph, names: Sequence[str]) -> Graph | None:
    """The graph with states that are written in place; None where that cannot be."""
    taken = Taken(graph.dag.tensors)
    made: dict[str, list[Stage]] = {}
    views, joins, origins = dict(graph.views), dict(graph.joins), dict(graph.origins)
    lying: set[str] = set()
    for state in (graph.states[n] for n in names):
        behind = {state.tensor}  # what lies in the state already
        for u in updates(graph, state):
            stages, parts = _apart(u, behind, taken)
            for s, r in zip(parts, u.rows, strict=True):
                views[s], steps = _place(graph, state, u.stage, r.spans)
                stages = [_strided(x, steps) if x.name == s else x for x in stages]
            views[u.new], joins[u.new] = Argument(state.tensor), (u.old, *parts)
            behind |= {u.new, *parts}
            made[u.new] = stages
            origins |= {s.name: origins[u.new] for s in stages if u.new in origins}
        lying |= behind
        if state.new not in made and graph.dag.tensors[state.tensor].nbytes > WHOLE:
            return None
    elsewhere = {*graph.outputs, *(n for island in graph.islands for n in island.reads)}
    if not made or lying & elsewhere:
        return None
    stages_ = tuple(x for s in graph.dag.stages for x in made.get(s.name, (s,)))
    kept = dict.fromkeys((*graph.dag.outputs, *(s.name for x in made.values() for s in x)))
    dag = replace(graph.dag, stages=stages_, outputs=tuple(kept))
    placed = replace(graph, dag=dag, origins=origins, views=views, joins=joins)
    if not is_ordered(placed):
        return None
    outputs = dict.fromkeys((*kept, *_early(placed)))
    return remade(replace(placed, dag=replace(dag, outputs=tuple(outputs))), stages_)


def _early(graph: Graph) -> Iterator[str]:
    """Maps of what is written over which somebody reads who also needs what is written. They stay by
    themselves, so that no later rewrite computes them there. Who reads such a map counts as one who must run
    before what is written: with the map computed there, that is so."""
    read, needs = readers(graph.dag.stages), _needs(graph)
    maps: dict[str, set[str]] = {}
    for rows, olds in overwritten(graph).items():
        late, old = _after(rows, needs), set(olds)
        for s in graph.dag.stages:
            if is_map(s) and s.name not in late and any(x.buffer in old for x in s.reads()):
                old |= {t.name for t in s.outputs}
        maps[rows] = old - olds
    for rows, names in maps.items():
        needs[rows] |= {r.name for n in names for r in read.get(n, ())} - graph.joins.keys()
    for rows, names in maps.items():
        late = _after(rows, needs)
        yield from sorted(n for n in names if any(r.name in late for r in read.get(n, ())))


def _after(rows: str, needs: Mapping[str, Collection[str]]) -> set[str]:
    """``rows``, and the stages that need it, also by way of others."""
    after: dict[str, list[str]] = {}
    for name, before in needs.items():
        for b in before:
            after.setdefault(b, []).append(name)
    found, todo = {rows}, [rows]
    while todo:
        new = {*after.get(todo.pop(), ())} - found
        found |= new
        todo += new
    return found


def _apart(u: Update, behind: set[str], taken: Taken) -> tuple[list[Stage], list[str]]:
    """(The stages of an update: of its rows, and that which joins them with what was there; the rows that lie
    there). ``behind``: what lies there before."""
    rows: list[Stage] = []
    parts: list[str] = []
    value: Expr = Load(u.old, tuple(Var(a.var) for a in u.stage.axes), u.stage.outputs[0].dtype)
    for r in u.rows:
        own = _of_rows(u.stage, r, taken)
        if any(x.buffer in behind for x in own.reads()):  # it would read what it writes over
            rows.append(own)
            own = _copy(own, taken)
        rows.append(own)
        parts.append(own.name)
        value = E.select(_there(u.stage, r.spans), _taken_from(own, u.stage, r.spans), value)
    return [*rows, replace(u.stage, values=(value,))], parts


def _strided(s: Stage, strides: tuple[int, ...]) -> Stage:
    return replace(s, outputs=(replace(s.outputs[0], strides=strides),))


def _long(s: Stage, spans: Sequence[RowSpan]) -> list[tuple[Axis, RowSpan]]:
    """The axes along which more than one index is written."""
    return [(a, span) for a, span in zip(s.axes, spans, strict=True) if span.extent > 1]


def _of_rows(s: Stage, r: UpdateRows, taken: Taken) -> Stage:
    axes = tuple(replace(a, extent=span.extent) for a, span in _long(s, r.spans))
    one: dict[str, Expr] = {
        a.var: Const(0) for a, span in zip(s.axes, r.spans, strict=True) if span.extent == 1
    }
    inside = {a.var: (0, int(a.extent) - 1) for a in axes}
    value = affine.simplify(E.substitute(r.value, one), inside)
    out = Tensor(taken.add(f"{s.name}_rows"), tuple(a.extent for a in axes), s.outputs[0].dtype)
    return Stage((out,), axes, (), (value,), None)


def _copy(s: Stage, taken: Taken) -> Stage:
    out = replace(s.outputs[0], name=taken.add(s.name))
    return Stage((out,), s.axes, (), (Load(s.name, tuple(Var(a.var) for a in s.axes), out.dtype),), None)


def _there(s: Stage, spans: Sequence[RowSpan]) -> Expr:
    """Whether an element is one of the rows."""
    found = []
    for a, span in zip(s.axes, spans, strict=True):
        if not is_same(span.extent, a.extent) or not isinstance(span.start, Const):
            first = held(span, a.extent)
            found += [E.compare("<=", first, Var(a.var)), E.compare("<", Var(a.var), first + as_index(span.extent))]
    return E.all_of(*found)


def _taken_from(rows: Stage, s: Stage, spans: Sequence[RowSpan]) -> Expr:
    """The element of the rows that belongs to one of the state."""
    at = []
    for a, span in _long(s, spans):
        index = affine.simplify(Var(a.var) - held(span, a.extent), {})
        last = as_index(span.extent) - 1
        at.append(E.minimum(E.maximum(index, 0), last) if E.loads(index) else index)
    return Load(rows.name, tuple(at), rows.outputs[0].dtype)


def _place(
    graph: Graph, state: GraphState, s: Stage, spans: Sequence[RowSpan]
) -> tuple[Argument, tuple[int, ...]]:
    """(where rows lie in a state, their strides)."""
    steps = strides_of(graph.dag.tensors[state.tensor])
    start = 0
    moves: list[PlaceMove] = []
    for a, span, step in zip(s.axes, spans, steps, strict=True):
        if isinstance(span.start, Const):
            start += int(span.start.value) * step
        else:
            moves.append(PlaceMove(span.start, step, span.extent, a.extent))
    lies = tuple(step for span, step in zip(spans, steps, strict=True) if span.extent > 1)
    return Argument(state.tensor, start, tuple(moves)), lies


# -- in which order --------------------------------------------------------------------------------


def overwritten(graph: Graph) -> dict[str, frozenset[str]]:
    """{rows that are written to a state: the tensors that lie there before, which must be written and read
    before these rows are written}."""
    found: dict[str, frozenset[str]] = {}
    for state in graph.states.values():
        behind = {state.tensor}
        for new in _versions(graph, state):
            parts = graph.joins[new][1:]
            found |= dict.fromkeys(parts, frozenset(behind))
            behind |= {new, *parts}
    return found


def _versions(graph: Graph, state: GraphState) -> Iterator[str]:
    """The tensors that lie where a state does, in their order; none of one that is replaced whole."""
    chain = []
    name = state.new
    while name in graph.joins and name in graph.views and graph.views[name].tensor == state.tensor:
        chain.append(name)
        name = graph.joins[name][0]
    return reversed(chain) if name == state.tensor else iter(())


def is_ordered(graph: Graph) -> bool:
    """Whether stages can run one after the other, such that what lies in a state is read before it is written
    over."""
    try:
        TopologicalSorter(_needs(graph)).prepare()
    except CycleError:
        return False
    return True


def _needs(graph: Graph) -> dict[str, set[str]]:
    """{stage: those that must run before it}; itself where it would write over what it reads."""
    read = readers(graph.dag.stages)
    made = {t.name: s.name for s in graph.dag.stages for t in s.outputs}
    needs = {s.name: {made[x.buffer] for x in s.reads() if x.buffer in made} for s in graph.dag.stages}
    for rows, olds in overwritten(graph).items():
        needs[made[rows]] |= {made[old] for old in olds if old in made}
        needs[made[rows]] |= {r.name for old in olds for r in read.get(old, ()) if r.name not in graph.joins}
    for island in graph.islands:
        given = {made[n] for n in island.reads if n in made}
        for t in island.writes:
            for r in read.get(t.name, ()):
                needs[r.name] |= given
    return needs
