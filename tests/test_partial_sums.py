"""Long sums are done in runs, by every schedule: nothing is lost of terms that are small beside their sum."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from random import Random

import numpy as np
import pytest
from grid_cases import TARGET, need_cxx
from helpers import check_compiled, check_interpreted, expected, host, inputs, interpret, same
from programs import PROGRAMS, make, matmul
from random_schedules import random_schedule
from space_cases import target

import autotune as at
from autotune.codegen import emulator
from schedules import expr as E
from schedules import lower, ops, simt, te
from schedules.dag import ComputeDAG
from schedules.ir import Block, Nest, blocks
from schedules.nest import initial, loops_of, vars_bound
from schedules.passes.partial_sums import LIMIT, adds, partial_sums
from schedules.schedule import Schedule
from schedules.space import derive

Sums = Callable[[int, str], ComputeDAG]


def longest(nest: Nest) -> int:
    """The most terms that a block which sums floating-point numbers adds to an element one after another."""
    every = blocks(nest.body)
    return max((_terms(nest, b, every) for b in every if b.reducer is not None and adds(b.reducer)), default=0)


def _terms(nest: Nest, b: Block, every: tuple[Block, ...]) -> int:
    """Those between two first values of an element."""
    own, loops = vars_bound(b, "reduce"), loops_of(nest, b.name)
    assert b.reducer is not None
    starts = [x.name for x in every if x.writes == b.writes and x.values == b.reducer.identity]
    if starts and not b.init:
        outside = {x.var for x in loops_of(nest, starts[0])}
        loops = [x for x in loops if x.var not in outside]
    return math.prod(int(E.evaluate(x.extent, {})) for x in loops if x.var in own)


def column(n: int, dtype: str) -> ComputeDAG:
    x, k = te.placeholder((n, 1), dtype, "x"), te.reduce_axis(n, "k")
    return te.dag([x, te.compute((1,), lambda j: te.sum(x[k, j], axis=k), "y")])


def row(n: int, dtype: str) -> ComputeDAG:
    return ops.workload("reduce_sum", {"m": 1, "n": n}, dtype).dag


def dot(n: int, dtype: str) -> ComputeDAG:
    return ops.workload("matmul", {"m": 1, "n": 1, "k": n}, dtype).dag


def norm(n: int, dtype: str) -> ComputeDAG:
    return ops.workload("norm2", {"m": 4, "n": n // 4}, dtype).dag


def pool(n: int, dtype: str) -> ComputeDAG:
    k = int(n**0.5)
    return ops.workload("avg_pool2d", {"h": k, "w": k, "c": 1, "k": k}, dtype).dag


def both(n: int, dtype: str) -> ComputeDAG:
    """A sum and a maximum, reduced together."""
    x, k = te.placeholder((n,), dtype, "x"), te.reduce_axis(n, "k")
    add = te.reducer((0.0, 0.0), lambda a, b: (a[0] + b[0], te.maximum(a[1], b[1])), "add_max")
    return te.dag([x, *te.compute((1,), lambda i: add((x[k], x[k]), axis=k), "y")])


@pytest.fixture
def short(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A limit so low that small sums are long."""
    limit: int = request.param
    for module in (lower, simt):
        monkeypatch.setattr(module, "partial_sums", partial(partial_sums, limit=limit))
    return limit


@pytest.mark.parametrize("short", [2, 3, 5], indirect=True)
@pytest.mark.parametrize("first", range(0, 40, 10))
def test_random_schedules_mean_the_same_in_runs(first: int, short: int) -> None:
    for seed in range(first, first + 10):
        rng = Random(seed)
        dag = make(rng.choice(list(PROGRAMS)), rng.choice(("float32", "float64")))
        s = random_schedule(dag, rng, rng.randint(0, 8))
        data = inputs(dag, seed)
        want = expected(dag, data)
        same(interpret(partial_sums(s.nest, short), dag, data), want, f"seed {seed}: in runs")
        check_interpreted(s.nest, dag, data, want)
        if seed % 5 == 0:
            check_compiled(dag, s.trace, host(1 + seed // 2 % 2), data, want)
