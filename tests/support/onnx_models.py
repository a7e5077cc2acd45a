"""Small ONNX models, made without files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from needs import imported

onnx = imported("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def value(name: str, shape: Sequence[Any] | None, elem_type: int = FLOAT) -> Any:
    """The declaration of an input or output."""
    return helper.make_tensor_value_info(name, elem_type, shape)


def model(
    nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[str],
    weights: dict[str, Any] | None = None, opset: int = 17, **more: Any,
) -> Any:  # fmt: skip
    """A model whose outputs have no stated types."""
    known = [numpy_helper.from_array(np.asarray(a), n) for n, a in (weights or {}).items()]
    ends = [onnx.ValueInfoProto(name=n) for n in outputs]
    for e in ends:
        e.type.tensor_type.elem_type = FLOAT
    graph = helper.make_graph(nodes, "net", inputs, ends, known)
    more.setdefault("opset_imports", [helper.make_opsetid("", opset)])
    return helper.make_model(graph, ir_version=10, **more)


def one(
    op: str, inputs: Sequence[Any], weights: dict[str, Any] | None = None, opset: int = 17, **attributes: Any
) -> Any:
    """A model of one node with the output y, whose inputs are those declared and the weights, in order."""
    names = [*(i.name for i in inputs), *(weights or {})]
    return model([helper.make_node(op, names, ["y"], name="n0", **attributes)], inputs, ["y"], weights, opset)


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    """A node by the names of its inputs and outputs, separated by blanks."""
    return helper.make_node(
        op, inputs.split(), outputs.split(), name=f"{op.lower()}_{outputs.split()[0]}", **attributes
    )


def whole(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Whole numbers as float32, so that sums of products are exact."""
    return rng.integers(-3, 4, shape).astype(np.float32)


def convolutional() -> Any:
    """Convolution, batch norm, residual, pools, and a flatten by arithmetic on shapes."""
    rng = np.random.default_rng(0)
    weights = {
        "w0": whole(rng, 4, 3, 3, 3), "b0": whole(rng, 4), "w1": whole(rng, 4, 1, 3, 3),
        "w2": whole(rng, 4, 4, 1, 1), "gamma": whole(rng, 4), "beta": whole(rng, 4), "mean": whole(rng, 4),
        "var": np.ones(4, np.float32),
        "fc": whole(rng, 4, 5), "zero": np.array(0), "rest": np.array([-1]),
    }  # fmt: skip
    nodes = [
        node("Conv", "x w0 b0", "c0", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c0 gamma beta mean var", "n0"),
        node("Relu", "n0", "r0"),
        node("MaxPool", "r0", "p0", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        node("Conv", "p0 w1", "c1", group=4, pads=[0, 1, 2, 1], strides=[1, 2]),
        node("Conv", "p0 w2", "c2", strides=[1, 2]),
        node("Add", "c1 c2", "a0"),
        node("GlobalAveragePool", "a0", "g0"),
        node("Shape", "g0", "s0"),
        node("Gather", "s0 zero", "batch", axis=0),
        node("Unsqueeze", "batch axes0", "batch1"),
        node("Concat", "batch1 rest", "flat", axis=0),
        node("Reshape", "g0 flat", "f0"),
        node("MatMul", "f0 fc", "m0"),
        node("Softmax", "m0", "y", axis=-1),
    ]
    weights["axes0"] = np.array([0])
    return model(nodes, [value("x", [1, 3, 8, 8])], ["y"], weights)


def transformer() -> Any:
    """Layer norm, attention of two heads with a causal mask made from shapes, and a local function."""
    rng = np.random.default_rng(1)
    w = {
        "scale": np.ones(8, np.float32), "bias": np.zeros(8, np.float32), "wqkv": whole(rng, 8, 24) / 8,
        "bqkv": whole(rng, 24) / 8, "heads": np.array([1, 6, 2, 4]), "back": np.array([1, 6, 8]),
        "root": np.array(0.5, np.float32), "wo": whole(rng, 8, 8) / 8, "low": np.array(-1e9, np.float32),
        "six": np.array([6, 6]), "ones": np.array(1, np.float32),
    }  # fmt: skip
    nodes = [
        node("LayerNormalization", "x scale bias", "h"),
        node("MatMul", "h wqkv", "m"),
        node("Add", "m bqkv", "qkv"),
        node("Split", "qkv", "q k v", axis=2),
        *(node("Reshape", f"{n} heads", f"{n}4") for n in "qkv"),
        *(node("Transpose", f"{n}4", f"{n}t", perm=[0, 2, 1, 3]) for n in "qv"),
        node("Transpose", "k4", "kt", perm=[0, 2, 3, 1]),
        node("MatMul", "qt kt", "dot"),
        node("Mul", "dot root", "scores"),
        node("ConstantOfShape", "six", "full", value=numpy_helper.from_array(np.array([1.0], np.float32))),
        node("Trilu", "full", "tri", upper=0),
        node("Equal", "tri ones", "seen"),
        node("Where", "seen scores low", "masked"),
        node("Softmax", "masked", "p", axis=-1),
        node("MatMul", "p vt", "mix"),
        node("Transpose", "mix", "mixt", perm=[0, 2, 1, 3]),
        node("Reshape", "mixt back", "flat"),
        node("MatMul", "flat wo", "o"),
        helper.make_node("Activate", ["o"], ["act"], name="act", domain="local", slope=2.0),
        node("Add", "x act", "y"),
    ]
    body = [
        helper.make_node("Constant", [], ["by"]),
        helper.make_node("Sigmoid", ["a"], ["s"]),
        helper.make_node("Mul", ["a", "s"], ["t"]),
        helper.make_node("Mul", ["t", "by"], ["out"]),
    ]
    reference = onnx.AttributeProto(name="value_float", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    body[0].attribute.append(reference)
    opsets = [helper.make_opsetid("", 18)]
    function = helper.make_function("local", "Activate", ["a"], ["out"], body, opsets, attributes=["slope"])
    nodes[3].attribute.append(helper.make_attribute("num_outputs", 3))
    imports = [*opsets, helper.make_opsetid("local", 1)]
    return model(nodes, [value("x", [1, 6, 8])], ["y"], w, functions=[function], opset_imports=imports)


def small_file(path: Any) -> None:
    """A layer of 32 values to 16 in any number of rows."""
    rng = np.random.default_rng(0)
    weights = {"w": whole(rng, 32, 16), "b": whole(rng, 16)}
    nodes = [node("Gemm", "x w b", "h"), node("Relu", "h", "y")]
    onnx.save(model(nodes, [value("x", ["batch", 32])], ["y"], weights), path)


def arrays(net: Any, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs of a model with static shapes."""
    rng = np.random.default_rng(seed)
    known = {t.name for t in net.graph.initializer}
    out = {}
    for i in net.graph.input:
        if i.name not in known:
            shape = [d.dim_value for d in i.type.tensor_type.shape.dim]
            dtype = helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type)
            out[i.name] = rng.integers(-3, 4, shape).astype(dtype)
    return out
