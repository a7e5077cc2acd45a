"""Makes an island of a node that has no expression."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from autotune.errors import ModelError
from autotune.models.model import identifier
from autotune.models.onnx_known import output_types, static_shape, type_of
from autotune.models.onnx_payload import check_payload
from autotune.models.operators.base import Array, UnsupportedForm
from autotune.models.operators.known import KnownTensor
from schedules import te
from schedules.dtypes import DTYPES

# Largest known input that is a part of an island's payload, in bytes. Others are constants of the graph.
MAX_INLINE = 2**10


@dataclass(frozen=True)
class IslandCall:
    """An island whose tensors have no final names yet. ``outputs``: {name in the file: what it writes}."""

    name: str
    op: str
    reads: tuple[te.Tensor, ...]
    outputs: Mapping[str, te.Tensor]
    payload: bytes


def island_call(
    node: Any,
    values: Mapping[str, Any],
    opsets: Mapping[str, int],
    path: str,
    constant: Callable[[KnownTensor], te.Tensor],
    reason: UnsupportedForm,
) -> IslandCall:
    """The island of a node of ONNX's own domains. Raises UnsupportedForm with the ``reason`` why it has no
    expression, where it cannot be an island either."""
    types = output_types(node, {n: x for n, x in values.items() if x is not None}, opsets)
    outputs: dict[str, te.Tensor] = {}
    for name in filter(None, node.output):
        tensor = types[name].tensor_type if name in types and types[name].HasField("tensor_type") else None
        if tensor is None:
            raise UnsupportedForm(f"{reason}, and {name!r} is no tensor, or its type is not known")
        shape = static_shape(tensor)
        if shape is None:
            raise UnsupportedForm(f"{reason}, and the shape of its output {name!r} depends on data")
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type)).name
        if dtype not in DTYPES:
            raise UnsupportedForm(f"{reason}, and type {dtype} of its output {name!r} is not supported")
        if any(n < 1 for n in shape):
            raise UnsupportedForm(f"{reason}, and its output {name!r} of shape {list(shape)} is empty")
        outputs[name] = te.placeholder(tuple(shape), dtype, identifier(name))
    reads: dict[str, te.Tensor] = {}
    held: dict[str, Array] = {}
    for name, x in values.items():
        if isinstance(x, te.Tensor):
            reads[name] = x
        elif x is not None and (x.value.nbytes <= MAX_INLINE or x.dtype not in DTYPES):
            held[name] = x.value
        elif x is not None:
            reads[name] = constant(x)
    payload = _payload(node, reads, held, opsets)
    try:
        check_payload(payload, node.op_type, tuple(reads.values()), tuple(outputs.values()))
    except ModelError as err:
        raise UnsupportedForm(f"{reason}, and {err}") from err
    return IslandCall(path, node.op_type, tuple(reads.values()), outputs, payload)


def _payload(
    node: Any, reads: Mapping[str, te.Tensor], held: Mapping[str, Array], opsets: Mapping[str, int]
) -> bytes:
    """A serialized model of the one node."""
    inputs = [onnx.ValueInfoProto(name=n, type=type_of(x)) for n, x in reads.items()]
    outputs = [onnx.ValueInfoProto(name=n) for n in node.output if n]
    known = [numpy_helper.from_array(x, n) for n, x in held.items()]
    graph = helper.make_graph([node], "island", inputs, outputs, known)
    imports = [helper.make_opsetid(node.domain, opsets[node.domain])]
    return bytes(helper.make_model(graph, opset_imports=imports).SerializeToString(deterministic=True))
