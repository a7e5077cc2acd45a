"""Sweeps of a stencil over a stencil: computed again at every neighbour, or kept, a stage a sweep."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import numpy as np
import pytest
from grid_cases import TARGET as GPU
from grid_cases import Case, emulate
from helpers import check_compiled, check_interpreted, expected, host, inputs

from schedules import te
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.te.compute_dag import ComputeDAG

Rule = Callable[[te.Tensor, int], Callable[..., te.Expr]]


def padded(p: te.Tensor, n: int) -> Callable[..., te.Expr]:
    def at(i: te.Expr, j: te.Expr) -> te.Expr:
        return te.select(te.all(i >= 0, i < n, j >= 0, j < n), p[i, j], 0.0)

    return lambda i, j: at(i, j) + at(i - 1, j) + at(i + 1, j) + at(i, j - 1) + at(i, j + 1)


def interior(p: te.Tensor, n: int) -> Callable[..., te.Expr]:
    def at(i: te.Expr, j: te.Expr) -> te.Expr:
        inside = te.all(i > 0, i < n - 1, j > 0, j < n - 1)
        return te.select(inside, p[i, j] + p[i - 1, j] + p[i + 1, j] + p[i, j - 1] + p[i, j + 1], p[i, j])

    return at


def clamped(p: te.Tensor, n: int) -> Callable[..., te.Expr]:
    def near(i: te.Expr) -> tuple[te.Expr, te.Expr]:
        return te.maximum(i - 1, 0), te.minimum(i + 1, n - 1)

    return lambda i, j: p[i, j] + sum((p[k, j] for k in near(i)), p[i, j]) + p[i, near(j)[1]]


RULES = {f.__name__: f for f in (padded, interior, clamped)}


def sweeps(rule: Rule, n: int, count: int) -> ComputeDAG:
    made = [te.placeholder((n, n), "float32", "A")]
    for k in range(count):
        made.append(te.compute((n, n), rule(made[-1], n), f"sweep{k}"))
    return te.dag([made[0], made[-1]])


@pytest.mark.parametrize(("rule", "threads"), list(zip(RULES.values(), cycle((1, 2)))), ids=RULES)
def test_sweeps_may_be_kept_or_computed_again(rule: Rule, threads: int) -> None:
    dag = sweeps(rule, 9, 3)
    space = derive(dag, host(threads))
    assert len(space.sketches) == 2 and space.sketches[1] == "stages=kept"
    data = inputs(dag)
    rng = np.random.default_rng(0)
    for k in range(2):
        rows = space.sample(k, 8, rng)
        trace = space.trace(k, rows[space.valid(k, rows)][0])
        s = Schedule.replay(dag, trace, space.target)
        assert len(s.blocks()) == 3 if k else len(s.blocks()) < 3
        check_interpreted(s.nest, dag, data, expected(dag, data))
        check_compiled(dag, trace, space.target, data, expected(dag, data))


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_four_sweeps_of_64_take_the_arithmetic_of_four_sweeps(rule: Rule) -> None:
    dag = sweeps(rule, 64, 4)
    space = derive(dag, host(1))
    estimate = space.feature_names.index("total.cycles")
    least = []
    for k in range(2):
        rows = space.every(k, 1000)
        assert rows is not None
        least.append(space.features(k, rows[space.valid(k, rows)])[:, estimate].min())
    again, kept = least
    assert kept < again


def test_on_a_gpu_they_may_be_kernels() -> None:
    dag = sweeps(padded, 9, 3)
    assert [name for name in derive(dag, GPU).sketches if "kept" in name]
    data = inputs(dag)
    emulate(Case(dag, tuple(data), tuple(expected(dag, data))), 6)


def test_what_a_neighbour_does_not_compute_again_is_inlined() -> None:
    a = te.placeholder((8, 8), "float32", "A")
    twice = te.compute((8, 8), lambda i, j: a[i, j] * 2.0, "twice")
    squared = te.compute((8, 8), lambda i, j: twice[i, j] * twice[i, j], "squared")
    moved = te.compute((8, 8), lambda i, j: te.select(i > 0, a[i - 1, j], 0.0), "moved")
    both = te.compute((8, 7), lambda i, j: moved[i, j] + moved[i, j + 1], "both")
    for tensors in ([a, squared], [a, both]):
        space = derive(te.dag(tensors), host(1))
        assert space.sketches == ("plain",)
