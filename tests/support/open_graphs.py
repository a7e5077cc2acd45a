"""Models with open sizes as graphs, and arrays for them at a size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import graph_cases as cases
import joined_models
import numpy as np

from schedules import te
from schedules.graph.graph import Graph
from schedules.te.compute_dag import ComputeDAG
from schedules.te.dims import dim
from schedules.te.extent import Extent
from schedules.te.open_sizes import at


def size(least: int, most: int, name: str = "n") -> Any:
    return Extent(dim(least, most, name, open=True))


@dataclass(frozen=True)
class OpenModel:
    """``make``: a graph of the size. ``sizes``: at which it is looked at, the least and the largest too."""

    make: Callable[[Any], Graph]
    sizes: tuple[int, ...]

    def graph(self) -> Graph:
        return self.make(size(self.sizes[0], self.sizes[-1]))


def closed(graph: Graph, sizes: Mapping[str, int]) -> ComputeDAG:
    """What a graph computes at sizes."""
    return at(graph.dag, sizes)


def inputs_at(graph: Graph, sizes: Mapping[str, int], seed: int = 1) -> list[Any]:
    rng = np.random.default_rng(seed)
    here = closed(graph, sizes).tensors
    return [rng.integers(-3, 4, here[n].shape).astype(here[n].dtype) for n in graph.inputs]


def block(n: Any, joint: bool) -> Graph:
    """A layer of a transformer over ``n`` tokens."""
    return cases.transformer(1, seq=n, joint=joint)


def positions(n: Any) -> Graph:
    """Rows of a table of positions are added to what comes in."""
    b = cases.Builder()
    x, table = b.input("x", 1, n, 8), b.constant("table", 9, 8)
    scaled = cases.stage((9, 8), lambda i, j: table[i, j] * 2.0)
    y = cases.stage((1, n, 8), lambda a, i, j: x[a, i, j] + scaled[i, j] + table[i, j])
    return b.graph(cases.dense(b, y, 5, "fc"))


def images(n: Any) -> Graph:
    """Convolutions and batch norms over a batch."""
    b = cases.Builder()
    x = b.input("x", n, 3, 7, 6)
    y = cases.relu(cases.batch_norm(b, cases.conv(b, x, 8, 3, 2, 1, "stem"), "bn0"))
    z = cases.batch_norm(b, cases.conv(b, y, 8, 3, 1, 1, "a"), "bna")
    y = cases.max_pool(cases.relu(cases.add(z, y)), 2, 1)
    flat = cases.reshape(y, n, y.shape[1] * y.shape[2] * y.shape[3])
    return b.graph(cases.dense(b, flat, 5, "fc"))


def channels(n: Any) -> Graph:
    """Channels of two convolutions are joined, for a batch."""
    b = cases.Builder()
    x = b.input("x", n, 3, 5, 4)
    one = cases.relu(cases.conv(b, x, 16, 1, name="one"))
    y = joined_models.concat(one, cases.relu(cases.conv(b, x, 32, 3, 1, 1, "three")))
    return b.graph(cases.conv(b, y, 5, 1, name="next"))


def token(n: Any) -> Graph:
    """A row is put before ``n`` others, and rows are cut off again."""
    b = cases.Builder()
    x, first = b.input("x", 1, n, 16), b.constant("first", 16)
    y = cases.dense(b, x, 16, "fc0")
    every = cases.stage((1, n + 1, 16), lambda a, i, j: te.select(i < 1, first[j], y[a, i - 1, j]))
    z = cases.dense(b, every, 16, "fc1")
    rest = cases.stage((1, n, 16), lambda a, i, j: z[a, i + 1, j])
    return b.graph(cases.softmax(rest), z)


def mixed(n: Any) -> Graph:
    """Tokens are mixed with tokens, by scores that depend on where they stand."""
    b = cases.Builder()
    x = b.input("x", 2, n, 6)
    scores = cases.matmul(x, cases.transpose(x, 0, 2, 1))
    causal = cases.stage(
        scores.shape, lambda a, i, j: te.select(j <= i, scores[a, i, j], te.const(-1e9, "float32"))
    )
    return b.graph(cases.matmul(cases.softmax(causal), x))


def columns(n: Any) -> Graph:
    """What is reduced is open, and a column of it is a row of another."""
    b = cases.Builder()
    x = b.input("x", 4, n)
    soft = cases.softmax(x)
    k = te.reduce_axis(n, "k")
    total = te.compute((4,), lambda i: te.sum(soft[i, k] * x[i, k], axis=k))
    turned = cases.stage((n, 4), lambda i, j: x[j, i] - total[j])
    return b.graph(turned, soft)


def doubled(n: Any) -> Graph:
    """Pairs of rows are one row, and every second row is left out."""
    b = cases.Builder()
    x = b.input("x", 2 * n, 3)
    pairs = cases.stage((n, 2, 3), lambda i, p, j: x[2 * i + p, j])
    y = cases.stage((n, 3), lambda i, j: te.maximum(pairs[i, 0, j], pairs[i, 1, j]) * 2.0)
    flat = cases.stage((n * 3,), lambda i: y[i // 3, i % 3] + 1.0)
    return b.graph(flat)


def pooled(n: Any) -> Graph:
    """The mean of all tokens goes on, which no tensor of ``n`` rows is read for."""
    b = cases.Builder()
    x = b.input("x", 1, n, 16)
    y = cases.relu(cases.dense(b, x, 16, "fc0"))
    k = te.reduce_axis(n, "k")
    total = te.compute((1, 16), lambda a, j: te.sum(y[a, k, j], axis=k))
    mean = cases.stage((1, 16), lambda a, j: total[a, j] * (1.0 / te.cast(n, "float32")))
    z = cases.relu(cases.dense(b, mean, 16, "fc1"))
    return b.graph(cases.dense(b, cases.stage((1, 16), lambda a, j: z[a, j] * n), 5, "fc2"))


def scaled(n: Any) -> Graph:
    """A product by the number of rows, which no weights can have in them."""
    b = cases.Builder()
    x, table = b.input("x", 1, n, 16), b.constant("table", 16)
    y = cases.dense(b, x, 16, "fc0")
    z = cases.stage((1, n, 16), lambda a, i, j: y[a, i, j] * (1.0 / te.cast(n, "float32")) + table[j] * n)
    return b.graph(cases.dense(b, z, 5, "fc1"))


def last(n: Any) -> Graph:
    """The last of ``n`` + 1 tokens goes on, and all tokens from the last to the first."""
    b = cases.Builder()
    x, first = b.input("x", 1, n, 16), b.constant("first", 16)
    every = cases.stage((1, n + 1, 16), lambda a, i, j: te.select(i < 1, first[j], x[a, i - 1, j]))
    y = cases.dense(b, every, 16, "fc0")
    one = cases.stage((1, 16), lambda a, j: y[a, n, j])
    turned = cases.stage((1, n, 16), lambda a, i, j: y[a, n - i, j])
    return b.graph(cases.dense(b, one, 5, "fc1"), cases.dense(b, turned, 4, "fc2"))


def padded(n: Any) -> Graph:
    """Rows behind the last are zeros, weighted by a table that is known ahead and by the number of rows."""
    b = cases.Builder()
    x, table = b.input("x", 1, n, 16), b.constant("table", 16, 16)
    y = cases.dense(b, x, 16, "fc0")
    weights = cases.stage((16, 16), lambda i, j: table[i, j] * te.cast(n, "float32"))
    rows = cases.stage(
        (1, 16, 16), lambda a, t, j: te.select(t < n, y[a, te.minimum(t, n - 1), j], 0.0) + weights[t, j]
    )
    return b.graph(cases.softmax(cases.dense(b, rows, 5, "fc1")))


MODELS = {
    "transformer": OpenModel(lambda n: block(n, False), (1, 2, 5, 8)),
    "joint": OpenModel(lambda n: block(n, True), (1, 3, 7)),
    "positions": OpenModel(positions, (1, 5, 9)),
    "images": OpenModel(images, (1, 3, 4)),
    "channels": OpenModel(channels, (1, 2, 5)),
    "token": OpenModel(token, (1, 5, 16)),
    "mixed": OpenModel(mixed, (1, 2, 7, 8)),
    "columns": OpenModel(columns, (1, 2, 11, 16)),
    "doubled": OpenModel(doubled, (1, 3, 8)),
    "pooled": OpenModel(pooled, (1, 3, 8)),
    "scaled": OpenModel(scaled, (1, 3, 8)),
    "last": OpenModel(last, (1, 3, 8)),
    "padded": OpenModel(padded, (1, 5, 16)),
}
