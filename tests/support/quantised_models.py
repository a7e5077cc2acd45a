"""Small models, and what ONNX Runtime's quantiser makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from needs import imported

onnx = imported("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

# {name: (activations, weights) as the quantiser names them}.
TYPES = {"us": ("QUInt8", "QInt8"), "ss": ("QInt8", "QInt8"), "uu": ("QUInt8", "QUInt8")}


class _Net:
    """Nodes and weights of a model while it is written. Each node is named as its output."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.known: list[Any] = []

    def op(self, kind: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, name: str, value: Any) -> str:
        self.known.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, name: str, *shape: int, size: float = 0.3) -> str:
        return self.constant(name, self.rng.normal(0, size, shape).astype(np.float32))

    def model(self, name: str, given: Any, out: Any) -> Any:
        graph = helper.make_graph(self.nodes, name, [given], [out], self.known)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def residual(channels: int = 8, size: int = 9) -> Any:
    """A network as ResNet has it: a stem, a pool, a block, one with strides and a shortcut, a classifier."""
    net, c = _Net(0), channels

    def conv(x: str, y: str, out: int, depth: int, k: int, stride: int = 1) -> str:
        names = [x, net.weight(f"{y}_w", out, depth, k, k), net.weight(f"{y}_b", out)]
        return net.op("Conv", names, y, kernel_shape=[k, k], strides=[stride] * 2, pads=[k // 2] * 4)

    def relu(x: str) -> str:
        return net.op("Relu", [x], f"{x}_relu")

    x = relu(conv("x", "stem", c, 3, 3))
    x = net.op("MaxPool", [x], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    x = relu(net.op("Add", [conv(relu(conv(x, "c1", c, c, 3)), "c2", c, c, 3), x], "sum1"))
    first = conv(relu(conv(x, "c3", 2 * c, c, 3, 2)), "c4", 2 * c, 2 * c, 3)
    x = relu(net.op("Add", [first, conv(x, "c5", 2 * c, c, 1, 2)], "sum2"))
    x = net.op("Flatten", [net.op("GlobalAveragePool", [x], "mean")], "flat")
    net.op("Gemm", [x, net.weight("fc_w", 10, 2 * c), net.weight("fc_b", 10)], "y", transB=1)
    ports = (("x", [1, 3, size, size]), ("y", [1, 10]))
    return net.model("residual", *(helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in ports))


def encoder(seq: int = 6, width: int = 16, heads: int = 2, inner: int = 24, words: int = 20) -> Any:
    """A layer as BERT has it, over embeddings."""
    net, each = _Net(1), width // heads

    def linear(x: str, name: str, n: int, m: int) -> str:
        y = net.op("MatMul", [x, net.weight(f"{name}_w", n, m)], f"{name}_dot")
        return net.op("Add", [y, net.weight(f"{name}_b", m)], name)

    def norm(x: str, name: str) -> str:
        names = [x, net.weight(f"{name}_g", width), net.weight(f"{name}_s", width)]
        return net.op("LayerNormalization", names, name, axis=-1)

    def head(x: str, name: str, perm: Sequence[int]) -> str:
        y = net.op("Reshape", [linear(x, name, width, width), "apart"], f"{name}_heads")
        return net.op("Transpose", [y], f"{name}_turned", perm=perm)

    net.constant("apart", np.array([0, seq, heads, each]))
    net.constant("together", np.array([0, seq, width]))
    x = net.op("Gather", [net.weight("words", words, width), "ids"], "embedded")
    x = norm(net.op("Add", [x, net.weight("places", seq, width)], "placed"), "norm0")
    scores = net.op("MatMul", [head(x, "q", [0, 2, 1, 3]), head(x, "k", [0, 2, 3, 1])], "scores")
    scores = net.op("Mul", [scores, net.constant("by", np.float32(each**-0.5))], "scaled")
    seen = net.op(
        "MatMul", [net.op("Softmax", [scores], "shares", axis=-1), head(x, "v", [0, 2, 1, 3])], "seen"
    )
    seen = net.op("Reshape", [net.op("Transpose", [seen], "back", perm=[0, 2, 1, 3]), "together"], "joined")
    x = norm(net.op("Add", [linear(seen, "o", width, width), x], "sum1"), "norm1")
    f = linear(x, "up", width, inner)
    e = net.op("Erf", [net.op("Div", [f, net.constant("root", np.float32(2**0.5))], "part")], "erf")
    e = net.op("Add", [e, net.constant("one", np.float32(1))], "more")
    f = net.op("Mul", [net.op("Mul", [f, e], "whole"), net.constant("half", np.float32(0.5))], "gelu")
    x = norm(net.op("Add", [linear(f, "down", inner, width), x], "sum2"), "norm2")
    net.op("Identity", [x], "y")
    given = helper.make_tensor_value_info("ids", TensorProto.INT64, [1, seq])
    return net.model("encoder", given, helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, seq, width]))


def inputs_of(model: Any, count: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Inputs for a model of this file: standard normal, or words."""
    rng = np.random.default_rng(seed)
    port = model.graph.input[0]
    shape = [d.dim_value for d in port.type.tensor_type.shape.dim]
    if port.type.tensor_type.elem_type == TensorProto.INT64:
        return [{port.name: rng.integers(0, 20, shape)} for _ in range(count)]
    return [{port.name: rng.normal(0, 1, shape).astype(np.float32)} for _ in range(count)]


def quantised(model: Any, how: str, types: str, per_channel: bool, folder: Path) -> Any:
    """What ONNX Runtime's quantiser makes of a model. ``how``: "QDQ", "QOperator" or "dynamic". ``types``: a
    name of `TYPES`; of dynamic ones those of the weights count."""
    quantization = imported("onnxruntime.quantization")
    source, target = folder / "model.onnx", folder / "quantised.onnx"
    onnx.save(model, source)
    data, weights = (getattr(quantization.QuantType, n) for n in TYPES[types])
    if how == "dynamic":
        quantization.quantize_dynamic(source, target, per_channel=per_channel, weight_type=weights)
    else:
        quantization.quantize_static(
            source,
            target,
            _reader(quantization, inputs_of(model, 3)),
            quant_format=getattr(quantization.QuantFormat, how),
            per_channel=per_channel,
            activation_type=data,
            weight_type=weights,
        )
    return onnx.load(target)


def _reader(quantization: Any, inputs: Sequence[dict[str, np.ndarray]]) -> Any:
    left: Iterator[dict[str, np.ndarray]] = iter(inputs)

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc,name-defined]
        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(left, None)

    return Reader()
