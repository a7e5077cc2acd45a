"""Expressions whose gradients are checked, and ways to check them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from schedules import ops, te
from schedules.functions import FUNCTIONS
from schedules.ops.axes import named

Array = np.ndarray


# Operators of the library: (name, parameters, layout).
OPERATORS = {
    "matmul": ("matmul", {"m": 5, "n": 3, "k": 4}, None),
    "matmul transposed": ("matmul", {"m": 5, "n": 3, "k": 4, "transpose_a": 1, "transpose_b": 1}, None),
    "conv": ("conv2d", {"b": 2, "h": 5, "w": 6, "ci": 3, "co": 2, "kh": 3, "kw": 3, "padding": 1}, "NHWC"),
    "conv nchw": ("conv2d", {"b": 2, "h": 5, "w": 6, "ci": 3, "co": 2, "kh": 3, "kw": 2}, "NCHW"),
    "conv stride 2": (
        "conv2d",
        {"b": 1, "h": 7, "w": 6, "ci": 3, "co": 2, "kh": 3, "kw": 3, "stride": 2, "padding": 1},
        "NHWC",
    ),
    "conv stride 3": (
        "conv2d",
        {"b": 1, "h": 9, "w": 8, "ci": 1, "co": 2, "kh": 2, "kw": 4, "stride": 3, "padding": 1},
        "NHWC",
    ),
    "conv stride and dilation": (
        "conv2d",
        {"b": 1, "h": 11, "w": 10, "ci": 2, "co": 2, "kh": 3, "kw": 2, "stride": (2, 3), "dilation": (2, 2)},
        "NHWC",
    ),
    "conv 1x1 stride 2": (
        "conv2d",
        {"b": 1, "h": 5, "w": 6, "ci": 3, "co": 2, "kh": 1, "kw": 1, "stride": 2},
        "NHWC",
    ),
    "conv in groups": (
        "conv2d",
        {"b": 1, "h": 5, "w": 5, "ci": 4, "co": 6, "kh": 3, "kw": 3, "groups": 2},
        "NHWC",
    ),
    "conv transposed": (
        "conv2d_transpose",
        {"b": 1, "h": 3, "w": 4, "ci": 2, "co": 3, "kh": 3, "kw": 3, "stride": 2, "padding": 1},
        "NHWC",
    ),
    "conv 1d": ("conv1d", {"b": 2, "l": 9, "ci": 2, "co": 3, "k": 3, "stride": 2}, "NCHW"),
    "depthwise": (
        "depthwise_conv2d",
        {"b": 1, "h": 5, "w": 5, "c": 3, "kh": 3, "kw": 3, "padding": 1},
        "NHWC",
    ),
    "softmax": ("softmax", {"shape": (2, 5, 3), "axis": 1}, None),
    "layer_norm": ("layer_norm", {"m": 3, "n": 7}, None),
    "rms_norm": ("rms_norm", {"m": 3, "n": 7}, None),
    "attention": ("attention", {"b": 1, "heads": 2, "seq": 4, "dim": 3}, None),
    "attention causal": (
        "attention",
        {"b": 1, "heads": 2, "seq": 4, "dim": 3, "is_causal": 1, "attn_mask": (4, 4)},
        None,
    ),
    "max pool": ("max_pool2d", {"b": 1, "h": 7, "w": 6, "c": 2, "k": 3, "stride": 2, "padding": 1}, "NHWC"),
    "max pool apart": ("max_pool2d", {"b": 1, "h": 7, "w": 6, "c": 2, "k": 2, "stride": 2}, "NHWC"),
    "avg pool": (
        "avg_pool2d",
        {"b": 1, "h": 7, "w": 6, "c": 2, "k": 3, "stride": 2, "padding": 1, "count_include_pad": 0},
        "NHWC",
    ),
    "avg pool apart": ("avg_pool2d", {"b": 1, "h": 6, "w": 6, "c": 2, "k": 2, "stride": 2}, "NHWC"),
    "avg pool ceil": (
        "avg_pool2d",
        {"b": 1, "h": 7, "w": 7, "c": 1, "k": 3, "stride": 2, "ceil_mode": 1, "padding": 1},
        "NCHW",
    ),
}
# Functions that have a slope, and operations on two elements.
SLOPES = {name for name, row in FUNCTIONS.items() if row.slope is not None}
# Rounds as a cast does, whose slope is that of what it rounds, and not that of its steps.
ROUNDS = {"tf32"}
UNARY = {f: lambda a, b, f=f: getattr(te, f)(a) for f in sorted(SLOPES - ROUNDS) if FUNCTIONS[f].arity == 1}
OPERATIONS = UNARY | {
    **{f: lambda a, b, f=f: getattr(te, f)(a * 0.5 - b * 0.4) for f in ("asin", "acos", "atanh")},
    "acosh": lambda a, b: te.acosh(a + b + 0.5),
    "hypot": lambda a, b: te.hypot(a, b) * te.hypot(-a, 2.0) + te.hypot(te.trunc(a), b),
    "pow": lambda a, b: te.pow(a, b),
    "pow 2.5": lambda a, b: te.pow(a, 2.5) + a**-1 + a**3,
    "number to a power": lambda a, b: 2.0**b,
    "fmod": lambda a, b: te.fmod(a * 7.0, b) * a + te.fmod(-a, b * 5.0),
    "remainder": lambda a, b: te.remainder(a * 7.0, -b) * b + te.floor_divide(a, b) * a,
    "rsqrt": lambda a, b: te.rsqrt(a) + b / te.sqrt(a),
    "quotient": lambda a, b: a / b + 1.0 / b,
    "difference": lambda a, b: (a - b) * (b - a),
    "negative": lambda a, b: -a * -b,
    "maximum": lambda a, b: te.maximum(a, b) * te.minimum(a * 2.0, b),
    "relu": lambda a, b: te.maximum(a - b, 0.0) + te.clip(b, 0.9, 1.3),
    "select": lambda a, b: te.select(a < b, a * b, te.select(te.any(a > 1.5, b > 1.5), b, -a)),
    "fma": lambda a, b: te.fma(a, b, te.fma(b, b, a)),
    "cast": lambda a, b: te.cast(te.cast(a, "float64") * 2.0, "float64") * b,
    "several of one": lambda a, b: a * a * a / (a + b) + te.exp(a) * te.exp(a),
    "floor": lambda a, b: te.floor(a * 3.0) * b + te.cast(te.cast(a, "int32"), "float64") * a,
}  # fmt: skip


def operator(name: str, dtype: str, layout: str | None = None, **params: object) -> list[te.Tensor]:
    """The tensors of a library operator."""
    op = ops.REGISTRY[name]
    return list(op.build(op.resolve(params), op.types(dtype), layout))


def dense_gelu(dtype: str, m: int = 5, n: int = 4, k: int = 7) -> list[te.Tensor]:
    x, w, b = (te.placeholder(s, dtype, t) for s, t in (((m, k), "x"), ((k, n), "w"), ((n,), "b")))
    r = te.reduce_axis(k, "r")
    z = te.compute((m, n), lambda i, j: te.sum(x[i, r] * w[r, j], axis=r), "z")

    def gelu(i, j):
        v = z[i, j] + b[j]
        return 0.5 * v * (1.0 + te.erf(v * math.sqrt(0.5)))

    return [x, w, b, te.compute((m, n), gelu, "y")]


def attention(dtype: str, heads: int = 2, seq: int = 5, dim: int = 3) -> list[te.Tensor]:
    """[q, k, v, the probabilities, the output]."""
    q, k, v = (te.placeholder((heads, seq, dim), dtype, n) for n in "qkv")
    d, j = te.reduce_axis(dim, "d"), te.reduce_axis(seq, "j")
    dot = te.compute((heads, seq, seq), lambda h, i, j: te.sum(q[h, i, d] * k[h, j, d], axis=d), "dot")
    s = te.compute(dot.shape, lambda h, i, j: dot[h, i, j] * dim**-0.5, "scores")
    _, _, p = softmax_of(s)
    y = te.compute((heads, seq, dim), lambda h, i, c: te.sum(p[h, i, j] * v[h, j, c], axis=j), "y")
    return [q, k, v, p, y]


def softmax_of(s: te.Tensor) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """(the maxima, the sums, the probabilities) of a tensor's rows."""
    rest, n = s.shape[:-1], s.shape[-1]
    names = "ijklm"[: len(rest)]
    a, b = te.reduce_axis(n, "a"), te.reduce_axis(n, "b")
    top = te.compute(rest, named(names, lambda *r: te.max(s[(*r, a)], axis=a)), "top")
    e = te.compute(s.shape, named([*names, "z"], lambda *r: te.exp(s[r] - top[r[:-1]])), "e")
    total = te.compute(rest, named(names, lambda *r: te.sum(e[(*r, b)], axis=b)), "total")
    return top, total, te.compute(s.shape, named([*names, "z"], lambda *r: e[r] / total[r[:-1]]), "p")


def cross_entropy(dtype: str, m: int = 5, n: int = 7) -> list[te.Tensor]:
    """[x, targets, the mean of -log softmax(x) at the targets]."""
    x, t = te.placeholder((m, n), dtype, "x"), te.placeholder((m,), "int64", "t")
    a, b, c, i = (te.reduce_axis(k, s) for k, s in ((n, "a"), (n, "b"), (n, "c"), (m, "i")))
    top = te.compute((m,), lambda i: te.max(x[i, a], axis=a), "top")
    total = te.compute((m,), lambda i: te.sum(te.exp(x[i, b] - top[i]), axis=b), "total")
    logs = te.compute((m, n), lambda i, j: x[i, j] - top[i] - te.log(total[i]), "logs")
    picked = te.compute(
        (m,),
        lambda i: te.sum(te.select(te.equal(te.cast(c, "int64"), t[i]), logs[i, c], 0.0), axis=c),
        "picked",
    )
    return [x, t, te.compute((1,), lambda o: te.sum(picked[i] * (-1.0 / m), axis=i), "loss")]


def evaluated(outputs: Sequence[te.Tensor], arrays: dict[te.Tensor, Array]) -> list[Array]:
    """The values of tensors."""
    ins = te.inputs(list(outputs))
    return te.evaluate(te.dag([*ins, *outputs]), [arrays[t] for t in ins])


def by_differences(
    y: te.Tensor, x: te.Tensor, arrays: dict[te.Tensor, Array], heads: Array, step: float = 1e-5
) -> tuple[Array, Callable[[Array], float]]:
    """(random directions, the slope of ``sum(heads * y)`` along each by central differences)."""
    rng = np.random.default_rng(7)
    ways = rng.standard_normal((3, *x.shape))

    def value(at: Array) -> float:
        return float((evaluated([y], arrays | {x: at})[0] * heads).sum())

    slopes = [(value(arrays[x] + step * v) - value(arrays[x] - step * v)) / (2 * step) for v in ways]
    return ways, slopes


def check(
    tensors: Sequence[te.Tensor],
    wrt: Sequence[te.Tensor] | None = None,
    arrays: dict[te.Tensor, Array] | None = None,
    tolerance: float = 1e-6,
) -> list[te.Tensor]:
    """Compare the gradients of the last tensor with differences, in float64. Returns them."""
    rng = np.random.default_rng(3)
    y = tensors[-1]
    every = [t for t in tensors[:-1] if t.op is None]
    values = {t: rng.standard_normal(t.shape) for t in every if t.dtype == "float64"} | (arrays or {})
    wrt = list(wrt if wrt is not None else [t for t in every if t.dtype == "float64"])
    dy = te.placeholder(y.shape, "float64", "dy")
    values[dy] = rng.standard_normal(y.shape)
    found = te.gradient(y, wrt, dy)
    for x, g in zip(wrt, found, strict=True):
        assert g.shape == x.shape and g.dtype == x.dtype
        (got,) = evaluated([g], values)
        ways, slopes = by_differences(y, x, values, values[dy])
        for way, slope in zip(ways, slopes, strict=True):
            size = np.abs(got).sum() + 1e-3
            assert abs(float((got * way).sum()) - slope) <= tolerance * max(size, 1.0), (x, slope)
    return found
