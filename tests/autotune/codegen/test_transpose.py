"""Squares transposed in registers: the network of shuffles, and where the generator uses it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import helpers
import numpy as np
import pytest

from autotune.backends.building.from_trace import emit_module
from autotune.codegen.llvm.transpose import fits, transpose
from schedules import ops, te
from schedules.schedule import Schedule
from schedules.space.derive import derive
from schedules.te.compute_dag import ComputeDAG


@pytest.mark.parametrize("itemsize", [4, 8])
@pytest.mark.parametrize("n", [2, 4, 8, 16, 32])
def test_the_network_transposes(n: int, itemsize: int) -> None:
    if not fits(n, itemsize):
        assert n * itemsize < 16
        return
    square = np.arange(n * n).reshape(n, n)
    vectors = {f"r{i}": square[i] for i in range(n)}

    def shuffle(a: str, b: str, mask: Sequence[int]) -> str:
        assert len(mask) == n
        name = f"t{len(vectors)}"
        vectors[name] = np.concatenate([vectors[a], vectors[b]])[list(mask)]
        return name

    columns = transpose([f"r{i}" for i in range(n)], itemsize, shuffle)
    np.testing.assert_array_equal(np.stack([vectors[c] for c in columns]), square.T)
    assert len(vectors) - n == n * (n.bit_length() - 1)  # shuffles: n log2(n)


def transposed(m: int, n: int, dtype: str = "float32") -> ComputeDAG:
    a = te.placeholder((m, n), dtype, name="a")
    return te.dag([a, te.compute((n, m), lambda i, j: a[j, i] + a[j, i], name="b")])


@pytest.mark.fast("*-float32", "shift-*-int64")
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize(
    ("m", "n", "rows", "lanes"), [(32, 24, 8, 8), (37, 29, 8, 8), (37, 29, 16, 16), (9, 41, 4, 8)]
)
@pytest.mark.parametrize("tail", ["shift", "guard"])
def test_transposing_loops_mean_what_they_say(
    m: int, n: int, rows: int, lanes: int, tail: str, dtype: str
) -> None:
    dag = transposed(m, n, dtype)
    s = Schedule(dag, helpers.host())
    s.unroll(helpers.in_tiles(s, "b", rows, lanes, (tail, tail))[1])
    data = helpers.inputs(dag)
    helpers.check_compiled(dag, s.trace, helpers.host(), data, helpers.expected(dag, data))


def shuffles(schedule: Schedule) -> int:
    target = replace(helpers.host(), limits=(("vector_bytes", 32),))  # text only: it need not run here
    text = emit_module(schedule.dag, schedule.trace, target).text
    return text.count("shufflevector") - text.count("zeroinitializer")


def test_only_whole_squares_are_read_by_rows() -> None:
    """A row would be read past what the loops visit, were a guard or a shorter loop in the way."""

    def schedule(m: int, n: int, rows: int, unroll: bool, tail: str = "guard") -> Schedule:
        s = Schedule(transposed(m, n), helpers.host())
        _, i1 = helpers.in_tiles(s, "b", rows, 8, (tail, "shift"))
        if unroll:
            s.unroll(i1)
        return s

    assert shuffles(schedule(32, 32, 8, True)) == 24
    assert shuffles(schedule(32, 32, 16, True)) == 48
    assert shuffles(schedule(32, 32, 4, True)) == 0  # half a square
    assert shuffles(schedule(32, 32, 8, False)) == 0  # the loop is not unrolled
    assert shuffles(schedule(32, 30, 8, True)) == 0  # 30 = 3 * 8 + 6: under a guard
    assert shuffles(schedule(32, 30, 8, True, "shift")) == 24


@pytest.mark.fast("3-True")
@pytest.mark.parametrize(("c", "fused"), [(8, True), (3, True), (8, False)])
def test_dimensions_too_short_for_squares_are_fused(c: int, fused: bool) -> None:
    """Weights of a convolution, its window innermost: neighbours in memory are neighbours in the copy."""
    w = te.placeholder((24, c, 3, 3), "float32", name="w")
    dag = te.dag([w, te.compute((c, 3, 3, 24), lambda i, r, t, o: w[o, i, r, t] * 2.0, name="b")])
    s = Schedule(dag, helpers.host())
    *window, o = s.loops("b")
    f0, f1 = s.split(s.fuse(*window) if fused else window[0], (None, 8), "shift")
    o0, o1 = s.split(o, (None, 8))
    if fused:
        s.reorder(f0, o0, f1, o1)
    else:
        s.reorder(f0, *window[1:], o0, f1, o1)
    s.unroll(f1)
    s.vectorize(o1)
    assert shuffles(s) == (24 if fused else 0)
    data = helpers.inputs(dag)
    helpers.check_interpreted(s.nest, dag, data, helpers.expected(dag, data))
    helpers.check_compiled(dag, s.trace, helpers.host(), data, helpers.expected(dag, data))


@pytest.mark.slow
def test_packing_fuses_short_dimensions() -> None:
    params = {"h": 5, "w": 5, "ci": 8, "co": 24, "kh": 3, "kw": 3, "padding": 1}
    space = derive(ops.workload("conv2d", params, layout="NCHW").dag, helpers.host())
    n = next(i for i, name in enumerate(space.sketches) if "lanes=" in name and "pack=root" in name)
    rows = space.sample(n, 50, np.random.default_rng(0))
    trace = space.trace(n, rows[space.valid(n, rows)][0])
    (fuse,) = [dict(x.args)["loops"] for x in trace.steps if x.primitive == "fuse" and "w_global" in str(x)]
    assert len(fuse) == 3
    text = emit_module(space.dag, trace, helpers.host()).text  # whose registers hold 4 floats
    assert len(re.findall(r"shufflevector <4 x float> %\w+, <4 x float> %\w+,", text)) >= 8
    data = helpers.inputs(space.dag)
    helpers.check_compiled(space.dag, trace, helpers.host(), data, helpers.expected(space.dag, data))
