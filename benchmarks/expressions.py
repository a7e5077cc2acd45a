"""Draws expressions as users could state them, each with numpy's obvious program.

Drawn are reductions over several axes, tuple reducers, norms with kept axes, scales and biases along some
axes, chains of stencils, concatenations, pools, transpositions and products, at odd and round sizes from a
thousand to some millions of elements. A draw follows from its seed and number alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from schedules import te

Arrays = list[np.ndarray]
FIRST = np.float32(0)


@dataclass(frozen=True)
class Drawn:
    """An expression, and numpy's obvious program."""

    label: str
    tensors: list[te.Tensor]
    numpy: Callable[..., object]


class Draw:
    """Random choices, with sizes of about so many elements in all."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.elements = 10 ** rng.uniform(3.3, 6.3)

    def of(self, *options: object) -> object:
        return options[int(self.rng.integers(len(options)))]

    def shape(self, rank: int) -> tuple[int, ...]:
        """Extents of about as many elements, round or odd, some of them small."""
        shares = self.rng.dirichlet([1.5] * rank)
        out = []
        for share in shares:
            n = max(2, round(math.exp(share * math.log(self.elements))))
            if self.rng.random() < 0.4:
                n = max(2, 8 * round(n / 8))
            out.append(n)
        return tuple(out)

    def axes(self, rank: int) -> tuple[int, ...]:
        """Some axes, not none."""
        count = int(self.rng.integers(1, rank + 1))
        return tuple(sorted(map(int, self.rng.choice(rank, count, replace=False))))


def _reduced(
    x: te.Tensor, axes: tuple[int, ...], how: Callable, of: Callable, keep: bool, name: str
) -> te.Tensor:
    """A reduction of some axes of ``of(x[...], *indices)``; ``keep``: they stay, with one element."""
    r = {a: te.reduce_axis(x.shape[a], f"r{a}") for a in axes}
    rest = [a for a in range(len(x.shape)) if a not in axes]
    shape = tuple(1 if a in axes else n for a, n in enumerate(x.shape) if keep or a not in axes)

    def body(*at: te.Expr) -> te.Expr:
        own = dict(enumerate(at)) if keep else dict(zip(rest, at, strict=True))
        index = tuple(r.get(a, own.get(a)) for a in range(len(x.shape)))
        return how(of(x[index]), axis=tuple(r.values()))

    return te.compute(shape, body, name)


def reduction(d: Draw) -> Drawn:
    shape = d.shape(rank := int(d.of(1, 2, 3, 4)))
    axes, keep = d.axes(rank), bool(d.of(False, True))
    x = te.placeholder(shape, "float32", "x")
    kind = str(d.of("sum", "max", "mean", "squares"))
    how = te.max if kind == "max" else te.sum
    of = (lambda v: v * v) if kind == "squares" else (lambda v: v)
    y = _reduced(x, axes, how, of, keep, "y")
    if kind == "mean":
        n = math.prod(shape[a] for a in axes)
        s = y
        y = te.compute(s.shape, lambda *i: s[i] * (1.0 / n), "m")
    run = {
        "sum": lambda x: x.sum(axes, keepdims=keep),
        "max": lambda x: x.max(axes, keepdims=keep),
        "mean": lambda x: x.mean(axes, keepdims=keep),
        "squares": lambda x: np.square(x).sum(axes, keepdims=keep),
    }[kind]
    return Drawn(f"{kind} {list(shape)} over {list(axes)}{' kept' if keep else ''}", [x, y], run)


def _first(a: tuple[te.Expr, te.Expr], b: tuple[te.Expr, te.Expr], less: bool) -> tuple[te.Expr, te.Expr]:
    """The better value with its place, of equal ones the first."""
    better = a[1] < b[1] if less else a[1] > b[1]
    value = te.minimum(a[1], b[1]) if less else te.maximum(a[1], b[1])
    return te.select(te.any(better, te.all(te.equal(a[1], b[1]), a[0] < b[0])), a[0], b[0]), value


def tuples(d: Draw) -> Drawn:
    shape = d.shape(rank := int(d.of(1, 2, 3)))
    kind = str(d.of("argmax", "argmin", "range", "moments"))
    axes = d.axes(rank) if kind in ("range", "moments") else (int(d.rng.integers(rank)),)
    if kind.startswith("arg") and d.of(0, 1, 2) == 0:
        axes = tuple(range(rank))
    x = te.placeholder(shape, "float32", "x")
    r = {a: te.reduce_axis(shape[a], f"r{a}") for a in axes}
    rest = [a for a in range(rank) if a not in axes]

    def at(i: tuple[te.Expr, ...]) -> te.Expr:
        own = dict(zip(rest, i, strict=True))
        return x[tuple(r.get(a, own.get(a)) for a in range(rank))]

    place: te.Expr = None
    for a in axes:
        place = r[a] if place is None else place * shape[a] + r[a]
    out = tuple(shape[a] for a in rest)
    if kind.startswith("arg"):
        less = kind == "argmin"
        join = te.reducer(
            lambda i, v: (te.max_value(i), te.inf if less else -te.inf),
            lambda a, b: _first(a, b, less),
            kind,
        )
        y = te.compute(
            out, lambda *i: join((te.cast(place, "int32"), at(i)), axis=tuple(r.values())), ("p", "v")
        )

        def run(x: np.ndarray) -> object:
            if len(axes) == rank:
                return getattr(x, kind)(), getattr(x, kind[3:])()
            return getattr(x, kind)(axes[0]), getattr(x, kind[3:])(axes[0])

    elif kind == "range":
        join = te.reducer(
            lambda v, w: (te.inf, -te.inf),
            lambda a, b: (te.minimum(a[0], b[0]), te.maximum(a[1], b[1])),
            kind,
        )
        y = te.compute(out, lambda *i: join((at(i), at(i)), axis=tuple(r.values())), ("p", "v"))

        def run(x: np.ndarray) -> object:
            return x.min(axes), x.max(axes)

    else:
        join = te.reducer(lambda v, w: (0, 0), lambda a, b: (a[0] + b[0], a[1] + b[1]), kind)
        y = te.compute(out, lambda *i: join((at(i), at(i) * at(i)), axis=tuple(r.values())), ("p", "v"))

        def run(x: np.ndarray) -> object:
            return x.sum(axes), np.square(x).sum(axes)

    return Drawn(f"{kind} {list(shape)} over {list(axes)}", [x, *y], run)


def norm(d: Draw) -> Drawn:
    """(x - mean) / deviation over some axes, with a scale and a bias along one of the axes."""
    shape = d.shape(rank := int(d.of(2, 3, 4)))
    axes, along = d.axes(rank), int(d.rng.integers(rank))
    count = math.prod(shape[a] for a in axes)
    x = te.placeholder(shape, "float32", "x")
    g, b = (te.placeholder((shape[along],), "float32", n) for n in "gb")
    s = _reduced(x, axes, te.sum, lambda v: v, True, "s")
    q = _reduced(x, axes, te.sum, lambda v: v * v, True, "q")

    def body(*i: te.Expr) -> te.Expr:
        k = tuple(0 if a in axes else v for a, v in enumerate(i))
        mean = s[k] * (1.0 / count)
        var = q[k] * (1.0 / count) - mean * mean
        return (x[i] - mean) / te.sqrt(var + 1e-5) * g[i[along]] + b[i[along]]

    def run(x: np.ndarray, g: np.ndarray, b: np.ndarray) -> object:
        m = x.mean(axes, keepdims=True)
        v = np.square(x).mean(axes, keepdims=True) - m * m
        wide = tuple(-1 if a == along else 1 for a in range(rank))
        return (x - m) / np.sqrt(v + np.float32(1e-5)) * g.reshape(wide) + b.reshape(wide)

    return Drawn(
        f"norm {list(shape)} over {list(axes)}, scale along {along}",
        [x, g, b, te.compute(shape, body, "y")],
        run,
    )


def group_norm(d: Draw) -> Drawn:
    n, h, w = int(d.of(1, 2, 4)), int(d.of(7, 8, 14, 28, 33, 56)), int(d.of(7, 14, 28, 40))
    groups, each = int(d.of(2, 8, 32)), int(d.of(1, 2, 4, 16))
    c, last = groups * each, bool(d.of(False, True))
    shape = (n, h, w, c) if last else (n, c, h, w)
    x = te.placeholder(shape, "float32", "x")
    g, b = (te.placeholder((c,), "float32", a) for a in "gb")
    count = each * h * w

    def place(i: te.Expr, o: te.Expr, y: te.Expr, z: te.Expr) -> tuple[te.Expr, ...]:
        return (i, y, z, o) if last else (i, o, y, z)

    def total(name: str, of: Callable) -> te.Tensor:
        k, y, z = te.reduce_axis(each, "k"), te.reduce_axis(h, "y"), te.reduce_axis(w, "z")
        return te.compute(
            (n, groups), lambda i, o: te.sum(of(x[place(i, o * each + k, y, z)], i, o), axis=(k, y, z)), name
        )

    s = total("s", lambda v, i, o: v)
    q = total("q", lambda v, i, o: (v - s[i, o] * (1.0 / count)) * (v - s[i, o] * (1.0 / count)))

    def body(*at: te.Expr) -> te.Expr:
        i, o = at[0], at[3] if last else at[1]
        mean, var = s[i, o // each] * (1.0 / count), q[i, o // each] * (1.0 / count)
        return (x[at] - mean) / te.sqrt(var + 1e-5) * g[o] + b[o]

    def run(x: np.ndarray, g: np.ndarray, b: np.ndarray) -> object:
        v = x.reshape((n, h, w, groups, each) if last else (n, groups, each, h, w))
        axes = (1, 2, 4) if last else (2, 3, 4)
        m = v.mean(axes, keepdims=True)
        v = (v - m) / np.sqrt(v.var(axes, keepdims=True) + np.float32(1e-5))
        wide = (c,) if last else (c, 1, 1)
        return v.reshape(shape) * g.reshape(wide) + b.reshape(wide)

    return Drawn(f"group norm {list(shape)} of {groups} groups", [x, g, b, te.compute(shape, body, "y")], run)


def softmax(d: Draw) -> Drawn:
    shape = d.shape(rank := int(d.of(1, 2, 3, 4)))
    axes = (int(d.rng.integers(rank)),) if d.of(0, 1) else d.axes(rank)
    x = te.placeholder(shape, "float32", "x")
    top = _reduced(x, axes, te.max, lambda v: v, True, "top")

    def low(i: tuple[te.Expr, ...]) -> tuple[te.Expr, ...]:
        return tuple(0 if a in axes else v for a, v in enumerate(i))

    e = te.compute(shape, lambda *i: te.exp(x[i] - top[low(i)]), "e")
    t = _reduced(e, axes, te.sum, lambda v: v, True, "t")

    def run(x: np.ndarray) -> object:
        e = np.exp(x - x.max(axes, keepdims=True))
        return e / e.sum(axes, keepdims=True)

    return Drawn(
        f"softmax {list(shape)} over {list(axes)}",
        [x, te.compute(shape, lambda *i: e[i] / t[low(i)], "y")],
        run,
    )


def broadcast(d: Draw) -> Drawn:
    """Scales and biases along some axes, and a cheap or costly function."""
    shape = d.shape(rank := int(d.of(2, 3, 4)))
    along = [d.axes(rank) for _ in range(2)]
    x = te.placeholder(shape, "float32", "x")
    parts = [
        te.placeholder(tuple(shape[a] for a in axes), "float32", n)
        for axes, n in zip(along, "ab", strict=True)
    ]
    kind = str(d.of("relu", "tanh", "none"))

    def body(*i: te.Expr) -> te.Expr:
        a, b = (p[tuple(i[k] for k in axes)] for p, axes in zip(parts, along, strict=True))
        v = x[i] * a + b
        return te.maximum(v, 0.0) if kind == "relu" else te.tanh(v) if kind == "tanh" else v

    def run(x: np.ndarray, a: np.ndarray, b: np.ndarray) -> object:
        wide = [tuple(shape[k] if k in axes else 1 for k in range(rank)) for axes in along]
        v = x * a.reshape(wide[0]) + b.reshape(wide[1])
        return np.maximum(v, FIRST) if kind == "relu" else np.tanh(v) if kind == "tanh" else v

    return Drawn(
        f"{kind} of {list(shape)} * {list(along[0])} + {list(along[1])}",
        [x, *parts, te.compute(shape, body, "y")],
        run,
    )


def stencils(d: Draw) -> Drawn:
    """Sweeps over the inside of an array: it shrinks, or its border stays."""
    rank, sweeps = int(d.of(1, 2, 2, 3)), int(d.of(1, 2, 3, 4, 6))
    border = str(d.of("shrinks", "stays", "held"))
    shape = tuple(max(2 * sweeps + 4, n) for n in d.shape(rank))
    steps = [tuple(s * (a == k) for k in range(rank)) for a in range(rank) for s in (-1, 1)]
    weight = 1.0 / len(steps)
    made = [te.placeholder(shape, "float32", "x")]
    for k in range(sweeps):
        p = made[-1]

        def body(*i: te.Expr, p: te.Tensor = p) -> te.Expr:
            def total(at: Callable[[te.Expr, int, int], te.Expr]) -> te.Expr:
                """The neighbours' sum. ``at(index, step, extent)``: where a neighbour lies along an axis."""
                places = [tuple(map(at, i, o, shape)) for o in steps]
                return sum((p[o] for o in places[1:]), p[places[0]])

            if border == "shrinks":
                return total(lambda v, s, _: v + 1 + s) * weight
            if border == "held":
                inner = {-1: lambda v, _: te.maximum(v - 1, 0), 1: lambda v, n: te.minimum(v + 1, n - 1)}
                return total(lambda v, s, n: inner[s](v, n) if s else v) * weight
            inside = te.all(*(c for v, n in zip(i, shape, strict=True) for c in (v > 0, v < n - 1)))
            return te.select(inside, total(lambda v, s, _: v + s) * weight, p[i])

        small = tuple(n - 2 for n in p.shape) if border == "shrinks" else shape
        made.append(te.compute(small, body, f"sweep{k}"))

    def run(x: np.ndarray) -> object:
        for _ in range(sweeps):
            v = np.pad(x, 1, mode="edge") if border == "held" else x
            cut = [tuple(slice(1 + s, n - 1 + s) for s, n in zip(o, v.shape, strict=True)) for o in steps]
            new = v[cut[0]].copy()
            for c in cut[1:]:
                new += v[c]
            new *= np.float32(weight)
            if border == "stays":
                x = x.copy()
                x[tuple(slice(1, -1) for _ in shape)] = new
            else:
                x = new
        return x

    return Drawn(f"{sweeps} sweeps of {list(shape)}, border {border}", [made[0], made[-1]], run)


def joined(d: Draw) -> Drawn:
    """A concatenation of two or three arrays, and a function of it."""
    shape = d.shape(rank := int(d.of(1, 2, 3)))
    axis, count = int(d.rng.integers(rank)), int(d.of(2, 3))
    sizes = [max(1, round(shape[axis] * s)) for s in d.rng.dirichlet([3.0] * count)]
    parts = [
        te.placeholder(tuple(n if a == axis else m for a, m in enumerate(shape)), "float32", f"x{k}")
        for k, n in enumerate(sizes)
    ]
    out = tuple(sum(sizes) if a == axis else m for a, m in enumerate(shape))

    def body(*i: te.Expr) -> te.Expr:
        begin = sum(sizes[:-1])
        v = parts[-1][tuple(x - begin if a == axis else x for a, x in enumerate(i))]
        for k in reversed(range(count - 1)):
            begin = sum(sizes[:k])
            own = parts[k][tuple(x - begin if a == axis else x for a, x in enumerate(i))]
            v = te.select(i[axis] < begin + sizes[k], own, v)
        return v

    c = te.compute(out, body, "c")
    kind = str(d.of("copy", "relu", "sum"))
    if kind == "copy":
        y = c
    elif kind == "relu":
        y = te.compute(out, lambda *i: te.maximum(c[i], 0.0), "y")
    else:
        y = _reduced(c, (rank - 1,), te.sum, lambda v: v, False, "y")

    def run(*parts: np.ndarray) -> object:
        c = np.concatenate(parts, axis)
        return c if kind == "copy" else np.maximum(c, FIRST) if kind == "relu" else c.sum(-1)

    return Drawn(f"{kind} of {count} joined along {axis} to {list(out)}", [*parts, y], run)


def moved(d: Draw) -> Drawn:
    """A transposition, perhaps with another array added, or a slice with steps."""
    shape = d.shape(rank := int(d.of(2, 3, 4)))
    x = te.placeholder(shape, "float32", "x")
    kind = str(d.of("transposed", "added", "steps", "reversed"))
    if kind == "reversed":
        axis = int(d.rng.integers(rank))
        y = te.compute(
            shape, lambda *i: x[tuple(shape[a] - 1 - v if a == axis else v for a, v in enumerate(i))], "y"
        )
        return Drawn(f"reversed {list(shape)} along {axis}", [x, y], lambda x: np.flip(x, axis).copy("C"))
    if kind == "steps":
        step = tuple(int(d.of(1, 1, 2, 3)) for _ in shape)
        out = tuple(-(-n // s) for n, s in zip(shape, step, strict=True))
        y = te.compute(out, lambda *i: x[tuple(v * s for v, s in zip(i, step, strict=True))], "y")
        return Drawn(
            f"every {step} of {list(shape)}",
            [x, y],
            lambda x: x[tuple(slice(None, None, s) for s in step)].copy("C"),
        )
    order = tuple(map(int, d.rng.permutation(rank)))
    out = tuple(shape[k] for k in order)
    back = tuple(order.index(k) for k in range(rank))
    z = te.placeholder(out, "float32", "z")
    y = te.compute(out, lambda *i: x[tuple(i[k] for k in back)] + (z[i] if kind == "added" else 0.0), "y")
    if kind == "added":
        return Drawn(
            f"transposed {list(shape)} to {list(order)} and added",
            [x, z, y],
            lambda x, z: np.add(np.transpose(x, order), z, order="C"),
        )
    return Drawn(
        f"transposed {list(shape)} to {list(order)}", [x, y], lambda x: np.transpose(x, order).copy("C")
    )


def pool(d: Draw) -> Drawn:
    """Windows over two of the axes, channels first or last, overlapping or not."""
    n, c = int(d.of(1, 2, 4)), int(d.of(3, 8, 16, 33, 64))
    h, w, k = int(d.of(16, 30, 56)), int(d.of(16, 31, 56)), int(d.of(2, 3, 5))
    step, last, kind = int(d.of(1, k)), bool(d.of(False, True)), str(d.of("max", "mean"))
    shape = (n, h, w, c) if last else (n, c, h, w)
    p, q = (h - k) // step + 1, (w - k) // step + 1
    x = te.placeholder(shape, "float32", "x")
    r, s = te.reduce_axis(k, "r"), te.reduce_axis(k, "s")

    def place(i: te.Expr, o: te.Expr, y: te.Expr, z: te.Expr) -> te.Expr:
        at = (i, y * step + r, z * step + s, o) if last else (i, o, y * step + r, z * step + s)
        return x[at]

    how = te.max if kind == "max" else te.sum
    out = (n, p, q, c) if last else (n, c, p, q)

    def body(*i: te.Expr) -> te.Expr:
        return how(place(i[0], i[3], i[1], i[2]) if last else place(*i), axis=(r, s))

    y = te.compute(out, body, "y")
    if kind == "mean":
        t = y
        y = te.compute(out, lambda *i: t[i] * (1.0 / (k * k)), "m")

    def run(x: np.ndarray) -> object:
        out = None
        for a in range(k):
            for b in range(k):
                rows, cols = slice(a, a + step * (p - 1) + 1, step), slice(b, b + step * (q - 1) + 1, step)
                v = x[:, rows, cols] if last else x[:, :, rows, cols]
                out = v.copy() if out is None else np.maximum(out, v) if kind == "max" else out + v
        return out if kind == "max" else out * np.float32(1 / (k * k))

    return Drawn(f"{kind} pool {list(shape)} by {k} every {step}", [x, y], run)


def product(d: Draw) -> Drawn:
    """Products of matrices and vectors, with or without a batch."""
    kind = str(d.of("matvec", "vecmat", "rows", "matmul", "batch", "outer"))
    m, n, k = (int(d.rng.integers(5, 300)) for _ in range(3))
    b = int(d.of(2, 5, 8))
    r = te.reduce_axis(k, "r")
    if kind == "matvec":
        x, y = te.placeholder((m * 4, k), "float32", "x"), te.placeholder((k,), "float32", "y")
        z = te.compute((m * 4,), lambda i: te.sum(x[i, r] * y[r], axis=r), "z")
        return Drawn(f"matvec {m * 4} {k}", [x, y, z], lambda x, y: x @ y)
    if kind == "vecmat":
        x, y = te.placeholder((k,), "float32", "x"), te.placeholder((k, n * 4), "float32", "y")
        z = te.compute((n * 4,), lambda j: te.sum(x[r] * y[r, j], axis=r), "z")
        return Drawn(f"vecmat {k} {n * 4}", [x, y, z], lambda x, y: x @ y)
    if kind == "rows":
        x, y = (te.placeholder((m * 4, k), "float32", a) for a in "xy")
        z = te.compute((m * 4,), lambda i: te.sum(x[i, r] * y[i, r], axis=r), "z")
        return Drawn(f"rows {m * 4} {k}", [x, y, z], lambda x, y: (x * y).sum(1))
    if kind == "outer":
        x, y = te.placeholder((m,), "float32", "x"), te.placeholder((n,), "float32", "y")
        return Drawn(
            f"outer {m} {n}", [x, y, te.compute((m, n), lambda i, j: x[i] * y[j], "z")], np.multiply.outer
        )
    if kind == "matmul":
        x, y = te.placeholder((m, k), "float32", "x"), te.placeholder((k, n), "float32", "y")
        z = te.compute((m, n), lambda i, j: te.sum(x[i, r] * y[r, j], axis=r), "z")
        return Drawn(f"matmul {m} {n} {k}", [x, y, z], np.matmul)
    x, y = te.placeholder((b, m, k), "float32", "x"), te.placeholder((b, k, n), "float32", "y")
    z = te.compute((b, m, n), lambda g, i, j: te.sum(x[g, i, r] * y[g, r, j], axis=r), "z")
    return Drawn(f"batch {b} {m} {n} {k}", [x, y, z], np.matmul)


KINDS: tuple[Callable[[Draw], Drawn], ...] = (
    reduction, tuples, norm, group_norm, softmax, broadcast, stencils, joined, moved, pool, product,
)  # fmt: skip


def drawn(seed: int, number: int) -> Drawn:
    """The ``number``-th expression of a seed; kinds come in turns."""
    rng = np.random.default_rng([seed, number])
    return KINDS[number % len(KINDS)](Draw(rng))
