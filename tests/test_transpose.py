"""Squares transposed in registers: the network of shuffles, and where the generator uses it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import helpers
import numpy as np
import pytest

from autotune.building import emit_module
from autotune.codegen.llvm_transpose import fits, transpose
from schedules import te
from schedules.dag import ComputeDAG
from schedules.schedule import Schedule


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
    i, j = s.loops("b")
    i0, i1 = s.split(i, (None, rows), tail)
    j0, j1 = s.split(j, (None, lanes), tail)
    s.reorder(i0, j0, i1, j1)
    s.unroll(i1)
    s.vectorize(j1)
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
        i, j = s.loops("b")
        i0, i1 = s.split(i, (None, rows), tail)
        j0, j1 = s.split(j, (None, 8), "shift")
        s.reorder(i0, j0, i1, j1)
        if unroll:
            s.unroll(i1)
        s.vectorize(j1)
        return s

    assert shuffles(schedule(32, 32, 8, True)) == 24
    assert shuffles(schedule(32, 32, 16, True)) == 48
    assert shuffles(schedule(32, 32, 4, True)) == 0  # half a square
    assert shuffles(schedule(32, 32, 8, False)) == 0  # the loop is not unrolled
    assert shuffles(schedule(32, 30, 8, True)) == 0  # 30 = 3 * 8 + 6: under a guard
    assert shuffles(schedule(32, 30, 8, True, "shift")) == 24
