"""Lanes that lie a few elements apart: whole vectors are loaded, and nothing outside of what lanes span."""

from __future__ import annotations

import re

import numpy as np
import pytest
from helpers import host

from autotune.backends.building.from_trace import emit_module
from autotune.codegen.llvm import spaced
from autotune.run.kernels import kernel_of
from schedules import te
from schedules.model import Trace, Workload
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG


@pytest.mark.parametrize("n", [3, 4, 8, 11, 16])
@pytest.mark.parametrize("step", [2, 3, 4, -2, -3, -4])
def test_lanes_are_picked_where_they_lie(n: int, step: int) -> None:
    if not spaced.fits(n, step):
        assert n <= abs(step)
        return
    first, last = sorted((0, step * (n - 1)))
    starts, permutations = spaced.picks(n, step)
    assert min(starts) == first and max(starts) + n - 1 == last  # nothing outside is read
    held, *others = [list(range(s, s + n)) for s in starts]
    for other, lanes in zip(others, permutations, strict=True):
        held = [(held + other)[k] for k in lanes]
    assert held == [step * lane for lane in range(n)]


def doubled(m: int, n: int, strides: tuple[int, int] | None, dtype: str) -> ComputeDAG:
    x = te.placeholder((m, n), dtype, "x", strides=strides)
    return te.dag([x, te.compute((m, n), lambda i, j: te.cast(x[i, j] * 2.0, dtype), "y")])


def in_lanes(dag: ComputeDAG, lanes: int) -> Trace:
    s = Schedule(dag)
    _, inner = s.split(s.loops("y")[-1], [None, lanes])
    s.vectorize(inner)
    return s.trace


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("step", [2, 3, 4, 5, -2, -1])
@pytest.mark.parametrize("lanes", [16, 6])
def test_views_with_steps_give_what_numpy_does(dtype: str, step: int, lanes: int) -> None:
    m, n = 3, 24
    x = np.arange(m * n * abs(step), dtype=np.float32).reshape(m, -1).astype(dtype)[:, ::step]
    strides = tuple(s // x.itemsize for s in x.strides)
    dag = doubled(m, n, (strides[0], strides[1]), dtype)
    kernel = kernel_of(Workload(dag), host(), in_lanes(dag, lanes))
    assert np.array_equal(kernel(x), x * x.dtype.type(2))


def test_no_lane_is_loaded_alone() -> None:
    """Of a view whose elements are no neighbours. What contiguous arrays get is as it was."""
    for strides, step, alone in (((64, 2), 1, 0), ((160, 5), 1, 16), (None, 2, 16)):
        x = te.placeholder((4, 32), "float32", "x", strides=strides)
        dag = te.dag([x, te.compute((4, 32 // step), lambda i, j: x[i, j * step] * 2.0, "y")])  # noqa: B023
        text = emit_module(dag, in_lanes(dag, 16), host()).text
        assert len(re.findall(r"= load float,", text)) == alone, strides
