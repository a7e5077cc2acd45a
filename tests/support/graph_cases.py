"""Small models as graphs, with integers in their constants so that results are exact where no function is."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import autotune as at
from schedules.graph.graph import Graph
from schedules.te.extent import is_open, is_same

te = at.te


class Builder:
    """Collects inputs and constants while a model is written."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.inputs: list[Any] = []
        self.constants: dict[str, Any] = {}

    def input(self, name: str, *shape: int, dtype: str = "float32") -> Any:
        t = te.placeholder(shape, dtype, name)
        self.inputs.append(t)
        return t

    def constant(self, name: str, *shape: int, least: int = -2, most: int = 2) -> Any:
        t = te.placeholder(shape, "float32", name)
        self.constants[name] = (t, self.rng.integers(least, most + 1, shape).astype("float32"))
        return t

    def graph(self, *outputs: Any) -> Graph:
        used, todo = set(), list(outputs)
        while todo:
            t = todo.pop()
            if t not in used:
                used.add(t)
                todo += t.op.reads() if t.op is not None else ()
        constants = {n: (t, v) for n, (t, v) in self.constants.items() if t in used}
        dag = te.dag([*self.inputs, *(t for t, _ in constants.values()), *outputs])
        dag = replace(dag, constants=tuple(constants))
        values = {n: v for n, (_, v) in constants.items()}
        return Graph(dag, values, tuple(t.name for t in self.inputs), dag.outputs)


def stage(shape: Sequence[int], value: Callable[..., Any], name: str | None = None) -> Any:
    """`te.compute` of a function that takes any number of axes."""
    names = [f"a{n}" for n in range(len(shape))]

    def call(*axes: Any) -> Any:
        return value(*axes)

    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(n, inspect.Parameter.POSITIONAL_ONLY) for n in names]
    )
    return te.compute(tuple(shape), call, name)


def relu(x: Any) -> Any:
    return stage(x.shape, lambda *i: te.maximum(x[i], 0.0))


def add(x: Any, y: Any) -> Any:
    return stage(x.shape, lambda *i: x[i] + y[i])


def conv(b: Builder, x: Any, out: int, k: int, stride: int = 1, pad: int = 0, name: str = "conv") -> Any:
    """A convolution over NCHW, as a model's file has it."""
    n, c, h, w = x.shape
    weight = b.constant(f"{name}_w", out, c, k, k)
    if pad:
        ph, pw = h + 2 * pad, w + 2 * pad
        inner = x
        x = stage(
            (n, c, ph, pw),
            lambda n_, c_, i, j: te.select(
                te.all(i >= pad, i < h + pad, j >= pad, j < w + pad), inner[n_, c_, i - pad, j - pad], 0.0
            ),
        )
        h, w = ph, pw
    shape = (n, out, (h - k) // stride + 1, (w - k) // stride + 1)
    r, s, ci = te.reduce_axis(k, "r"), te.reduce_axis(k, "s"), te.reduce_axis(c, "c")
    return stage(
        shape,
        lambda a, o, i, j: te.sum(
            x[a, ci, i * stride + r, j * stride + s] * weight[o, ci, r, s], axis=(ci, r, s)
        ),
        name,
    )


def batch_norm(b: Builder, x: Any, name: str) -> Any:
    """y = (x - mean) / sqrt(var + eps) * gamma + beta, its factor and its shift as stages of their own."""
    c = x.shape[1]
    gamma, beta, mean = (b.constant(f"{name}_{s}", c) for s in ("gamma", "beta", "mean"))
    var = b.constant(f"{name}_var", c, least=1, most=4)
    factor = te.compute((c,), lambda i: gamma[i] / te.sqrt(var[i] + 1e-5), f"{name}_factor")
    shift = te.compute((c,), lambda i: beta[i] - mean[i] * factor[i], f"{name}_shift")
    return stage(x.shape, lambda n, i, *hw: x[(n, i, *hw)] * factor[i] + shift[i], name)


def max_pool(x: Any, k: int, stride: int) -> Any:
    n, c, h, w = x.shape
    r, s = te.reduce_axis(k, "r"), te.reduce_axis(k, "s")
    shape = (n, c, (h - k) // stride + 1, (w - k) // stride + 1)
    return stage(shape, lambda a, o, i, j: te.max(x[a, o, i * stride + r, j * stride + s], axis=(r, s)))


def global_average(x: Any) -> Any:
    n, c, h, w = x.shape
    r, s = te.reduce_axis(h, "r"), te.reduce_axis(w, "s")
    total = te.compute((n, c), lambda a, o: te.sum(x[a, o, r, s], axis=(r, s)))
    return te.compute((n, c), lambda a, o: total[a, o] * (1 / (h * w)))


def reshape(x: Any, *shape: int) -> Any:
    """Row-major, by quotients and remainders; first dimensions that stay as they are where one is open."""
    pairs = list(zip(x.shape, shape, strict=False))
    same = next((d for d, (a, b) in enumerate(pairs) if not is_same(a, b)), len(pairs))
    kept = same if any(map(is_open, shape)) else 0

    def value(*i: Any) -> Any:
        flat: Any = 0
        for index, extent in zip(i[kept:], shape[kept:], strict=True):
            flat = flat * extent + index
        out = []
        for extent in reversed(x.shape[kept:]):
            out.append(flat % extent)
            flat = flat // extent
        return x[(*i[:kept], *reversed(out))]

    return stage(shape, value)


def transpose(x: Any, *order: int) -> Any:
    shape = [x.shape[d] for d in order]
    return stage(shape, lambda *i: x[tuple(i[order.index(d)] for d in range(len(order)))])


def dense(b: Builder, x: Any, out: int, name: str, bias: bool = True) -> Any:
    """x @ w + bias over the last dimension; the weights lie (out, in)."""
    k = te.reduce_axis(x.shape[-1], "k")
    w = b.constant(f"{name}_w", out, x.shape[-1])
    shape = (*x.shape[:-1], out)
    y = stage(shape, lambda *i: te.sum(x[(*i[:-1], k)] * w[i[-1], k], axis=k), name)
    if not bias:
        return y
    v = b.constant(f"{name}_b", out)
    return stage(shape, lambda *i: y[i] + v[i[-1]])


def matmul(x: Any, y: Any) -> Any:
    """Of matrices in batches."""
    k = te.reduce_axis(x.shape[-1], "k")
    shape = (*x.shape[:-1], y.shape[-1])
    return stage(shape, lambda *i: te.sum(x[(*i[:-1], k)] * y[(*i[:-2], k, i[-1])], axis=k))


def softmax(x: Any) -> Any:
    shape, rows = x.shape, x.shape[:-1]
    k, r = te.reduce_axis(shape[-1], "k"), te.reduce_axis(shape[-1], "r")
    top = stage(rows, lambda *i: te.max(x[(*i, k)], axis=k))
    e = stage(shape, lambda *i: te.exp(x[i] - top[i[:-1]]))
    total = stage(rows, lambda *i: te.sum(e[(*i, r)], axis=r))
    return stage(shape, lambda *i: e[i] / total[i[:-1]])


def layer_norm(b: Builder, x: Any, name: str) -> Any:
    """As ONNX's operators spell it: mean, difference, its square, mean, and so on."""
    shape, rows, n = x.shape, x.shape[:-1], x.shape[-1]
    gamma, beta = b.constant(f"{name}_gamma", n), b.constant(f"{name}_beta", n)
    k, r = te.reduce_axis(n, "k"), te.reduce_axis(n, "r")
    total = stage(rows, lambda *i: te.sum(x[(*i, k)], axis=k))
    mean = stage(rows, lambda *i: total[i] * (1 / n))
    d = stage(shape, lambda *i: x[i] - mean[i[:-1]])
    square = stage(shape, lambda *i: d[i] * d[i])
    squares = stage(rows, lambda *i: te.sum(square[(*i, r)], axis=r))
    root = stage(rows, lambda *i: te.sqrt(squares[i] * (1 / n) + 1e-5))
    y = stage(shape, lambda *i: d[i] / root[i[:-1]])
    scaled = stage(shape, lambda *i: y[i] * gamma[i[-1]])
    return stage(shape, lambda *i: scaled[i] + beta[i[-1]])


def gelu(x: Any) -> Any:
    """As five nodes."""
    a = stage(x.shape, lambda *i: x[i] * math.sqrt(0.5))
    e = stage(x.shape, lambda *i: te.erf(a[i]))
    one = stage(x.shape, lambda *i: e[i] + 1.0)
    y = stage(x.shape, lambda *i: x[i] * one[i])
    return stage(x.shape, lambda *i: y[i] * 0.5)


def residual_net() -> Graph:
    """Convolutions, batch norms, a pool, residuals with and without a convolution, a classifier."""
    b = Builder()
    x = b.input("x", 1, 3, 13, 11)
    y = relu(batch_norm(b, conv(b, x, 8, 3, 2, 1, "stem"), "bn0"))
    y = max_pool(y, 2, 1)
    for n, (out, stride) in enumerate(((8, 1), (12, 2), (12, 1))):
        z = relu(batch_norm(b, conv(b, y, out, 3, stride, 1, f"c{n}a"), f"bn{n}a"))
        z = batch_norm(b, conv(b, z, out, 3, 1, 1, f"c{n}b"), f"bn{n}b")
        if stride > 1:
            y = batch_norm(b, conv(b, y, out, 1, stride, 0, f"c{n}s"), f"bn{n}s")
        y = relu(add(z, y))
    y = reshape(
        relu(batch_norm(b, conv(b, y, 16, 1, 1, 0, "last"), "bnl")), 1, -(-16 * y.shape[2] * y.shape[3])
    )
    return b.graph(dense(b, y, 10, "fc"))


def transformer(layers: int = 2, seq: int = 5, heads: int = 2, dim: int = 4, joint: bool = False) -> Graph:
    """Attention and a feed-forward of each layer. ``joint``: queries, keys and values by one product."""
    b = Builder()
    hidden = heads * dim
    x = b.input("x", 1, seq, hidden)
    for n in range(layers):
        split = {}
        if joint:
            every = dense(b, x, 3 * hidden, f"qkv{n}")
            for k, name in enumerate("qkv"):
                part = stage((1, seq, hidden), lambda a, i, j, k=k, every=every: every[a, i, j + k * hidden])
                split[name] = part
        else:
            split = {name: dense(b, x, hidden, f"{name}{n}") for name in "qkv"}
        q, k_, v = (transpose(reshape(split[s], 1, seq, heads, dim), 0, 2, 1, 3) for s in "qkv")
        scores = matmul(q, transpose(k_, 0, 1, 3, 2))
        scaled = stage(scores.shape, lambda *i, s=scores: s[i] * dim**-0.5)
        mixed = matmul(softmax(scaled), v)
        flat = reshape(transpose(mixed, 0, 2, 1, 3), 1, seq, hidden)
        x = layer_norm(b, add(dense(b, flat, hidden, f"o{n}"), x), f"ln{n}a")
        y = gelu(dense(b, x, 2 * hidden, f"up{n}"))
        x = layer_norm(b, add(dense(b, y, hidden, f"down{n}"), x), f"ln{n}b")
    return b.graph(x)


def inputs_of(graph: Graph, seed: int = 1) -> list[Any]:
    rng = np.random.default_rng(seed)
    made = []
    for name in graph.inputs:
        t = graph.dag.tensors[name]
        made.append(rng.integers(-3, 4, t.shape).astype(t.dtype))
    return made
