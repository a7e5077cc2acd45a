"""Lanes that read elements from the last to the first, alone and in steps of a scan: compiled =
interpreter. Vectors on both sides of a diagonal, and sums with tails."""

from __future__ import annotations

import re

import numpy as np
import pytest
from helpers import host

import autotune as at
from autotune.backends import parse
from autotune.backends.building.from_trace import emit_module
from autotune.run.kernels import kernel_of
from autotune.search.columns import compile_columns
from schedules import te
from schedules.ir import Alloc, Loop, Store, const, walk
from schedules.ir.exprs import loads
from schedules.ir.interp import run
from schedules.model import Workload
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.space.base import Candidate, trace_of

RNG = np.random.default_rng(0)


def flipped(n: int, lanes: int, tail: str, dtype: str = "float32") -> Schedule:
    x = te.placeholder((n,), dtype, "x")
    s = Schedule(te.dag([x, te.compute((n,), lambda i: x[n - 1 - i] + te.const(1, dtype), "y")]))
    s.vectorize(s.split("y_i", (None, lanes), tail)[1])
    return s


@pytest.mark.parametrize("tail", ["guard", "shift"])
@pytest.mark.parametrize(("n", "lanes"), [(16, 16), (19, 8), (37, 16), (23, 6), (9, 4)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
def test_a_flip_is_right_with_every_tail(n: int, lanes: int, tail: str, dtype: str) -> None:
    s = flipped(n, lanes, tail, dtype)
    x = RNG.integers(-9, 9, n).astype(dtype)
    assert np.array_equal(kernel_of(Workload(s.dag), host(), s.trace)(x), x[::-1] + x.dtype.type(1))


def test_a_flip_is_loaded_in_vectors() -> None:
    for n, tail in ((32, "shift"), (37, "guard")):
        s = flipped(n, 16, tail)
        text = emit_module(s.dag, s.trace, host()).text
        assert not re.search(r"= load float,|masked\.gather", text), tail


def mirrored(n: int) -> list[te.Tensor]:
    """Each step adds to a row the turned row of the step before, up to the diagonal."""
    x = te.placeholder((n,), "float32", "x")
    y = te.state((n, n), "float32", init=0.0, name="y")
    s = te.compute((n,), lambda k: _sum(k, lambda i: x[k - 1 - i] * y[k - 1, i]), "s")
    a = te.compute((n,), lambda k: te.maximum(te.minimum(x[k] - s[k], 2.0), -2.0), "a")

    def element(k, i):
        """Numbers stay small and whole."""
        new = te.maximum(te.minimum(y[k - 1, i] + a[k] * y[k - 1, k - 1 - i], 3.0), -3.0)
        return te.select(i < k, new, a[k])

    y = te.scan(y, te.compute((n, n), element, "y"))
    return [x, te.compute((n,), lambda i: y[n - 1, i], "out")]


def _sum(k, term):
    i = te.reduce_axis((0, k), "i")
    return te.sum(term(i), axis=i)


@pytest.mark.parametrize("n", [5, 17, 71])
def test_samples_of_steps_that_read_backwards_are_right(n: int) -> None:
    goal, tensors = parse("cpu", 1), mirrored(n)
    dag = te.dag(tensors)
    space = derive(dag, goal, compile_columns)
    x = RNG.integers(-2, 3, n).astype("float32")
    (want,) = te.evaluate(dag, [x])
    count = 0
    for sketch in range(len(space.sketches)):
        rows = space.sample(sketch, 4, RNG)
        for row in {tuple(map(int, r)) for r in rows[space.valid(sketch, rows)]}:
            s = Schedule.replay(dag, trace_of(space, Candidate(sketch, row)), goal)
            named = {"x": x, "out": np.full(n, np.nan, "float32")}
            run(lower(s.nest), named)
            assert np.array_equal(named["out"], want)
            assert np.array_equal(at.build(s, threads=1)(x), want)
            count += 1
    assert count


def steps_in_vectors(n: int, lanes: int) -> Schedule:
    s = Schedule(mirrored(n))
    k, i = s.loops("y")
    outer, inner = s.split(i, (None, lanes), "guard")
    s.vectorize(inner)
    s.partition(outer)
    s.partition(k)
    return s


def test_rows_kept_in_turns_are_stored_in_vectors() -> None:
    """The row that is read and the row that is stored to are two: t % 2 and (t + 1) % 2."""
    s = steps_in_vectors(64, 8)
    assert any(x.buffer.name == "y" and const(x.buffer.shape[0]) == 2 for x in _allocs(s))
    text = emit_module(s.dag, s.trace, host()).text
    assert len(re.findall(r"store float ", text)) < 16


def _allocs(s: Schedule) -> list[Alloc]:
    return [x for x in walk(lower(s.nest).body) if isinstance(x, Alloc)]


def test_behind_a_diagonal_nothing_is_read() -> None:
    """There vectors are what the other side of the select says."""
    body = lower(steps_in_vectors(64, 8).nest).body
    vectors = [x for x in walk(body) if isinstance(x, Loop) and x.kind == "vectorize"]
    stores = [x for v in vectors for x in walk(v) if isinstance(x, Store) and x.buffer == "y"]
    read = [{x.buffer for x in loads(s)} for s in stores]
    assert read.count({"a"}) == 2 and {"a", "y"} in read  # in the first step, and in the others


@pytest.mark.parametrize(("n", "lanes"), [(64, 8), (37, 8), (23, 4), (16, 16)])
@pytest.mark.parametrize("shift", [-9, 0, 1, 5, 40])
def test_sides_of_a_diagonal_are_right(n: int, lanes: int, shift: int) -> None:
    x, z = te.placeholder((n, n), "float32", "x"), te.placeholder((n,), "float32", "z")
    y = te.compute((n, n), lambda i, j: te.select(j < i + shift, x[i, j] + 1.0, z[i]), "y")
    s = Schedule([x, z, y])
    outer, inner = s.split("y_j", (None, lanes), "guard")
    s.vectorize(inner)
    s.partition(outer)
    a, b = RNG.integers(-9, 9, (n, n)).astype("float32"), RNG.integers(-9, 9, n).astype("float32")
    named = {"x": a, "z": b, "y": np.full((n, n), np.nan, "float32")}
    run(lower(s.nest), named)
    want = np.where(np.arange(n) < np.arange(n)[:, None] + shift, a + 1, b[:, None])
    assert np.array_equal(named["y"], want)
    assert np.array_equal(at.build(s, threads=1)(a, b), want)


def test_sums_with_a_tail_stay_in_registers() -> None:
    """A masked store takes the address of the sums, which then lie in memory."""
    n = 29
    y = te.state((n,), "float32", name="y")
    x = te.placeholder((n, n), "float32", "x")
    before = te.compute((n,), lambda t: _sum(t, lambda i: x[t, i] * y[i]), "before")
    s = Schedule([x, te.scan(y, te.compute((n,), lambda t: te.minimum(te.abs(before[t]), 2.0) + 1.0, "y"))])
    _, inner = s.split(s.loops("before")[-1], (None, 8), "guard")
    partial = s.rfactor("before", inner)
    s.vectorize(s.loops(partial)[-1])
    a = RNG.integers(-4, 5, (n, n)).astype("float32")
    assert np.array_equal(at.build(s, threads=1)(a), te.evaluate(s.dag, [a])[0])
    assert "masked.store" not in emit_module(s.dag, s.trace, host()).text
