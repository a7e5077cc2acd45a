"""Which parts of a graph of Inductor a kernel may compute: a product or a convolution, and what follows it.

Inductor runs a product as a call, and what follows as a loop of its own, which it fuses with what comes
after. So an epilogue is taken only where the loop would end there: where its result is returned, or is an
argument of another call. Everything else ends with the product.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.models.operators import aten

ANCHORS = ("aten.mm.default", "aten.addmm.default", "aten.bmm.default", "aten.baddbmm.default")
CONVOLUTION = "aten.convolution.default"
# A product with a weight that Inductor has packed, which torch knows as it was too.
PACKED_LINEAR = ("mkl._mkl_linear", "mkl._mkl_linear.default")
VIEWS = frozenset(
    f"aten.{n}"
    for n in ("reshape.default", "view.default", "_unsafe_view.default", "permute.default",
    "transpose.int", "t.default", "unsqueeze.default", "squeeze.dim", "squeeze.dims", "expand.default")
)  # fmt: skip
# What Inductor calls, and does not fuse with what comes before.
CALLS = ("aten._scaled_dot_product", "aten.convolution", "mkldnn.", "mkl.", "onednn.")
MOST_NODES = 40  # of a cluster


@dataclass(frozen=True)
class Cluster:
    """``nodes``: of the graph, in its order, of which the ``last`` alone is read by others. ``inputs``: the
    nodes that they read. ``anchor``: the product or the convolution. ``constants``: tensors by the nodes that
    stand for them, which are weights that Inductor has frozen."""

    anchor: Any
    nodes: tuple[Any, ...]
    inputs: tuple[Any, ...]
    constants: Mapping[Any, Any] = field(default_factory=dict)

    @property
    def last(self) -> Any:
        """The node that others read."""
        return self.nodes[-1]

    def with_inputs(self) -> tuple[Any, dict[Any, Any]]:
        """(A new graph with a placeholder for each input, what is there by what is here)."""
        from torch import fx

        graph, copies = fx.Graph(), dict[Any, Any]()
        for i, node in enumerate(self.inputs):
            copies[node] = graph.placeholder(f"x{i}")
            copies[node].meta = dict(node.meta)
        return graph, copies

    def copied(self) -> tuple[Any, dict[Any, Any]]:
        """(A new graph with all of the cluster, what is there by what is here)."""
        graph, copies = self.with_inputs()
        for node in (*self.constants, *self.nodes):
            copies[node] = graph.node_copy(node, copies.__getitem__)
        return graph, copies

    def apart(self) -> Cluster:
        """The same in a graph of its own, whose placeholders are the inputs."""
        _, copies = self.copied()
        nodes, inputs = (tuple(map(copies.__getitem__, every)) for every in (self.nodes, self.inputs))
        constants = {copies[node]: tensor for node, tensor in self.constants.items()}
        return Cluster(copies[self.anchor], nodes, inputs, constants)

    @property
    def shown(self) -> str:
        """The operators in words: ``addmm + relu``."""
        names = [_name(n) for n in self.nodes if str(n.target) not in VIEWS]
        return " + ".join(dict.fromkeys(names))


def clusters(graph: Any) -> Iterator[tuple[Cluster, ...]]:
    """For each product and convolution of a graph the clusters that a kernel may compute, the largest
    first."""
    order = list(graph.nodes)
    for at, node in enumerate(order):
        if is_anchor(node):
            yield tuple(_clusters(node, order[at + 1 :]))


def is_anchor(node: Any) -> bool:
    """Whether a node is a product or a convolution that may have a kernel."""
    op = str(node.target)
    if op == CONVOLUTION:
        return not node.args[6]  # which says that it is transposed
    return op in PACKED_LINEAR or (op in ANCHORS and not node.kwargs.get("out_dtype"))


def _clusters(anchor: Any, after: Sequence[Any]) -> Iterator[Cluster]:
    region, below = [anchor], {anchor}
    found = [region[:]]
    for node in after:
        reads = set(node.all_input_nodes)
        if not reads & below:
            continue
        below.add(node)
        if reads & below <= {*region} and _follows(node, anchor) and len(region) < MOST_NODES:
            region.append(node)
            inside = {*region}
            ends = [n for n in region if any(u not in inside for u in n.users)]
            if ends == [node] and str(node.target) not in VIEWS and all(map(_ends_loop, node.users)):
                found.append(region[:])
    for nodes in reversed(found):
        yield _with_views(anchor, nodes)


def _follows(node: Any, anchor: Any) -> bool:
    """Whether a node computes elements one by one, and no more of them than the anchor has."""
    op = str(node.target)
    val, of = node.meta.get("val"), anchor.meta["val"]
    if node.op != "call_function" or not hasattr(val, "shape") or aten.row(op) is None:
        return False
    if op in VIEWS:
        return val.numel() == of.numel()
    import torch

    tags = getattr(node.target, "tags", ())
    mutable = getattr(getattr(node.target, "_schema", None), "is_mutable", True)
    random = torch.Tag.nondeterministic_seeded in tags
    return torch.Tag.pointwise in tags and not mutable and not random and val.numel() == of.numel()


def _ends_loop(user: Any) -> bool:
    """Whether a loop of Inductor's ends before this node, or before those that read it as a view."""
    op = str(user.target)
    if op in VIEWS:
        return all(map(_ends_loop, user.users))
    return user.op == "output" or is_anchor(user) or op.startswith(CALLS)


def _with_views(anchor: Any, nodes: Sequence[Any]) -> Cluster:
    """A cluster with the views through which it reads its inputs."""
    inside, views = {*nodes}, dict[Any, None]()

    def look(node: Any) -> None:
        for n in node.all_input_nodes:
            if n not in inside and n not in views and n.op == "call_function" and str(n.target) in VIEWS:
                look(n)
                views[n] = None

    for n in nodes:
        look(n)
    every = (*views, *nodes)
    read = [n for n in dict.fromkeys(n for node in every for n in node.all_input_nodes) if n not in {*every}]
    module = anchor.graph.owning_module
    constants = {n: getattr(module, n.target) for n in read if n.op == "get_attr"}
    return Cluster(anchor, every, tuple(n for n in read if n not in constants), constants)


def _name(node: Any) -> str:
    packet = getattr(node.target, "overloadpacket", node.target)
    return str(getattr(packet, "__name__", packet))
