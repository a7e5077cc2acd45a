"""The kernel of a cluster of Inductor's graph: its expression, and what the log has for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.errors import ModelError
from autotune.models.assembling import assemble
from autotune.models.inductor_clusters import PACKED_LINEAR, Cluster
from autotune.models.operators.base import Array
from autotune.models.outline import workload_of
from autotune.models.preparation import prepared
from autotune.models.torch_scope import TorchLowering, shape_and_dtype
from schedules import te
from schedules.graph.graph import Group
from schedules.model import Workload
from schedules.strides import inner_first

Order = tuple[int, ...]


@dataclass(frozen=True)
class ClusterTask:
    """``workload``: what a kernel computes. ``reads``: numbers of the cluster's inputs, or names of weights,
    in the order of the kernel's inputs. ``weights``: those that are known."""

    workload: Workload
    reads: tuple[int | str, ...]
    weights: Mapping[str, Array]


def task_of(cluster: Cluster, orders: Sequence[Order], order: Order) -> ClusterTask:
    """The task of a cluster. ``orders``: of each input its axes as they lie in memory, the longest stride
    first; ``order``: of the output. Raises ModelError for operators without an expression, and for what is
    no single kernel."""
    graph, lowering, result, known = _copied(cluster, orders, order)
    inputs, constants = {}, {n.name for n in cluster.constants}
    for node in graph.nodes:
        if node.op == "placeholder" and node.name not in constants:
            shape, dtype = shape_and_dtype(node.meta["val"], f"input {node.name}")
            inputs[node.name] = lowering.values[node] = te.placeholder(shape, dtype, node.name)
    for node, tensor in known.items():
        lowering.know(node, tensor, node.name, weight=True)
    lowering.run(graph, [result])
    if lowering.unsupported:
        raise lowering.refusal()
    made = [("y", lowering.result(result))]
    model = assemble(inputs, made, lowering.constants, lowering.origins, "cluster", lowering.label)
    ready = prepared(model)
    places: dict[str, int | str] = {name: i for i, name in enumerate(ready.graph.inputs)}
    weights = ready.graph.values
    places |= {name: name for name in weights}
    if len(ready.parts) == 1 and isinstance(group := ready.parts[0], Group):
        if all(a.tensor in places and not a.start and not a.moves for a in group.inputs):
            reads = tuple(places[a.tensor] for a in group.inputs)
            known = {a.tensor: weights[a.tensor] for a in group.inputs if a.tensor in weights}
            return ClusterTask(workload_of(group.dag), reads, known)
    raise ModelError(f"{cluster.shown} is {len(ready.parts)} kernels, and a choice of Inductor is one")


def _copied(
    cluster: Cluster, orders: Sequence[Order], order: Order
) -> tuple[Any, TorchLowering, Any, dict[Any, Any]]:
    """(The cluster as a graph of ATen whose inputs and whose output are row-major, what lowers it, its
    result, tensors that are known)."""
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
    for node in cluster.constants:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta["val"] = node.meta["val"]
    known = {copies[node]: tensor for node, tensor in cluster.constants.items() if not tensor.is_mkldnn}
    for node in cluster.nodes:
        if str(node.target) in PACKED_LINEAR:
            copies[node] = _linear(graph, node, copies, permuted)
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    result = permuted(copies[cluster.last], order)
    graph.output((result,))
    return graph, TorchLowering(f"part of a graph of Inductor, {cluster.shown}"), result, known


def _linear(graph: Any, node: Any, copies: Mapping[Any, Any], permuted: Callable[..., Any]) -> Any:
    """The product that one with a packed weight computes, of the weight as it was."""
    import torch

    x, _, weight, bias, _ = node.args
    weight = permuted(copies[weight], (1, 0))
    ops = torch.ops.aten
    if bias is None:
        made = graph.call_function(ops.mm.default, (copies[x], weight))
    else:
        made = graph.call_function(ops.addmm.default, (copies[bias], copies[x], weight))
    made.meta = dict(node.meta)
    return made


def inverse(order: Sequence[int]) -> Order:
    """The permutation that undoes one: ``inverse((0, 2, 3, 1)) == (0, 3, 1, 2)``."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def order_of(shape: Sequence[int], strides: Sequence[int]) -> Order | None:
    """The axes as they lie in memory, the longest stride first; None where elements do not fill a piece of
    memory, each in a place of its own."""
    order = [a for a in reversed(inner_first(strides)) if shape[a] > 1]
    step = 1
    for a in reversed(order):
        if strides[a] != step:
            return None
        step *= shape[a]
    # An axis of one element may lie anywhere: it keeps its place.
    for a in (a for a, n in enumerate(shape) if n == 1):
        order.insert(next((i for i, b in enumerate(order) if b > a), len(order)), a)
    return tuple(order)
