"""Stages with domains, scattered results or axes in order are set apart while a graph is rewritten.

Rewrites know maps and reductions over whole boxes. All else is an island for them: something that reads
tensors and makes tensors. So no rewrite can go wrong by what it does not know of a stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from schedules.expr import Expr, Load, Var
from schedules.graph.graph import Graph, Island
from schedules.loads import with_loads
from schedules.te.compute_dag import ComputeDAG, Stage
from schedules.te.scans import groups
from schedules.te.unique import Taken

APART = "apart"  # what such islands are called


@dataclass(frozen=True)
class PlainPart:
    """A graph that has none but plain stages. ``whole``: such a graph with the other stages, which stay as
    they are, but for the names of what they read."""

    graph: Graph
    whole: Callable[[Graph], Graph]


def plain_part(graph: Graph) -> PlainPart:
    """A graph, its other stages apart."""
    runs = [r for r in together(graph.dag.stages) if any(not s.plain for s in r)]
    if not runs:
        return PlainPart(graph, lambda after: after)
    apart, islands = _set_apart(graph, runs)
    return PlainPart(apart, lambda after: _put_back(after, islands, graph))


def together(stages: Sequence[Stage]) -> list[tuple[Stage, ...]]:
    """The stages in their order, those of one scan together."""
    ends, found, n = dict(groups(stages)), list[tuple[Stage, ...]](), 0
    while n < len(stages):
        last = ends.get(n, n)
        found.append(tuple(stages[n : last + 1]))
        n = last + 1
    return found


# {name of an island: (it, the stages that it stands for)}.
_Islands = dict[str, tuple[Island, tuple[Stage, ...]]]


def _set_apart(graph: Graph, runs: Sequence[tuple[Stage, ...]]) -> tuple[Graph, _Islands]:
    """The graph with an island for each run, and these."""
    dag, taken = graph.dag, Taken(graph.dag.tensors)
    new_states = {s.new for s in graph.states.values()}
    stages, inputs, islands = list(dag.stages), list(dag.inputs), _Islands()
    for run in runs:
        at = stages.index(run[0])
        del stages[at : at + len(run)]
        for t in [t for s in run for t in s.outputs if t.name in new_states]:
            copied = taken.add(t.name)  # what calls keep is made by a stage, which copies it
            run = tuple(_renamed(s, {t.name: copied}) for s in run)
            axes = next(s.axes for s in run if any(o.name == copied for o in s.outputs))
            load = Load(copied, tuple(Var(a.var) for a in axes), t.dtype)
            stages.insert(at, Stage((t,), axes, (), (load,)))
        writes = tuple(t for s in run for t in s.outputs)
        own = {t.name for t in writes}
        own |= graph.values.keys()  # of constants no island knows: they are found again afterwards
        reads = tuple(dict.fromkeys(x.buffer for s in run for x in s.reads() if x.buffer not in own))
        island = Island(f"{APART} {run[0].name}", APART, reads, writes)
        islands[island.name] = island, run
        inputs += writes
    computed = {t.name for s in stages for t in s.outputs}
    wanted = (*dag.outputs, *(n for island, _ in islands.values() for n in island.reads))
    outputs = tuple(n for n in dict.fromkeys(wanted) if n in computed)
    apart = replace(
        graph,
        dag=ComputeDAG(tuple(inputs), tuple(stages), outputs, dag.constants),
        islands=(*graph.islands, *(island for island, _ in islands.values())),
    )
    return apart, islands


def _put_back(graph: Graph, islands: _Islands, before: Graph) -> Graph:
    """The graph with the stages of islands in their place. ``before``: the graph that had them."""
    runs: list[tuple[Stage, ...]] = [(s,) for s in graph.dag.stages]
    made, read = set[str](), set[str]()
    origins = dict(graph.origins)
    for now in (i for i in graph.islands if i.op == APART):
        was, run = islands[now.name]
        names = {a: b for a, b in zip(was.reads, now.reads, strict=True) if a != b}
        runs.append(tuple(_renamed(s, names) for s in run))
        made |= {t.name for t in was.writes}
        read |= set(now.reads)
        origins |= {s.name: before.origins[s.name] for s in run if s.name in before.origins}
    left = tuple(i for i in graph.islands if i.op != APART)
    needed = {*graph.outputs, *(s.new for s in graph.states.values()), *(n for i in left for n in i.reads)}
    read -= needed | graph.views.keys() | graph.joins.keys()
    outputs = [n for n in graph.dag.outputs if n not in read]
    outputs += [n for n in before.dag.outputs if n in made & needed]
    inputs = [t for t in graph.dag.inputs if t.name not in made]
    runs, more = _with_constants(graph, runs, before)
    inputs += [replace(before.dag.tensors[old], name=new) for new, old in more.items()]
    values = dict(graph.values) | {new: before.values[old] for new, old in more.items()}
    stages = tuple(s for run in _in_order(runs) for s in run)
    constants = tuple(t.name for t in inputs if t.name in values)
    dag = ComputeDAG(tuple(inputs), stages, tuple(outputs), constants)
    return replace(graph, dag=dag, values=values, islands=left, origins=origins)


def _with_constants(
    graph: Graph, runs: Sequence[tuple[Stage, ...]], before: Graph
) -> tuple[list[tuple[Stage, ...]], dict[str, str]]:
    """(Runs that read constants of ``graph``, {new constant: its name ``before``} for those that it has no
    more, or otherwise)."""
    taken = Taken({*graph.dag.tensors, *(t.name for run in runs for s in run for t in s.outputs)})
    names: dict[str, str] = {}
    for name in dict.fromkeys(x.buffer for run in runs for s in run if not s.plain for x in s.reads()):
        same = graph.values.get(name) is before.values.get(name)
        if name in before.values and not (same and graph.dag.tensors[name] == before.dag.tensors[name]):
            names[name] = taken.add(name)
    found = [tuple(s if s.plain else _renamed(s, names) for s in run) for run in runs]
    return found, {new: old for old, new in names.items()}


def _in_order(runs: Sequence[tuple[Stage, ...]]) -> list[tuple[Stage, ...]]:
    """Runs of stages in topological order, as they stood where that is one."""
    makes = {t.name: n for n, run in enumerate(runs) for s in run for t in s.outputs}
    needs = [{makes[x.buffer] for s in run for x in s.reads() if x.buffer in makes} for run in runs]
    done: dict[int, None] = {}
    for n in range(len(runs)):
        todo = [n]
        while todo:
            missing = [k for k in sorted(needs[todo[-1]]) if k not in done and k != todo[-1]]
            if missing:
                todo += missing
            else:
                done.setdefault(todo.pop())
    return [runs[n] for n in done]


def _renamed(s: Stage, names: Mapping[str, str]) -> Stage:
    """A stage with other names for what it makes and reads."""

    def load(x: Load) -> Expr | None:
        return replace(x, buffer=names[x.buffer]) if x.buffer in names else None

    values, places = (tuple(with_loads(v, load) for v in every) for every in (s.values, s.places))
    outputs = tuple(replace(t, name=names.get(t.name, t.name)) for t in s.outputs)
    return replace(s, outputs=outputs, values=values, places=places)
