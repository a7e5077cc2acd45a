"""Expressions with indices that are read from tensors, each with inputs and its result by numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from grid_cases import Case

from schedules import te

Arrays = Sequence[np.ndarray]
Rng = np.random.Generator


def take(w: np.ndarray, ids: np.ndarray, axis: int = 0) -> np.ndarray:
    """Elements at indices that are held inside."""
    return np.take(w, np.clip(ids.astype(np.int64), 0, w.shape[axis] - 1), axis)


def whole(rng: Rng, *shape: int, dtype: str = "float32") -> np.ndarray:
    return rng.integers(-4, 5, shape).astype(dtype)


def places(rng: Rng, n: int, *shape: int, dtype: str = "int64") -> np.ndarray:
    """Indices of ``n`` elements, some of them outside."""
    return np.clip(
        rng.integers(-n // 2, n + n // 2 + 1, shape), np.iinfo(dtype).min, np.iinfo(dtype).max
    ).astype(dtype)


def _case(tensors: list[te.Tensor], inputs: Arrays, *expected: np.ndarray) -> Case:
    return Case(te.dag(tensors), tuple(inputs), expected)


def embedding(rng: Rng, rows: int = 5, table: tuple[int, int] = (7, 3), dtype: str = "int64") -> Case:
    """Rows of a table."""
    w, ids = te.placeholder(table, name="W"), te.placeholder((rows,), dtype, name="ids")
    out = te.compute((rows, table[1]), lambda i, j: w[ids[i], j], "out")
    a, at = whole(rng, *table), places(rng, table[0], rows, dtype=dtype)
    return _case([w, ids, out], (a, at), take(a, at))


def of_a_batch(rng: Rng) -> Case:
    """Rows of a table at indices of two dimensions."""
    w, ids = te.placeholder((7, 9), name="W"), te.placeholder((2, 5), "int32", name="ids")
    out = te.compute((2, 5, 9), lambda b, i, j: w[ids[b, i], j], "out")
    a, at = whole(rng, 7, 9), places(rng, 7, 2, 5, dtype="int32")
    return _case([w, ids, out], (a, at), take(a, at))


def along_the_last_axis(rng: Rng) -> Case:
    w, ids = te.placeholder((6, 11), name="W"), te.placeholder((9,), "int32", name="ids")
    out = te.compute((6, 9), lambda i, j: w[i, ids[j]], "out")
    a, at = whole(rng, 6, 11), places(rng, 11, 9, dtype="int32")
    return _case([w, ids, out], (a, at), take(a, at, 1))


def of_each_point(rng: Rng) -> Case:
    """ONNX's GatherElements: an index for each element."""
    w, ids = te.placeholder((6, 11), name="W"), te.placeholder((6, 13), name="ids", dtype="int32")
    out = te.compute((6, 13), lambda i, j: w[i, ids[i, j]] * 2.0, "out")
    a, at = whole(rng, 6, 11), places(rng, 11, 6, 13, dtype="int32")
    return _case([w, ids, out], (a, at), np.take_along_axis(a, np.clip(at, 0, 10), 1) * 2)


def from_the_end(rng: Rng) -> Case:
    """ONNX's Gather: indices below 0 count from the end."""
    w, ids = te.placeholder((7, 5), name="W"), te.placeholder((9,), "int64", name="ids")
    at = lambda i: te.select(ids[i] < 0, ids[i] + 7, ids[i])  # noqa: E731
    out = te.compute((9, 5), lambda i, j: w[at(i), j], "out")
    a, n = whole(rng, 7, 5), rng.integers(-7, 7, 9)
    return _case([w, ids, out], (a, n), a[n])


def with_axes(rng: Rng) -> Case:
    """Segments: arithmetic over a load and an axis."""
    w, first = te.placeholder((21,), name="W"), te.placeholder((5,), "int32", name="first")
    out = te.compute((5, 4), lambda i, j: w[first[i] * 2 + te.cast(j, "int32")], "out")
    a, at = whole(rng, 21), places(rng, 10, 5, dtype="int32")
    return _case([w, first, out], (a, at), take(a, at[:, None] * 2 + np.arange(4)))


def of_a_stage(rng: Rng) -> Case:
    """Rows of a computed table that is worth keeping, not computing again."""
    w, ids = te.placeholder((7, 9), name="W"), te.placeholder((4, 5), "int32", name="ids")
    made = te.compute((7, 9), lambda r, j: w[r, j] * w[r, j] / 2.0, "made")
    out = te.compute((4, 5, 9), lambda b, i, j: made[ids[b, i], j] + 1.0, "out")
    a, at = whole(rng, 7, 9), places(rng, 7, 4, 5, dtype="int32")
    return _case([w, ids, out], (a, at), take(a * a / 2, at) + 1)


def of_sums(rng: Rng) -> Case:
    """Sums of rows, gathered; then rows of what was gathered are summed."""
    w, ids = te.placeholder((7, 19), name="W"), te.placeholder((5,), "int32", name="ids")
    k, n = te.reduce_axis(19, "k"), te.reduce_axis(5, "n")
    sums = te.compute((7,), lambda r: te.sum(w[r, k], axis=k), "sums")
    total = te.compute((19,), lambda j: te.sum(w[ids[n], j] - sums[ids[n]], axis=n), "total")
    a, at = whole(rng, 7, 19), places(rng, 7, 5, dtype="int32")
    picked = take(a, at)
    return _case([w, ids, total], (a, at), (picked - picked.sum(1, keepdims=True)).sum(0))


def summed(rng: Rng) -> Case:
    """The bag of an embedding: the sum of a few rows, and of each row."""
    w, ids = te.placeholder((7, 18), name="W"), te.placeholder((3, 5), "int64", name="ids")
    n, k = te.reduce_axis(5, "n"), te.reduce_axis(18, "k")
    bag = te.compute((3, 18), lambda b, j: te.sum(w[ids[b, n], j], axis=n), "bag")
    row = te.compute((3,), lambda b: te.sum(w[ids[b, 0], k], axis=k), "row")
    a, at = whole(rng, 7, 18), places(rng, 7, 3, 5)
    return _case([w, ids, bag, row], (a, at), take(a, at).sum(1), take(a, at[:, 0]).sum(1))


def twice(rng: Rng) -> Case:
    """Indices of indices, the first of them computed."""
    w, via = te.placeholder((7, 6), name="W"), te.placeholder((5,), "uint8", name="via")
    ids = te.placeholder((9,), "int8", name="ids")
    moved = te.compute((5,), lambda i: te.cast(via[i], "int32") - 1, "moved")
    out = te.compute((9, 6), lambda i, j: w[moved[ids[i]], j], "out")
    a, v, at = whole(rng, 7, 6), places(rng, 9, 5, dtype="uint8"), places(rng, 5, 9, dtype="int8")
    return _case([w, via, ids, out], (a, v, at), take(a, take(v.astype("int32") - 1, at)))


def guarded(rng: Rng) -> Case:
    """A condition guards the index and what it reads."""
    w, ids = te.placeholder((7, 17), name="W"), te.placeholder((5,), "int32", name="ids")
    out = te.compute(
        (6, 21),
        lambda i, j: te.select(te.all(i > 0, j >= 2, j < 19), w[ids[te.maximum(i - 1, 0)], j - 2], 0.5),
        "out",
    )
    a, at = whole(rng, 7, 17), places(rng, 7, 5, dtype="int32")
    return _case([w, ids, out], (a, at), np.pad(take(a, at), ((1, 0), (2, 2)), constant_values=0.5))


def beyond(rng: Rng) -> Case:
    """Without the condition the index itself would be read outside of its tensor. Of lanes: some meet it, all
    or none."""
    w, ids = te.placeholder((7, 17), name="W"), te.placeholder((5,), "int32", name="ids")
    out = te.compute((9, 17), lambda i, j: te.select(i < 5, w[ids[i], j], -1.0) + 1.0, "out")
    lanes = te.compute((4, 9), lambda i, j: te.select(j < 5, w[ids[j], i], w[i, j]), "lanes")
    flat = te.compute((9, 16), lambda i, j: te.select(i * 16 + j < 80, w[ids[i], j], w[0, j]) + 1.0, "flat")
    a, at = whole(rng, 7, 17), places(rng, 7, 5, dtype="int32")
    picked = take(a, at)
    return _case(
        [w, ids, out, lanes, flat],
        (a, at),
        np.concatenate([picked + 1, np.zeros((4, 17), "float32")]),
        np.concatenate([picked[:, :4].T, a[:4, 5:9]], 1),
        np.concatenate([picked[:, :16], np.repeat(a[:1, :16], 4, 0)]) + 1,
    )


def product(rng: Rng) -> Case:
    """A matrix product of rows that are gathered."""
    w, ids = te.placeholder((7, 12), name="W"), te.placeholder((5,), "int64", name="ids")
    x, k = te.placeholder((12, 17), name="X"), te.reduce_axis(12, "k")
    out = te.compute((5, 17), lambda i, j: te.sum(w[ids[i], k] * x[k, j], axis=k), "out")
    a, at, b = whole(rng, 7, 12), places(rng, 7, 5), whole(rng, 12, 17)
    return _case([w, ids, x, out], (a, at, b), take(a, at) @ b)


def one_index(rng: Rng) -> Case:
    """One index for all, which no axis moves."""
    w, ids = te.placeholder((7, 19), name="W"), te.placeholder((1,), "int32", name="ids")
    twice_ = te.compute((7, 19), lambda r, j: w[r, j] / 2.0 + w[r, 0], "half")
    out = te.compute((19,), lambda j: twice_[ids[0], j] + 1.0, "out")
    a, at = whole(rng, 7, 19), places(rng, 7, 1, dtype="int32")
    return _case([w, ids, out], (a, at), (a / 2 + a[:, :1])[np.clip(at[0], 0, 6)] + 1)


def chosen(rng: Rng) -> Case:
    """An index chosen among axes by what is read."""
    w, ids = te.placeholder((7, 19), name="W"), te.placeholder((7,), "int32", name="ids")
    out = te.compute((7, 19), lambda i, j: w[te.select(ids[i] > 0, i, 0), j], "out")
    a, at = whole(rng, 7, 19), places(rng, 7, 7, dtype="int32")
    return _case([w, ids, out], (a, at), a[np.where(at > 0, np.arange(7), 0)])


def of_the_largest(rng: Rng) -> Case:
    """Rows at the places of extremes, which a stage finds."""
    w, x = te.placeholder((9, 5), name="W"), te.placeholder((6, 9), name="x")
    k, k2 = te.reduce_axis(9, "k"), te.reduce_axis(9, "k2")
    top = te.compute((6,), lambda i: te.max(x[i, k], axis=k), "top")
    place = te.compute(
        (6,),
        lambda i: te.min(te.select(te.equal(x[i, k2], top[i]), te.cast(k2, "int32"), 99), axis=k2),
        "place",
    )
    out = te.compute((6, 5), lambda i, j: w[place[i], j], "out")
    a, b = whole(rng, 9, 5), whole(rng, 6, 9)
    return _case([w, x, out], (a, b), a[b.argmax(1)])


def layer_norm_of_an_embedding(rng: Rng, rows: int = 6, n: int = 33, vocabulary: int = 11) -> Case:
    """What a transformer begins with: embedding, plus position, layer norm. Inexact."""
    w, p = te.placeholder((vocabulary, n), name="W"), te.placeholder((rows, n), name="P")
    ids = te.placeholder((rows,), "int64", name="ids")
    k, k2 = te.reduce_axis(n, "k"), te.reduce_axis(n, "k2")
    x = te.compute((rows, n), lambda i, j: w[ids[i], j] + p[i, j], "x")
    mean = te.compute((rows,), lambda i: te.sum(x[i, k], axis=k), "mean")
    far = lambda i, j: x[i, j] - mean[i] / float(n)  # noqa: E731
    var = te.compute((rows,), lambda i: te.sum(far(i, k2) * far(i, k2), axis=k2), "var")
    out = te.compute((rows, n), lambda i, j: far(i, j) / te.sqrt(var[i] / float(n) + 1e-5), "out")
    a, b = rng.standard_normal((vocabulary, n), "float32"), rng.standard_normal((rows, n), "float32")
    at = places(rng, vocabulary, rows)
    y = (take(a, at) + b).astype("float64")
    y -= y.mean(1, keepdims=True)
    want = (y / np.sqrt((y * y).mean(1, keepdims=True) + 1e-5)).astype("float32")
    return _case([w, p, ids, out], (a, b, at), want)


EXACT: dict[str, Callable[[Rng], Case]] = {
    f.__name__: f
    for f in (
        embedding, of_a_batch, along_the_last_axis, of_each_point, from_the_end, with_axes, of_a_stage,
        of_sums, summed, twice, guarded, beyond, product, one_index, chosen, of_the_largest,
    )
}  # fmt: skip
