"""Scatters that tests share: random ones, with data whose sums are exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from schedules import te
from schedules.te.compute_dag import ComputeDAG

ADD, MAX, MIN = te.scatter_add, te.scatter_max, te.scatter_min
INTO = {"add": np.add, "max": np.maximum, "min": np.minimum}


@dataclass(frozen=True)
class Scatter:
    """A scatter, its inputs, and what numpy makes of them."""

    dag: ComputeDAG
    inputs: tuple[np.ndarray, ...]
    expected: tuple[np.ndarray, ...]


def random_scatter(seed: int) -> Scatter:
    """A scatter of one to three dimensions, some of them free, by random data."""
    rng, draw = Random(seed), np.random.default_rng(seed)
    how = rng.choice(list(INTO))
    dtype, integer = (
        rng.choice(["float32", "float32", "float64", "int32"]),
        rng.choice(["int32", "int64", "int8"]),
    )
    terms = [rng.randint(1, 9) for _ in range(rng.randint(1, 3))]
    shape, places = [], []  # a place: the axis of a free dimension, ("data", axes), or ("axes", step)
    for _ in range(rng.randint(1, 3)):
        kind = rng.choice(["data", "data", "free", "axes"])
        axis = rng.randrange(len(terms))
        if kind == "free" and ("free", axis) not in places:
            shape.append(terms[axis])
            places.append(("free", axis))
        else:
            shape.append(rng.randint(1, 8))
            axes = tuple(sorted(rng.sample(range(len(terms)), rng.randint(1, len(terms)))))
            places.append((kind if kind != "free" else "data", axes))
    mode, start = rng.choice(["drop", "clip"]), rng.choice(["none", "number", "tensor"])
    x = draw.integers(-9, 10, terms).astype(dtype)
    tensors, arrays = [te.placeholder(tuple(terms), dtype, "x")], [x]
    at: list[Any] = []
    for d, (kind, axes) in enumerate(places):
        if kind == "data":
            ids = draw.integers(-2, shape[d] + 2, [terms[a] for a in axes]).astype(integer)
            tensors.append(te.placeholder(ids.shape, integer, f"ids{d}"))
            arrays.append(ids)
            at.append((tensors[-1], ids))
    into: Any = {"none": None, "number": 3}.get(start)
    before = np.full(shape, _neutral(how, dtype), dtype)
    if start == "number":
        before = INTO[how](before, np.asarray(3, dtype))
    if start == "tensor":
        into = te.placeholder(tuple(shape), dtype, "start")
        first = draw.integers(-9, 10, shape).astype(dtype)
        tensors.append(into)
        arrays.append(first)
        before = INTO[how](before, first)

    def index(p: Sequence[Any], data: bool) -> list[Any]:
        found, out = iter(at), []
        for kind, axes in places:
            if kind == "free":
                out.append(p[axes])
            elif kind == "axes":
                out.append(sum((p[a] for a in axes[1:]), p[axes[0]]) - 1)
            else:
                t, ids = next(found)
                out.append((t if not data else ids)[tuple(p[a] for a in axes)])
        return out

    fn = {"add": ADD, "max": MAX, "min": MIN}[how]
    index_of, term = lambda *p: tuple(index(p, False)), lambda *p: tensors[0][p]
    y = fn(tuple(shape), index_of, term, terms, into=into, mode=mode, name="y")
    read = te.inputs(y)
    out = before.copy()
    for p in np.ndindex(*terms):
        i = [int(k) for k in index(p, True)]
        if mode == "clip":
            i = [min(max(k, 0), n - 1) for k, n in zip(i, shape, strict=True)]
        if all(0 <= k < n for k, n in zip(i, shape, strict=True)):
            out[tuple(i)] = INTO[how](out[tuple(i)], x[p])
    given = {id(t): a for t, a in zip(tensors, arrays, strict=True)}
    return Scatter(te.dag([*read, y]), tuple(given[id(t)] for t in read), (out,))


def _neutral(how: str, dtype: str) -> Any:
    if how == "add":
        return 0
    if dtype.startswith("float"):
        return -np.inf if how == "max" else np.inf
    return np.iinfo(dtype).min if how == "max" else np.iinfo(dtype).max


def rows(n: int = 30, d: int = 20, v: int = 12) -> Scatter:
    """The gradient of an embedding: rows that are read several times."""
    draw = np.random.default_rng(1)
    ids, dy = te.placeholder((n,), "int32", "ids"), te.placeholder((n, d), name="dy")
    g = te.scatter_add((v, d), lambda n, d: (ids[n], d), lambda n, d: dy[n, d], over=(n, d), name="g")
    at, y = draw.integers(-1, v + 1, n).astype("int32"), draw.integers(-9, 10, (n, d)).astype("float32")
    want = np.zeros((v, d), "float32")
    inside = (at >= 0) & (at < v)
    np.add.at(want, at[inside], y[inside])
    return Scatter(te.dag([ids, dy, g]), (at, y), (want,))


def counts(n: int = 400, bins: int = 6) -> Scatter:
    """A histogram."""
    x = te.placeholder((n,), "int32", "x")
    data = np.random.default_rng(2).integers(-2, bins + 2, n).astype("int32")
    want = np.bincount(data[(data >= 0) & (data < bins)], minlength=bins).astype("int32")
    return Scatter(te.dag([x, te.histogram(x, bins, name="h")]), (data,), (want,))


def means(n: int = 90, bins: int = 7) -> Scatter:
    """Sums and counts together, of which a later stage makes means."""
    ids, x = te.placeholder((n,), "int32", "ids"), te.placeholder((n,), name="x")

    def both(n: Any) -> Any:
        return x[n], te.const(1, "int32")

    total, count = te.scatter_add((bins,), lambda n: ids[n], both, n, name=("total", "count"))
    mean = te.compute((bins,), lambda i: total[i] / te.cast(count[i], "float32"), name="mean")
    draw = np.random.default_rng(3)
    at, values = draw.integers(-1, bins + 1, n).astype("int32"), draw.integers(-9, 10, n).astype("float32")
    rest = [values[at == b] for b in range(bins)]
    want = np.array([v.sum() / np.float32(len(v)) for v in rest], "float32")
    counted = np.array([len(v) for v in rest], "int32")
    return Scatter(te.dag([ids, x, count, mean]), (at, values), (counted, want))


def bins_of_floats(rows: int = 3, n: int = 230) -> Scatter:
    """A histogram of two dimensions of floats, whose places are a stage of their own."""
    x = te.placeholder((rows, n), name="x")
    data = np.random.default_rng(4).uniform(-0.1, 1.1, (rows, n)).astype("float32")
    data[0, :3] = [0.0, 1.0, np.nan]
    want = np.histogram(data[~np.isnan(data)], 8, (0, 1))[0].astype("int32")
    return Scatter(te.dag([x, te.histogram(x, 8, range=(0.0, 1.0), name="h")]), (data,), (want,))
