"""Runs the outline of a model by the evaluator, in one memory as programs have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import autotune as at
from autotune.codegen.runtime.laid import laid, over
from autotune.models.call_numbers import checked, number
from autotune.models.kept_states import call_arrays, every_argument
from autotune.models.outline import Outline, arena
from autotune.models.places import ARENA, INPUT, OUTPUT, STATE, ArgumentPlace, place_of, place_read
from autotune.models.row_counts import counted
from autotune.models.sizes import layout_at
from schedules.dtypes import DTYPES
from schedules.graph.graph import Argument, PlaceMove
from schedules.strides import MemoryLayout
from schedules.te.compute_dag import ComputeDAG, Tensor
from schedules.te.open_sizes import at as at_sizes

POISON = 0xFB  # bytes of what was not written: NaN for floats


def run_in_memory(
    ol: Outline,
    weights: Mapping[str, Any],
    inputs: Sequence[Any],
    sizes: Mapping[str, int] | None = None,
    states: Mapping[str, Any] | None = None,
    written: dict[str, int] | None = None,
    evaluate: Callable[[ComputeDAG, Sequence[Any]], Sequence[Any]] = at.te.evaluate,
) -> list[Any]:
    """The outputs of a model without islands, at ``sizes``. What it reads before it is written is poison.
    ``states``: arrays, which are changed in place. ``written``: counts the bytes that steps write to each.
    ``evaluate``: what computes a step."""
    plan = arena(ol)
    sizes = sizes or {}
    given = [laid(x, layout_at(ol, n, sizes)) for x, n in zip(inputs, ol.inputs, strict=True)]
    lies = [layout_at(ol, n, sizes) for n in dict.fromkeys(ol.outputs)]
    dtypes = [DTYPES[ol.tensors[n].dtype].numpy for n in dict.fromkeys(ol.outputs)]
    outputs = [np.empty(x.shape, d) for x, d in zip(lies, dtypes, strict=True)]
    memory = {
        ARENA: [np.full(plan.nbytes, POISON, np.uint8)],
        INPUT: [flat(x, layout_at(ol, n, sizes)) for x, n in zip(given, ol.inputs, strict=True)],
        OUTPUT: [np.full(x.span * d.itemsize, POISON, np.uint8) for x, d in zip(lies, dtypes, strict=True)],
        STATE: [(states or {})[n].reshape(-1).view(np.uint8) for n in ol.states],
    }
    told = [*given, *((states or {})[n] for n in ol.states), *(sizes[s.name] for s in ol.sizes)]
    places = {n: i for i, n in enumerate(call_arrays(ol))}

    def moved(m: PlaceMove) -> int:
        rows = m.rows if m.counted is None else number(m.counted, places, ol.tensors)(told)
        return checked(m, number(m.index, places, ol.tensors)(told), rows, "a state")

    for a in every_argument(ol):  # before anything is written
        for m in a.moves:
            moved(m)
    sizes = dict(sizes)
    for c in ol.counts:
        sizes[c.name] = counted(c, places, ol.tensors)(told)

    def array(p: ArgumentPlace, t: Tensor) -> Any:
        dtype = DTYPES[t.dtype].numpy
        first = p.offset + sum(moved(m) * step for m, step in p.moves)
        part = memory[p.base][p.number][first : first + t.nbytes]
        assert part.nbytes == t.nbytes, "it ends within the memory"
        return over(part.view(dtype), layout(t))

    for call in ol.calls:
        dag = ol.tasks[call.task].dag
        if dag.open is not None:
            dag = at_sizes(dag, {s.name: sizes[n] for s, n in zip(dag.open.sizes, call.sizes, strict=True)})
        read = []
        for a, t in zip(call.reads, dag.inputs, strict=True):
            if a.tensor in ol.constants:
                known = np.ascontiguousarray(weights[a.tensor]).reshape(-1)
                read.append(over(known[a.start : a.start + t.nbytes // known.itemsize], layout(t)))
            else:
                read.append(array(place_read(ol, plan, a), t).copy())
        for name, o, y in zip(call.writes, dag.outputs, evaluate(dag, read), strict=True):
            at_ = place_of(ol, plan, name)
            array(at_, dag.tensors[o])[...] = y
            if at_.base == STATE and written is not None:
                state = [*ol.states][at_.number]
                written[state] = written.get(state, 0) + y.nbytes
    whole = [(n, s) for n, s in ol.states.items() if ol.root(s.new) != s.tensor]
    new = [array(place_of(ol, plan, s.new), ol.tensors[s.new]).copy() for _, s in whole]
    for (n, _), y in zip(whole, new, strict=True):
        (states or {})[n][...] = y
    for x, y, m in zip(lies, outputs, memory[OUTPUT], strict=True):
        y[...] = over(m.view(y.dtype), x)
    found = dict(zip(dict.fromkeys(ol.outputs), outputs, strict=True))
    return [found[n] for n in ol.outputs]


def layout(t: Tensor) -> MemoryLayout:
    return MemoryLayout(t.shape, t.strides)


def flat(x: Any, lies: MemoryLayout) -> Any:
    """The memory of an array that was `laid`, as bytes."""
    return np.lib.stride_tricks.as_strided(x, (lies.span,), (x.itemsize,)).view(np.uint8)


def touched(ol: Outline, a: Argument, t: Tensor) -> tuple[str, Any]:
    """(the tensor in whose memory a tensor lies, the elements that it has there)."""
    at_ = ol.views.get(a.tensor, Argument(a.tensor))
    size = ol.tensors[at_.tensor].nbytes // DTYPES[t.dtype].itemsize
    return at_.tensor, over(np.arange(size)[at_.start :][: t.nbytes // DTYPES[t.dtype].itemsize], layout(t))
