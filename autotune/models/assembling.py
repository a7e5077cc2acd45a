"""From lowered tensors to a `Model`: one DAG, its constants with their values, its ports."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from autotune.errors import ModelError
from autotune.models.model import Model, Port
from autotune.models.operators.base import Array, stage
from schedules import te
from schedules.graph.graph import Graph, GraphState, Island
from schedules.graph.states import write_in_place
from schedules.te.compute_dag import ComputeDAG
from schedules.te.compute_dag import Tensor as DagTensor
from schedules.te.tensors import Op, discover, marked_dag
from schedules.te.unique import Taken

if TYPE_CHECKING:
    from autotune.models.onnx_islands import IslandCall


@dataclass(frozen=True)
class Kept:
    """A state: its ``old`` value, an input, and the ``new`` one. ``initial``: its value before the first
    call; None: zeros."""

    old: te.Tensor
    new: te.Tensor
    initial: Array | None = None


NO_STATES: Mapping[str, Kept] = MappingProxyType({})


def assemble(
    inputs: Mapping[str, te.Tensor],
    outputs: Sequence[tuple[str, te.Tensor]],
    constants: Mapping[te.Tensor, Array],
    origins: Mapping[Op, str],
    name: str,
    source: str,
    calls: Sequence[IslandCall] = (),
    states: Mapping[str, Kept] = NO_STATES,
) -> Model:
    """The model that computes ``outputs`` of ``inputs``, both by what users call them and in their order.
    ``constants``: the value of each tensor that is known, of which those that are read are kept. ``origins``:
    the model's node of each stage. ``calls``: its islands. ``states``: what it keeps, by what users call it.
    Raises ModelError for states that cannot be kept."""
    written = {t: None for call in calls for t in call.outputs.values()}
    named = dict(origins)
    ends = [*((n, s.new) for n, s in states.items()), *outputs]
    results = _apart(ends, {t for t in written if t not in {s.new for s in states.values()}}, named)
    news, returned = results[: len(states)], results[len(states) :]
    reads = [t for call in calls for t in call.reads]
    computed = list(dict.fromkeys(t for t in (*results, *reads) if t.op is not None))
    ops, leaves = discover([t.op for t in computed if t.op is not None])
    needed = {*leaves, *reads}
    known = [t for t in constants if t in needed]
    ports, kept = list(inputs.values()), [s.old for s in states.values()]
    dag, names = _dag([*ports, *kept, *known, *written], known, computed, leaves)
    graph = Graph(
        dag,
        MappingProxyType({names[t]: constants[t] for t in known}),
        tuple(names[t] for t in ports),
        tuple(names[t] for t in returned),
        MappingProxyType({s.name: named.get(op, "") for op, s in zip(ops, dag.stages, strict=True)}),
        tuple(
            Island(
                call.name, call.op, tuple(names[t] for t in call.reads),
                tuple(DagTensor(names[t], t.shape, t.dtype) for t in call.outputs.values()), call.payload,
            )
            for call in calls
        ),
        states={
            n: GraphState(names[s.old], names[new], s.initial)
            for (n, s), new in zip(states.items(), news, strict=True)
        },
    )  # fmt: skip
    try:
        write_in_place(graph)
    except ValueError as err:
        raise ModelError(f"{source}: {err}") from err

    def port_of(given: str, t: te.Tensor) -> Port:
        return Port(given, names[t], graph.dag.tensors[names[t]].shape, t.dtype)

    return Model(
        graph,
        tuple(port_of(n, t) for n, t in inputs.items()),
        tuple(port_of(n, t) for (n, _), t in zip(outputs, returned, strict=True)),
        name or "model",
        source,
    )


def _apart(
    ends: Sequence[tuple[str, te.Tensor]], written: Container[te.Tensor], named: dict[Op, str]
) -> list[te.Tensor]:
    """A computed tensor of its own for each end: a copy of what is given or known, and of what another end
    is. ``written``: what islands make. ``named`` gets the names of copies."""
    results: dict[te.Tensor, None] = {}
    for port, t in ends:
        if (t.op is None and t not in written) or t in results:
            t = _copy(t)
            assert t.op is not None
            named[t.op] = port
        results[t] = None
    return list(results)


def _copy(t: te.Tensor) -> te.Tensor:
    """A stage that is a copy, for an output that is an input, known, or another output too."""
    return stage(t.shape, lambda *at: t[at], "copy")


def _dag(
    listed: Sequence[te.Tensor],
    known: Sequence[te.Tensor],
    computed: Sequence[te.Tensor],
    leaves: Sequence[te.Tensor],
) -> tuple[ComputeDAG, dict[te.Tensor, str]]:
    """(the DAG, the name of each listed and computed tensor). Inputs that no stage reads are its inputs
    too; those that are ``known`` are its constants."""
    read = set(leaves)
    used = [t for t in listed if t in read]
    names: dict[te.Tensor, str] = {}
    if computed:
        dag = marked_dag([*used, *computed])
        names |= {t: d.name for t, d in zip(used, dag.inputs, strict=True)}
        names |= dict(zip(computed, dag.outputs, strict=True))
        made, stages, outputs = dict(zip(used, dag.inputs, strict=True)), dag.stages, dag.outputs
        taken = Taken(dag.tensors)
    else:
        taken, made, stages, outputs = Taken(), {}, (), ()
    for t in listed:
        if t not in names:
            names[t] = taken.add(t.name or "x")
    inputs = tuple(made[t] if t in made else DagTensor(names[t], t.shape, t.dtype) for t in listed)
    return ComputeDAG(inputs, stages, outputs, tuple(names[t] for t in known)), names
