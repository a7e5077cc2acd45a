"""Constant folding: what is computed of constants alone is computed once, ahead."""

from __future__ import annotations

from collections.abc import Sequence

from schedules.dtypes import is_float
from schedules.graph.apart import APART
from schedules.graph.edit import remade
from schedules.graph.graph import Array, Graph
from schedules.te.compute_dag import ComputeDAG, Stage
from schedules.te.evaluator import evaluate
from schedules.te.extent import is_open
from schedules.te.marks import closed
from schedules.te.sizes_in_values import speaks_of_sizes

# A result may be so much larger than what it is made of, or have so many bytes; else a constant that is
# broadcast would fill memory, and reading it would take longer than computing it. Sums, such as transformed
# weights, take longer to compute.
LARGER, LARGER_SUM, SMALL = 2, 4, 1 << 16


def fold_constants(graph: Graph) -> Graph:
    """The graph with stages that read constants alone as constants themselves. Stages that read nothing, such
    as a mask made of axes, stay: kernels compute them in place."""
    inputs, values = list(graph.dag.inputs), dict(graph.values)
    stages: list[Stage] = []
    # what stages that stand apart read may be known too
    wanted = {*graph.outputs, *(s.new for s in graph.states.values())}
    wanted |= {n for i in graph.islands if i.op != APART for n in i.reads}
    for s in graph.dag.stages:
        reads = list(dict.fromkeys(x.buffer for x in s.reads()))
        known = reads and all(n in values for n in reads)
        if not known or _sums_open(s) or speaks_of_sizes(s) or not _pays(s, [values[n] for n in reads]):
            stages.append(s)
            continue
        names = {t.name for t in s.outputs}
        if names & wanted:
            stages.append(s)
            continue
        tensors = [t for t in inputs if t.name in reads]
        s = closed(s)
        part = ComputeDAG(tuple(tensors), (s,), tuple(t.name for t in s.outputs))
        made = evaluate(part, [values[t.name] for t in tensors])
        inputs += s.outputs
        values |= {t.name: a for t, a in zip(s.outputs, made, strict=True)}
    if len(stages) == len(graph.dag.stages):
        return graph
    return remade(graph, stages, inputs, values)


def _sums_open(s: Stage) -> bool:
    """Whether a stage reduces over as many points as a call says, so that its values are not known ahead. One
    with open axes is: its first rows are the same at every size."""
    return any(is_open(a.extent) for a in s.reduce_axes)


def _pays(stage: Stage, read: Sequence[Array]) -> bool:
    made, known = sum(t.nbytes for t in stage.outputs), sum(a.nbytes for a in read)
    larger = 1 if _widens_codes(stage, read) else LARGER if stage.reducer is None else LARGER_SUM
    return made <= max(SMALL, larger * known)


def _widens_codes(stage: Stage, read: Sequence[Array]) -> bool:
    """Whether a stage makes floats of integers, as of a weight of few bits: each call reads them from memory,
    where they should stay small."""
    floats = all(is_float(t.dtype) for t in stage.outputs)
    return floats and any(a.dtype.kind in "iu" and a.size > 1 for a in read)
