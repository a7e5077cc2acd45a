"""Expressions that users could state, at random shapes, with their meaning in numpy: reductions over tuples,
chains, index maps, several outputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from schedules import te
from schedules.dtypes import DTYPES
from schedules.te.scalars import limit

Arrays = list[np.ndarray]


class Draw:
    """Random extents. ``big`` is about the largest; small ones are common on purpose."""

    def __init__(self, rng: np.random.Generator, big: int) -> None:
        self.rng, self.big = rng, big

    def n(self, top: float = 1.0, low: int = 1) -> int:
        """An extent of at most ``top * big``: ones, primes, just beside powers of two, anything."""
        hi = max(low, int(self.big * top))
        pool = [1, 2, 3, 5, 7, 8, 9, 11, 13, 15, 16, 17, 23, 31, 32, 33, 37, 41, 47, 53, 61, 64, 67, 97, 127]
        fit = [x for x in pool if low <= x <= hi] or [low]
        return int(self.rng.choice(fit)) if self.rng.random() < 0.7 else int(self.rng.integers(low, hi + 1))

    def flag(self, p: float = 0.5) -> int:
        return int(self.rng.random() < p)

    def one_of(self, *xs: int) -> int:
        return int(self.rng.choice(xs))


Reference = Callable[..., list[np.ndarray]]
Own = tuple[list[te.Tensor], Reference]


def _relu_residual(d: Draw, t: str) -> Own:
    m, n, k = d.n(), d.n(), d.n()
    a, b, r = te.placeholder((m, k), t, "a"), te.placeholder((k, n), t, "b"), te.placeholder((m, n), t, "r")
    x = te.reduce_axis(k, "k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, x] * b[x, j], axis=x), "c")
    relu = te.compute((m, n), lambda i, j: te.maximum(c[i, j], te.const(0, t)), "relu")
    out = te.compute((m, n), lambda i, j: relu[i, j] + r[i, j], "out")
    return [a, b, r, out], lambda a, b, r: [np.maximum(a @ b, 0) + r]


def _dots(d: Draw, t: str) -> Own:
    m, n = d.n(0.5), d.n(3.0)
    a, b = te.placeholder((m, n), t, "a"), te.placeholder((m, n), t, "b")
    k = te.reduce_axis(n, "k")
    return [a, b, te.compute((m,), lambda i: te.sum(a[i, k] * b[i, k], axis=k), "c")], lambda a, b: [
        (a * b).sum(1)
    ]


def _column_sum(d: Draw, t: str) -> Own:
    m, n = d.n(2.0), d.n(2.0)
    a = te.placeholder((m, n), t, "a")
    k = te.reduce_axis(m, "k")
    return [a, te.compute((n,), lambda j: te.sum(a[k, j], axis=k), "c")], lambda a: [a.sum(0)]


def _full_sum(d: Draw, t: str) -> Own:
    m, n = d.n(), d.n(2.0)
    a = te.placeholder((m, n), t, "a")
    i, j = te.reduce_axis(m, "i"), te.reduce_axis(n, "j")
    return [a, te.compute((), lambda: te.sum(a[i, j], axis=(i, j)), "c")], lambda a: [np.asarray(a.sum())]


def _argmax(d: Draw, t: str) -> Own:
    m, n = d.n(0.5), d.n(2.0)
    a = te.placeholder((m, n), t, "a")
    k = te.reduce_axis(n, "k")
    # of equal values the first: a tie that every order breaks alike
    argmax = te.reducer(
        lambda i, v: (te.max_value(i), limit(v, -1)),
        lambda x, y: (
            te.select(te.any(x[1] > y[1], te.all(te.equal(x[1], y[1]), x[0] < y[0])), x[0], y[0]),
            te.maximum(x[1], y[1]),
        ),
        "argmax",
    )
    place, top = te.compute((m,), lambda i: argmax((te.cast(k, "int32"), a[i, k]), axis=k), ("place", "top"))
    return [a, place, top], lambda a: [a.argmax(1).astype(np.int32), a.max(1)]


def _column_argmin(d: Draw, t: str) -> Own:
    m, n = d.n(), d.n()
    a = te.placeholder((m, n), t, "a")
    k = te.reduce_axis(m, "k")
    argmin = te.reducer(
        lambda i, v: (te.max_value(i), limit(v, 1)),
        lambda x, y: (
            te.select(te.any(x[1] < y[1], te.all(te.equal(x[1], y[1]), x[0] < y[0])), x[0], y[0]),
            te.minimum(x[1], y[1]),
        ),
        "argmin",
    )
    place, low = te.compute((n,), lambda j: argmin((te.cast(k, "int64"), a[k, j]), axis=k), ("place", "low"))
    return [a, place, low], lambda a: [a.argmin(0), a.min(0)]


def _online_softmax(d: Draw, t: str) -> Own:
    m, n = d.n(0.5), d.n(2.0)
    a = te.placeholder((m, n), t, "a")
    k = te.reduce_axis(n, "k")
    join = te.reducer(
        lambda v, _: (-1e30, 0),
        lambda x, y: (
            te.maximum(x[0], y[0]),
            x[1] * te.exp(x[0] - te.maximum(x[0], y[0])) + y[1] * te.exp(y[0] - te.maximum(x[0], y[0])),
        ),
        "online",
    )
    top, total = te.compute((m,), lambda i: join((a[i, k], te.const(1, t)), axis=k), ("top", "total"))
    out = te.compute((m, n), lambda i, j: te.exp(a[i, j] - top[i]) / total[i], "out")

    def reference(a: np.ndarray) -> Arrays:
        e = np.exp(a - a.max(1, keepdims=True))
        return [e / e.sum(1, keepdims=True)]

    return [a, out], reference


def _relative_sums(d: Draw, t: str) -> Own:
    """Scores with a bias, and sums of their exponentials with and without a matrix."""
    b, m, n, k, c = d.one_of(1, 2), d.n(0.5), d.n(2.0), d.n(0.3), d.n(0.7)
    x, y = te.placeholder((b, m, k), t, "x"), te.placeholder((b, n, k), t, "y")
    w, v = te.placeholder((n,), t, "w"), te.placeholder((b, n, c), t, "v")
    r, (p, q, u) = te.reduce_axis(k, "r"), (te.reduce_axis(n, a) for a in "pqu")
    s = te.compute((b, m, n), lambda g, i, j: te.sum(x[g, i, r] * y[g, j, r], axis=r), "s")
    z = te.compute((b, m, n), lambda g, i, j: te.select(j <= i + 9, te.tanh(s[g, i, j]) + w[j], -30), "z")
    top = te.compute((b, m), lambda g, i: te.max(z[g, i, p], axis=p), "top")
    e = te.compute((b, m, n), lambda g, i, j: te.exp((z[g, i, j] - top[g, i]) * 0.5), "e")
    total = te.compute((b, m), lambda g, i: te.sum(e[g, i, q], axis=q), "total")
    mix = te.compute((b, m, c), lambda g, i, j: te.sum(e[g, i, u] * v[g, u, j], axis=u), "mix")
    out = te.compute((b, m, c), lambda g, i, j: mix[g, i, j] / total[g, i] + top[g, i], "out")

    def reference(x: np.ndarray, y: np.ndarray, w: np.ndarray, v: np.ndarray) -> Arrays:
        z = np.tanh(x @ y.swapaxes(1, 2)) + w
        z = np.where(np.arange(n) <= np.arange(m)[:, None] + 9, z, -30)
        e = np.exp((z - z.max(2, keepdims=True)) / 2)
        return [e @ v / e.sum(2, keepdims=True) + z.max(2, keepdims=True)]

    return [x, y, w, v, out], reference


def _outer(d: Draw, t: str) -> Own:
    m, n = d.n(), d.n(2.0)
    a, b = te.placeholder((m,), t, "a"), te.placeholder((n,), t, "b")
    return [a, b, te.compute((m, n), lambda i, j: a[i] * b[j], "c")], lambda a, b: [np.multiply.outer(a, b)]


def _conv1d(d: Draw, t: str) -> Own:
    k, ci, co, stride = d.one_of(1, 2, 3, 5), d.n(0.3), d.n(0.5), d.one_of(1, 2)
    w = d.n(1.0, k)
    out = (w - k) // stride + 1
    x, f = te.placeholder((w, ci), t, "x"), te.placeholder((k, ci, co), t, "f")
    r, c = te.reduce_axis(k, "r"), te.reduce_axis(ci, "c")
    y = te.compute((out, co), lambda p, o: te.sum(x[p * stride + r, c] * f[r, c, o], axis=(r, c)), "y")

    def reference(x: np.ndarray, f: np.ndarray) -> Arrays:
        return [np.asarray(sum(x[s : s + (out - 1) * stride + 1 : stride] @ f[s] for s in range(k)))]

    return [x, f, y], reference


def _filter1d(d: Draw, t: str) -> Own:
    k = d.one_of(1, 2, 3, 4, 7)
    w = d.n(4.0, k)
    x, f = te.placeholder((w,), t, "x"), te.placeholder((k,), t, "f")
    r = te.reduce_axis(k, "r")
    y = te.compute((w - k + 1,), lambda p: te.sum(x[p + r] * f[r], axis=r), "y")
    return [x, f, y], lambda x, f: [np.asarray(sum(x[s : s + w - k + 1] * f[s] for s in range(k)))]


def _two_products(d: Draw, t: str) -> Own:
    m, k, n, p = d.n(0.6), d.n(0.6), d.n(0.6), d.n(0.6)
    a, b, c = te.placeholder((m, k), t, "a"), te.placeholder((k, n), t, "b"), te.placeholder((n, p), t, "c")
    r, s = te.reduce_axis(k, "r"), te.reduce_axis(n, "s")
    ab = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "ab")
    out = te.compute((m, p), lambda i, j: te.sum(ab[i, s] * c[s, j], axis=s), "out")
    return [a, b, c, out], lambda a, b, c: [a @ b @ c]


def _transposed_reads(d: Draw, t: str) -> Own:
    m, n = d.n(), d.n()
    a, b = te.placeholder((n, m), t, "a"), te.placeholder((m, n), t, "b")
    out = te.compute((m, n), lambda i, j: a[j, i] * 2 + b[i, j], "c")
    return [a, b, out], lambda a, b: [(a.T * 2 + b).astype(a.dtype)]


def _index_maps(d: Draw, t: str) -> Own:
    h, w, f = d.n(0.5), d.n(0.5), d.one_of(1, 2, 3, 4)
    a = te.placeholder((h, w * f * f), t, "a")  # depth to space
    out = te.compute((h * f, w * f), lambda i, j: a[i // f, (j // f) * f * f + (i % f) * f + j % f], "c")

    def reference(a: np.ndarray) -> Arrays:
        return [np.ascontiguousarray(a.reshape(h, w, f, f).transpose(0, 2, 1, 3).reshape(h * f, w * f))]

    return [a, out], reference


def _reshape(d: Draw, t: str) -> Own:
    m, n, k = d.n(0.5), d.n(0.5), d.n(0.3)
    a = te.placeholder((m * n, k), t, "a")
    flat = te.compute((m * n * k,), lambda i: a[i // k, i % k], "flat")
    out = te.compute((m, n * k), lambda i, j: flat[i * (n * k) + j] + 1, "out")
    return [a, out], lambda a: [(a.reshape(m, n * k) + 1).astype(a.dtype)]


def _reverse(d: Draw, t: str) -> Own:
    m, n = d.n(0.5), d.n(2.0)
    a = te.placeholder((m, n), t, "a")
    return [a, te.compute((m, n), lambda i, j: a[i, n - 1 - j], "c")], lambda a: [a[:, ::-1].copy()]


def _two_outputs(d: Draw, t: str) -> Own:
    m, n = d.n(), d.n()
    a, b = te.placeholder((m, n), t, "a"), te.placeholder((m, n), t, "b")
    k = te.reduce_axis(n, "k")
    s = te.compute((m, n), lambda i, j: a[i, j] + b[i, j], "s")
    total = te.compute((m,), lambda i: te.sum(s[i, k], axis=k), "total")
    out = te.compute((m, n), lambda i, j: s[i, j] * 2, "out")
    return [a, b, out, total], lambda a, b: [(a + b) * 2, (a + b).sum(1)]


def _tuple_stage(d: Draw, t: str) -> Own:
    n = d.n(4.0)
    a, b = te.placeholder((n,), t, "a"), te.placeholder((n,), t, "b")
    low, high = te.compute((n,), lambda i: (te.minimum(a[i], b[i]), te.maximum(a[i], b[i])), ("low", "high"))
    return [a, b, low, high], lambda a, b: [np.minimum(a, b), np.maximum(a, b)]


def _product_and_row_sum(d: Draw, t: str) -> Own:
    m, n, k = d.n(0.6), d.n(), d.n(0.6)
    a, b = te.placeholder((m, k), t, "a"), te.placeholder((k, n), t, "b")
    r, s = te.reduce_axis(k, "r"), te.reduce_axis(n, "s")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "c")
    out = te.compute((m,), lambda i: te.sum(c[i, s], axis=s), "out")
    low = te.compute((m, n), lambda i, j: te.minimum(c[i, j], te.const(0, t)), "low")
    return [a, b, low, out], lambda a, b: [np.minimum(a @ b, 0), (a @ b).sum(1)]


def _center(d: Draw, t: str) -> Own:
    m, n = d.n(0.7), d.n(0.7)
    a = te.placeholder((m, n), t, "a")
    k = te.reduce_axis(m, "k")
    low = te.compute((n,), lambda j: te.min(a[k, j], axis=k), "low")  # along columns
    return [a, te.compute((m, n), lambda i, j: a[i, j] - low[j], "out")], lambda a: [a - a.min(0)]


def _mean_pool_columns(d: Draw, t: str) -> Own:
    b, h, w, c = d.one_of(1, 2), d.n(0.4), d.n(0.4), d.n(0.6)
    a = te.placeholder((b, h, w, c), t, "a")
    i, j = te.reduce_axis(h, "i"), te.reduce_axis(w, "j")
    out = te.compute((b, c), lambda n, o: te.sum(a[n, i, j, o], axis=(i, j)), "out")
    return [a, out], lambda a: [a.sum((1, 2))]


def _cumulative(d: Draw, t: str) -> Own:
    n = d.n(0.8)
    a = te.placeholder((n,), t, "a")
    k = te.reduce_axis(n, "k")
    zero = te.const(0, t)
    out = te.compute((n,), lambda i: te.sum(te.select(k <= i, a[k], zero), axis=k), "out")
    return [a, out], lambda a: [np.cumsum(a, dtype=a.dtype)]


def _gather_rows(d: Draw, t: str) -> Own:
    m, n = d.n(0.6), d.n()
    a, w = te.placeholder((m, n), t, "a"), te.placeholder((n,), t, "w")
    half = te.compute((m, (n + 1) // 2), lambda i, j: a[i, j * 2] * w[j * 2], "half")
    k = te.reduce_axis((n + 1) // 2, "k")
    out = te.compute((m,), lambda i: te.max(half[i, k], axis=k), "out")
    return [a, w, out], lambda a, w: [(a[:, ::2] * w[::2]).max(1)]


def _copy(d: Draw, t: str) -> Own:
    shape = tuple(d.n(0.4) for _ in range(d.one_of(0, 1, 2, 3, 4)))
    a = te.placeholder(shape, t, "a")
    return [a, te.compute(shape, lambda *ix: a[ix] * 3, "c")], lambda a: [np.asarray(a * 3, a.dtype)]


def _iota(d: Draw, t: str) -> Own:
    m, n = d.n(), d.n()
    a = te.placeholder((1,), t, "a")
    out = te.compute((m, n), lambda i, j: te.cast(i * n + j, t) + a[0], "c")
    counted = np.arange(m * n).reshape(m, n).astype(DTYPES[t].numpy)  # as stored: a reference may get more
    return [a, out], lambda a: [counted.astype(out.dtype) + a[0].astype(out.dtype)]


def _contract4(d: Draw, t: str) -> Own:
    b, m, n, p, q = d.one_of(1, 2, 3), d.n(0.4), d.n(0.4), d.n(0.3), d.n(0.3)
    x, y = te.placeholder((b, p, m, q), t, "x"), te.placeholder((q, n, b, p), t, "y")
    r, s = te.reduce_axis(p, "r"), te.reduce_axis(q, "s")
    z = te.compute((m, b, n), lambda i, g, j: te.sum(x[g, r, i, s] * y[s, j, g, r], axis=(r, s)), "z")
    return [x, y, z], lambda x, y: [np.einsum("bpmq,qnbp->mbn", x, y)]


def _symmetric(d: Draw, t: str) -> Own:
    m, k = d.n(0.8), d.n(0.8)
    a = te.placeholder((m, k), t, "a")
    r = te.reduce_axis(k, "r")
    return [a, te.compute((m, m), lambda i, j: te.sum(a[i, r] * a[j, r], axis=r), "c")], lambda a: [a @ a.T]


def _distance(d: Draw, t: str) -> Own:
    m, n, k = d.n(0.6), d.n(0.6), d.n(0.4)
    a, b = te.placeholder((m, k), t, "a"), te.placeholder((n, k), t, "b")
    r = te.reduce_axis(k, "r")
    c = te.compute((m, n), lambda i, j: te.sum(te.abs(a[i, r] - b[j, r]), axis=r), "c")
    return [a, b, c], lambda a, b: [np.abs(a[:, None] - b[None]).sum(2)]


def _sigmoid_gate(d: Draw, t: str) -> Own:
    m, n = d.n(0.8), d.n()
    a, b = te.placeholder((m, n), t, "a"), te.placeholder((n,), t, "b")
    gate = te.compute((m, n), lambda i, j: te.sigmoid(a[i, j] + b[j]), "gate")
    out = te.compute((m, n), lambda i, j: gate[i, j] * a[i, j] + te.tanh(gate[i, j]), "out")

    def reference(a: np.ndarray, b: np.ndarray) -> Arrays:
        g = 1 / (1 + np.exp(-(a + b)))
        return [g * a + np.tanh(g)]

    return [a, b, out], reference


OWN: dict[str, Callable[[Draw, str], Own]] = {
    f.__name__.strip("_"): f
    for f in (
        _relu_residual,
        _dots,
        _column_sum,
        _full_sum,
        _argmax,
        _column_argmin,
        _online_softmax,
        _relative_sums,
        _outer,
        _conv1d,
        _filter1d,
        _two_products,
        _transposed_reads,
        _index_maps,
        _reshape,
        _reverse,
        _two_outputs,
        _tuple_stage,
        _product_and_row_sum,
        _center,
        _mean_pool_columns,
        _cumulative,
        _gather_rows,
        _copy,
        _iota,
        _contract4,
        _symmetric,
        _distance,
        _sigmoid_gate,
    )
}
REAL = ("online_softmax", "relative_sums", "sigmoid_gate")  # float only, compared within rounding
