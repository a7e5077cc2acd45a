"""The kernel of a cluster of Inductor's graph: its expression, and what the log has for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autotune.errors import ModelError
from autotune.models.assembling import assemble
from autotune.models.inductor_clusters import Cluster
from autotune.models.outline import workload_of
from autotune.models.preparation import prepared
from autotune.models.torch_scope import TorchLowering, shape_and_dtype
from schedules import te
from schedules.graph.graph import Group
from schedules.model import Workload

Order = tuple[int, ...]


@dataclass(frozen=True)
class ClusterTask:
    """``workload``: what a kernel computes. ``reads``: numbers of the cluster's inputs, in the order of the
    kernel's."""

    workload: Workload
    reads: tuple[int, ...]


def task_of(cluster: Cluster, orders: Sequence[Order], order: Order) -> ClusterTask:
    """The task of a cluster. ``orders``: of each input its axes as they lie in memory, the longest stride
    first; ``order``: of the output. Raises ModelError for operators without an expression, and for what is
    no single kernel."""
    graph, lowering, result = _copied(cluster, orders, order)
    inputs = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            shape, dtype = shape_and_dtype(node.meta["val"], f"input {node.name}")
            inputs[node.name] = lowering.values[node] = te.placeholder(shape, dtype, node.name)
    lowering.run(graph, [result])
    if lowering.unsupported:
        raise lowering.refusal()
    made = [("y", lowering.result(result))]
    model = assemble(inputs, made, lowering.constants, lowering.origins, "cluster", lowering.label)
    ready = prepared(model)
    numbers = {name: i for i, name in enumerate(ready.graph.inputs)}
    if len(ready.parts) == 1 and isinstance(group := ready.parts[0], Group) and not group.dag.constants:
        if all(a.tensor in numbers and not a.start and not a.moves for a in group.inputs):
            return ClusterTask(workload_of(group.dag), tuple(numbers[a.tensor] for a in group.inputs))
    raise ModelError(f"{cluster.shown} is {len(ready.parts)} kernels, and a choice of Inductor is one")


def _copied(cluster: Cluster, orders: Sequence[Order], order: Order) -> tuple[Any, TorchLowering, Any]:
    """(The cluster as a graph whose inputs and whose output are row-major, what lowers it, its result)."""
    import torch
    from torch import fx

    graph, copies = fx.Graph(), dict[Any, Any]()

    def permuted(x: Any, axes: Sequence[int]) -> Any:
        if list(axes) == list(range(len(axes))):
            return x
        made = graph.call_function(torch.ops.aten.permute.default, (x, list(axes)))
        made.meta["val"] = x.meta["val"].permute(axes)
        return made

    for i, (node, lies) in enumerate(zip(cluster.inputs, orders, strict=True)):
        val = node.meta["val"]
        copies[node] = graph.placeholder(f"x{i}")
        shape = tuple(val.shape[a] for a in lies)
        copies[node].meta["val"] = torch.empty(shape, dtype=val.dtype, device="meta")
        copies[node] = permuted(copies[node], inverse(lies))
    for node in cluster.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    result = permuted(copies[cluster.last], order)
    graph.output((result,))
    return graph, TorchLowering(f"part of a graph of Inductor, {cluster.shown}"), result


def inverse(order: Sequence[int]) -> Order:
    """The permutation that undoes one: ``inverse((0, 2, 3, 1)) == (0, 3, 1, 2)``."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def order_of(shape: Sequence[int], strides: Sequence[int]) -> Order | None:
    """The axes as they lie in memory, the longest stride first; None where elements do not fill a piece of
    memory, each in a place of its own."""
    order = sorted(range(len(shape)), key=lambda a: (-strides[a], a))
    if any(n > 1 for n in shape):
        # An axis of one element may lie anywhere: it keeps its place.
        order = [a for a in order if shape[a] > 1]
        for a in (a for a in range(len(shape)) if shape[a] == 1):
            order.insert(next((i for i, b in enumerate(order) if b > a), len(order)), a)
    else:
        order = list(range(len(shape)))
    step = 1
    for a in reversed(order):
        if shape[a] > 1 and strides[a] != step:
            return None
        step *= shape[a]
    return tuple(order)
