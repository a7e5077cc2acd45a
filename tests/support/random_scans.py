"""Random scans of small shapes, whose values stay small integers."""

from __future__ import annotations

from random import Random
from typing import Any

from schedules import te
from schedules.te.compute_dag import ComputeDAG


def _held(x: Any) -> Any:
    """A value that does not grow from step to step."""
    return te.minimum(te.maximum(x, -8.0), 8.0)


def random_scan(rng: Random) -> ComputeDAG:
    """A scan of one of a few kinds, forwards or backwards, and something that reads it."""
    return te.dag(rng.choice((_pointwise, _pointwise, _shifted, _layers, _sweep, _sums))(rng))


def _shape(rng: Random, rank: int) -> tuple[int, ...]:
    return tuple(rng.choice((1, 2, 3, 5, 6, 9)) for _ in range(rank))


def _read(rng: Random, y: Any, n: int, last: int, scanned: int, step: int) -> list[Any]:
    """Stages behind a scan: none, one that reads all of it, one that reads its end, or a sum."""
    end = last if step == 1 else 0
    way = rng.choice(("", "all", "end", "sum", "both"))
    at = [y]
    if way in ("all", "both"):
        made = te.compute(y.shape, lambda *i: y[i] * 2.0, name="z")
        return [made] if way == "all" else [y, made]
    if way == "end":
        rest = y.shape[:scanned] + y.shape[scanned + 1 :]
        if rest:
            return [te.compute(rest, lambda *i: y[(*i[:scanned], end, *i[scanned:])] + 1.0, name="z")]
    if way == "sum" and n > 1:
        k = te.reduce_axis(y.shape[-1], name="k")
        if scanned != n - 1:
            return [te.compute(y.shape[:-1], lambda *i: te.sum(y[(*i, k)], axis=k), name="z")]
    return at


def _pointwise(rng: Random) -> list[Any]:
    """Each point of the other axes on its own."""
    rank = rng.choice((1, 2, 2, 3))
    shape, axis, step = _shape(rng, rank), rng.randrange(rank), rng.choice((1, 1, -1))
    a, b = (te.placeholder(shape, name=n) for n in "ab")
    lags = sorted({rng.choice((1, 1, 1, 2, 3)) for _ in range(rng.choice((1, 1, 2)))})

    def value(y: Any, *i: Any) -> Any:
        out = b[i]
        for k in lags:
            out = out + _held(a[i] * y[(*i[:axis], i[axis] - step * k, *i[axis + 1 :])])
        return _held(out)

    init = rng.choice((0.0, 2.0, lambda *i: b[(*i[:axis], 0, *i[axis + 1 :])]))
    names = [f"i{k}" for k in range(rank)]
    fn = eval(f"lambda y, {', '.join(names)}: _v(y, {', '.join(names)})", {"_v": value})
    y = te.scan(shape, fn, init=init, axis=axis, reverse=step < 0, name="y")
    return [a, b, *_read(rng, y, rank, shape[axis] - 1, axis, step)]


def _shifted(rng: Random) -> list[Any]:
    """Neighbours of the step before."""
    t, n = _shape(rng, 2)
    step, by = rng.choice((1, -1)), rng.choice((-1, 1))
    b = te.placeholder((t, n), name="b")

    def value(y: Any, i: Any, j: Any) -> Any:
        at = te.minimum(te.maximum(j + by, 0), n - 1)
        return _held(y[i - step, at] - y[i - step, j] + b[i, j])

    y = te.scan((t, n), lambda y, i, j: value(y, i, j), init=1.0, reverse=step < 0, name="y")
    return [b, *_read(rng, y, 2, t - 1, 0, step)]


def _layers(rng: Random) -> list[Any]:
    """Steps of several stages with a sum over the state, as of a recurrent layer."""
    t, n = _shape(rng, 2)
    step = rng.choice((1, -1))
    w, x = te.placeholder((n, n), name="w"), te.placeholder((t, n), name="x")
    h = te.state((t, n), init=lambda i, j: x[0, j], name="h", reverse=step < 0)
    c = te.state((t, n), init=0.0, name="c", reverse=step < 0)
    k = te.reduce_axis(n, name="k")
    turned = rng.random() < 0.5
    g = te.compute(
        (t, n), lambda i, j: te.sum((w[j, k] if turned else w[k, j]) * h[i - step, k], axis=k), name="g"
    )
    p = te.compute((t, n), lambda i, j: g[i, j] + x[i, j], name="p")
    new = te.compute((t, n), lambda i, j: _held(p[i, j] - c[i - step, j]))
    lag = rng.choice((0, 1))
    out = te.compute((t, n), lambda i, j: _held(new[i, j] + (c[i - 1, j] if lag and step > 0 else x[i, j])))
    H, C = te.scan([h, c], [out, new])
    return [w, x, *rng.choice(([H], [C, H], _read(rng, H, 2, t - 1, 0, step)))]


def _sweep(rng: Random) -> list[Any]:
    """Two or three scan axes, as sweeps in place have."""
    n, m = _shape(rng, 2)
    a = te.placeholder((n + 2, m + 2), name="a")

    def value(y: Any, i: Any, j: Any) -> Any:
        return _held(y[i - 1, j] + y[i, j - 1] - y[i - 1, j + 1] + a[i + 2, j + 1])

    y = te.scan(
        (n, m), lambda y, i, j: value(y, i, j), init=lambda i, j: a[i + 1, j + 1], axis=(0, 1), name="y"
    )
    return [a, *_read(rng, y, 1, n - 1, 0, 1)[:1]]


def _sums(rng: Random) -> list[Any]:
    """Sums over what was made before, as solving a triangular system has."""
    n = rng.choice((1, 2, 5, 9))
    low, b = te.placeholder((n, n), name="low"), te.placeholder((n,), name="b")
    x, j = te.state((n,), init=0.0, name="x"), te.reduce_axis(n, name="j")
    s = te.compute((n,), lambda i: te.sum(te.select(j < i, low[i, j] * x[j], 0.0), axis=j), name="s")
    return [low, b, te.scan(x, te.compute((n,), lambda i: _held(b[i] - s[i])))]
