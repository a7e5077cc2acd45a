"""Hints of caches: what is read and written goes through those that a schedule tells, and is what it was."""

from __future__ import annotations

import numpy as np
import pytest
from grid_cases import need_cxx
from needs import missing

from autotune import backends
from autotune.codegen.simt import cuda, emulator, nvrtc, opencl
from schedules import te
from schedules.errors import ScheduleError
from schedules.ir.grid import CACHES, GridProgram
from schedules.passes.simt import lower_simt
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.te.compute_dag import ComputeDAG


def doubled(dtype: str) -> ComputeDAG:
    x = te.placeholder((96,), dtype, name="x")
    return te.dag([x, te.compute((96,), lambda i: te.cast(x[i] * te.cast(2, dtype), dtype), name="y")])


def program(dtype: str, load: int, store: int, lanes: int = 4) -> GridProgram:
    s = Schedule(doubled(dtype), backends.parse("h100"))
    block, thread, v = s.split("y_i", [None, 8, lanes])
    s.bind(block, "blockIdx.x")
    s.bind(thread, "threadIdx.x")
    s.vectorize(v)
    s.annotate("y", "load_cache", load)
    s.annotate("y", "store_cache", store)
    return lower_simt(s.nest)


@pytest.mark.parametrize("load", range(4))
def test_a_kernel_knows_the_caches_of_its_arrays(load: int) -> None:
    (kernel,) = program("float32", load, 3).kernels
    assert kernel.reads == ({"x": CACHES[load]} if load else {}) and kernel.writes == {"y": "cs"}
    text = cuda.source(program("float32", load, 3))
    assert (f"AT_READ_AS({CACHES[load]}, AT_LOAD(float, 4" in text) is bool(load)
    assert "AT_STORE_AS(cs, float, 4" in text


def test_without_hints_code_is_what_it_was() -> None:
    assert "_AS(" not in cuda.source(program("float32", 0, 0))


def test_opencl_has_no_such_caches() -> None:
    assert opencl.source(program("float32", 2, 3)) == opencl.source(program("float32", 0, 0))


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int64"])
def test_values_are_what_they_were(dtype: str, lanes: int) -> None:
    need_cxx()
    p = program(dtype, 3, 2, lanes)
    x = np.arange(96).astype(dtype) % 50
    y = np.zeros_like(x)
    assert emulator.run(emulator.build(p), p, [x, y], 0) is None
    assert np.array_equal(y, x * 2)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int64"])
def test_a_compiler_takes_every_cache(dtype: str) -> None:
    if not nvrtc.available():
        missing("nvrtc")
    for n in range(1, 4):
        for lanes in (1, 4):
            (facts,) = nvrtc.compile_cubin(cuda.source(program(dtype, n, n, lanes)), "sm_80").facts.values()
            assert facts["spill_bytes"] == facts["stack_bytes"] == 0


def test_other_caches_are_refused() -> None:
    s = Schedule(doubled("float32"), backends.parse("h100"))
    with pytest.raises(ScheduleError, match=r"store_cache is 0 to 3, not 4"):
        s.annotate("y", "store_cache", 4)


@pytest.mark.parametrize(("n", "has"), [(1 << 24, True), (1 << 16, False)])
def test_large_arrays_that_are_used_once_may_leave_the_cache_first(n: int, has: bool) -> None:
    x = te.placeholder((n,), "float32", name="x")
    found = derive(te.dag([x, te.compute((n,), lambda i: x[i] * 2.0, name="y")]), backends.parse("h100"))
    assert ("y.cache" in found.holes(0)) is has
