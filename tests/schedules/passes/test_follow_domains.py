"""Loops follow the domains of their blocks: what they skip, and that nothing else is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from backends import sampled
from helpers import execute, host, interpret
from hypothesis import given, settings
from hypothesis import strategies as st
from random_domains import random_domain, whole_numbers
from random_schedules import random_schedule

from schedules import affine, te
from schedules import expr as E
from schedules.ir import Guard, Loop, LoweredFunc, Stmt, kids, walk
from schedules.ir.interp import run
from schedules.passes import follow_domains as pass_
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG
from schedules.te.dims import dim
from schedules.te.domains import points

N = 24


def triangular_product() -> ComputeDAG:
    """A lower triangle times a matrix."""
    a, b = (te.placeholder((N, N), "float32", n) for n in "ab")

    def below(i: te.Expr, j: te.Expr) -> te.Reduction:
        k = te.reduce_axis((0, i + 1), "k")
        return te.sum(a[i, k] * b[k, j], axis=k)

    return te.dag([a, b, te.compute((N, N), below, "c")])


def tiled(dag: ComputeDAG, rows: int = 4, lanes: int = 8, steps: int = 2) -> Schedule:
    """Tiles of rows and lanes, and a few steps of the sum at once."""
    s = Schedule(dag)
    i, j, k = s.loops("c")
    (i0, i1), (j0, j1), (k0, k1) = (s.split(x, [None, n]) for x, n in ((i, rows), (j, lanes), (k, steps)))
    s.reorder(i0, j0, k0, k1, i1, j1)
    s.decompose_reduction("c", k0)
    for x in (k1, i1):
        s.unroll(x)
    s.vectorize(j1)
    return s


def instances(func: LoweredFunc, dag: ComputeDAG, asked: bool) -> int:
    """Updates that a program runs; with ``asked`` those alone that stand under a condition."""
    total = 0

    def go(s: Stmt, env: dict[str, int], under: bool) -> None:
        nonlocal total
        if isinstance(s, Loop):
            for n in range(max(int(E.evaluate(s.extent, env)), 0)):
                go(s.body, {**env, s.var: n}, under)
        elif isinstance(s, Guard):
            if E.evaluate(s.cond, env):
                mine = bool(E.variables(s.cond) & lanes_and_steps(func))
                go(s.body, env, under or mine)
        elif kids(s):
            for x in kids(s):
                go(x, env, under)
        elif getattr(s, "update", False):
            total += under or not asked

    go(func.body, {}, False)
    return total


def lanes_and_steps(func: LoweredFunc) -> set[str]:
    return {x.var for x in walk(func.body) if isinstance(x, Loop) and x.kind in ("unroll", "vectorize")}


def test_a_tiled_triangle_computes_its_points_and_no_more() -> None:
    dag = triangular_product()
    func = lower(tiled(dag).nest)
    assert instances(func, dag, asked=False) == points(dag.stages[0]) == N * N * (N + 1) // 2
    asked = instances(func, dag, asked=True)
    assert 0 < asked <= N * N * 5  # tiles on the diagonal alone ask


def test_what_a_tile_outside_of_a_triangle_costs() -> None:
    a = te.placeholder((N, N), "float32", "a")

    def square(i: te.Expr, j: te.Expr) -> te.Reduction:
        k = te.reduce_axis(N, "k", where=j <= i)
        return te.sum(a[i, k] * a[j, k], axis=k)

    dag = te.dag([a, te.compute((N, N), square, "c")])
    func = lower(tiled(dag, rows=4, lanes=4).nest)
    assert instances(func, dag, asked=False) == N * N * (N + 1) // 2
    loops = [x for x in walk(func.body) if isinstance(x, Loop) and x.var == "c_k_0"]
    assert len(loops) == 2  # of tiles inside, and of those on the diagonal: none of those outside
    free = [x for x in loops if not any(isinstance(y, Guard) for y in walk(x))]
    assert len(free) == 1


def test_other_programs_have_no_such_pass() -> None:
    a = te.placeholder((N, N), "float32", "a")
    k = te.reduce_axis(N, "k")
    masked = te.compute((N,), lambda i: te.sum(te.select(k <= i, a[i, k], 0.0), axis=k), "y")
    s = Schedule(te.dag([a, masked]))
    assert not pass_.has_domains(s.nest) and pass_.has_domains(Schedule(triangular_product()).nest)
    s.skip_zeros("y")  # a condition, but of no domain
    assert not pass_.has_domains(s.nest)


# -- mutants ----------------------------------------------------------------------------------

BOUNDED = pass_._bounded


def instead(monkeypatch: pytest.MonkeyPatch, isolate: Callable[..., object]) -> None:
    """Have the pass, and nothing else, isolate axes so."""
    monkeypatch.setattr(pass_, "affine", SimpleNamespace(**{**vars(affine), "isolate": isolate}))


def last_row_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last iteration of a loop that ends with a domain."""

    def shorter(g: E.Expr, var: str) -> tuple[E.Expr | None, E.Expr]:
        step, rest = affine.isolate(g, var)
        positive = isinstance(step, E.Const) and step.value > 0
        return step, rest + 1 if positive else rest

    instead(monkeypatch, shorter)


def first_row_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first iteration of one that begins with it."""

    def later(g: E.Expr, var: str) -> tuple[E.Expr | None, E.Expr]:
        step, rest = affine.isolate(g, var)
        negative = isinstance(step, E.Const) and step.value < 0
        return step, rest + 1 if negative else rest

    instead(monkeypatch, later)


def all_tiles_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles at the border taken for tiles inside: what any iteration needs is enough."""
    real = pass_._over
    monkeypatch.setattr(pass_, "_over", lambda g, v, n, which: real(g, v, n, 0))


def found_wrong(first: int, count: int) -> bool:
    for seed in range(first, first + count):
        rng = Random(seed)
        dag = random_domain(rng)
        data = whole_numbers(dag, seed)
        want = te.evaluate(dag, data)
        for _ in range(2):
            try:
                got = interpret(lower(random_schedule(dag, rng, rng.randint(1, 8)).nest), dag, data)
            except Exception:
                return True
            if not all(np.array_equal(x, y) for x, y in zip(got, want, strict=True)):
                return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [last_row_lost, first_row_lost, all_tiles_inside])
def test_mutants_are_found(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert found_wrong(0, 80)


# -- random domains in random schedules ------------------------------------------------------


def check(first: int, count: int, compiled: bool = False) -> Counter[str]:
    """Compare random schedules, and with ``compiled`` those of the space as machine code, with the
    evaluator."""
    done: Counter[str] = Counter()
    for seed in range(first, first + count):
        rng = Random(seed)
        dag = random_domain(rng)
        data = whole_numbers(dag, seed)
        want = te.evaluate(dag, data)
        results = []
        for _ in range(2):
            s = random_schedule(dag, rng, rng.randint(1, 8))
            arrays = {t.name: x for t, x in zip(dag.inputs, data, strict=True)}
            outs = {n: np.full(dag.tensors[n].shape, 77, dag.tensors[n].dtype) for n in dag.outputs}
            run(s.nest, arrays | outs)
            results += [list(outs.values()), interpret(lower(s.nest), dag, data)]
            done["scheduled"] += 1
        if compiled:
            for trace in sampled(dag):
                results += execute(dag, trace, host(), data).values()
                done["compiled"] += 1
        for got in results:
            assert all(np.array_equal(x, y) for x, y in zip(got, want, strict=True)), seed
    return done


@given(st.integers(0, 10**9))
@settings(max_examples=12, deadline=None)
def test_random_domains_in_random_schedules(seed: int) -> None:
    check(seed, 1)


@pytest.mark.slow
def test_random_domains_compiled() -> None:
    assert check(0, 15, compiled=True)["compiled"] >= 15


@pytest.mark.fuzz
@pytest.mark.parametrize("first", range(10_000, 12_000, 100))
def test_many_random_domains(first: int) -> None:
    """2,000 domains, each in two random schedules; some compiled in those of the space."""
    assert check(first, 100, compiled=first % 1000 == 0)["scheduled"] == 200


def test_an_open_size_is_followed_at_every_size() -> None:
    m = dim(1, 20, "m", open=True)
    x = te.placeholder((m, 20), "float64", "x")

    def row(i: te.Expr) -> te.Reduction:
        k = te.reduce_axis((0, m - i), "k")
        return te.sum(x[i, k], axis=k)

    dag = te.dag([x, te.compute((m,), row, "y")])
    s = Schedule(dag)
    _, inner = s.split(s.loops("y")[1], [None, 4])
    s.unroll(inner)
    for n in (1, 2, 7, 19, 20):
        data, out = np.arange(n * 20.0).reshape(n, 20), np.full(n, np.nan)
        run(lower(s.nest), {"x": data, "y": out}, sizes={"m": n})
        assert np.array_equal(out, [data[i, : n - i].sum() for i in range(n)])
