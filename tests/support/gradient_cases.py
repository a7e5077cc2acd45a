"""Expressions whose gradients are checked, and ways to check them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from schedules import ops, te
from schedules.ops.axes import named

Array = np.ndarray


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
