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

from autotune.measure.compare.peers import Arrays, PeerError, PreparedPeer
from schedules.model import Workload
from schedules.ops import parameters

Params = Mapping[str, Any]
# () -> the result, a tensor.
Call = Callable[[], Any]
# (parameters, tensors, tensor to write or None for a new one) -> the call.
Make = Callable[[Params, list[Any], Any], Call]


@contextmanager
def prepare(workload: Workload, inputs: Arrays, outputs: Arrays, threads: int) -> Iterator[PreparedPeer]:
    """See `autotune.measure.compare`. Raises `PeerError` for an operator that torch lacks in this form."""
    make = operator(workload.op)
    tensors = [torch.from_numpy(a) for a in inputs]
    with limited(threads), torch.inference_mode():
        yield prepared(make(parameters(workload), tensors, torch.from_numpy(outputs[0])))


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

    return PreparedPeer(run, lambda: [np.ascontiguousarray(last[0].numpy())])


def _matmul(p: Params, x: list[Any], out: Any) -> Call:
    a = x[0].transpose(-1, -2) if p.get("transpose_a") else x[0]
    b = x[1].transpose(-1, -2) if p.get("transpose_b") else x[1]
    return lambda: torch.matmul(a, b, out=out)


def _matmul_bias_relu(p: Params, x: list[Any], out: Any) -> Call:
    a = x[0].transpose(-1, -2) if p.get("transpose_a") else x[0]
    b = x[1].transpose(-1, -2) if p.get("transpose_b") else x[1]
    return lambda: torch.addmm(x[2], a, b, out=out).relu_()


def _matmul_bias_gelu(p: Params, x: list[Any], out: Any) -> Call:
    a = x[0].transpose(-1, -2) if p.get("transpose_a") else x[0]
    b = x[1].transpose(-1, -2) if p.get("transpose_b") else x[1]
    return lambda: torch.nn.functional.gelu(torch.addmm(x[2], a, b, out=out))


def _softmax(p: Params, x: list[Any], out: Any) -> Call:
    return lambda: torch.softmax(x[0], p["axis"], out=out)


def _layer_norm(p: Params, x: list[Any], out: Any) -> Call:
    shape = (x[0].shape[-1],)
    return lambda: torch.nn.functional.layer_norm(x[0], shape, x[1], x[2], p["eps"])


def _rms_norm(p: Params, x: list[Any], out: Any) -> Call:
    shape = (x[0].shape[-1],)
    return lambda: torch.nn.functional.rms_norm(x[0], shape, x[1], p["eps"])


def _attention(p: Params, x: list[Any], out: Any) -> Call:
    q, k, v, *mask = x
    settings = {"is_causal": bool(p["is_causal"]), "scale": p["scale"]}
    if mask:
        settings["attn_mask"] = mask[0]
    if mask and p["is_causal"]:  # torch takes one of the two
        later = torch.full((p["seq"], p["seq"]), -torch.inf, dtype=q.dtype).triu(1)
        settings |= {"is_causal": False, "attn_mask": mask[0] + later}
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, **settings)


def _transpose_batch_matmul_softmax(p: Params, x: list[Any], out: Any) -> Call:
    q, k = x[0].permute(0, 2, 1, 3), x[1].permute(0, 2, 3, 1)
    scores = None if out is None else torch.empty_like(out)
    return lambda: torch.softmax(torch.matmul(q, k, out=scores), -1, out=out)


def _norm2(p: Params, x: list[Any], out: Any) -> Call:
    return lambda: torch.linalg.vector_norm(x[0].flatten(1), dim=1, out=out)


def _reduce_sum(p: Params, x: list[Any], out: Any) -> Call:
    return lambda: torch.sum(x[0], -1, out=out)


def _argmax(p: Params, x: list[Any], out: Any) -> Call:
    return lambda: torch.argmax(x[0], -1).to(torch.int32)


def _argmin(p: Params, x: list[Any], out: Any) -> Call:
    return lambda: torch.argmin(x[0], -1).to(torch.int32)


def _add(p: Params, x: list[Any], out: Any) -> Call:
    return lambda: torch.add(x[0], x[1], out=out)


def _fused_multiply_add(p: Params, x: list[Any], out: Any) -> Call:
    a, b, c, d = x
    return lambda: torch.addcmul(d, torch.add(a, b, out=out), c, out=out)


def _permute(p: Params, x: list[Any], out: Any) -> Call:
    axes = tuple(p["axes"])
    return lambda: x[0].permute(axes).contiguous() if out is None else out.copy_(x[0].permute(axes))


def _conv2d(p: Params, x: list[Any], out: Any) -> Call:
    data, weight, channels_last = _conv_operands(p, x)
    bias = x[2] if len(x) > 2 else None
    affine = [v.view(-1, 1, 1) for v in x[3:5]]  # of conv2d_bn_relu
    settings = {k: p[k] for k in ("stride", "padding", "dilation", "groups")}

    def call() -> Any:
        y = torch.nn.functional.conv2d(data, weight, bias, **settings)
        if affine:
            y = y.mul_(affine[0]).add_(affine[1])
        if bias is not None:
            y = y.relu_()
        return y.permute(0, 2, 3, 1) if channels_last else y

    return call


def _depthwise_conv2d(p: Params, x: list[Any], out: Any) -> Call:
    channels_last = p.get("layout", "NHWC") == "NHWC"
    data = x[0].permute(0, 3, 1, 2) if channels_last else x[0]
    weight = (x[1].permute(2, 0, 1) if channels_last else x[1]).unsqueeze(1).contiguous()
    settings = {k: p[k] for k in ("stride", "padding", "dilation")}

    def call() -> Any:
        y = torch.nn.functional.conv2d(data, weight, None, groups=data.shape[1], **settings)
        return y.permute(0, 2, 3, 1) if channels_last else y

    return call


def _conv_any(p: Params, x: list[Any], out: Any) -> Call:
    """One or three dimensions, channels last."""
    rank = x[0].ndim - 2
    data = x[0].movedim(-1, 1)
    weight = x[1].movedim((-1, -2), (0, 1)).contiguous()
    if rank == 3:
        weight = weight.contiguous(memory_format=torch.channels_last_3d)
    conv = torch.nn.functional.conv1d if rank == 1 else torch.nn.functional.conv3d
    settings = {k: p[k] for k in ("stride", "padding", "dilation", "groups")}
    return lambda: conv(data, weight, None, **settings).movedim(1, -1)


def _conv2d_transpose(p: Params, x: list[Any], out: Any) -> Call:
    channels_last = p.get("layout", "NHWC") == "NHWC"
    data = x[0].permute(0, 3, 1, 2) if channels_last else x[0]
    weight = x[1].permute(2, 3, 0, 1).contiguous(memory_format=torch.channels_last) if channels_last else x[1]
    settings = {k: p[k] for k in ("stride", "padding", "output_padding", "groups", "dilation")}

    def call() -> Any:
        y = torch.nn.functional.conv_transpose2d(data, weight, None, **settings)
        return y.permute(0, 2, 3, 1) if channels_last else y

    return call


def _conv_operands(p: Params, x: list[Any]) -> tuple[Any, Any, bool]:
    if p.get("layout", "NHWC") == "NHWC":
        weight = x[1].permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
        return x[0].permute(0, 3, 1, 2), weight, True
    return x[0], x[1], False


def _pool2d(p: Params, x: list[Any], pool: Callable[..., Any]) -> Call:
    channels_last = p.get("layout", "NHWC") == "NHWC"
    data = x[0].permute(0, 3, 1, 2) if channels_last else x[0]
    settings = {k: p[k] for k in ("stride", "padding", "dilation") if k in p}
    settings |= {k: bool(p[k]) for k in ("ceil_mode", "count_include_pad") if k in p}

    def call() -> Any:
        y = pool(data, p["k"], **settings)
        return y.permute(0, 2, 3, 1) if channels_last else y

    return call


def _max_pool2d(p: Params, x: list[Any], out: Any) -> Call:
    return _pool2d(p, x, torch.nn.functional.max_pool2d)


def _avg_pool2d(p: Params, x: list[Any], out: Any) -> Call:
    return _pool2d(p, x, torch.nn.functional.avg_pool2d)


# {operator: function that makes its call}.
OPERATORS: dict[str, Make] = {
    "matmul": _matmul,
    "batch_matmul": _matmul,
    "matmul_bias_relu": _matmul_bias_relu,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "norm2": _norm2,
    "reduce_sum": _reduce_sum,
    "argmax": _argmax,
    "argmin": _argmin,
    "add": _add,
    "fused_multiply_add": _fused_multiply_add,
    "permute": _permute,
    "conv2d": _conv2d,
    "conv2d_bias_relu": _conv2d,
    "depthwise_conv2d": _depthwise_conv2d,
    "max_pool2d": _max_pool2d,
    "avg_pool2d": _avg_pool2d,
    "matmul_bias_gelu": _matmul_bias_gelu,
    "conv1d": _conv_any,
    "conv3d": _conv_any,
    "conv2d_bn_relu": _conv2d,
    "conv2d_transpose": _conv2d_transpose,
    "rms_norm": _rms_norm,
    "attention": _attention,
    "transpose_batch_matmul_softmax": _transpose_batch_matmul_softmax,
}
