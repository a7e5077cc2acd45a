"""Small compute DAGs whose results are exact: with integer-valued inputs any order of their reductions
gives the same bits, so that schedules are compared with ``==``. Extents are odd: most splits leave tails."""

from __future__ import annotations

from collections.abc import Callable

from schedules import te
from schedules.te.compute_dag import ComputeDAG


def matmul(dtype: str = "float32", m: int = 5, n: int = 7, k: int = 6) -> ComputeDAG:
    a, b = te.placeholder((m, k), dtype, "A"), te.placeholder((k, n), dtype, "B")
    r = te.reduce_axis(k, "k")
    return te.dag([a, b, te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "C")])


def matmul_relu(dtype: str = "float32") -> ComputeDAG:
    m, n, k = 5, 9, 4
    a, b = te.placeholder((m, k), dtype, "A"), te.placeholder((k, n), dtype, "B")
    bias = te.placeholder((n,), dtype, "bias")
    r = te.reduce_axis(k, "k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "C")
    d = te.compute((m, n), lambda i, j: c[i, j] + bias[j], "D")
    return te.dag([a, b, bias, te.compute((m, n), lambda i, j: te.maximum(d[i, j], te.const(0, dtype)), "E")])


def conv2d(dtype: str = "float32", stride: int = 1) -> ComputeDAG:
    """A convolution over a padding stage of its own."""
    h, w, ci, co = 4, 5, 2, 3
    x, f = te.placeholder((h, w, ci), dtype, "X"), te.placeholder((3, 3, ci, co), dtype, "F")
    p = te.compute(
        (h + 2, w + 2, ci),
        lambda y, z, c: te.select(
            te.all(y >= 1, y < h + 1, z >= 1, z < w + 1), x[y - 1, z - 1, c], te.const(0, dtype)
        ),
        "P",
    )
    u, v, c = te.reduce_axis(3, "u"), te.reduce_axis(3, "v"), te.reduce_axis(ci, "c")
    oh, ow = (h - 1) // stride + 1, (w - 1) // stride + 1
    out = te.compute(
        (oh, ow, co),
        lambda y, z, o: te.sum(p[y * stride + u, z * stride + v, c] * f[u, v, c, o], axis=(u, v, c)),
        "Y",
    )
    return te.dag([x, f, out])


def conv2d_stride2(dtype: str = "float32") -> ComputeDAG:
    return conv2d(dtype, 2)


def phases(dtype: str = "float32") -> ComputeDAG:
    """A transposed convolution of stride 2 in its phases, of which one has a tap less, and their outputs in
    turn. What lies beyond the input must not be read."""
    h, ci, co = 3, 2, 3
    x, w = te.placeholder((h + 1, ci), dtype, "X"), te.placeholder((3, ci, co), dtype, "W")
    t, c = te.reduce_axis(2, "t"), te.reduce_axis(ci, "c")

    def sums(i, a, o):
        value = x[i + 1 - t, c] * w[a + 2 * t, c, o]
        return te.sum(te.select(a + 2 * t < 3, value, te.const(0, dtype)), axis=(t, c))

    y = te.compute((h, 2, co), sums, "P")
    return te.dag([x, w, te.compute((2 * h, co), lambda p, o: y[p // 2, p % 2, o], "Y")])


def views(dtype: str = "float32") -> ComputeDAG:
    """Parts of one buffer, which hold two axes in one dimension: their product, with its two axes joined."""
    h, s, d = 2, 3, 4
    x = te.placeholder((s, 2 * h * d), dtype, "X")
    k = te.reduce_axis(d, "k")
    p = te.compute((h, s, s), lambda a, i, j: te.sum(x[i, a * d + k] * x[j, h * d + a * d + k], axis=k), "P")
    return te.dag([x, te.compute((s, h * s), lambda i, n: p[n // s, i, n % s] + x[i, n], "Y")])


def normalize(dtype: str = "float32") -> ComputeDAG:
    """Shaped as softmax: a row maximum, an elementwise stage, a row sum, and a stage that reads all three."""
    m, n = 3, 11
    x = te.placeholder((m, n), dtype, "X")
    k, r = te.reduce_axis(n, "k"), te.reduce_axis(n, "k")
    top = te.compute((m,), lambda i: te.max(x[i, k], axis=k), "top")
    e = te.compute((m, n), lambda i, j: (x[i, j] - top[i]) * te.const(3, dtype), "e")
    total = te.compute((m,), lambda i: te.sum(e[i, r], axis=r), "total")
    return te.dag([x, te.compute((m, n), lambda i, j: te.minimum(e[i, j], total[i]), "Y")])


def layer_norm(dtype: str = "float32") -> ComputeDAG:
    """Shaped as layer normalisation: two reductions that depend on each other."""
    m, n = 4, 7
    x, g = te.placeholder((m, n), dtype, "X"), te.placeholder((n,), dtype, "g")
    k, r = te.reduce_axis(n, "k"), te.reduce_axis(n, "k")
    total = te.compute((m,), lambda i: te.sum(x[i, k], axis=k), "total")
    mean = te.compute((m,), lambda i: total[i] - te.const(2, dtype), "mean")
    dev = te.compute((m,), lambda i: te.sum((x[i, r] - mean[i]) * (x[i, r] - mean[i]), axis=r), "dev")
    y = te.compute((m, n), lambda i, j: te.maximum(x[i, j] - mean[i], dev[i]) * g[j], "Y")
    return te.dag([x, g, y])


def argmax(dtype: str = "float32") -> ComputeDAG:
    """A tuple reduction: the largest element of a row and its first place."""
    m, n = 4, 9
    x = te.placeholder((m, n), dtype, "X")
    k = te.reduce_axis(n, "k")

    def join(p: tuple[te.Tensor, ...], q: tuple[te.Tensor, ...]) -> tuple[object, ...]:
        first = te.minimum(p[1], q[1])
        return te.maximum(p[0], q[0]), te.select(
            te.equal(p[0], q[0]), first, te.select(p[0] > q[0], p[1], q[1])
        )

    best = te.reducer(lambda v, i: (te.min_value(v), 2**30), join, "argmax")
    value, place = te.compute((m,), lambda i: best((x[i, k], te.cast(k, "int32")), axis=k), ("V", "I"))
    return te.dag([x, value, place])


def online(dtype: str = "float32") -> ComputeDAG:
    """Shaped as online softmax: the maximum with a sum that is rescaled to it (here: how many reach it),
    then a stage that reads both."""
    m, n = 3, 10
    x = te.placeholder((m, n), dtype, "X")
    k = te.reduce_axis(n, "k")
    zero = te.const(0, dtype)

    def join(p: tuple[te.Tensor, ...], q: tuple[te.Tensor, ...]) -> tuple[object, ...]:
        top = te.maximum(p[0], q[0])
        return top, te.select(te.equal(p[0], top), p[1], zero) + te.select(te.equal(q[0], top), q[1], zero)

    both = te.reducer(lambda v, s: (te.min_value(v), 0), join, "online")
    top, count = te.compute((m,), lambda i: both((x[i, k], te.const(1, dtype)), axis=k), ("T", "N"))
    return te.dag([x, te.compute((m, n), lambda i, j: (x[i, j] - top[i]) * count[i], "Y")])


def attended(dtype: str = "float32") -> ComputeDAG:
    """Shaped as attention: exponentials relative to the maximum of their row, their sum, and their product
    with a matrix. Elements are so far apart that every exponential is 0 or 1."""
    m, n, c = 3, 11, 4
    x, v = te.placeholder((m, n), dtype, "X"), te.placeholder((n, c), dtype, "V")
    k, r, q = (te.reduce_axis(n, name) for name in "krq")
    far = te.compute((m, n), lambda i, j: x[i, j] * te.const(1000, dtype), "far")
    top = te.compute((m,), lambda i: te.max(far[i, k], axis=k), "top")

    def near(i: te.Tensor, j: te.Tensor) -> object:
        if dtype.startswith("int"):
            return te.select(te.equal(far[i, j], top[i]), te.const(1, dtype), te.const(0, dtype))
        return te.exp(far[i, j] - top[i])

    e = te.compute((m, n), near, "e")
    total = te.compute((m,), lambda i: te.sum(e[i, r], axis=r), "total")
    mix = te.compute((m, c), lambda i, h: te.sum(e[i, q] * v[q, h], axis=q), "mix")
    return te.dag([x, v, te.compute((m, c), lambda i, h: mix[i, h] * total[i], "Y")])


def max_pool(dtype: str = "float32") -> ComputeDAG:
    """Windows of 3 at stride 2 with a border, in one stage: the border is a select."""
    h, w, c = 5, 7, 2
    x = te.placeholder((h, w, c), dtype, "X")
    u, v = te.reduce_axis(3, "u"), te.reduce_axis(3, "v")
    low = te.min_value(dtype)

    def at(y: te.Tensor, z: te.Tensor, o: te.Tensor) -> te.Reduction:
        r, s = y * 2 + u - 1, z * 2 + v - 1
        return te.max(te.select(te.all(r >= 0, r < h, s >= 0, s < w), x[r, s, o], low), axis=(u, v))

    return te.dag([x, te.compute(((h + 1) // 2, (w + 1) // 2, c), at, "Y")])


def permute(dtype: str = "float32") -> ComputeDAG:
    x = te.placeholder((3, 4, 5), dtype, "X")
    return te.dag([x, te.compute((5, 3, 4), lambda i, j, k: x[j, k, i], "Y")])


def chain(dtype: str = "float32") -> ComputeDAG:
    """Elementwise stages with shifts, a reversal and a broadcast."""
    n, m = 6, 9
    x, y = te.placeholder((n, m), dtype, "X"), te.placeholder((m,), dtype, "Z")
    a = te.compute((n, m), lambda i, j: x[i, j] * te.const(2, dtype), "a")
    b = te.compute((n, m - 2), lambda i, j: a[i, j] + a[i, j + 2] - a[n - 1 - i, j + 1], "b")
    c = te.compute((n, m - 2), lambda i, j: te.abs(b[i, j]) + y[j], "c")
    return te.dag([x, y, te.compute((n, m - 2), lambda i, j: c[i, m - 3 - j] - a[i, j], "d")])


def several(dtype: str = "float32") -> ComputeDAG:
    """A stage of several outputs, each of which another stage reads."""
    n, m = 7, 5
    x = te.placeholder((n, m), dtype, "X")
    k = te.reduce_axis(m, "k")
    p, q = te.compute((n, m), lambda i, j: (x[i, j] + te.const(1, dtype), x[i, j] * x[i, j]), ("p", "q"))
    s = te.compute((n,), lambda i: te.sum(q[i, k], axis=k), "s")
    return te.dag([x, te.compute((n, m), lambda i, j: p[i, j] - s[i], "t")])


def flat(dtype: str = "float32") -> ComputeDAG:
    """Indices with // and %: a reshape, and a running window over it."""
    x = te.placeholder((6, 4), dtype, "X")
    k = te.reduce_axis(3, "k")
    f = te.compute((24,), lambda i: x[i // 4, i % 4], "f")
    s = te.compute((22,), lambda i: te.sum(f[i + k], axis=k), "s")
    return te.dag([x, te.compute((2, 11), lambda i, j: s[i * 11 + j] + f[(i * 11 + j) % 24], "Y")])


def total(dtype: str = "float32") -> ComputeDAG:
    """A reduction to one row over two axes."""
    x = te.placeholder((4, 3, 7), dtype, "X")
    u, v = te.reduce_axis(4, "u"), te.reduce_axis(7, "v")
    return te.dag([x, te.compute((3,), lambda i: te.sum(x[u, i, v], axis=(u, v)), "Y")])


def integers(dtype: str = "int32") -> ComputeDAG:
    """Integer division and remainder of negative numbers, wrap-around, shifts of the index into the value."""
    n, m = 5, 9
    x, y = te.placeholder((n, m), dtype, "X"), te.placeholder((m,), dtype, "Z")
    a = te.compute((n, m), lambda i, j: x[i, j] // te.const(3, dtype) + x[i, j] % te.const(-5, dtype), "a")
    b = te.compute((n, m), lambda i, j: a[i, j] * te.const(1 << 29, dtype) + te.cast(i * 3 - j, dtype), "b")
    k = te.reduce_axis(m, "k")
    s = te.compute((n,), lambda i: te.prod(b[i, k] + y[k], axis=k), "s")
    return te.dag(
        [x, y, te.compute((n, m), lambda i, j: s[i] // te.maximum(a[i, j], te.const(1, dtype)), "Y")]
    )


def quantized(dtype: str = "int32") -> ComputeDAG:
    """A product of int8 whose rows and columns have zero points of their own, added up in ``dtype``."""
    m, n, k = 5, 7, 6
    x, w = te.placeholder((m, k), "int8", "X"), te.placeholder((k, n), "int8", "W")
    zx, zw = te.placeholder((m,), dtype, "zx"), te.placeholder((n,), dtype, "zw")
    r = te.reduce_axis(k, "k")

    def value(i: te.Expr, j: te.Expr) -> te.Reduction:
        a, b = te.cast(x[i, r], dtype) - zx[i], te.cast(w[r, j], dtype) + zw[j]
        return te.sum(a * b, axis=r)

    c = te.compute((m, n), value, "C")
    return te.dag([x, w, zx, zw, te.compute((m, n), lambda i, j: te.maximum(c[i, j], zw[j]), "Y")])


def doubling(stages: int, n: int = 7) -> ComputeDAG:
    """Stages that each use the one before twice: inlined, each doubles the expression."""
    a = te.placeholder((3, n), "float32", "A")
    x = a
    for k in range(stages):
        x = te.compute((3, n), lambda i, j, x=x: te.maximum(x[i, j] - 1.0, a[i, j] - x[i, j]), f"s{k}")
    return te.dag([a, x])


FLOATING: dict[str, Callable[[str], ComputeDAG]] = {
    "matmul": matmul,
    "matmul_relu": matmul_relu,
    "conv2d": conv2d,
    "conv2d_stride2": conv2d_stride2,
    "normalize": normalize,
    "layer_norm": layer_norm,
    "argmax": argmax,
    "online": online,
    "attended": attended,
    "max_pool": max_pool,
    "permute": permute,
    "chain": chain,
    "several": several,
    "flat": flat,
    "total": total,
    "phases": phases,
    "views": views,
}
PROGRAMS: dict[str, Callable[[str], ComputeDAG]] = FLOATING | {
    "integers": integers,
    "quantized": quantized,
}
INTEGRAL = ("integers", "quantized")


def make(name: str, dtype: str = "float32") -> ComputeDAG:
    """A program by name; those of integers keep to integers."""
    return PROGRAMS[name](dtype if name not in INTEGRAL or dtype.startswith("int") else "int32")
