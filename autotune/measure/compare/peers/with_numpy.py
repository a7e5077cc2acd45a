"""Peer numpy: expressions that write into given arrays, as an experienced user of numpy would write them.

Operators without such an expression are compared with their reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import threadpoolctl

from autotune.measure.compare.peers import Arrays, PeerError, PreparedPeer
from schedules import ops
from schedules.model import Workload

Params = Mapping[str, Any]


@contextmanager
def prepare(workload: Workload, inputs: Arrays, outputs: Arrays, threads: int) -> Iterator[PreparedPeer]:
    """See `autotune.measure.compare`. BLAS is limited to ``threads`` threads within the block."""
    with threadpoolctl.threadpool_limits(threads, user_api="blas"):
        expression = EXPRESSIONS.get(workload.op)
        if expression is None and workload.op not in ops.REGISTRY:
            raise PeerError(f"numpy has no peer for {workload.op!r}, which is no operator of the library")
        if expression is None:
            kept: list[Sequence[np.ndarray]] = []

            def reference() -> None:
                kept[:] = [ops.reference(workload, list(inputs))]

            yield PreparedPeer(reference, lambda: kept[0])
        else:
            params = ops.parameters(workload)
            yield PreparedPeer(lambda: expression(params, inputs, outputs[0]), lambda: outputs)


def _matmul(p: Params, x: Arrays, out: np.ndarray) -> None:
    a, b = x
    np.matmul(
        a.swapaxes(-1, -2) if p.get("transpose_a") else a,
        b.swapaxes(-1, -2) if p.get("transpose_b") else b,
        out=out,
        dtype=out.dtype if out.dtype.kind in "iu" else None,  # else int8 is added up in int8
    )


def _matmul_bias_relu(p: Params, x: Arrays, out: np.ndarray) -> None:
    _matmul(p, x[:2], out)
    np.add(out, x[2], out=out)
    np.maximum(out, 0, out=out)


def _softmax(p: Params, x: Arrays, out: np.ndarray) -> None:
    axis = p["axis"]
    np.subtract(x[0], x[0].max(axis=axis, keepdims=True), out=out)
    np.exp(out, out=out)
    np.divide(out, out.sum(axis=axis, keepdims=True), out=out)


def _layer_norm(p: Params, x: Arrays, out: np.ndarray) -> None:
    a, gamma, beta = x
    np.subtract(a, a.mean(axis=-1, keepdims=True), out=out)
    variance = np.einsum("mn,mn->m", out, out)[:, None] / a.shape[-1]
    np.multiply(out, 1 / np.sqrt(variance + a.dtype.type(p["eps"])), out=out)
    np.multiply(out, gamma, out=out)
    np.add(out, beta, out=out)


def _norm2(p: Params, x: Arrays, out: np.ndarray) -> None:
    rows = x[0].reshape(x[0].shape[0], -1)
    np.sqrt(np.einsum("bi,bi->b", rows, rows), out=out)


def _fused_multiply_add(p: Params, x: Arrays, out: np.ndarray) -> None:
    a, b, c, d = x
    np.add(a, b, out=out)
    np.multiply(out, c, out=out)
    np.add(out, d, out=out)


# {operator: function that computes it (parameters, inputs, output)}.
EXPRESSIONS: dict[str, Callable[[Params, Arrays, np.ndarray], object]] = {
    "matmul": _matmul,
    "batch_matmul": _matmul,
    "matmul_bias_relu": _matmul_bias_relu,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "norm2": _norm2,
    "reduce_sum": lambda p, x, out: x[0].sum(axis=-1, out=out),
    "argmax": lambda p, x, out: np.copyto(out, x[0].argmax(axis=-1), "same_kind"),
    "argmin": lambda p, x, out: np.copyto(out, x[0].argmin(axis=-1), "same_kind"),
    "add": lambda p, x, out: np.add(x[0], x[1], out=out),
    "fused_multiply_add": _fused_multiply_add,
    "permute": lambda p, x, out: np.copyto(out, x[0].transpose(p["axes"])),
}
