"""Sweeps of a stencil over a stencil: computed again at every neighbour, or kept, a stage a sweep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
from grid_cases import TARGET as GPU
from grid_cases import Case, emulate
from helpers import check_compiled, check_interpreted, expected, host, inputs

from schedules import expr as E
from schedules import te
from schedules.ir import blocks, in_order
from schedules.model import Target
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.space.rules.cpu import bands
from schedules.space.rules.inline import MAX_AGAIN, MAX_WRITTEN
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


@pytest.mark.fast("interior")
@pytest.mark.parametrize(("rule", "threads"), list(zip(RULES.values(), cycle((1, 2)))), ids=RULES)
def test_sweeps_may_be_kept_or_computed_again(rule: Rule, threads: int) -> None:
    dag = sweeps(rule, 9, 3)
    space = derive(dag, host(threads))
    assert space.sketches in (("plain", "stages=kept"), ("plain", "stages=kept", "stages=one-kept"))
    data = inputs(dag)
    rng = np.random.default_rng(0)
    for k, name in enumerate(space.sketches):
        rows = space.sample(k, 8, rng)
        trace = space.trace(k, rows[space.valid(k, rows)][0])
        s = Schedule.replay(dag, trace, space.target)
        assert len(s.blocks()) == 3 if name == "stages=kept" else len(s.blocks()) < 3
        assert len(s.blocks()) == 2 or name != "stages=one-kept"
        check_interpreted(s.nest, dag, data, expected(dag, data))
        check_compiled(dag, trace, space.target, data, expected(dag, data))


def small_caches(threads: int) -> Target:
    """This machine with a second cache that holds next to nothing, for which bands are offered."""
    t = host(threads)
    return replace(t, limits=tuple(sorted({**dict(t.limits), "l2_bytes": 256}.items())))


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "threads"), [(padded, 1), (interior, 1), (clamped, 2)])
def test_a_band_of_rows_goes_through_sweeps(
    rule: Rule, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bands, "STAGES", 2)
    dag = sweeps(rule, 17, 3)
    space = derive(dag, small_caches(threads))
    k = space.sketches.index("stages=bands")
    data = inputs(dag)
    rows = space.every(k, 1000)
    assert rows is not None and len(space.holes(k)) == len(set(space.holes(k)))
    assert np.isfinite(space.features(k, rows)).all()
    trace = space.trace(k, rows[space.valid(k, rows)][0])
    s = Schedule.replay(dag, trace, space.target)
    together = [[b.name for b in blocks(x)] for x in in_order(s.nest.body)]
    assert together == [["sweep0"], ["sweep1", "sweep2"]]
    check_interpreted(s.nest, dag, data, expected(dag, data))
    check_compiled(dag, trace, space.target, data, expected(dag, data))


@pytest.mark.slow
def test_rows_of_a_band_are_the_first_axis_that_windows_move_along() -> None:
    a = te.placeholder((2, 20, 9), "float32", "A")
    b = te.compute((2, 18, 9), lambda n, i, j: a[n, i, j] + a[n, i + 2, j] * 2.0, "B")
    c = te.compute((2, 17, 9), lambda n, i, j: b[n, i, 8 - j] + b[n, i + 1, j] * 2.0, "C")
    dag = te.dag([a, c])
    space = derive(dag, small_caches(1))
    k = space.sketches.index("stages=bands")
    rows = space.sample(k, 1, np.random.default_rng(0))
    s = Schedule.replay(dag, space.trace(k, rows[0]), space.target)
    assert s.loops("C")[0] == "C_n_C_i_0"
    data = inputs(dag)
    check_interpreted(s.nest, dag, data, expected(dag, data))


def test_what_is_read_far_away_has_no_bands() -> None:
    def read(*at: Callable[[te.Expr, te.Expr], tuple[te.Expr, te.Expr]]) -> ComputeDAG:
        a = te.placeholder((40, 40), "float32", "A")
        b = te.compute((40, 40), lambda i, j: a[i, j] * 2.0, "B")
        return te.dag([a, te.compute((32, 32), lambda i, j: sum((b[f(i, j)] for f in at), 1.0), "C")])

    near = read(lambda i, j: (i, j), lambda i, j: (i + 1, j))
    assert "stages=bands" in derive(near, small_caches(1)).sketches
    assert "stages=bands" not in derive(near, host(1)).sketches  # it fits the second cache
    for far in (
        read(lambda i, j: (i, j), lambda i, j: (i + 5, j)),
        read(lambda i, j: (i, j), lambda i, j: (j, i)),
        read(lambda i, j: (i, j), lambda i, j: (i, j + 1)),  # along the axis of vectors
    ):
        assert "stages=bands" not in derive(far, small_caches(1)).sketches


def test_sweeps_share_their_decisions() -> None:
    space = derive(sweeps(interior, 64, 12), host(1))
    k = space.sketches.index("stages=kept")
    assert space.holes(k) == ("sweep11.vec", "sweep11.rows")


@pytest.mark.slow
def test_a_chain_of_many_transposed_reads_is_not_inlined_without_bound() -> None:
    made = [te.placeholder((32, 32), "float32", "A")]
    for k in range(24):
        p = made[-1]
        made.append(te.compute((32, 32), lambda i, j, p=p: p[i, j] * 0.5 + p[j, i], f"s{k}"))
    dag = te.dag([made[0], made[-1]])
    space = derive(dag, host(1))
    rng = np.random.default_rng(0)
    for k, name in enumerate(space.sketches):
        rows = space.sample(k, 64, rng)
        s = Schedule.replay(dag, space.trace(k, rows[space.valid(k, rows)][0]), space.target)
        values = [v for b in blocks(s.nest.body) for v in b.values]
        assert max(map(E.different, values)) <= MAX_AGAIN
        assert max(E.size(v)[0] for v in values) <= MAX_WRITTEN
        assert len(values) == 24 if name == "stages=kept" else len(values) <= 8


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_four_sweeps_of_64_take_the_arithmetic_of_four_sweeps(rule: Rule) -> None:
    dag = sweeps(rule, 64, 4)
    space = derive(dag, host(1))
    estimate = space.feature_names.index("total.cycles")
    least = []
    for k in range(len(space.sketches)):
        rows = space.every(k, 1000)
        assert rows is not None
        least.append(space.features(k, rows[space.valid(k, rows)])[:, estimate].min())
    assert min(least) == least[space.sketches.index("stages=kept")]


@pytest.mark.slow
def test_on_a_gpu_they_may_be_kernels() -> None:
    dag = sweeps(padded, 9, 3)
    space = derive(dag, GPU)
    assert len(blocks(space.sketch(space.sketches.index("stages=kept")).nest.body)) == 3
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


def diffusion(n: int, k: int) -> ComputeDAG:
    """Two fluxes of a Laplacian, each limited by the slope: what a sum of both reads, at two places each."""
    a = te.placeholder((n + 4, n + 4, k), "float32", "a")

    def laplacian(i: te.Expr, j: te.Expr, q: te.Expr) -> te.Expr:
        around = a[i + 2, j + 1, q] + a[i, j + 1, q] + a[i + 1, j + 2, q] + a[i + 1, j, q]
        return a[i + 1, j + 1, q] * 4.0 - around

    def limited(r: te.Expr, slope: te.Expr) -> te.Expr:
        return te.select(r * slope > 0.0, 0.0, r)

    lap = te.compute((n + 2, n + 2, k), laplacian, "lap")
    x = te.compute(
        (n + 1, n, k),
        lambda i, j, q: limited(
            lap[i + 1, j + 1, q] - lap[i, j + 1, q], a[i + 2, j + 2, q] - a[i + 1, j + 2, q]
        ),
        "x",
    )
    y = te.compute(
        (n, n + 1, k),
        lambda i, j, q: limited(
            lap[i + 1, j + 1, q] - lap[i + 1, j, q], a[i + 2, j + 2, q] - a[i + 2, j + 1, q]
        ),
        "y",
    )
    out = te.compute(
        (n, n, k), lambda i, j, q: x[i + 1, j, q] - x[i, j, q] + y[i, j + 1, q] - y[i, j, q], "out"
    )
    return te.dag([a, out])


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_the_stage_that_is_read_most_may_be_kept_alone(threads: int) -> None:
    dag = diffusion(4, 3)
    space = derive(dag, small_caches(threads))
    kept = {
        name: {b.name for b in blocks(space.sketch(k).nest.body)} for k, name in enumerate(space.sketches)
    }
    assert kept["plain"] == {"out"} and kept["stages=kept"] == {"lap", "x", "y", "out"}
    assert kept["stages=one-kept"] == {"lap", "out"}
    data = inputs(dag)
    rng = np.random.default_rng(0)
    for k in map(space.sketches.index, ("plain", "stages=one-kept")):
        rows = space.sample(k, 8, rng)
        trace = space.trace(k, rows[space.valid(k, rows)][0])
        check_interpreted(Schedule.replay(dag, trace, space.target).nest, dag, data, expected(dag, data))
        check_compiled(dag, trace, space.target, data, expected(dag, data))


@pytest.mark.slow
def test_the_stage_that_is_read_most_may_go_through_bands() -> None:
    dag = diffusion(17, 3)
    space = derive(dag, small_caches(1))
    k = space.sketches.index("stages=one-bands")
    rows = space.sample(k, 8, np.random.default_rng(0))
    s = Schedule.replay(dag, space.trace(k, rows[space.valid(k, rows)][0]), space.target)
    assert s.blocks() == ["lap", "out"] and s.loops("lap")[0] == s.loops("out")[0]
    data = inputs(dag)
    check_interpreted(s.nest, dag, data, expected(dag, data))


def test_operations_that_inlined_stages_share_count_once() -> None:
    space = derive(diffusion(64, 64), host(1))
    at = space.feature_names.index("block0.compute_cycles")
    rng = np.random.default_rng(0)
    cycles = {
        n: space.features(k, space.sample(k, 32, rng))[:, at].min() for k, n in enumerate(space.sketches)
    }
    assert cycles["plain"] < 8 * cycles["stages=kept"]
