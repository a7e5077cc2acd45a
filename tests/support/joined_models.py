"""Small models whose tensors are joined of parts and cut apart, as graphs."""

from __future__ import annotations

from typing import Any

import graph_cases as cases
import numpy as np

from schedules import te
from schedules.graph.graph import Graph


def concat(*xs: Any, axis: int = 1) -> Any:
    ends = np.cumsum([x.shape[axis] for x in xs])
    shape = list(xs[0].shape)
    shape[axis] = int(ends[-1])

    def value(*at: Any) -> Any:
        made = None
        for x, end in reversed(list(zip(xs, ends, strict=True))):
            own = x[(*at[:axis], at[axis] - int(end - x.shape[axis]), *at[axis + 1 :])]
            made = own if made is None else te.select(at[axis] < int(end), own, made)
        return made

    return cases.stage(shape, value, "concat")


def cut(x: Any, axis: int, first: int, count: int) -> Any:
    shape = list(x.shape)
    shape[axis] = count
    return cases.stage(shape, lambda *i: x[(*i[:axis], i[axis] + first, *i[axis + 1 :])], "slice")


def rolled(x: Any, axis: int, by: int) -> Any:
    n = x.shape[axis]
    return cases.stage(x.shape, lambda *i: x[(*i[:axis], (i[axis] + by) % n, *i[axis + 1 :])], "roll")


def fire() -> Graph:
    """Two convolutions side by side, joined, and one that reads both."""
    b = cases.Builder()
    x = b.input("x", 1, 3, 5, 4)
    y = concat(
        cases.relu(cases.conv(b, x, 16, 1, name="one")), cases.relu(cases.conv(b, x, 32, 3, 1, 1, "three"))
    )
    return b.graph(cases.conv(b, y, 5, 1, name="next"))


def dense_block() -> Graph:
    """What is joined is joined again, twice."""
    b = cases.Builder()
    x = cases.relu(cases.conv(b, b.input("x", 1, 3, 4, 5), 16, 1, name="c0"))
    for n in range(3):
        x = concat(x, cases.conv(b, cases.relu(x), 16, 3, 1, 1, f"c{n + 1}"))
    return b.graph(cases.conv(b, x, 3, 1, name="last"))


def token() -> Graph:
    """A class token before the patches of an image, and a sum over both."""
    b = cases.Builder()
    patches = cases.conv(b, b.input("x", 1, 3, 4, 6), 16, 2, 2, name="patches")
    first, places = b.constant("token", 1, 16), b.constant("places", 7, 16)
    rows = cases.stage((6, 16), lambda i, k: patches[0, k, i // 3, i % 3], "rows")
    y = concat(first, rows, axis=0)
    return b.graph(cases.dense(b, cases.add(y, places), 5, "d"))


def shuffled() -> Graph:
    """Half of the channels pass by; then channels of both halves take turns."""
    b = cases.Builder()
    x = cases.relu(cases.conv(b, b.input("x", 1, 3, 4, 3), 32, 1, name="c0"))
    for n in range(2):
        half = cases.conv(b, cut(x, 1, 16, 16), 16, 1, name=f"c{n + 1}")
        y = concat(cut(x, 1, 0, 16), half)
        x = cases.stage(y.shape, lambda n, c, i, j, y=y: y[n, c % 2 * 16 + c // 2, i, j], "shuffle")
    return b.graph(cases.conv(b, x, 5, 1, name="last"))


def steps() -> Graph:
    """Steps of a recurrence, stacked as the output; the last one is an output too."""
    b = cases.Builder()
    x, w = b.input("x", 3, 4, 16), b.constant("w", 16, 16, least=-1, most=1)
    h, every = None, []
    for t in range(4):
        now = cases.stage((3, 16), lambda i, j, t=t: x[i, t, j], "now")
        h = cases.matmul(now if h is None else cases.add(now, h), w)
        every.append(cases.stage((3, 1, 16), lambda i, o, j, h=h: h[i, j], "row"))
    return b.graph(concat(*every), h)
