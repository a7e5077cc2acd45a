"""Makes a group of stages of a graph."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import prod

from schedules import expr as E
from schedules.dtypes import is_float
from schedules.expr import Const, Expr, Load
from schedules.graph.edit import factors, is_map, is_product, is_sum_of_products, terms
from schedules.graph.graph import Argument, Graph, Group
from schedules.graph.short_group import shortened
from schedules.graph.tidy import tidy
from schedules.loads import with_loads
from schedules.strides import strides_of
from schedules.te.compute_dag import ComputeDAG, Stage, Tensor
from schedules.te.marks import unmarked
from schedules.te.open_sizes import extents_of, with_room
from schedules.te.unique import Taken

Prefix = tuple[int, ...]


def group_of(graph: Graph, stages: Sequence[Stage], kept: Collection[str]) -> Group:
    """The group of ``stages``, in topological order. ``kept``: tensors that are needed outside.

    What stages read by numbers in the first indices is an argument from there on: of a tensor of queries,
    keys and values that one kernel made, another one reads three. Weights of products are constants of the
    group's DAG. Dimensions are merged where that changes nothing (`tidy`). Extents are integers;
    `ComputeDAG.open` says which depend on a size.
    """
    own = {t.name for s in stages for t in s.outputs}
    if any(map(is_product, stages)):
        stages = [_in_order(s, own, graph) if is_map(s) else s for s in stages]
    outside: dict[str, list[Load]] = {}
    for s in stages:
        for x in s.reads():
            if x.buffer not in own:
                outside.setdefault(x.buffer, []).append(x)
    cut = {name: min(map(_numbers, loads)) for name, loads in outside.items()}
    taken = Taken((*own, *outside))
    names: dict[tuple[str, Prefix], str] = {}
    inputs: list[Tensor] = []
    arguments: list[Argument] = []
    for name, loads in outside.items():
        t = graph.dag.tensors[name]
        n = cut[name]
        steps = tuple(map(int, strides_of(t)))  # of an open extent that of the largest sizes
        for x in loads:
            prefix = _prefix(x, n)
            if (name, prefix) in names:
                continue
            names[name, prefix] = new = taken.add(name) if n else name
            start = sum(i * step for i, step in zip(prefix, steps, strict=False))
            inputs.append(Tensor(new, t.shape[n:], t.dtype, steps[n:]))
            arguments.append(Argument(name, start))

    def local(x: Load) -> Expr | None:
        n = cut.get(x.buffer, 0)
        return Load(names[x.buffer, _prefix(x, n)], x.indices[n:], x.dtype) if n else None

    def localised(s: Stage) -> Stage:
        values, places = (tuple(with_loads(v, local) for v in every) for every in (s.values, s.places))
        return replace(s, values=values, places=places)

    made = tuple(map(localised, stages))
    weights = _weights(graph, stages)
    constants = tuple(t.name for t, a in zip(inputs, arguments, strict=True) if a.tensor in weights)
    outputs = tuple(t.name for s in stages for t in s.outputs if t.name in kept)
    given, made = shortened(graph.short, inputs, made, constants)
    dag = _roomy(unmarked(tidy(ComputeDAG(given, made, outputs, constants))))
    origins = tuple(dict.fromkeys(graph.origins[s.name] for s in stages if s.name in graph.origins))
    return Group(dag, tuple(arguments), outputs, origins)


def _roomy(dag: ComputeDAG) -> ComputeDAG:
    """The DAG whose arguments lie as those of the largest sizes, where their strides would depend on one: so
    they lie between kernels."""
    shapes, _ = extents_of(dag)
    depend = {
        name
        for name, extents in shapes.items()
        if any(E.variables(n) and prod(dag.tensors[name].shape[:d]) > 1 for d, n in enumerate(extents))
    }
    return with_room(dag, depend)


def _weights(graph: Graph, stages: Sequence[Stage]) -> set[str]:
    """Constants that are factors of products, and those of which maps alone make such factors, as codes of
    few bits; and scales of the sums that products end in; and what steps of a scan sum up."""
    behind = {name: {name} for name in graph.values}  # {tensor: the constants of which alone it is made}
    found: set[str] = set()
    for s in stages:
        read = [x.buffer for x in s.reads()]
        if any(is_sum_of_products(s, p) for p in stages):
            summed = {a.var for a in s.reduce_axes}
            found |= {x.buffer for x in s.reads() if x.buffer in graph.values and E.variables(x) & summed}
        elif s.scan and s.reduce_axes:  # every step reads them anew
            summed = {a.var for a in s.reduce_axes}
            found |= {x.buffer for x in s.reads() if x.buffer in graph.values and E.variables(x) & summed}
        elif is_product(s):
            found |= {name for x in factors(s.values[0]) for name in behind.get(x.buffer, ())}
        elif is_map(s) and read and all(name in behind for name in read):
            behind |= {t.name: {c for name in read for c in behind[name]} for t in s.outputs}
    return found


def _in_order(s: Stage, own: Collection[str], graph: Graph) -> Stage:
    """A map whose sums begin with what the group computes, then have constants, then other tensors: product,
    bias, residual. So groups that differ in that order alone are one task."""

    def rank(e: Expr) -> int:
        names = {x.buffer for x in E.loads(e)}
        return 0 if names & set(own) else 1 if names <= set(graph.values) else 2

    def visit(x: Expr) -> Expr | None:
        if not isinstance(x, E.Binary) or x.op != "+" or not is_float(E.dtype_of(x)):
            return None
        parts = sorted((E.rewrite(t, visit) for t in terms(x)), key=rank)
        return sum(parts[1:], parts[0])

    return replace(s, values=tuple(E.rewrite(v, visit) for v in s.values))


def _numbers(x: Load) -> int:
    """How many first indices of a load are numbers."""
    n = 0
    while n < len(x.indices) and isinstance(x.indices[n], Const):
        n += 1
    return n


def _prefix(x: Load, n: int) -> Prefix:
    return tuple(int(i.value) for i in x.indices[:n] if isinstance(i, Const))
