"""Spaces of attention with masks: every candidate is legal, whatever the rows share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from helpers import check_compiled, expected, inputs
from space_cases import target

from schedules import te
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.te.compute_dag import ComputeDAG

# {mask: (its axes among h, i and j, what it makes of a score)}.
MASKS: dict[str, tuple[str, Callable[[te.Expr, te.Expr], te.Expr]]] = {
    "keys added": ("j", lambda s, m: s + m),
    "keys multiplied": ("j", lambda s, m: s * m),
    "keys chosen": ("j", lambda s, m: te.select(m > 0.0, s, -64.0)),
    "rows multiplied": ("i", lambda s, m: s * m),
    "heads multiplied": ("h", lambda s, m: s * m),
    "places added": ("ij", lambda s, m: s + m),
    "heads and keys multiplied": ("hj", lambda s, m: s * m),
}


def masked(mask: str, heads: int, seq: int, dim: int) -> ComputeDAG:
    """Shaped as attention, with a division by 2 in place of the function, so that small integers are
    exact."""
    axes, of = MASKS[mask]
    sizes = {"h": heads, "i": seq, "j": seq}
    q, k, v = (te.placeholder((heads, seq, dim), name=n) for n in "qkv")
    m = te.placeholder(tuple(sizes[a] for a in axes), name="m")
    c, j, n, r = (te.reduce_axis(size, x) for size, x in ((dim, "c"), (seq, "j"), (seq, "n"), (seq, "r")))
    rows = (heads, seq)
    dot = te.compute((*rows, seq), lambda h, i, j: te.sum(q[h, i, c] * k[h, j, c], axis=c), "dot")

    def score(h: te.Expr, i: te.Expr, j: te.Expr) -> te.Expr:
        at = {"h": h, "i": i, "j": j}
        return of(dot[h, i, j], m[tuple(at[a] for a in axes)])

    s = te.compute(dot.shape, score, "s")
    top = te.compute(rows, lambda h, i: te.max(s[h, i, n], axis=n), "top")
    e = te.compute(dot.shape, lambda h, i, j: (s[h, i, j] - top[h, i]) / 2.0, "e")
    total = te.compute(rows, lambda h, i: te.sum(e[h, i, r], axis=r), "total")
    mix = te.compute((*rows, dim), lambda h, i, c: te.sum(e[h, i, j] * v[h, j, c], axis=j), "mix")
    y = te.compute((*rows, dim), lambda h, i, c: mix[h, i, c] + total[h, i], "y")
    return te.dag([q, k, v, m, y])


@pytest.mark.fast("heads and keys multiplied")
@pytest.mark.parametrize("mask", MASKS)
def test_every_candidate_is_legal(mask: str) -> None:
    dag = masked(mask, 12, 100, 64)
    space = derive(dag, target())
    assert len(space.sketches) > 1
    rng, seen = np.random.default_rng(0), 0
    for k in [n for n, s in enumerate(space.sketches) if "by=blocks" in s][:2]:
        rows = space.sample(k, 64, rng)
        rows = rows[space.valid(k, rows)][:16]
        seen += len(rows)
        for row in rows:
            Schedule.replay(dag, space.trace(k, row), space.target)  # raises for what is not legal
    assert seen >= 8


@pytest.mark.fast("keys multiplied")
@pytest.mark.parametrize("mask", ["keys added", "keys multiplied"])
def test_blocks_of_rows_are_right(mask: str) -> None:
    dag = masked(mask, 2, 17, 4)
    space = derive(dag, target())
    data = inputs(dag)
    want = expected(dag, data)
    rng = np.random.default_rng(1)
    for k in [n for n, s in enumerate(space.sketches) if "by=blocks" in s][:1]:
        rows = space.sample(k, 16, rng)
        rows = rows[space.valid(k, rows)]
        assert len(rows)
        for row in rows[:2]:
            check_compiled(dag, space.trace(k, row), space.target, data, want)
