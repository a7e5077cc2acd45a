"""Small graphs with states: caches that are written by rows, counters, and several writes of one state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import graph_cases as cases
import numpy as np

import autotune as at
from schedules.graph.graph import Graph, State

te = at.te


class StateBuilder(cases.Builder):
    """A `Builder` of graphs with states."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.states: dict[str, tuple[Any, Any]] = {}

    def state(self, name: str, *shape: int, dtype: str = "float32") -> Any:
        t = te.placeholder(shape, dtype, name)
        self.states[name] = (t, None)
        return t

    def becomes(self, name: str, new: Any) -> None:
        self.states[name] = (self.states[name][0], new)

    def model(self, *outputs: Any) -> Graph:
        """The graph of these outputs and the new values of the states."""
        news = [new for _, new in self.states.values()]
        self.inputs += [t for t, _ in self.states.values()]
        every = list(dict.fromkeys((*outputs, *news)))
        graph = self.graph(*every)
        names = dict(zip(every, graph.dag.outputs, strict=True))
        states = {n: State(t.name, names[new]) for n, (t, new) in self.states.items()}
        inputs = tuple(n for n in graph.inputs if n not in self.states)
        return replace(graph, inputs=inputs, outputs=tuple(names[t] for t in outputs), states=states)


def put(old: Any, rows: Any, start: Any, axis: int, how: str = "range") -> Any:
    """``old`` with rows from ``start`` (an expression) on along an axis. ``how``: of the spellings that
    importers have one."""
    n, extent = rows.shape[axis], old.shape[axis]
    if how == "range":

        def value(*i: Any) -> Any:
            t = te.cast(i[axis], "int64")
            inside = te.all(start <= t, t < start + n)
            own = t - start
            return te.select(inside, rows[(*i[:axis], own, *i[axis + 1 :])], old[i])

        return cases.stage(old.shape, value, "put")
    ids = te.compute((n,), lambda u: start + te.cast(u, "int64"), "ids")
    if how == "equal" and n == 1:
        return cases.stage(
            old.shape,
            lambda *i: te.select(
                te.equal(_from_end(ids[0], extent), te.cast(i[axis], "int64")),
                rows[(*i[:axis], 0, *i[axis + 1 :])],
                old[i],
            ),
            "put",
        )
    r = te.reduce_axis(n, "r")

    def last(*i: Any) -> Any:
        found = te.equal(_from_end(ids[r], extent), te.cast(i[axis], "int64"))
        return te.max(te.select(found, te.cast(r, "int32"), te.const(-1, "int32")), axis=r)

    latest = cases.stage(old.shape, last, "latest")

    def written(*i: Any) -> Any:
        own = te.maximum(latest[i], 0) % n
        return te.select(latest[i] >= 0, rows[(*i[:axis], own, *i[axis + 1 :])], old[i])

    return cases.stage(old.shape, written, "put")


def _from_end(x: Any, n: int) -> Any:
    return te.select(x < 0, x + n, x)


def cache(rows: int = 2, length: int = 8, heads: int = 2, dim: int = 3, how: str = "latest") -> Graph:
    """Attention over a cache of keys and values, which is masked behind the rows that were written."""
    b = StateBuilder()
    hidden = heads * dim
    x, pos = b.input("x", rows, hidden), b.input("pos", 1, dtype="int64")
    kept = []
    for name in "kv":
        old = b.state(name, 1, heads, length, dim)
        made = cases.dense(b, x, hidden, f"make_{name}", bias=False)
        turned = cases.transpose(cases.reshape(made, 1, rows, heads, dim), 0, 2, 1, 3)
        new = put(old, turned, pos[0], 2, how)
        b.becomes(name, new)
        kept.append(new)
    k, v = kept
    q = cases.dense(b, x, hidden, "q", bias=False)
    q = cases.transpose(cases.reshape(q, 1, rows, heads, dim), 0, 2, 1, 3)
    scores = cases.matmul(q, cases.transpose(k, 0, 1, 3, 2))
    masked = cases.stage(
        scores.shape,
        lambda a, h, s, t: te.select(
            te.cast(t, "int64") <= pos[0] + te.cast(s, "int64"), scores[a, h, s, t], 0.0
        ),
    )
    mixed = cases.matmul(masked, v)
    return b.model(cases.reshape(cases.transpose(mixed, 0, 2, 1, 3), rows, hidden))


def counter() -> Graph:
    """A cache that is written where a counter says, which counts on."""
    b = StateBuilder()
    x = b.input("x", 2, 5)
    rows, n = b.state("rows", 9, 5), b.state("n", 1, dtype="int64")
    more = cases.stage((1,), lambda i: n[i] + 2, "more")
    new = put(rows, x, n[0], 0, "latest")
    b.becomes("rows", new)
    b.becomes("n", more)
    k = te.reduce_axis(9, "k")
    return b.model(te.compute((5,), lambda j: te.sum(new[k, j], axis=k), "total"), more_of(more))


def more_of(t: Any) -> Any:
    return cases.stage(t.shape, lambda *i: t[i] * 3, "thrice")


def twice() -> Graph:
    """One state that is written twice, with readers of what it was before, between and after."""
    b = StateBuilder()
    x, pos = b.input("x", 2, 4), b.input("pos", 2, dtype="int64")
    old = b.state("s", 7, 4)
    k = te.reduce_axis(7, "k")

    def total(t: Any, name: str) -> Any:
        return te.compute((4,), lambda j: te.sum(t[k, j], axis=k), name)

    first = put(old, x, pos[0], 0)
    double = cases.stage((1, 4), lambda i, j: x[1, j] * 2.0 + 1.0)
    second = put(first, double, pos[1], 0, "equal")
    b.becomes("s", second)
    return b.model(total(old, "before"), total(first, "between"), total(second, "after"))


def layers() -> Graph:
    """One tensor for several layers: a part of it is taken, written and put back."""
    b = StateBuilder()
    x, pos = b.input("x", 3, 2), b.input("pos", 1, dtype="int64")
    old = b.state("all", 2, 6, 2)
    part = cases.stage((6, 2), lambda t, d: old[1, t, d])
    written = put(part, x, pos[0], 0, "latest")
    new = cases.stage(
        old.shape, lambda z, t, d: te.select(te.equal(z, 1), written[t, d], old[z, t, d]), "back"
    )
    b.becomes("all", new)
    return b.model(cases.stage((2, 6, 2), lambda z, t, d: new[z, t, d] + 1.0))


def moving_average() -> Graph:
    """Rows that are made of what lay in their place."""
    b = StateBuilder()
    x, pos = b.input("x", 1, 4), b.input("pos", 1, dtype="int64")
    old = b.state("s", 6, 4)
    was = cases.stage((1, 4), lambda i, j: old[pos[0], j])
    rows = cases.stage((1, 4), lambda i, j: was[i, j] * 2.0 + x[i, j])
    new = put(old, rows, pos[0], 0, "equal")
    b.becomes("s", new)
    return b.model(cases.stage((6, 4), lambda i, j: new[i, j] * 2.0))


STATE_MODELS: Mapping[str, Any] = {
    "cache": cache,
    "one": lambda: cache(1, how="equal"),
    "range": lambda: cache(3, how="range"),
    "counter": counter,
    "twice": twice,
    "layers": layers,
    "average": moving_average,
}


def new_states(graph: Graph) -> dict[str, Any]:
    """Zeros for the states of a graph."""
    tensors = {n: graph.dag.tensors[s.tensor] for n, s in graph.states.items()}
    return {n: np.zeros(t.shape, t.dtype) for n, t in tensors.items()}
