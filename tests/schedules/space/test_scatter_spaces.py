"""Spaces of scatters, on CPUs and on GPUs: what is offered, and that every sample is right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from grid_cases import Case, emulate, program, sampled
from grid_changes import changed
from helpers import check_compiled, check_interpreted, interpret, poisoned, same
from scatter_cases import Scatter, bins_of_floats, counts, means, random_scatter, rows

from autotune.codegen.simt import cuda, opencl
from autotune.targets import detect, from_name
from schedules import expr as E
from schedules import te
from schedules.expr import Load
from schedules.ir import Atomic, Stmt, Store, walk, with_body
from schedules.ir.grid import GridProgram
from schedules.ir.interp import InterpError
from schedules.ir.interp_grid import run_grid
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.space import derive

ONE = from_name("x86-64-v3")
TWO = replace(ONE, threads=2)


def with_epilogue() -> Scatter:
    """A scatter between two other stages, one of them its places."""
    ids, x = te.placeholder((60,), "int32", "ids"), te.placeholder((60, 9), name="x")
    at = te.compute((60,), lambda n: (ids[n] * 3) % 12, name="at")
    h = te.scatter_max((10, 9), lambda n, d: (at[n], d), lambda n, d: x[n, d] * 2.0, over=(60, 9), name="h")
    y = te.compute((10, 9), lambda i, d: te.maximum(h[i, d], 0.0) + 1.0, name="y")
    draw = np.random.default_rng(0)
    data = (draw.integers(0, 9, 60).astype("int32"), draw.integers(-9, 10, (60, 9)).astype("float32"))
    dag = te.dag([ids, x, y])
    return Scatter(dag, data, tuple(te.evaluate(dag, data)))


def diagonal() -> Scatter:
    """Terms whose places follow from an axis that is free, before a stage that reads all elements."""
    x = te.placeholder((9, 5), name="x")
    t = te.scatter_add(
        (9, 9), lambda i, j: (i, te.minimum(i + 1, 8)), lambda i, j: x[i, j], over=(9, 5), name="t"
    )
    y = te.compute((9, 9), lambda i, j: t[i, j] * 2.0, name="y")
    data = np.random.default_rng(0).integers(-9, 10, (9, 5)).astype("float32")
    want = np.zeros((9, 9), "float32")
    want[range(9), [*range(1, 9), 8]] = 2 * data.sum(1)
    return Scatter(te.dag([x, y]), (data,), (want,))


CASES = {
    "rows": rows,
    "diagonal": diagonal,
    "counts": lambda: counts(200),
    "epilogue": with_epilogue,
    "means": means,
}
CASES["floats"] = lambda: bins_of_floats(2, 70)


@pytest.mark.parametrize("name", CASES)
def test_every_sample_on_a_cpu_is_right(name: str) -> None:
    c = CASES[name]()
    rng = np.random.default_rng(0)
    for target in (ONE, TWO):
        space = derive(c.dag, target)
        assert "separate" not in space.sketches
        for k in range(len(space.sketches)):
            found = space.sample(k, 20, rng)
            found = found[space.valid(k, found)][:1]
            assert np.isfinite(space.features(k, found)).all()
            s = Schedule.replay(c.dag, space.trace(k, found[0]), target)
            same(interpret(lower(s.nest), c.dag, c.inputs), c.expected, space.sketches[k])


def test_the_ways_that_are_offered() -> None:
    assert derive(counts(900).dag, ONE).sketches == ("plain", "h.by=chains")
    assert derive(counts(9000).dag, TWO).sketches == ("plain", "h.by=copies")
    assert derive(rows(300, 32, 500).dag, TWO).sketches == ("plain",)  # threads share columns


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 60, 20))
def test_spaces_of_random_scatters(first: int) -> None:
    rng = np.random.default_rng(first)
    for seed in range(first, first + 20):
        c = random_scatter(seed)
        space = derive(c.dag, ONE)
        for k in range(len(space.sketches)):
            found = space.sample(k, 20, rng)
            found = found[space.valid(k, found)][:1]
            s = Schedule.replay(c.dag, space.trace(k, found[0]), ONE)
            check_interpreted(s.nest, c.dag, c.inputs, c.expected)
            check_compiled(c.dag, s.trace, detect(threads=1), c.inputs, c.expected)


def test_places_of_floats_are_made_in_vectors() -> None:
    space = derive(bins_of_floats().dag, ONE)
    assert "compute_at(block='h_place'" in str(space.sketch(0).trace)
    assert all({"h.tile", "h.lanes"} <= {*space.holes(k)} for k in range(len(space.sketches)))


# --- GPUs -------------------------------------------------------------------------------------


def on_a_grid(c: Scatter, p: GridProgram, *, backwards: bool = False) -> list[np.ndarray]:
    arrays = dict(zip((t.name for t in c.dag.inputs), c.inputs, strict=True))
    arrays |= {n: poisoned(w) for n, w in zip(c.dag.outputs, c.expected, strict=True)}
    run_grid(p, arrays, backwards=backwards)
    return [arrays[n] for n in c.dag.outputs]


def small() -> Scatter:
    return counts(70, 5)


def test_a_grid_of_threads_pushes() -> None:
    c = small()
    for what, trace in sampled(c.dag, 1):
        p = program(c.dag, trace)
        assert any(isinstance(x, Atomic) for k in p.kernels for x in walk(k.body))
        for backwards in (False, True):
            same(on_a_grid(c, p, backwards=backwards), c.expected, what)


def plainly(s: Stmt) -> Stmt:
    """Updates that read, then write."""
    if isinstance(s, Atomic):
        here = Load(s.buffer, s.indices, E.dtype_of(s.value))
        return Store(s.buffer, s.indices, E.binary(s.op, here, s.value))
    return with_body(s, plainly)


def test_a_lost_update_is_found() -> None:
    c = small()
    for _, trace in sampled(c.dag, 1):
        p = program(c.dag, trace)
        with pytest.raises(InterpError, match="race on .*: thread .* uses what thread .* has"):
            on_a_grid(c, changed(p, plainly))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_emulator_runs_every_way(name: str) -> None:
    c = CASES[name]()
    emulate(Case(c.dag, tuple(c.inputs), tuple(c.expected)), 8)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
@pytest.mark.parametrize("how", [te.scatter_add, te.scatter_max, te.scatter_min])
def test_both_languages_have_a_function_for_each_update(how: object, dtype: str) -> None:
    ids, x = te.placeholder((50,), "int32", "ids"), te.placeholder((50,), dtype, "x")
    dag = te.dag([ids, x, how((7,), lambda n: ids[n], lambda n: x[n], 50)])  # type: ignore[operator]
    (_, trace), *_ = sampled(dag, 1)
    p = program(dag, trace)
    name = f"at_atomic_{how.__name__.removeprefix('scatter_')}_{dtype}("  # type: ignore[attr-defined]
    for source in (cuda.source(p), opencl.source(p)):
        assert source.count(name) >= 2  # made and called
    assert "cmpxchg" in opencl.source(p) or dtype == "int32"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_random_scatters_on_the_emulator(seed: int) -> None:
    c = random_scatter(seed)
    emulate(Case(c.dag, tuple(c.inputs), tuple(c.expected)), 2)
