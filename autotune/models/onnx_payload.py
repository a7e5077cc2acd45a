"""Checks the payload of an island: a model of one node, whose inputs that are known are initializers.

A payload may be from a stranger. So it is one node of ONNX's own domains, from tensors to tensors of stated
types, without graphs, functions, and data in other files. Its work must follow from the sizes of these
tensors: operators whose attributes may ask for more are limited, or are no islands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Protocol

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, TensorProto, helper

from autotune.errors import ModelError, one_line
from autotune.models.onnx_file import domain, dtype_of, to_array, type_name
from autotune.models.onnx_known import output_types, static_shape, type_of
from autotune.models.operators import onnx_op
from autotune.models.operators.base import Array
from schedules import te

MAX_BYTES = 2**26  # of a payload
MAX_STEPS = 2**28  # numbers that a convolution gathers before it adds them up

# Operators with an expression that are no islands: windows and steps may be far more than their tensors have.
_NO_ISLANDS = frozenset(
    "AveragePool Col2Im Conv ConvTranspose Einsum LpPool MaxPool MaxUnpool Resize Upsample".split()
)
_CONVOLUTIONS = {"ConvInteger": 1, "DeformConv": 1, "QLinearConv": 3}  # {operator: input that is the weight}
# {domain: operators that may be islands}, beside those with an expression.
_ISLANDS = {
    "": frozenset(
        """
        Attention BitCast CausalConvWithState DeformConv Det DynamicQuantizeLinear LinearAttention
        MeanVarianceNormalization NegativeLogLikelihoodLoss QLinearConv RoiAlign RotaryEmbedding
        SoftmaxCrossEntropyLoss Sum SwiGLU TfIdfVectorizer
        """.split()
    ),
    "ai.onnx.ml": frozenset(
        """
        ArrayFeatureExtractor Binarizer Imputer LabelEncoder LinearClassifier LinearRegressor Normalizer
        OneHotEncoder SVMClassifier SVMRegressor Scaler TreeEnsemble TreeEnsembleClassifier
        TreeEnsembleRegressor
        """.split()
    ),
    "ai.onnx.preview.training": frozenset({"Adagrad", "Adam", "Momentum"}),
}
# {operator: (attribute, least and largest value)}: how often something is done for each element.
_LIMITS = {"RoiAlign": ("sampling_ratio", 1, 64), "TfIdfVectorizer": ("max_skip_count", 0, 64)}
_MODEL = frozenset(
    "ir_version opset_import producer_name producer_version domain model_version doc_string graph".split()
)
_GRAPH = frozenset("name node input output initializer doc_string".split())
_NODE = frozenset("input output name op_type domain attribute doc_string metadata_props".split())
_ATTRIBUTE = frozenset("name type doc_string f i s t floats ints strings".split())


class _Typed(Protocol):
    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def dtype(self) -> str: ...


def check_payload(payload: bytes, op: str, reads: Sequence[_Typed], writes: Sequence[_Typed]) -> None:
    """Raise ModelError for a payload that is not one node of operator ``op``, from tensors such as ``reads``
    to tensors such as ``writes``. Nothing of it is run, and no other file is read."""
    try:
        model, node, arrays, opsets = _parsed(payload)
        if node.op_type != op:
            raise ModelError(f"its node is {node.op_type[:40]!r}")
        types = [(i.name, _stated(i.type)) for i in model.graph.input]
        _same([t for _, t in types], reads, "reads")
        if any(o.HasField("type") for o in model.graph.output):
            _same([_stated(o.type) for o in model.graph.output], writes, "writes")
        inputs = {n: te.placeholder(*t, "x") for n, t in types}
        if sorted({*node.input} - {""}) != sorted([*inputs, *arrays]):
            raise ModelError("its node does not read exactly what it has")
        names = [n for n in node.output if n]
        if names != [o.name for o in model.graph.output]:
            raise ModelError("its node does not write exactly its outputs")
        _bounded(node, opsets, {**inputs, **arrays})
        for port, t in zip(model.graph.output, writes, strict=True):
            port.type.CopyFrom(type_of(t))  # without which onnx's checker takes none
        onnx.checker.check_model(model)
        found = output_types(node, {**inputs, **arrays}, opsets)
        _same([_stated(found.get(n)) for n in names], writes, "writes")
    except Exception as err:  # onnx raises what its C++ raises
        raise ModelError(f"the payload of island {op[:40]} is refused: {one_line(err)}") from err


def _parsed(payload: bytes) -> tuple[Any, Any, dict[str, Array], dict[str, int]]:
    """(the model, its node, the node's inputs that are known, {domain: version}). Only what a node may have
    is let through."""
    if len(payload) > MAX_BYTES:
        raise ModelError(f"it has {len(payload)} bytes; at most {MAX_BYTES} are read")
    try:
        model = onnx.ModelProto.FromString(payload)
    except (DecodeError, ValueError, RuntimeError) as err:
        raise ModelError(f"it is no ONNX model: {err}") from err
    _only(model, _MODEL, "its model")
    _only(model.graph, _GRAPH, "its graph")
    if len(model.graph.node) != 1:
        raise ModelError(f"it has {len(model.graph.node)} nodes, not one")
    (node,) = model.graph.node
    _only(node, _NODE, "its node")
    opsets = {domain(o.domain): o.version for o in model.opset_import}
    if list(opsets) != [domain(node.domain)] or len(model.opset_import) != 1:
        raise ModelError("it imports other domains than that of its node")
    for a in node.attribute:
        _only(a, _ATTRIBUTE, f"attribute {a.name[:40]!r}")
        if a.type == AttributeProto.TENSOR:
            to_array(a.t, f"attribute {a.name[:40]!r}", None)
    arrays = {t.name: to_array(t, f"initializer {t.name[:40]!r}", None) for t in model.graph.initializer}
    tensors = [*model.graph.initializer, *(a.t for a in node.attribute if a.HasField("t"))]
    if any(t.external_data or t.data_location != TensorProto.DEFAULT for t in tensors):
        raise ModelError("it has data in another file")
    names = [*(i.name for i in model.graph.input), *arrays]
    if len({*names} - {""}) != len(model.graph.input) + len(model.graph.initializer):
        raise ModelError("two of its inputs have one name, or one has none")
    return model, node, arrays, opsets


def _only(message: Any, fields: frozenset[str], what: str) -> None:
    if odd := sorted({f.name for f, _ in message.ListFields()} - fields):
        raise ModelError(f"{what} has a field {odd[0]!r}, which no island has")


def _stated(type_: Any) -> tuple[tuple[int, ...], str]:
    """(shape, dtype) of a type."""
    kind = None if type_ is None else type_.WhichOneof("value")
    shape = static_shape(type_.tensor_type) if kind == "tensor_type" else None
    if shape is None:
        raise ModelError("it has an input or output that is no tensor, or whose shape depends on data")
    dtype = dtype_of(type_.tensor_type.elem_type)
    if dtype is None:
        raise ModelError(f"type {type_name(type_.tensor_type.elem_type)} is not supported")
    return tuple(shape), dtype


def _same(types: Sequence[tuple[Sequence[int], str]], tensors: Sequence[_Typed], what: str) -> None:
    stated = [(tuple(t.shape), t.dtype) for t in tensors]
    if list(types) != stated:
        told = [", ".join(f"{d}{list(s)}" for s, d in side) for side in (types, stated)]
        raise ModelError(f"it {what} {told[0]}, and the island {told[1]}")


# --- work -------------------------------------------------------------------------------------


def _bounded(node: Any, opsets: Mapping[str, int], inputs: Mapping[str, Any]) -> None:
    """Raise ModelError for an operator whose work does not follow from the sizes of its tensors."""
    op, where = node.op_type, domain(node.domain)
    known = _ISLANDS.get(where, frozenset()) | (frozenset() if where else onnx_op.keys() - _NO_ISLANDS)
    if op not in known:
        raise ModelError(f"{op[:40]} of domain {where[:40] or 'ai.onnx'!r} does not run as an island")
    if not 0 < opsets[where] < 2**31 or not onnx.defs.has(op, opsets[where], where):
        raise ModelError(f"version {opsets[where]} of domain {where or 'ai.onnx'!r} has no {op}")
    schema: Any = onnx.defs.get_schema(op, opsets[where], where)
    if schema.node_determinism == onnx.defs.OpSchema.NodeDeterminism.NonDeterministic:
        raise ModelError("it makes random numbers")
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if op in _LIMITS:
        name, least, most = _LIMITS[op]
        if not least <= attributes.get(name, 0) <= most:
            raise ModelError(f"its {name} is not from {least} to {most}")
    if op in _CONVOLUTIONS:
        x, w = (inputs[node.input[i]].shape for i in (0, _CONVOLUTIONS[op]))
        _check_windows(x, w, attributes)
    if op.startswith("TreeEnsemble"):
        _check_trees(attributes)


def _check_windows(x: Sequence[int], w: Sequence[int], attributes: Mapping[str, Any]) -> None:
    """Raise ModelError for a convolution that gathers far more than there is."""
    kernel = attributes.get("kernel_shape") or w[2:]
    dilations, strides = (attributes.get(key) or [1] * len(kernel) for key in ("dilations", "strides"))
    pads = attributes.get("pads") or [0] * 2 * len(kernel)
    counts = {len(x) - 2, len(kernel), len(dilations), len(strides), len(pads) / 2}
    if len(counts) > 1 or min((1, *kernel, *dilations, *strides)) < 1:
        raise ModelError("its windows do not fit its input")
    ends = zip(pads[: len(kernel)], pads[len(kernel) :], strict=True)
    reach = (
        n + abs(a) + abs(b) + k * d for n, k, d, (a, b) in zip(x[2:], kernel, dilations, ends, strict=True)
    )
    if prod(x[:2]) * prod(kernel) * prod(reach) > MAX_STEPS:
        raise ModelError(f"its windows gather more than {MAX_STEPS} numbers")


def _check_trees(attributes: Mapping[str, Any]) -> None:
    """Raise ModelError for trees that are none: a walk might not end."""
    count = len(attributes.get("nodes_truenodeids", ()))
    ids = attributes.get("nodes_nodeids", range(count))
    trees = attributes.get("nodes_treeids", [0] * count)
    modes = attributes.get("nodes_modes")
    modes = modes if isinstance(modes, list) else [b""] * count  # newer versions have a list of leafs
    below: set[tuple[int, int]] = set()
    for side in ("true", "false"):
        children = attributes.get(f"nodes_{side}nodeids", ())
        leafs = attributes.get(f"nodes_{side}leafs", [0] * count)
        for tree, at, mode, child, leaf in zip(trees, ids, modes, children, leafs, strict=True):
            if mode == b"LEAF" or leaf:
                continue
            if child <= at or (tree, child) in below:
                raise ModelError("its nodes are no trees in which each node stands behind its parent")
            below.add((tree, child))
    roots = attributes.get("tree_roots", ())
    if len(set(roots)) != len(roots):
        raise ModelError("two of its trees are one")
