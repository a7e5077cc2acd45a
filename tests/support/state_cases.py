"""Attention of few rows of queries over the valid rows of a cache, in the forms in which models have it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from open_cases import Tensors, with_strides

from schedules import te
from schedules.te.compute_dag import ComputeDAG
from schedules.te.dims import dim

PARTS = ("scores", "attended", "attention")


@dataclass(frozen=True)
class StateCase:
    """``part``: scores with a mask, what they weigh, or both. ``group`` queries read one of ``heads`` heads
    of ``depth`` numbers. ``outer``: the cache has its rows outermost. ``dtype``: of the cache. ``divided``:
    the sum of values is divided, and not what weighs them. ``queries``: the most rows of queries, 1 for one
    token. ``most``: rows of the cache."""

    part: str = "attention"
    outer: bool = True
    dtype: str = "float32"
    divided: bool = False
    queries: int = 1
    heads: int = 2
    group: int = 3
    depth: int = 32
    most: int = 21

    def tensors(self, n: Any, rows: Any = None) -> Tensors:
        """At ``n`` rows of the cache, and rows of queries."""
        one = rows is None
        lead = (self.heads, self.group) if one else (self.heads, rows, self.group)
        first = (*lead[1:-1], self.heads, self.group)
        q, at = te.placeholder((*first, self.depth), name="q"), te.placeholder((), "int64", "at")
        shape = (n, self.heads, self.depth) if self.outer else (self.heads, n, self.depth)
        k, v = (te.placeholder(shape, self.dtype, x) for x in "kv")
        d, *t = te.reduce_axis(self.depth, "d"), *(te.reduce_axis(n, f"t{i}") for i in range(3))

        def of(x: Any, h: Any, i: Any, j: Any) -> Any:
            return te.cast(x[i, h, j] if self.outer else x[h, i, j], "float32")

        def dot(h: Any, *x: Any) -> Any:
            *r, g, i = x
            return te.sum(q[(*r, h, g, d)] * of(k, h, i, d), axis=d)

        def seen(h: Any, *x: Any) -> Any:
            last = at[()] if one else at[()] + te.cast(x[0], "int64")
            score = s[(h, *x)] * self.depth**-0.5
            return te.select(te.cast(x[-1], "int64") <= last, score, -math.inf)

        every = (*lead, n)
        if self.part == "attended":
            w = te.placeholder(every, name="w")
        else:
            s = te.compute(every, dot, "s")
            w = te.compute(every, seen, "w")
            if self.part == "scores":
                return [q, at, k, w]
        top = te.compute(lead, lambda *x: te.max(w[(*x, t[0])], axis=t[0]), "top")
        e = te.compute(every, lambda *x: te.exp(w[x] - top[x[:-1]]), "e")
        z = te.compute(lead, lambda *x: te.sum(e[(*x, t[1])], axis=t[1]), "z")
        p = e if self.divided else te.compute(every, lambda *x: e[x] / z[x[:-1]], "p")

        def mixed(h: Any, *x: Any) -> Any:
            return te.sum(p[(h, *x[:-1], t[2])] * of(v, h, t[2], x[-1]), axis=t[2])

        o = y = te.compute((*lead, self.depth), mixed, "o")
        if self.divided:
            y = te.compute((*lead, self.depth), lambda *x: o[x] / z[x[:-1]], "y")
        return [w, v, y] if self.part == "attended" else [q, at, k, v, y]

    def dag(self) -> ComputeDAG:
        """With its sizes open, from 1 on."""
        n = dim(1, self.most, "n", open=True)
        rows = None if self.queries == 1 else dim(1, self.queries, "rows", open=True)
        return with_strides(te.dag(self.tensors(n, rows)))
