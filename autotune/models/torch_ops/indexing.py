"""Operators whose indices are data, or are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.models.lowering import indexing as ix
from autotune.models.lowering import movement as m
from autotune.models.lowering.base import UnsupportedForm, positive, stage
from autotune.models.torch_ops.table import KnownTensor, TorchNode, Value, aten
from schedules import te
from schedules.expr import Expr
from schedules.ops.axes import broadcast

# Most pairs of a bag and an index, where each bag asks all indices whether they are its own.
MOST_PAIRS = 2**24


def integer_ids(node: TorchNode, ids: Value) -> te.Tensor:
    t = node.tensor(ids)
    if t.dtype not in ("int32", "int64"):
        raise UnsupportedForm(f"indices of {t.dtype} are not supported, only of int32 and int64")
    return t


@aten("embedding.default")
def _embedding(node: TorchNode, table: Value, ids: Value, padding_idx: int = -1, *how: bool) -> te.Tensor:
    return _taken(node, table, ids, 0)


@aten("_embedding_bag.default", "_embedding_bag_forward_only.default")
def _embedding_bag(
    node: TorchNode, table: Value, ids: Value, offsets: Value, scale_grad: bool = False, mode: int = 0,
    sparse: bool = False, weights: Value | None = None, last_offset: bool = False, padding: int = -1,
) -> list[te.Tensor | None]:  # fmt: skip
    """Bags of one size where the offsets are known to say so."""
    node.only(1)
    t, i = node.tensor(table), integer_ids(node, ids)
    kind = ("sum", "mean", "max")[mode]
    by = node.optional(weights)
    bags, count = node.shape[0], i.shape[0]
    if isinstance(offsets, KnownTensor) and not offsets.weight and padding < 0 and count % bags == 0:
        starts = [n * (count // bags) for n in range(len(offsets.tensor))]
        if offsets.tensor.tolist() == starts:
            return [ix.equal_bags(t, i, by, bags, kind), None, None, None]
    if bags * count > MOST_PAIRS:
        raise UnsupportedForm(f"its {bags} bags would each ask {count} indices, and where bags end is data")
    return [ix.bags(t, i, by, node.tensor(offsets), bags, kind, padding), None, None, None]


@aten("index_select.default", along=True)
def _index_select(node: TorchNode, x: Value, dim: int, ids: Value) -> te.Tensor:
    """One index may be given without an axis."""
    return m.reshape(_taken(node, x, ids, positive(dim, len(x.shape))), node.shape)


def _taken(node: TorchNode, x: Value, ids: Value, axis: int) -> te.Tensor:
    """Indices that are known and evenly apart are a slice."""
    t = node.tensor(x)
    if isinstance(ids, KnownTensor) and not ids.weight and ids.tensor.numel():
        flat = np.asarray(ids.tensor.reshape(-1).tolist())
        inside = flat.min() >= 0 and flat.max() < t.shape[axis]
        if inside and (part := ix.evenly_apart(t, flat, axis)) is not None:
            return m.reshape(part, node.shape)
    return ix.gather(t, integer_ids(node, ids), axis)


@aten("gather.default", along=True)
def _gather(node: TorchNode, x: Value, dim: int, ids: Value, sparse_grad: bool = False) -> te.Tensor:
    t, i = node.tensor(x), integer_ids(node, ids)
    if not i.shape:
        i = m.reshape(i, (1,))
    return m.reshape(ix.gather_elements(t, i, positive(dim, len(t.shape))), node.shape)


@aten("index.Tensor", "_unsafe_index.Tensor")
def _index(node: TorchNode, x: Value, indices: Sequence[Value | None]) -> te.Tensor:
    """numpy's advanced indexing: the tensors broadcast, and their axes stand where the first of them does, or
    in front where others stand between."""
    t = node.tensor(x)
    where = [d for d, i in enumerate(indices) if i is not None]
    given = {d: i for d, i in enumerate(indices) if i is not None}
    if any(i.dtype in ("bool", "uint8") for i in given.values()):
        raise UnsupportedForm("the shape of its output depends on data")
    if len(where) == 1:
        return _taken(node, t, given[where[0]], where[0])
    tensors = {d: integer_ids(node, i) for d, i in given.items()}
    outer = np.broadcast_shapes(*(i.shape for i in tensors.values()))
    together = where[-1] - where[0] == len(where) - 1
    first = where[0] if together else 0

    def value(*at: Expr) -> Expr:
        own, rest = at[first : first + len(outer)], iter((*at[:first], *at[first + len(outer) :]))
        return t[
            tuple(
                ix.from_end(tensors[d][broadcast(tensors[d].shape, own)], n) if d in tensors else next(rest)
                for d, n in enumerate(t.shape)
            )
        ]

    return stage(node.shape, value, "gather")


@aten("nonzero.default", "masked_select.default", "unique_dim.default", "_unique2.default")
def _unknown(node: TorchNode, *xs: object, **how: object) -> te.Tensor:
    raise UnsupportedForm("the shape of its output depends on data")
