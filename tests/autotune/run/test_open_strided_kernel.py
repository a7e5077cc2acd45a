"""Kernels with open sizes whose arguments lie with strides, or are packed, quantised, or joined."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import host, inputs
from open_cases import CASES, OpenCode, close, sampled

import autotune as at
from autotune import backends, targets
from autotune.backends.building.from_trace import programs
from autotune.errors import ArgumentError
from autotune.measure.measurer import Measurer
from autotune.run.describing import describe
from autotune.run.kernels import kernel_of
from autotune.run.open_kernel import OpenKernel
from autotune.run.workloads import as_workload
from schedules import ops, te
from schedules.errors import ScheduleError, WorkloadError
from schedules.model import Trace, Workload
from schedules.te.compute_dag import ComputeDAG
from schedules.te.dims import Dim, dim
from schedules.te.open_sizes import at as at_sizes
from schedules.te.strided import strides_given, with_strides


def n(most: int) -> Dim:
    return dim(1, most, "n", open=True)


def raised(shape: Sequence[object], strides: Sequence[int]) -> ComputeDAG:
    x = te.placeholder(shape, name="x")
    dag = te.dag([x, te.compute(shape, lambda i, j: x[i, j] + 1.0, "y")])
    return with_strides(dag, {"x": strides, "y": strides})


def columns(room: int = 24) -> Workload:
    """Rows of an open length, with room for ``room`` elements."""
    return Workload(raised((5, n(24)), (room, 1)))


def tiled(w: Workload) -> Trace:
    s = at.Schedule(w.dag)
    _, i = s.split(s.loops("y")[1], (None, 4))
    s.vectorize(i)
    return s.trace


def view(rows: int, size: int, room: int, seed: int = 0) -> np.ndarray:
    whole = np.random.default_rng(seed).integers(-4, 5, (rows, room)).astype("float32")
    return whole[:, :size]


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, c in CASES.items() if any(t.strides for t in c.dag().params)])
def test_compiled_schedules_are_right_on_strided_arrays_of_each_size(name: str) -> None:
    """Each array ends, and begins, at a page that faults."""
    case, target = CASES[name], host(1)
    dag = case.dag()
    for trace in list(sampled(dag, 1, target))[:3]:
        func, _ = programs(dag, trace, target)
        code = OpenCode(func, target)
        for size in sorted({1, 2, 3, 5, 8, case.most - 1, case.most}):
            data = inputs(at_sizes(dag, {"n": size}), size)
            for place, got in code.outputs(dag, {"n": size}, data).items():
                assert close(got, te.evaluate(dag, data), case.exact), (size, place)


# -- calls -------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", [24, 31])
def test_rows_of_an_open_length_have_room(room: int) -> None:
    w = columns(room=room)
    kernel = kernel_of(w, backends.parse("cpu", 1), tiled(w))
    assert isinstance(kernel, OpenKernel)
    for size in (24, 1, 3, 17, 4, 24):
        a, out = view(5, size, room, size), np.full((5, room), 9, "float32")
        kernel(a, out=out[:, :size])
        new = kernel(a)
        assert np.array_equal(new, a + 1) and (size == 1 or new.strides == (4 * room, 4))
        assert np.array_equal(out[:, :size], a + 1) and (out[:, size:] == 9).all()
    with pytest.raises(ArgumentError, match=rf"'x' has strides \(17, 1\).* compiled for \({room}, 1\)"):
        kernel(np.ascontiguousarray(view(5, 17, room)), out=out[:, :17])


def test_open_rows_may_be_apart_or_backwards() -> None:
    w = Workload(with_strides(raised((n(20), 6), (9, 1)), {"x": (-6, 1)}))
    kernel = kernel_of(w, backends.parse("cpu", 1), Trace())
    for size in (1, 2, 19, 20):
        a, out = view(size, 6, 6, size), np.full((size, 9), 9, "float32")
        kernel(a[::-1], out=out[:, :6])
        assert np.array_equal(out[:, :6], a[::-1] + 1) and (out[:, 6:] == 9).all()


def test_open_rows_that_are_seen_as_one_dimension_keep_their_strides() -> None:
    """Dimensions behind the open one are merged and split; what callers give is as it was."""
    x = te.placeholder((n(9), 3, 4), name="x")
    dag = with_strides(
        te.dag([x, te.compute(x.shape, lambda i, j, k: x[i, j, k] * 2.0, "y")]), {"x": (20, 4, 1)}
    )
    s = at.Schedule(dag)
    loops = s.loops("y")
    s.merge_axes(*loops[1:])
    s.merge_dims("y", 1, 2)
    s.merge_dims("x", 1, 2)
    with pytest.raises(ScheduleError, match="dimensions without gaps"):
        s.merge_dims("x", 0, 2)
    kernel = kernel_of(Workload(dag), backends.parse("cpu", 1), s.trace)
    for size in (1, 4, 9):
        a = view(size, 12, 20, size)
        assert np.array_equal(
            kernel(np.lib.stride_tricks.as_strided(a, (size, 3, 4), (80, 16, 4))), a.reshape(size, 3, 4) * 2
        )


@pytest.mark.parametrize("tail", ["shift", "guard"])
def test_an_open_dimension_is_merged_with_those_behind_it(tail: str) -> None:
    x = te.placeholder((n(9), 3, 4), name="x")
    dag = te.dag([x, te.compute(x.shape, lambda i, j, k: x[i, j, k] * 2.0, "y")])
    s = at.Schedule(dag.largest)
    merged = s.merge_axes(*s.loops("y"))
    for b in ("x", "y"):
        s.merge_dims(b, 0, 3)
    s.vectorize(s.split(merged, (None, 8), tail)[1])
    kernel = kernel_of(Workload(dag), backends.parse("cpu", 1), s.trace)
    for size in (1, 2, 7, 9):
        a = view(size, 12, 12, size).reshape(size, 3, 4)
        assert np.array_equal(kernel(a), a * 2)


def test_room_is_a_part_of_a_workload() -> None:
    w = columns()
    assert w.dag.open is not None and w.dag.open.roomy == (0, 1)
    assert strides_given(w.dag) == {"x": (24, 1), "y": (24, 1)}
    assert ComputeDAG.from_json(w.dag.to_json()) == w.dag
    assert w.canonical.open is not None and w.canonical.open.roomy == (0, 1)
    assert at_sizes(w.dag, {"n": 3}).inputs[0].strides == (24, 1)
    plain = with_strides(w.dag, {"x": None})
    assert plain.open is not None and plain.open.roomy == (1,)
    assert with_strides(plain, {"x": (24, 1)}) == w.dag
    told = as_workload("matmul", {"m": 4, "n": 5, "k": n(9)}, strides={"a": (9, 1)})
    assert told.dag.open is not None and told.dag.open.roomy == (0,) and "strides a=9x1" in describe(told)
    assert ops.makes(told)
    assert "roomy" not in str(with_strides(plain, {"y": (25, 1)}).to_json())


# -- refused -----------------------------------------------------------------------------------


def test_strides_that_depend_on_a_size_are_refused_by_name() -> None:
    m = n(9)
    x = te.placeholder((4, m), strides=(m + 1, 1), name="x")
    with pytest.raises(
        WorkloadError, match=r"a stride of argument x depends on the open size n=1\.\.9; give"
    ):
        te.dag([x, te.compute(x.shape, lambda i, j: x[i, j] + 1.0, "y")])
    with pytest.raises(WorkloadError, match="a stride of argument b depends on the open size"):
        at.tune("matmul", m=4, n=m, k=5, strides={"b": (m, 1)}, trials=1)
    with pytest.raises(WorkloadError, match="argument x has the open extent n in dimension 1"):
        at.load("softmax", m=4, n=m, threads=1, fallback=True)


def test_a_constant_of_an_open_extent_is_refused_by_name() -> None:
    with pytest.raises(WorkloadError, match="constant b has the open extent k, so that it is another array"):
        as_workload("matmul", {"m": 4, "n": 5, "k": n(9)}, constant_weights=["b"])


# -- measured ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "status"),
    [
        ("autotune.backends.building.from_trace:build_object", "ok"),
        ("open_builders:a_column_more_below", "out_of_bounds"),
    ],
)
def test_a_gap_that_is_written_below_the_largest_size_is_found(build: str, status: str) -> None:
    w = columns()
    with Measurer(w.dag, targets.detect(1), build=build) as m:
        (found,) = m.measure([Trace()])
    assert found.status == status, found.reason
    assert status == "ok" or "into gaps of y" in found.reason


# -- packed and joined -------------------------------------------------------------------------


@pytest.mark.slow
def test_joined_constants_are_packed_once_for_all_sizes() -> None:
    """Sizes stand behind the arrays that callers give, of which a joined one is one."""
    w = ops.workload("quantized_matmul", {"m": dim(1, 21, "m", open=True), "n": 17, "k": 8})
    w = replace(w, dag=replace(w.dag, constants=("b",)))
    target = host(1)
    rng = np.random.default_rng(1)
    tried = 0
    for trace in sampled(w.dag, 1, target):
        try:
            func, _ = programs(w.dag, trace, target)
        except ScheduleError:
            continue
        if not func.joined or tried == 2:
            continue
        tried += 1
        kernel = kernel_of(w, target, trace)
        data = [
            rng.integers(0, 7, t.shape).astype(t.dtype) if t.shape else np.array(1, t.dtype)
            for t in w.dag.inputs
        ]
        at_b = [t.name for t in w.dag.inputs].index("b")
        packed = kernel.pack_weights(data[at_b])
        packed = packed if isinstance(packed, (tuple, list)) else (packed,)
        for size in (21, 1, 2, 13):
            own = [a[:size] if t.name == "a" else a for t, a in zip(w.dag.inputs, data, strict=True)]
            given = [*own[:at_b], *packed, *own[at_b + 1 :]]
            want = te.evaluate(at_sizes(w.dag, {"m": size}), own)[0]
            assert np.array_equal(kernel(*given), want), size
    assert tried


@pytest.mark.slow
def test_a_range_of_strided_rows_is_tuned_loaded_and_called(tmp_path: Path) -> None:
    said = {"m": 8, "n": 16, "k": dim(1, 40, "k", open=True), "strides": {"a": (40, 1)}, "threads": 1}
    result = at.tune("matmul", **said, db=tmp_path / "log.db", trials=3, budget_s=30, progress=None)
    assert result.best is not None
    kernel = at.load("matmul", **said, db=tmp_path / "log.db")
    for size in (1, 2, 17, 40):
        a, b = view(8, size, 40, size), view(size, 16, 16)
        assert np.allclose(kernel(a, b), a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_an_exported_function_takes_rows_with_room_and_the_size(tmp_path: Path) -> None:
    w = columns()
    files = at.export(kernel_of(w, backends.parse("cpu", 1), tiled(w)), tmp_path, "rows")
    assert "int rows_run(const float *x, float *y, int64_t n);" in files.header.read_text()
    run = ctypes.CDLL(str(files.library)).rows_run
    run.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64]
    for size in (1, 7, 24):
        a, out = view(5, size, 24, size), np.full((5, 24), 9, "float32")
        assert run(a.ctypes.data, out.ctypes.data, size) == 0
        assert np.array_equal(out[:, :size], a + 1) and (out[:, size:] == 9).all()
