"""Norms of rows whose mean is large beside their spread, and other means: they divide."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from grid_cases import need_cxx, program, sampled
from helpers import execute
from hypothesis import given, settings
from hypothesis import strategies as st
from space_cases import target

import autotune as at
from autotune.codegen.simt import emulator
from schedules import expr as E
from schedules import ops
from schedules.ops.normalize import EPS
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.te.compute_dag import ComputeDAG

CONSTANT = (255.0, 1e3, 1e5, 1e6)
STEPS = np.float32(8e4) + np.arange(4096, dtype=np.float32)[None] % 4


def norm(x: np.ndarray) -> tuple[ComputeDAG, list[np.ndarray], np.ndarray]:
    """layer_norm of rows with gamma 1 and beta 0: its data, and the result in float64."""
    m, n = x.shape
    data = [x, np.ones(n, x.dtype), np.zeros(n, x.dtype)]
    wide = x.astype(np.float64)
    d = wide - wide.mean(1, keepdims=True)
    y = d / np.sqrt((d * d).mean(1, keepdims=True) + EPS)
    return ops.workload("layer_norm", {"m": m, "n": n}, x.dtype.name).dag, data, y


def compiled(dag: ComputeDAG, data: list[np.ndarray]) -> Iterator[np.ndarray]:
    """Results of the plain loops and of a candidate of every sketch."""
    yield at.build(Schedule(dag), threads=1)(*data)
    for threads in (1, 2):
        space, rng = derive(dag, target(threads)), np.random.default_rng(0)
        for k in range(len(space.sketches)):
            rows = space.sample(k, 60, rng)
            for row in rows[space.valid(k, rows)][:2]:
                yield from next(iter(execute(dag, space.trace(k, row), target(threads), data).values()))


@pytest.mark.fast("7")
@pytest.mark.parametrize("n", [1000, 7])
def test_constant_rows_are_zero(n: int) -> None:
    dag, data, _ = norm(np.repeat(np.float32(CONSTANT)[:, None], n, 1))
    for got in compiled(dag, data):
        assert not got.any()


def test_small_steps_on_a_large_offset() -> None:
    dag, data, want = norm(STEPS)
    for got in compiled(dag, data):
        np.testing.assert_allclose(got, want, atol=1e-4)


@pytest.mark.fast("7")
@pytest.mark.parametrize("n", [1000, 7])
def test_constant_rows_are_zero_on_a_gpu(n: int) -> None:
    on_gpu(np.repeat(np.float32(CONSTANT)[:, None], n, 1), 0)


@pytest.mark.slow
def test_small_steps_on_a_large_offset_on_a_gpu() -> None:
    on_gpu(STEPS, 1e-4)


def on_gpu(x: np.ndarray, atol: float) -> None:
    need_cxx()
    dag, data, want = norm(x)
    programs = [program(dag, trace) for _, trace in sampled(dag, 3)]
    obj = emulator.build(*programs)
    for n, p in enumerate(programs):
        out = np.full(x.shape, np.nan, x.dtype)
        assert emulator.run(obj, p, [*data, out], n) is None
        np.testing.assert_allclose(out, want, atol=atol, rtol=0)


KERNELS: dict[int, at.Kernel] = {}


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([3, 7, 33, 125]),
    st.floats(-1e6, 1e6, width=32),
    st.floats(0, 8, width=32),
    st.integers(0, 2**32 - 1),
)
def test_rows_of_any_offset(n: int, offset: float, spread: float, seed: int) -> None:
    """With e, what the first mean is off by, and s, the deviation of the row, deviations are about s + e,
    and the sums of n of them and of their squares are off by n roundings of that. Divided by the deviation
    that the row is scaled by, that is what an element may be off by, whatever the offset."""
    x = (offset + spread * np.random.default_rng(seed).standard_normal((2, n))).astype(np.float32)
    dag, data, want = norm(x)
    if n not in KERNELS:
        KERNELS[n] = at.build(Schedule(dag), threads=1)
    mean = np.cumsum(x, axis=1, dtype=np.float32)[:, -1:] / np.float32(n)
    wide = x.astype(np.float64)
    e, var = np.abs(mean - wide.mean(1, keepdims=True)), wide.var(1, keepdims=True)
    size, scale = np.sqrt(var) + e, np.sqrt(var + EPS)
    u = np.finfo(np.float32).eps / 2
    tiny = np.finfo(np.float32).tiny / u  # below it numbers have fewer digits
    may = (n + 8) * u * (size / scale + np.abs(want) * (size / scale) ** 2 + tiny)
    assert (np.abs(KERNELS[n](*data) - want) <= may).all()


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm", "avg_pool2d"])
def test_means_divide_by_their_count(op: str) -> None:
    """Nothing is multiplied by a rounded inverse of a count that is no power of two."""
    params = {"k": 3, "h": 9, "w": 9, "c": 3} if op == "avg_pool2d" else {"m": 3, "n": 9}
    dag = ops.workload(op, params).dag
    every = [x for s in dag.stages for v in s.values for x in E.walk(v)]
    inverse = E.Const(float(np.float32(1 / 9)), "float32"), E.Const(1 / 9, "float32")
    assert not any(isinstance(x, E.Binary) and x.op == "*" and {x.a, x.b} & {*inverse} for x in every)
    assert any(isinstance(x, E.Binary) and x.op == "/" and x.b == E.Const(9.0, "float32") for x in every)


def test_an_average_is_the_value_that_all_have() -> None:
    dag = ops.workload("avg_pool2d", {"k": 11, "h": 11, "w": 11, "c": 1}).dag
    for value in (1.0, 3.0, 255.0, 1000.0):
        data = [np.full(dag.inputs[0].shape, value, np.float32)]
        assert float(np.ravel(at.build(Schedule(dag), threads=1)(*data))[0]) == value
