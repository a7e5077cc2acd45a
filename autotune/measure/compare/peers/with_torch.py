"""Peer torch: torch in inference mode.

Weights are brought into torch's order before the clock runs. Activations are not copied: NHWC arrays are
viewed as channels-last tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from autotune.errors import one_line
from autotune.measure.compare.peers import Arrays, PeerError, PreparedPeer
from schedules.dtypes import DTYPES
from schedules.model import Workload
from schedules.ops import parameters

Params = Mapping[str, Any]
# {bytes of an element: integers of that size}, which numpy and torch both have.
_BITS = {1: "uint8", 2: "int16"}
# () -> the result, a tensor.
Call = Callable[[], Any]
# (parameters, tensors, tensor to write or None for a new one) -> the call.
Make = Callable[[Params, list[Any], Any], Call]


@contextmanager
def prepare(workload: Workload, inputs: Arrays, outputs: Arrays, threads: int) -> Iterator[PreparedPeer]:
    """See `autotune.measure.compare`. Raises `PeerError` for an operator that torch lacks in this form."""
    make = operator(workload.op)
    if any(min(a.strides, default=0) < 0 for a in inputs):
        raise PeerError("torch has no tensors that walk backwards; leave torch out of --against")
    tensors = [tensor(a) for a in inputs]
    with limited(threads), torch.inference_mode():
        call = make(parameters(workload), tensors, tensor(outputs[0]))
        try:
            call()
        except (RuntimeError, NotImplementedError) as err:  # such as a dtype that torch's operator lacks
            raise PeerError(
                f"torch has no {workload.op!r} of these dtypes: {one_line(err, 300)}; "
                "leave torch out of --against"
            ) from None
        yield prepared(call)


def tensor(a: np.ndarray) -> Any:
    """An array as a tensor on the same memory. torch reads no array of `ml_dtypes`, such as bfloat16."""
    if DTYPES[a.dtype.name].module == "numpy":
        return torch.from_numpy(a)
    return torch.from_numpy(a.view(_BITS[a.itemsize])).view(getattr(torch, a.dtype.name))


def array(x: Any) -> np.ndarray:
    """A tensor as an array. See `tensor`."""
    name = str(x.dtype).removeprefix("torch.")
    if DTYPES[name].module == "numpy":
        return np.ascontiguousarray(x.numpy())
    bits = x.contiguous().view(getattr(torch, _BITS[x.element_size()]))
    return np.ascontiguousarray(bits.numpy().view(DTYPES[name].numpy))


def operator(name: str) -> Make:
    """The function that makes the call of an operator. Raises `PeerError`."""
    if name not in OPERATORS:
        raise PeerError(
            f"torch has no peer for {name!r}; it has one for {', '.join(sorted(OPERATORS))}; "
            "leave torch out of --against"
        )
    return OPERATORS[name]


@contextmanager
def limited(threads: int) -> Iterator[None]:
    """Limit torch to ``threads`` threads within the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def prepared(call: Call) -> PreparedPeer:
    """A prepared call that keeps its last result."""
    last: list[Any] = [None]

    def run() -> None:
        last[0] = None  # frees its memory for the next result, as in a running program
        last[0] = call()

    return PreparedPeer(run, lambda: [array(last[0])])


def _product(p: Params, x: list[Any], out: Any, then: Callable[[Any], Any] | None = None) -> Call:
    """A product of matrices. ``then``: with a bias, what follows it."""
    a, b = (m.transpose(-1, -2) if p.get(f"transpose_{n}") else m for n, m in zip("ab", x))
    if then is None and (a.dtype, p.get("out_dtype"), a.ndim) == (torch.int8, "int32", 2):
        return lambda: torch._int_mm(a, b) if out is None else torch._int_mm(a, b, out=out)
    if then is None:
        return lambda: torch.matmul(a, b, out=out)
    return lambda: then(torch.addmm(x[2], a, b, out=out))


def _attention(p: Params, x: list[Any], out: Any) -> Call:
    q, k, v, *mask = x
    settings = {"is_causal": bool(p["is_causal"]), "scale": p["scale"]}
    if mask:
        settings["attn_mask"] = mask[0]
    if mask and p["is_causal"]:  # torch takes one of the two
        later = torch.full((p["seq"], p["seq"]), -torch.inf, dtype=q.dtype).triu(1)
        settings |= {"is_causal": False, "attn_mask": mask[0] + later}
    return lambda: F.scaled_dot_product_attention(q, k, v, **settings)


def _transpose_batch_matmul_softmax(p: Params, x: list[Any], out: Any) -> Call:
    q, k = x[0].permute(0, 2, 1, 3), x[1].permute(0, 2, 3, 1)
    scores = None if out is None else torch.empty_like(out)
    return lambda: torch.softmax(torch.matmul(q, k, out=scores), -1, out=out)


def _channels_first(p: Params, x: Any, run: Callable[[Any], Any]) -> Call:
    """``run`` of the array with channels first, whose result gets the order of the operator. Views only."""
    if p.get("layout", "NHWC") != "NHWC":
        return lambda: run(x)
    rank = x.ndim
    data, back = x.permute(0, rank - 1, *range(1, rank - 1)), (0, *range(2, rank), 1)
    return lambda: run(data).permute(back)


def _settings(p: Params) -> dict[str, Any]:
    """How windows lie."""
    return {k: p[k] for k in ("stride", "padding", "output_padding", "dilation", "groups") if k in p}


def _conv(p: Params, x: list[Any], out: Any) -> Call:
    """Convolutions of one to three dimensions, with what may follow."""
    weight, rank = x[1], x[0].ndim - 2
    if p.get("layout", "NHWC") == "NHWC":
        weight = weight.movedim((-1, -2), (0, 1)).contiguous()
        if rank > 1:
            formats = {2: torch.channels_last, 3: torch.channels_last_3d}
            weight = weight.contiguous(memory_format=formats[rank])
    conv = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[rank]
    bias = x[2] if len(x) > 2 else None
    affine = [v.view(-1, 1, 1) for v in x[3:5]]  # of conv2d_bn_relu
    settings = _settings(p)

    def run(data: Any) -> Any:
        y = conv(data, weight, bias, **settings)
        if affine:
            y = y.mul_(affine[0]).add_(affine[1])
        return y if bias is None else y.relu_()

    return _channels_first(p, x[0], run)


def _depthwise_conv2d(p: Params, x: list[Any], out: Any) -> Call:
    weight = x[1].permute(2, 0, 1) if p.get("layout", "NHWC") == "NHWC" else x[1]
    weight, settings = weight.unsqueeze(1).contiguous(), _settings(p)
    return _channels_first(p, x[0], lambda data: F.conv2d(data, weight, groups=data.shape[1], **settings))


def _conv2d_transpose(p: Params, x: list[Any], out: Any) -> Call:
    weight, settings = x[1], _settings(p)
    if p.get("layout", "NHWC") == "NHWC":
        weight = weight.permute(2, 3, 0, 1).contiguous(memory_format=torch.channels_last)
    return _channels_first(p, x[0], lambda data: F.conv_transpose2d(data, weight, **settings))


def _pool2d(p: Params, x: list[Any], pool: Callable[..., Any]) -> Call:
    settings = _settings(p) | {k: bool(p[k]) for k in ("ceil_mode", "count_include_pad") if k in p}
    return _channels_first(p, x[0], lambda data: pool(data, p["k"], **settings))


def _fused_multiply_add(p: Params, x: list[Any], out: Any) -> Call:
    a, b, c, d = x
    return lambda: torch.addcmul(d, torch.add(a, b, out=out), c, out=out)


def _permute(p: Params, x: list[Any], out: Any) -> Call:
    axes = tuple(p["axes"])
    return lambda: x[0].permute(axes).contiguous() if out is None else out.copy_(x[0].permute(axes))


def _norm(function: Callable[..., Any]) -> Make:
    """Normalizes rows, then takes weights."""

    def make(p: Params, x: list[Any], out: Any) -> Call:
        data, *weights = x
        shape, eps = weights[0].shape, p["eps"]
        return lambda: function(data, shape, *weights, eps)

    return make


# {operator: function that makes its call}.
OPERATORS: dict[str, Make] = {
    "matmul": _product,
    "batch_matmul": _product,
    "matmul_bias_relu": lambda p, x, out: _product(p, x, out, torch.relu_),
    "matmul_bias_gelu": lambda p, x, out: _product(p, x, out, F.gelu),
    "conv1d": _conv,
    "conv2d": _conv,
    "conv3d": _conv,
    "conv2d_bias_relu": _conv,
    "conv2d_bn_relu": _conv,
    "depthwise_conv2d": _depthwise_conv2d,
    "conv2d_transpose": _conv2d_transpose,
    "max_pool2d": lambda p, x, out: _pool2d(p, x, F.max_pool2d),
    "avg_pool2d": lambda p, x, out: _pool2d(p, x, F.avg_pool2d),
    "softmax": lambda p, x, out: lambda: torch.softmax(x[0], p["axis"], out=out),
    "layer_norm": _norm(F.layer_norm),
    "rms_norm": _norm(F.rms_norm),
    "norm2": lambda p, x, out: lambda: torch.linalg.vector_norm(x[0].flatten(1), dim=1, out=out),
    "reduce_sum": lambda p, x, out: lambda: torch.sum(x[0], -1, out=out),
    "argmax": lambda p, x, out: lambda: torch.argmax(x[0], -1).to(torch.int32),
    "argmin": lambda p, x, out: lambda: torch.argmin(x[0], -1).to(torch.int32),
    "permute": _permute,
    "add": lambda p, x, out: lambda: torch.add(x[0], x[1], out=out),
    "fused_multiply_add": _fused_multiply_add,
    "attention": _attention,
    "transpose_batch_matmul_softmax": _transpose_batch_matmul_softmax,
}
