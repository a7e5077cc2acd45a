"""One kernel for all sizes of a range: compiled, checked, loaded and called."""

from __future__ import annotations

import ctypes
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import host, inputs
from open_cases import CASES, OUTERMOST, OpenCode, close, sampled

import autotune as at
from autotune import backends, targets
from autotune.backends.building.from_trace import programs
from autotune.codegen.llvm.compile import LoadedObject
from autotune.codegen.runtime.entry import parse_signature
from autotune.errors import ArgumentError
from autotune.measure.measurer import Measurer
from autotune.measure.open_checks import sizes_to_check
from autotune.run.kernels import kernel_of
from autotune.run.open_kernel import OpenKernel, sizes_of_open
from schedules import ops, te
from schedules.errors import ScheduleError, WorkloadError
from schedules.model import Target, Trace, Workload
from schedules.te.compute_dag import ComputeDAG
from schedules.te.dims import dim
from schedules.te.flops import count_flops
from schedules.te.open_sizes import at as at_sizes


def tiled(dag: ComputeDAG, threads: int = 1) -> Trace:
    """Rows in tiles of 4, which threads share."""
    s = at.Schedule(dag)
    loops = s.loops(s.blocks()[0])
    o, i = s.split(loops[0], (None, 4))
    s.vectorize(loops[1]) if len(loops) == 2 else s.reorder(o, loops[2], i, loops[1])
    if threads > 1:
        s.parallel(o)
    return s.trace


def product(least: int = 1, most: int = 40) -> Workload:
    a, b = te.placeholder((dim(least, most, "m", open=True), 5), name="a"), te.placeholder((5, 16), name="b")
    r = te.reduce_axis(5, "r")
    c = te.compute((a.shape[0], 16), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "c")
    return Workload(te.dag([a, b, c]))


def whole(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype("float32")


@pytest.fixture(scope="module")
def kernel() -> OpenKernel:
    w = product()
    found = kernel_of(w, backends.parse("cpu", 1), tiled(w.dag))
    assert isinstance(found, OpenKernel)
    return found


# -- compiled ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", OUTERMOST)
def test_compiled_schedules_of_the_space_are_right_on_arrays_of_each_size(name: str, threads: int) -> None:
    """Each array ends, and begins, at a page that faults."""
    case, target = CASES[name], host(threads)
    dag = case.dag()
    for trace in list(sampled(dag, 1, target))[:4]:
        func, _ = programs(dag, trace, target)
        code = OpenCode(func, target)
        for n in sorted({1, 2, 3, 4, 5, 7, 8, 9, case.most - 1, case.most} & {*range(1, case.most + 1)}):
            data = inputs(at_sizes(dag, {"n": n}), n)
            want = te.evaluate(dag, data)
            for place, got in code.outputs(dag, {"n": n}, data).items():
                assert close(got, want, case.exact), (n, place)


def test_a_signature_says_which_extents_are_open(kernel: OpenKernel) -> None:
    text = kernel._shared.signature
    assert text == "float32[40,5] float32[5,16] -> float32[40,16] open 1..40 at 0.0=s0 2.0=s0"
    assert parse_signature(text)[0][0][1].shape == (40, 5)
    assert kernel._shared.python_function() is None
    assert kernel.at(m=3).code.python_function() is not None


def test_other_kernels_have_the_text_that_they_had() -> None:
    w = product()
    closed = Workload(w.dag.largest)
    source = backends.of(targets.detect(1)).source(closed.dag, tiled(closed.dag), targets.detect(1))
    assert ".size" not in source and " open " not in source


def test_arguments_whose_strides_depend_on_a_size_are_refused_by_name() -> None:
    x = te.placeholder((3, dim(1, 6, "m", open=True)), name="x")
    dag = te.dag([x, te.compute(x.shape, lambda i, j: x[i, j] + 1.0, "y")])
    with pytest.raises(
        ScheduleError, match=r"argument x has the open extent m in dimension 1"
    ):
        programs(dag, Trace(), host())
    y = te.placeholder((1, dim(1, 6, "m", open=True)), name="y")
    alone = te.dag([y, te.compute(y.shape, lambda i, j: y[i, j] + 1.0, "z")])
    assert programs(alone, Trace(), host())


# -- calls -------------------------------------------------------------------------------------


def test_every_size_is_right_in_any_order(kernel: OpenKernel) -> None:
    b = whole(5, 16, seed=9)
    for m in [*range(1, 41), 40, 1, 37, 2, 36, 3]:
        a = whole(m, 5, seed=m)
        assert np.array_equal(kernel(a, b), a @ b)
        out = np.full((m, 16), np.nan, "float32")
        assert kernel(a, b=b, out=out) is out and np.array_equal(out, a @ b)


def test_a_stale_size_is_seen(kernel: OpenKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above would see: code that is told another size, here always that of the first call."""
    right = LoadedObject.sized
    monkeypatch.setattr(LoadedObject, "sized", lambda self, text, sizes: right(self, text, (2,)))
    stale = kernel_of(kernel.workload, kernel.target, kernel.trace)
    b = whole(5, 16, seed=9)
    assert np.array_equal(stale(whole(2, 5), b), whole(2, 5) @ b)
    out = np.full((7, 16), np.nan, "float32")
    assert not np.array_equal(stale(whole(7, 5), b, out=out), whole(7, 5) @ b)


def test_sizes_of_several_threads_at_once_do_not_meet(kernel: OpenKernel) -> None:
    b = whole(5, 16, seed=9)

    def calls(seed: int) -> bool:
        sizes = np.random.default_rng(seed).integers(1, 41, 60)
        return all(np.array_equal(kernel(a := whole(int(m), 5, seed=seed), b), a @ b) for m in sizes)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(calls, range(8)))


@pytest.mark.parametrize("m", [0, 41, 1000])
def test_a_size_outside_the_range_is_refused_with_both_numbers(kernel: OpenKernel, m: int) -> None:
    with pytest.raises(ArgumentError, match=rf"a\[{m}, 5\] do not fit .*m=1\.\.40"):
        kernel(np.ones((m, 5), "float32"), whole(5, 16))


def test_arguments_of_two_sizes_are_refused(kernel: OpenKernel) -> None:
    with pytest.raises(ArgumentError, match=r"output 'c' has shape \(8, 16\), but .* \(7, 16\)"):
        kernel(whole(7, 5), whole(5, 16), out=np.empty((8, 16), "float32"))
    with pytest.raises(ArgumentError, match="is float64"):
        kernel(np.ones((7, 5)), whole(5, 16))


def test_an_array_of_other_dimensions_is_refused_by_name(kernel: OpenKernel) -> None:
    for a in (whole(1, 7, 5), whole(5), np.float32(3)):
        with pytest.raises(ArgumentError, match=r"input 'a' has shape .*, but the kernel"):
            kernel(a, whole(5, 16))


def test_a_size_is_told_by_an_extent_that_grows_with_it() -> None:
    """``2 * (m // 2) + 1`` of 2 and 4 rows are as far apart as the sizes, and 3 rows give that of 2."""
    m = dim(2, 4, "m", open=True)
    x, y = te.placeholder((2 * (m // 2) + 1, 3), name="x"), te.placeholder((m, 3), name="y")
    dag = te.dag([x, y, te.compute((m, 3), lambda i, j: x[i // 2, j] + y[i, j], "z")])
    found = kernel_of(Workload(dag), backends.parse("cpu", 1), Trace())
    for m in (2, 3, 4):
        a, b = whole(2 * (m // 2) + 1, 3), whole(m, 3, seed=1)
        assert np.array_equal(found(a, b), a[np.arange(m) // 2] + b)


@pytest.mark.parametrize(
    "form", [lambda m: 2 * m + 1, lambda m: m * 3 - 2, lambda m: (m + 2) // 2, lambda m: 1 + m]
)
def test_kernels_are_loaded_whatever_the_form_of_an_extent(form: Any) -> None:
    """The text of an extent is the same in a signature and in what a DAG asks for."""
    m = dim(2, 9, "m", open=True)
    x, y = te.placeholder((m, 3), name="x"), te.placeholder((form(m), 3), name="y")
    value = lambda i, j: y[i, j] + te.cast(0, "float32") * x[0, 0]  # noqa: E731
    found = kernel_of(Workload(te.dag([x, y, te.compute((form(m), 3), value, "z")])), host(), Trace())
    for n in (2, 9):
        rows = int(form(n))
        assert np.array_equal(found(whole(n, 3), whole(rows, 3, seed=2)), whole(rows, 3, seed=2))


def test_kernels_of_one_size_share_scratch_and_code(kernel: OpenKernel) -> None:
    small, large = kernel.at(m=3), kernel.at(m=30)
    assert small.code.address == large.code.address and small.code.shared is large.code.shared
    assert small.workload.dag == at_sizes(kernel.workload.dag, {"m": 3})
    assert small.time(repeat=1) > 0 and kernel.time(repeat=1) > 0
    with pytest.raises(WorkloadError, match=r"m=41 is outside 1\.\.40"):
        kernel.at(m=41)
    for m in ("3", 3.0, True, None):
        with pytest.raises(WorkloadError, match=f"m={m!r} is not an integer; give a size, such as m=40"):
            kernel.at(m=m)


def test_a_pickle_is_the_whole_range(kernel: OpenKernel) -> None:
    back = pickle.loads(pickle.dumps(kernel))
    assert isinstance(back, OpenKernel)
    assert np.array_equal(back(whole(7, 5), whole(5, 16)), whole(7, 5) @ whole(5, 16))


def test_a_schedule_by_hand_is_built_for_a_range() -> None:
    w = product(2, 20)
    s = at.Schedule(w.dag)
    s.split("c_i", (None, 8))
    found = at.build(s, threads=1)
    assert np.array_equal(found(whole(13, 5), whole(5, 16)), whole(13, 5) @ whole(5, 16))


def test_a_kernel_that_was_tuned_for_a_size_is_taken_there(kernel: OpenKernel) -> None:
    own = kernel_of(Workload(at_sizes(kernel.workload.dag, {"m": 6})), backends.parse("cpu", 1), Trace())
    other = kernel_of(kernel.workload, kernel.target, kernel.trace)
    other.exact = lambda w: own if w.digest == own.workload.digest else None
    assert other.at(m=6) is own and other.at(m=7) is not own


def test_weights_are_packed_once_for_all_sizes() -> None:
    from dataclasses import replace

    w = product()
    dag = replace(w.dag, constants=("b",))
    s = at.Schedule(dag)
    s.cache_read("c", "b", "global")
    s.reorder_storage("b_global", (1, 0))
    found = kernel_of(Workload(dag), backends.parse("cpu", 1), s.trace)
    b = whole(5, 16)
    packed = found.pack_weights(b)
    for m in (1, 5, 40):
        assert np.array_equal(found(whole(m, 5), packed), whole(m, 5) @ b)


@pytest.mark.slow
def test_an_exported_function_takes_the_size(kernel: OpenKernel, tmp_path: Path) -> None:
    files = at.export(kernel, tmp_path, "rows")
    text = files.header.read_text()
    assert "int rows_run(const float *a, const float *b, float *c, int64_t m);" in text
    assert "m is 1 to 40" in text
    contract = json.loads(files.contract.read_text())
    assert contract["sizes"] == [{"name": "m", "c_name": "m", "least": 1, "most": 40}]
    run = ctypes.CDLL(str(files.library)).rows_run
    run.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64]
    for m in (1, 7, 40):
        a, b, c = whole(m, 5, seed=m), whole(5, 16), np.full((m, 16), np.nan, "float32")
        assert run(a.ctypes.data, b.ctypes.data, c.ctypes.data, m) == 0
        assert np.array_equal(c, a @ b)
    assert contract["returns"]["1"] == "a size is outside of its range, and nothing was computed"
    c = np.full((64, 16), np.nan, "float32")
    for m in (0, -1, 41, 1 << 40, -(1 << 63)):
        assert run(a.ctypes.data, b.ctypes.data, c.ctypes.data, m) == 1
        assert np.isnan(c).all()


def test_the_parameters_of_a_workload_are_those_of_the_largest_size() -> None:
    w = ops.workload("matmul", {"m": dim(1, 9, open=True), "n": 4, "k": 5})
    assert ops.parameters(w)["m"] == 9
    data = inputs(w.dag.largest)
    assert np.array_equal(ops.reference(w, data)[0], data[0] @ data[1])
    assert "with m=1..9 open" in str(at.explain(at.Schedule(w.dag)))


# -- measured ----------------------------------------------------------------------------------


def test_sizes_that_are_checked() -> None:
    assert [s["m"] for s in sizes_to_check(product(1, 512).dag)] == [1, 2, 23, 257]
    assert [s["m"] for s in sizes_to_check(product(1, 2).dag)] == [1]
    assert [s["m"] for s in sizes_to_check(product(3, 4).dag)] == [3]
    assert sizes_to_check(product().dag.largest) == []


def copies_of_tiles() -> tuple[ComputeDAG, Trace]:
    """A tile of rows is copied, whose guard may only be dropped if rows beyond the size exist."""
    x = te.placeholder((dim(2, 4096, "m", open=True), 1024), name="x")
    dag = te.dag([x, te.compute(x.shape, lambda i, j: x[i, j] + 1.0, "y")])
    s = at.Schedule(dag)
    s.cache_read("y", "x", "local")
    o, _ = s.split("y_i", (None, 4))
    s.compute_at("x_local", o)
    return dag, s.trace


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "status"),
    [
        ("autotune.backends.building.from_trace:build_object", "ok"),
        ("open_builders:a_row_less", "wrong_result"),
        ("open_builders:a_row_more", "out_of_bounds"),
        ("open_builders:reads_rows_of_the_largest", "out_of_bounds"),
    ],
)
def test_what_is_wrong_at_some_size_is_found(build: str, status: str) -> None:
    dag, trace = copies_of_tiles()
    with Measurer(dag, targets.detect(1), build=build) as m:
        (found,) = m.measure([trace])
    assert found.status == status, found.reason


@pytest.mark.slow
def test_a_range_is_tuned_loaded_and_called(tmp_path: Path) -> None:
    log = tmp_path / "log.db"
    m = at.dim(1, 48, open=True)
    said = {"n": 32, "k": 16, "threads": 1, "db": log}
    result = at.tune("matmul", m=m, **said, trials=3, budget_s=30, progress=None)
    assert result.best is not None and "m=1..48,open" in str(result)
    kernel = at.load("matmul", m=at.dim(1, 48, open=True), **said)
    assert isinstance(kernel, OpenKernel) and kernel.chosen_by == "log"
    b = whole(16, 32)
    for rows in (1, 5, 31, 48):
        a = whole(rows, 16, seed=rows)
        assert np.allclose(kernel(a, b), a @ b, rtol=1e-4, atol=1e-4)
    at.tune("matmul", m=5, **said, trials=1, budget_s=30, progress=None)
    again = at.load("matmul", m=at.dim(1, 48, open=True), **said)
    assert again.at(m=5).chosen_by == "log" and again.at(m=5).code.shared is not again.at(m=6).code.shared
    assert again.at(m=6).code.shared is again.at(m=7).code.shared


# -- asked for ---------------------------------------------------------------------------------


def test_a_shape_says_that_a_size_is_open() -> None:
    found = ops.parse_shape("m=1..512,open,n=64, k=3..4")
    assert (found["m"].lo, found["m"].hi, found["m"].open) == (1, 512, True)
    assert found["n"] == 64 and not found["k"].open
    w = ops.workload("matmul", ops.parse_shape("m=1..512,open,n=64,k=32"))
    assert w.dag.open is not None and dict(w.params)["m"] == "1..512,open" and ops.makes(w)
    with pytest.raises(WorkloadError, match="cannot read"):
        ops.parse_shape("m=512,open")


def test_an_operator_that_needs_the_number_says_so() -> None:
    with pytest.raises(WorkloadError, match="max_pool2d: its expression needs numbers for h"):
        ops.workload("max_pool2d", {"h": dim(8, 28, open=True), "w": 28, "c": 4, "k": 3})


def test_a_gpu_takes_no_open_sizes() -> None:
    from autotune.backends.building.from_trace import grid_program

    with pytest.raises(ScheduleError, match="kernels for a GPU take no open sizes"):
        grid_program(product().dag, Trace(), Target("cuda", "sm_80"))


@pytest.mark.parametrize("name", OUTERMOST)
def test_a_size_has_the_operations_of_its_own_expression(name: str) -> None:
    w = Workload(CASES[name].dag(), flops=count_flops(CASES[name].dag().largest))
    sizes = sizes_of_open(w)
    for n in (1, 2, CASES[name].most):
        assert sizes.at((n,)).flops == count_flops(at_sizes(w.dag, {"n": n}))
