"""Peer onnxruntime: ONNX Runtime with all graph optimisations.

Constant inputs are initialisers, which it packs ahead. Other inputs and outputs are bound, so that no call
copies. It takes channels-first arrays only: arrays of NHWC operators are transposed before the clock runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, InvalidGraph, RuntimeException
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NotImplemented_

from autotune.errors import one_line
from autotune.measure.compare.onnx_session import session
from autotune.measure.compare.peers import Arrays, PeerError, PreparedPeer, check_row_major
from schedules.model import Workload
from schedules.ops import parameters
from schedules.ops.axes import each

Params = Mapping[str, Any]
# {name of an input: it}.
Named = dict[str, np.ndarray]
# Versions of ONNX's operators and of its file format.
OPSET, IR_VERSION = 20, 9
# What it raises for a node that it has no kernel for.
FAILURES = (RuntimeError, Fail, InvalidArgument, InvalidGraph, NotImplemented_, RuntimeException)


@dataclass
class OnnxGraph:
    """The graph of an operator. ``arrays``: in the order and layout of its inputs, named as the workload's.
    ``nodes``: the output of the last is ``y``, of dtype ``result``. ``back``: makes the workload's output of
    ``y``."""

    arrays: dict[str, np.ndarray]
    nodes: list[Any] = field(default_factory=list)
    back: Callable[[np.ndarray], np.ndarray] = lambda y: y
    result: str = "float32"

    def add(
        self, op: str, inputs: Sequence[str], output: str = "y", domain: str = "", **attributes: Any
    ) -> str:
        """Add a node. Returns the name of its output."""
        self.nodes.append(helper.make_node(op, list(inputs), [output], domain=domain, **attributes))
        return output


# (parameters, inputs) -> the graph of an operator.
Make = Callable[[Params, Named], OnnxGraph]


@contextmanager
def prepare(workload: Workload, inputs: Arrays, outputs: Arrays, threads: int) -> Iterator[PreparedPeer]:
    """See `autotune.measure.compare`. Raises `PeerError` for an operator that it lacks in this form."""
    check_row_major(workload, "onnxruntime")
    make = GRAPHS.get(workload.op)
    dag = workload.dag
    if make is None or (make not in QUANTIZED and any(t.dtype != "float32" for t in dag.inputs)):
        raise PeerError(
            f"ONNX Runtime has no peer for {workload.op!r} of {dag.params[0].dtype}; it has one for "
            f"{', '.join(sorted(GRAPHS))}, in float32 unless quantized; leave onnxruntime out of --against"
        )
    graph = make(parameters(workload), dict(zip((t.name for t in dag.inputs), inputs, strict=True)))
    free = {n: a for n, a in graph.arrays.items() if n not in dag.constants}
    try:
        made = _session(graph, dag.constants, threads)
        (first,) = made.run(None, free)
        binding = made.io_binding()
        for name, a in free.items():
            binding.bind_cpu_input(name, a)
        result = ort.OrtValue.ortvalue_from_numpy(np.empty_like(first))
        binding.bind_ortvalue_output("y", result)
        made.run_with_iobinding(binding)
    except FAILURES as err:
        raise PeerError(
            f"ONNX Runtime lacks {workload.op!r} with these parameters: {one_line(err, 300)}; "
            "leave onnxruntime out of --against"
        ) from None
    yield PreparedPeer(
        lambda: made.run_with_iobinding(binding),
        lambda: [np.ascontiguousarray(graph.back(result.numpy())).reshape(outputs[0].shape)],
    )


def _session(graph: OnnxGraph, constants: Sequence[str], threads: int) -> Any:
    def info(name: str, shape: Sequence[int] | None, dtype: str = "float32") -> Any:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return helper.make_tensor_value_info(name, kind, shape)

    made = helper.make_graph(
        graph.nodes,
        "operator",
        [info(n, a.shape, a.dtype.name) for n, a in graph.arrays.items() if n not in constants],
        [info("y", None, graph.result)],
        [numpy_helper.from_array(a, n) for n, a in graph.arrays.items() if n in constants],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(made, opset_imports=opsets)
    model.ir_version = IR_VERSION
    return session(model.SerializeToString(), threads)


# -- operators ---------------------------------------------------------------------------------


def _product(p: Params, x: Named, then: str = "") -> OnnxGraph:
    """A product of matrices. ``then``: with a bias, the function that follows it."""
    g, out = OnnxGraph(x), "product" if then else "y"
    names = [*x][:2]
    flags = [int(p.get(f"transpose_{n}", 0)) for n in "ab"]
    if x[names[0]].ndim == 2 and any(flags):
        g.add("Gemm", names, out, transA=flags[0], transB=flags[1])
    else:
        turned = [g.add("Transpose", [n], f"{n}_t", perm=[0, 2, 1]) if f else n for n, f in zip(names, flags)]
        g.add("MatMul", turned, out)
    if then:
        g.add(then, [g.add("Add", [out, "bias"], "sum")])
    return g


def _channels_first(p: Params, x: Named) -> tuple[OnnxGraph, bool]:
    """A graph over the same arrays, and whether ``x`` had its channels last, which are first there."""
    if p.get("layout", "NHWC") != "NHWC":
        return OnnxGraph(dict(x)), False
    first = np.ascontiguousarray(np.moveaxis(x["x"], -1, 1))
    return OnnxGraph(x | {"x": first}, back=lambda y: np.moveaxis(y, 1, -1)), True


def _windows(p: Params, rank: int) -> dict[str, Any]:
    """How windows lie, as attributes of a node."""
    names = {"stride": "strides", "dilation": "dilations", "output_padding": "output_padding"}
    found: dict[str, Any] = {new: [*each(p[old], rank)] for old, new in names.items() if old in p}
    return found | {"pads": [*each(p["padding"], rank)] * 2}


def _conv(p: Params, x: Named) -> OnnxGraph:
    """Convolutions of one to three dimensions, grouped and depthwise ones, with what may follow."""
    g, last = _channels_first(p, x)
    arrays, rank = g.arrays, x["x"].ndim - 2
    groups = int(p.get("groups", 1))
    if "c" in p:  # depthwise: weights (kh, kw, c) or (c, kh, kw)
        w = np.moveaxis(x["w"], -1, 0) if last else x["w"]
        arrays["w"] = np.ascontiguousarray(w[:, None])
        groups = int(p["c"])
    elif last:
        arrays["w"] = np.ascontiguousarray(np.moveaxis(x["w"], (-1, -2), (0, 1)))
    bias = ["bias"] if "bias" in x else []
    out = g.add("Conv", ["x", "w", *bias], "conv" if bias else "y", group=groups, **_windows(p, rank))
    for op, name in (("Mul", "scale"), ("Add", "offset")):
        if name in x:
            arrays[name] = np.ascontiguousarray(x[name].reshape(-1, *[1] * rank))
            out = g.add(op, [out, name], f"after_{name}")
    if bias:
        g.add("Relu", [out])
    return g


def _parameters(x: Named, channels: int) -> tuple[dict[str, np.ndarray], list[list[str]]]:
    """(the arrays of a quantized operator, the names of scale and zero point of its data, of its weights and
    of its result)."""
    one, none = np.ones((), np.float32), np.zeros(channels, np.int8)
    arrays = x | {"one": one, "w_zero": x.get("w_zero", none)}
    arrays["scale"] = np.ascontiguousarray(np.broadcast_to(x["scale"], (channels,)))
    return arrays, [["one", "x_zero"], ["scale", "w_zero"], ["one", "y_zero"]]


def _quantized_product(p: Params, x: Named) -> OnnxGraph:
    arrays, (of_a, of_b, of_y) = _parameters(x, p["n"])
    g = OnnxGraph(arrays, result=x["a"].dtype.name)
    a, b = (
        g.add("Transpose", [n], f"{n}_t", perm=[1, 0]) if p[f"transpose_{n}"] else n for n in ("a", "b")
    )
    g.add("QLinearMatMul", [a, *of_a, b, *of_b, *of_y])
    return g


def _quantized_conv(p: Params, x: Named) -> OnnxGraph:
    g, last = _channels_first(p, x)
    g.arrays, (of_x, of_w, of_y) = _parameters(g.arrays, p["co"])
    if last:
        g.arrays["w"] = np.ascontiguousarray(np.moveaxis(x["w"], (-1, -2), (0, 1)))
    g.result = x["x"].dtype.name
    g.add("QLinearConv", ["x", *of_x, "w", *of_w, *of_y], group=int(p["groups"]), **_windows(p, 2))
    return g


def _weight_only_product(p: Params, x: Named) -> OnnxGraph:
    """MatMulNBits of float32. Its integers are unsigned; without zero points half of their range is 0."""
    bits = {"int4": 4, "int8": 8}.get(p["weights"])
    if bits is None or x["x"].dtype != "float32" or x["s"].dtype != "float32":
        raise PeerError(
            "ONNX Runtime multiplies float32 by int4 and int8 with scales of float32 only; leave onnxruntime "
            "out of --against"
        )
    codes = x["w"] if bits == 4 else x["w"].view(np.uint8) ^ 0x80
    g = OnnxGraph(x | {"w": codes.reshape(p["n"], p["k"] // p["group"], -1)})
    sizes = {"K": p["k"], "N": p["n"], "bits": bits, "block_size": p["group"]}
    g.add("MatMulNBits", ["x", "w", "s"], domain="com.microsoft", **sizes)
    return g


# What takes integers.
QUANTIZED: tuple[Make, ...] = (_quantized_product, _quantized_conv, _weight_only_product)


def _conv2d_transpose(p: Params, x: Named) -> OnnxGraph:
    g, last = _channels_first(p, x)
    if last:
        g.arrays["w"] = np.ascontiguousarray(np.moveaxis(x["w"], (-2, -1), (0, 1)))
    g.add("ConvTranspose", ["x", "w"], group=p["groups"], **_windows(p, 2))
    return g


def _pool(p: Params, x: Named, op: str) -> OnnxGraph:
    g, _ = _channels_first(p, x)
    flags = {n: p[n] for n in ("ceil_mode", "count_include_pad") if n in p}
    g.add(op, ["x"], kernel_shape=[*each(p["k"], 2)], **_windows(p, 2), **flags)
    return g


def _one(op: str, names: Mapping[str, str] = MappingProxyType({}), **attributes: Any) -> Make:
    """An operator that is a single node over the workload's own arrays. ``names``: {attribute: parameter}."""

    def make(p: Params, x: Named) -> OnnxGraph:
        g = OnnxGraph(x)
        g.add(op, list(x), **attributes, **{a: p[n] for a, n in names.items()})
        return g

    return make


def _chain(*nodes: tuple[str, Sequence[str], str, dict[str, Any]]) -> Make:
    """An operator of several nodes over the workload's own arrays: (operator, inputs, output, attributes)."""

    def make(p: Params, x: Named) -> OnnxGraph:
        g = OnnxGraph(x)
        for op, inputs, output, attributes in nodes:
            g.add(op, inputs, output, **attributes)
        return g

    return make


def _reduce(op: str, x: Named, rows: bool) -> OnnxGraph:
    """A reduction over the last axis. ``rows``: of the array as a matrix of rows."""
    g = OnnxGraph({"x": x["x"].reshape(len(x["x"]), -1)} if rows else x)
    axis = numpy_helper.from_array(np.array([-1], np.int64), "axis")
    g.add("Constant", [], "axis", value=axis)
    g.add(op, ["x", "axis"], keepdims=0)
    return g


def _place(op: str, x: Named) -> OnnxGraph:
    """Indices in the last axis, which ONNX gives as int64."""
    g = OnnxGraph(x, back=lambda y: y.astype(np.int32), result="int64")
    g.add(op, ["x"], axis=-1, keepdims=0)
    return g


def _attention(p: Params, x: Named) -> OnnxGraph:
    """Attention with heads side by side in a row, the only order that its fused operator takes."""
    b, heads, seq, dim = x["q"].shape
    arrays, inputs = dict(x), ["q", "k", "v"]
    mask = arrays.pop("attn_mask", None)

    def rows(a: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(a.transpose(0, 2, 1, 3)).reshape(a.shape[0], a.shape[2], -1)

    g = OnnxGraph(
        {n: rows(a) for n, a in arrays.items()},
        back=lambda y: y.reshape(b, seq, heads, dim).transpose(0, 2, 1, 3),
    )
    if mask is not None:
        mask = mask.reshape(*[1] * (4 - mask.ndim), *mask.shape)
        g.arrays["attn_mask"] = np.ascontiguousarray(np.broadcast_to(mask, (*mask.shape[:2], seq, seq)))
        inputs += ["", "", "attn_mask"]
    scale = {} if p["scale"] is None else {"scale": p["scale"]}
    g.add(
        "MultiHeadAttention", inputs, domain="com.microsoft", num_heads=heads,
        unidirectional=p["is_causal"], **scale,
    )  # fmt: skip
    return g


# {operator: function that makes its graph (parameters, inputs)}.
GRAPHS: dict[str, Make] = {
    "matmul": _product,
    "batch_matmul": _product,
    "matmul_bias_relu": lambda p, x: _product(p, x, "Relu"),
    "matmul_bias_gelu": lambda p, x: _product(p, x, "Gelu"),
    "conv1d": _conv,
    "conv2d": _conv,
    "conv3d": _conv,
    "conv2d_bias_relu": _conv,
    "conv2d_bn_relu": _conv,
    "depthwise_conv2d": _conv,
    "conv2d_transpose": _conv2d_transpose,
    "quantized_matmul": _quantized_product,
    "quantized_conv2d": _quantized_conv,
    "weight_only_matmul": _weight_only_product,
    "max_pool2d": lambda p, x: _pool(p, x, "MaxPool"),
    "avg_pool2d": lambda p, x: _pool(p, x, "AveragePool"),
    "softmax": _one("Softmax", {"axis": "axis"}),
    "layer_norm": _one("LayerNormalization", {"epsilon": "eps"}, axis=-1),
    "rms_norm": _one("SimplifiedLayerNormalization", {"epsilon": "eps"}, axis=-1),
    "norm2": lambda p, x: _reduce("ReduceL2", x, rows=True),
    "reduce_sum": lambda p, x: _reduce("ReduceSum", x, rows=False),
    "argmax": lambda p, x: _place("ArgMax", x),
    "argmin": lambda p, x: _place("ArgMin", x),
    "permute": _one("Transpose", {"perm": "axes"}),
    "add": _one("Add"),
    "fused_multiply_add": _chain(
        ("Add", ["a", "b"], "sum", {}),
        ("Mul", ["sum", "c"], "product", {}),
        ("Add", ["product", "d"], "y", {}),
    ),
    "attention": _attention,
    "transpose_batch_matmul_softmax": _chain(
        ("Transpose", ["q"], "q_t", {"perm": [0, 2, 1, 3]}),
        ("Transpose", ["k"], "k_t", {"perm": [0, 2, 3, 1]}),
        ("MatMul", ["q_t", "k_t"], "product", {}),
        ("Softmax", ["product"], "y", {"axis": -1}),
    ),
}
