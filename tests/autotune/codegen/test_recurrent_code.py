"""Steps of a recurrent layer in vectors: interpreter = compiled, for odd widths. Gradients of scans too."""

from __future__ import annotations

import numpy as np
import pytest
from gradient_cases import evaluated

import autotune as at
from autotune.backends import parse
from autotune.backends.building.from_trace import emit_module
from autotune.search.columns import compile_columns
from schedules import te
from schedules.ir.interp import run
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.space.base import Candidate, trace_of

RNG = np.random.default_rng(0)


def cell(steps: int, n: int, transposed: bool = False) -> list[te.Tensor]:
    """A step that is a product and two maps, of whole numbers that stay small."""
    w, x, h0 = (te.placeholder(s, name=m) for s, m in (((n, n), "w"), ((steps, n), "x"), ((n,), "h0")))
    h = te.state((steps, n), init=lambda t, j: h0[j], name="h")
    c = te.state((steps, n), init=1.0, name="c")
    k = te.reduce_axis(n, "k")

    def product(t, j):
        return te.sum(h[t - 1, k] * (w[j, k] if transposed else w[k, j]), axis=k)

    g = te.compute((steps, n), product, "g")
    new = te.compute((steps, n), lambda t, j: te.minimum(te.abs(g[t, j]), 3.0) - c[t - 1, j], "c")
    shown = te.compute((steps, n), lambda t, j: te.maximum(te.minimum(new[t, j] + x[t, j], 2.0), -2.0), "h")
    y, cells = te.scan([h, c], [shown, new])
    return [w, x, h0, y, cells]


def given(tensors: list[te.Tensor]) -> list[np.ndarray]:
    return [RNG.integers(-2, 3, t.shape).astype(np.float32) for t in tensors if t.op is None]


@pytest.mark.parametrize("n", [5, 16, 37])
def test_rows_of_the_step_before_are_read_in_vectors(n: int) -> None:
    tensors = cell(6, n)
    s = Schedule(tensors)
    t, j, k = s.loops("g")
    outer, inner = s.split(j, [None, 8], "guard")
    s.reorder(outer, k, inner)
    s.decompose_reduction("g", k)
    s.vectorize(inner)
    s.vectorize(s.loops("c")[-1])
    s.vectorize(s.loops("h")[-1])
    s.partition(t)
    arrays = given(tensors)
    want = te.evaluate(s.dag, arrays)
    named = dict(zip((x.name for x in s.dag.inputs), arrays, strict=True))
    named |= {o: np.full((6, n), np.nan, np.float32) for o in s.dag.outputs}
    run(s.nest, named)
    got = at.build(s, threads=1)(*arrays)
    for a, b, o in zip(got, want, s.dag.outputs, strict=True):
        assert np.array_equal(a, b) and np.array_equal(named[o], b)


def test_a_row_of_the_step_before_makes_no_store_one_of_elements() -> None:
    """Else each of 64 lanes has its own code."""
    s = Schedule(cell(6, 64))
    plain = emit_module(s.dag, s.trace, parse("cpu", 1)).text
    s.vectorize(s.loops("c")[-1])
    made = emit_module(s.dag, s.trace, parse("cpu", 1)).text
    assert "llvm.fabs.v" in made and made.count("\n") < plain.count("\n") + 100


@pytest.mark.parametrize("transposed", [False, True])
def test_samples_of_the_space_are_right(transposed: bool) -> None:
    """Weights are packed once before the steps, or read where they lie."""
    goal = parse("cpu", 1)
    tensors = cell(5, 37, transposed)
    dag = te.dag(tensors)
    space = derive(dag, goal, compile_columns)
    assert {"packed", "as they lie"} <= {w.split("=")[-1] for name in space.sketches for w in name.split(",")}
    arrays = given(tensors)
    want = te.evaluate(dag, arrays)
    for sketch in range(len(space.sketches)):
        rows = space.sample(sketch, 3, RNG)
        for row in {tuple(map(int, r)) for r in rows[space.valid(sketch, rows)]}:
            s = Schedule.replay(dag, trace_of(space, Candidate(sketch, row)), goal)
            for a, b in zip(at.build(s, threads=1)(*arrays), want, strict=True):
                assert np.array_equal(a, b), space.sketches[sketch]


def test_gradients_and_tangents_of_scans_run() -> None:
    w, x, h0, y, cells = cell(5, 7)
    out = te.compute((5, 7), lambda t, j: y[t, j] * cells[t, j], "out")
    head = te.placeholder((5, 7), name="head")
    ways = [te.placeholder(t.shape, name=f"v{n}") for n, t in enumerate((w, x, h0))]
    found = [*te.gradient(out, [w, x, h0], head), *te.jvp(out, [w, x, h0], ways)]
    arrays = {t: RNG.integers(-1, 2, t.shape).astype(np.float32) for t in (w, x, h0, head, *ways)}
    want = evaluated(found, arrays)
    for t, b in zip(found, want, strict=True):
        ins = te.inputs(t)
        kernel = at.build(Schedule([*ins, t]), threads=1)
        assert np.array_equal(kernel(*(arrays[i] for i in ins)), b)
