"""The pass over Inductor's graphs that puts kernels beside what it makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass, get_custom_graph_passes
from torch._inductor.virtualized import V

from autotune.errors import AutotuneError, ModelError
from autotune.models.inductor_clusters import Cluster, clusters
from autotune.models.inductor_kernels import Order, order_of, task_of
from autotune.models.inductor_lowering import Choosing, lowering_of


class ChoicePass(CustomGraphPass):
    """Adds a choice behind each product and each convolution. ``name()``: all on which the choice depends
    now; code that torch has kept under another name is not taken."""

    def __init__(self, choosing: Choosing, name: Callable[[], str]) -> None:
        self.choosing, self.name = choosing, name

    def uuid(self) -> str:
        return self.name()

    def __call__(self, graph: Any) -> None:
        if self is not [p for p in passes() if isinstance(p, ChoicePass)][-1]:
            return  # of several that are on, the last one offers kernels
        try:
            self._add_choices(graph)
        except Exception as err:  # a choice must not break the user's compilation
            self.choosing.failed(err)

    def _add_choices(self, graph: Any) -> None:
        if config.cpp_wrapper or getattr(V, "aot_compilation", False):
            self.choosing.no_python()
            return
        found = [one for options in clusters(graph) if (one := self._one_of(options)) is not None]
        parts = [cluster.apart() for cluster in found]
        choices: dict[Any, Any] = {}
        for cluster, part in zip(found, parts, strict=True):
            with graph.inserting_after(cluster.last):
                inputs = (choices.get(n, n) for n in cluster.inputs)
                node = graph.call_function(lowering_of(part, self.choosing), (cluster.last, *inputs))
            node.meta = dict(cluster.last.meta)
            cluster.last.replace_all_uses_with(node, delete_user_cb=lambda user, own=node: user is not own)
            choices[cluster.last] = node

    def _one_of(self, options: Sequence[Cluster]) -> Cluster | None:
        """The largest cluster that is one kernel."""
        why = ""
        for cluster in options:
            try:
                _check_tensors(cluster)
                task_of(cluster, *_orders(cluster))
                return cluster
            except AutotuneError as err:
                why = str(err)
        self.choosing.left(options[-1], why)
        return None


def _orders(cluster: Cluster) -> tuple[list[Order], Order]:
    """How its inputs and its output lie before Inductor has chosen. Raises ModelError."""
    found = [
        order_of(tuple(n.meta["val"].shape), n.meta["val"].stride()) for n in (*cluster.inputs, cluster.last)
    ]
    orders = [order for order in found if order is not None]
    if len(orders) < len(found):
        raise ModelError("an input is a part of a larger tensor")
    return orders[:-1], orders[-1]


def _check_tensors(cluster: Cluster) -> None:
    """Raises ModelError unless all that a cluster reads and makes is tensors of known sizes on the CPU, with
    elements. Floats of fewer than 32 bits are refused too: a kernel rounds them elsewhere than Inductor."""
    for node in (*cluster.inputs, *cluster.nodes):
        val = node.meta.get("val")
        if not hasattr(val, "shape") or val.device.type != "cpu" or val.is_mkldnn:
            raise ModelError("it has what is no plain tensor on the CPU")
        if any(not isinstance(n, int) for n in (*val.shape, *val.stride())):
            raise ModelError("its sizes vary")
        if val.numel() == 0:
            raise ModelError("it has a tensor without elements")
        if val.is_floating_point() and val.element_size() < 4:
            raise ModelError(f"it has {val.dtype}, whose rounding is Inductor's own")


def passes() -> list[Any]:
    """The passes of a user, in the place where this one stands."""
    return [*get_custom_graph_passes(config.post_grad_custom_post_pass)]


def set_passes(every: list[Any]) -> None:
    """Put passes there."""
    config.post_grad_custom_post_pass = every or None
