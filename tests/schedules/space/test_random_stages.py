"""Spaces of programs of any stages: ranks from 0 to 4, broadcasts, windows, strides, transpositions, gathers,
reductions at any place, tuples. Each has a space, and what is sampled from it is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from random import Random

import numpy as np
import pytest
from grid_cases import TARGET
from helpers import interpret, poisoned, same
from hypothesis import given, settings
from hypothesis import strategies as st
from random_stages import random_stages, whole_inputs
from space_cases import target

from schedules import te
from schedules.dtypes import DTYPES
from schedules.ir.interp_grid import run_grid
from schedules.model import Target, Trace
from schedules.passes.lower import lower
from schedules.passes.simt import lower_simt
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.te.compute_dag import ComputeDAG

Arrays = list[np.ndarray]
# Caches so small that rules for what outgrows them apply to small programs.
TINY = {"l1_bytes": 64, "l2_bytes": 128, "l3_bytes": 256}
MOST_THREADS = 1 << 11  # of a grid that is interpreted


def tiny(threads: int = 2) -> Target:
    t = target(threads)
    return replace(t, limits=tuple(sorted((dict(t.limits) | TINY).items())))


def on_a_cpu(s: Schedule, data: Arrays, want: Arrays) -> None:
    same(interpret(s.nest, s.dag, data), want, "scheduled")
    same(interpret(lower(s.nest), s.dag, data), want, "lowered")


def on_a_grid(s: Schedule, data: Arrays, want: Arrays) -> None:
    p = lower_simt(s.nest)
    if sum(prod(k.grid) * k.threads for k in p.kernels) > MOST_THREADS:
        return
    arrays = {t.name: x.copy() for t, x in zip(s.dag.inputs, data, strict=True)}
    outs = [poisoned(w) for w in want]
    run_grid(p, arrays | dict(zip(s.dag.outputs, outs, strict=True)))
    same(outs, want, "grid")


def check(dag: ComputeDAG, t: Target, seed: int, most: int | None = None) -> None:
    """Derive the space, and run a candidate of each of its sketches, or of ``most`` of them."""
    rng = np.random.default_rng(seed)
    data = whole_inputs(dag, rng)
    want = te.evaluate(dag, data)
    space = derive(dag, t)
    assert len(space.sketches)
    usable = 0
    for k in rng.permutation(len(space.sketches)).tolist()[:most]:
        rows = space.sample(k, 32, rng)
        assert np.isfinite(space.features(k, rows)).all(), space.sketches[k]
        found = rows[space.valid(k, rows)]
        usable += bool(len(found))
        for row in found[:1]:
            trace = space.trace(k, row)
            s = Schedule.replay(dag, Trace.from_json(trace.to_json()), t)
            assert s.trace == trace
            (on_a_grid if t.grid else on_a_cpu)(s, data, want)
    assert usable, "no sketch has a valid row"


def drawn(rng: Random, most: int) -> ComputeDAG:
    dtypes = rng.choice((("float32",), ("float32", "int32"), tuple(DTYPES)))
    return random_stages(rng, (1, 2, 3, 4, 8), dtypes, most)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.randoms(use_true_random=True))
def test_every_program_has_a_space(rng: Random) -> None:
    dag = drawn(rng, 100)
    for t in (tiny(), TARGET):
        assert len(derive(dag, t).sketches)


@pytest.mark.fast("caches")
@pytest.mark.parametrize("t", [target(1), tiny(), TARGET], ids=["cpu", "caches", "gpu"])
@settings(max_examples=8)
@given(rng=st.randoms(use_true_random=True))
def test_what_is_sampled_is_right(t: Target, rng: Random) -> None:
    check(drawn(rng, 40), t, 3, 1)


@pytest.mark.fuzz
@pytest.mark.parametrize("t", [target(2), tiny(), TARGET], ids=["cpu", "caches", "gpu"])
@settings(max_examples=250)
@given(rng=st.randoms(use_true_random=True))
def test_all_that_is_sampled_is_right(t: Target, rng: Random) -> None:
    check(drawn(rng, 200), t, 3, 3)


# -- what random programs met once ---------------------------------------------------------------


def row_beside_a_window(n: int = 40) -> ComputeDAG:
    """A stage of one axis, and one of two that is read at two rows, both worth keeping."""
    a, b = te.placeholder((n,), name="A"), te.placeholder((n + 2, n), name="B")
    s = te.compute((n,), lambda j: te.floor(te.exp(-te.abs(a[j])) * 4.5), "S")
    d = te.compute((n + 2, n), lambda i, j: te.floor(te.tanh(b[i, j]) * 3.5) + b[i, j], "D")
    return te.dag([a, b, te.compute((n, n), lambda i, j: d[i, j] + d[i + 2, j] + s[j], "W")])


def less_its_columns_mean(n: int = 8, m: int = 9) -> ComputeDAG:
    data, k = te.placeholder((n, m), "float64", "data"), te.reduce_axis(n, "k")
    total = te.compute((m,), lambda j: te.sum(data[k, j], axis=k), "total")
    mean = te.compute((m,), lambda j: total[j] / float(n), "mean")
    c = te.compute((n, m), lambda i, j: data[i, j] - mean[j], "c")
    product = te.compute((m, m), lambda i, j: te.sum(c[k, i] * c[k, j], axis=k), "S")
    return te.dag([data, te.compute((m, m), lambda i, j: product[i, j] / 4.0, "cov")])


def number_beside_a_window(n: int = 40) -> ComputeDAG:
    """The same with a stage of no axis."""
    a, b = te.placeholder((), name="A"), te.placeholder((n + 2, n), name="B")
    s = te.compute((), lambda: te.floor(te.exp(-te.abs(a[()])) * 4.5), "S")
    d = te.compute((n + 2, n), lambda i, j: te.floor(te.tanh(b[i, j]) * 3.5) + b[i, j], "D")
    return te.dag([a, b, te.compute((n, n), lambda i, j: d[i, j] + d[i + 2, j] * s[()], "W")])


def box_beside_a_window(n: int = 20) -> ComputeDAG:
    """The same with a stage of three axes, of which two are read."""
    a, b = te.placeholder((2, n, n), name="A"), te.placeholder((n + 2, n), name="B")
    s = te.compute((2, n, n), lambda g, i, j: te.floor(te.exp(-te.abs(a[g, i, j])) * 4.5), "S")
    d = te.compute((n + 2, n), lambda i, j: te.floor(te.tanh(b[i, j]) * 3.5) + b[i, j], "D")
    return te.dag([a, b, te.compute((n, n), lambda i, j: d[i, j] + d[i + 2, j] + s[1, j, i], "W")])


def window_of_one_element() -> ComputeDAG:
    """A window that no output moves."""
    x, r, s = te.placeholder((6,), name="x"), te.reduce_axis(4, "r"), te.reduce_axis(3, "s")
    top = te.compute((), lambda: te.max(x[r + s], axis=(r, s)), "top")
    return te.dag([x, te.compute((6,), lambda i: x[i] - top[()], "y")])


def product_with_a_number() -> ComputeDAG:
    """A number that every point of a product reads, from memory and from a stage."""
    x, w, a = te.placeholder((5, 6), name="x"), te.placeholder((6, 7), name="w"), te.placeholder((), name="a")
    k, b = te.reduce_axis(6, "k"), te.compute((), lambda: te.floor(te.exp(-te.abs(a[()])) * 4.5), "b")
    y = te.compute((5, 7), lambda i, j: te.sum(x[i, k] * w[k, j] + a[()] * b[()], axis=k), "y")
    return te.dag([x, w, a, y])


def rows_of_a_row() -> ComputeDAG:
    """A stage with fewer axes than the rows that read it."""
    x, m = te.placeholder((3, 4, 9), name="x"), te.placeholder((4,), name="m")
    k = te.reduce_axis(9, "k")
    kept = te.compute((4,), lambda i: te.floor(te.tanh(m[i]) * 3.5), "kept")
    return te.dag([x, m, te.compute((3, 4), lambda b, i: te.sum(x[b, i, k] + kept[i], axis=k), "y")])


def reversed_operands() -> ComputeDAG:
    """A product that reads its operands backwards: their parts are as large as read forwards."""
    x, w, k = te.placeholder((9, 8), name="x"), te.placeholder((8, 12), name="w"), te.reduce_axis(8, "k")
    return te.dag(
        [x, w, te.compute((9, 12), lambda i, j: te.sum(x[8 - i, 7 - k] * w[7 - k, 11 - j], axis=k), "y")]
    )


def guarded_number() -> ComputeDAG:
    """A number that a condition chooses is no padding."""
    x, a, k = te.placeholder((5, 80), name="x"), te.placeholder((), name="a"), te.reduce_axis(80, "k")
    b = te.compute((), lambda: te.select(a[()] > 0.0, a[()], 1.0), "b")
    w = te.placeholder((80, 6), name="w")
    return te.dag([x, a, w, te.compute((5, 6), lambda i, j: te.sum(x[i, k] * w[k, j] * b[()], axis=k), "y")])


MET: tuple[Callable[[], ComputeDAG], ...] = (
    row_beside_a_window,
    less_its_columns_mean,
    number_beside_a_window,
    box_beside_a_window,
    window_of_one_element,
    product_with_a_number,
    rows_of_a_row,
    reversed_operands,
    guarded_number,
)


@pytest.mark.fast("row_beside_a_window-gpu", "box_beside_a_window-cpu", "window_of_one_element-cpu")
@pytest.mark.parametrize("t", [tiny(), TARGET], ids=["cpu", "gpu"])
@pytest.mark.parametrize("program", MET)
def test_a_program_that_was_met(program: Callable[[], ComputeDAG], t: Target) -> None:
    check(program(), t, 3, 4)


def test_a_chosen_number_does_not_leave_a_product_without_tiles() -> None:
    assert "separate" not in derive(guarded_number(), target(1)).sketches
