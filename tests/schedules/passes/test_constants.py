"""Inputs known ahead: what packs them is split off, runs once, and a call takes its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import pytest

import autotune as at
from autotune.backends.building.from_trace import build_object
from autotune.codegen import bundle
from autotune.codegen.runtime.entry import shape_of
from autotune.errors import ArgumentError, CompileError
from autotune.measure import Measurer, Options
from autotune.run.describing import describe, tune_command
from autotune.run.kernels import kernel_of
from autotune.run.workloads import as_workload, with_constants
from schedules import ops
from schedules.constants import split_constants
from schedules.errors import WorkloadError
from schedules.ir.interp import run
from schedules.model import LINE, Trace, Workload
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.te.compute_dag import ComputeDAG

CASES: list[tuple[str, dict[str, Any]]] = [
    ("matmul", {"m": 5, "n": 37, "k": 29}),
    ("matmul", {"m": 1, "n": 33, "k": 40}),
    ("matmul", {"m": 6, "n": 40, "k": 17, "transpose_b": 1}),
    ("matmul_bias_relu", {"m": 7, "n": 50, "k": 23}),
    ("batch_matmul", {"b": 2, "m": 5, "n": 35, "k": 18}),
    ("conv2d", {"h": 4, "w": 5, "ci": 3, "co": 33, "k": 3, "padding": 1}),
    ("conv2d_transpose", {"h": 2, "w": 3, "ci": 3, "co": 33, "k": 4, "stride": 2, "padding": 1}),
]


def constant(op: str, params: Mapping[str, Any]) -> Workload:
    return as_workload(op, params, constant_weights=True)


def candidates(w: Workload, n: int, threads: int = 1) -> list[Trace]:
    """Up to ``n`` candidates of every sketch."""
    space = derive(w.dag, helpers.host(threads))
    rng = np.random.default_rng(0)
    out = []
    for s in range(len(space.sketches)):
        rows = space.sample(s, 32, rng)
        out += [space.trace(s, r) for r in rows[space.valid(s, rows)][:n]]
    return out


def packs(dag: ComputeDAG, trace: Trace) -> bool:
    return bool(split_constants(Schedule.replay(dag, trace).nest, dag.constants)[1])


@pytest.mark.fast("matmul-params1")
@pytest.mark.parametrize(("op", "params"), CASES)
def test_packing_and_what_is_left_mean_the_whole(op: str, params: dict[str, Any]) -> None:
    w = constant(op, params)
    data = helpers.inputs(w.dag)
    want = helpers.expected(w.dag, data)
    some = [t for t in candidates(w, 1) if packs(w.dag, t)]
    assert some
    for trace in some[:4]:
        nest, packing = split_constants(Schedule.replay(w.dag, trace).nest, w.dag.constants)
        arrays = {t.name: x.copy() for t, x in zip(w.dag.inputs, data, strict=True)}
        for name, pack in packing.items():
            packed = pack.buffer(pack.outputs[0])
            assert pack.params == (name, packed.name) and name not in nest.params
            made = {name: arrays.pop(name), packed.name: np.full(shape_of(packed), np.nan, packed.dtype)}
            run(pack, made)
            arrays[packed.name] = made[packed.name]
        for n in w.dag.outputs:
            arrays[n] = np.full(w.dag.tensors[n].shape, np.nan, w.dag.tensors[n].dtype)
        run(nest, arrays)  # reads no raw weight: there is none any more
        helpers.same([arrays[n] for n in w.dag.outputs], want, f"{trace.to_json()}")


@pytest.mark.fast("1-matmul-params0")
@pytest.mark.parametrize(("op", "params"), CASES)
@pytest.mark.parametrize("threads", [1, 2])
def test_kernels_take_packed_weights(op: str, params: dict[str, Any], threads: int) -> None:
    w = constant(op, params)
    data = helpers.inputs(w.dag)
    want = helpers.expected(w.dag, data)
    place = [t.name for t in w.dag.inputs].index(*w.dag.constants)
    for trace in candidates(w, 1, threads)[:6]:
        kernel = kernel_of(w, helpers.host(threads), trace)
        packed = kernel.pack_weights(data[place])
        got = kernel(*data[:place], packed, *data[place + 1 :])
        helpers.same([got], want, trace.to_json())
        helpers.same([kernel(*kernel.packed_inputs(data))], want, trace.to_json())


def test_weights_that_change_are_packed_again() -> None:
    w = constant("matmul", {"m": 4, "n": 40, "k": 12})
    trace = next(t for t in candidates(w, 1) if packs(w.dag, t))
    kernel = kernel_of(w, helpers.host(), trace)
    a, b = helpers.inputs(w.dag)
    packed = kernel.pack_weights(b)
    assert packed.ctypes.data % LINE == 0  # else vectors of AVX-512 lie in two lines each
    b += 1
    np.testing.assert_array_equal(kernel(a, packed), a @ (b - 1))
    np.testing.assert_array_equal(kernel(a, kernel.pack_weights(b)), a @ b)


def test_misuse_says_what_to_do() -> None:
    w = constant("matmul", {"m": 4, "n": 40, "k": 12})
    trace = next(t for t in candidates(w, 1) if packs(w.dag, t))
    kernel = kernel_of(w, helpers.host(), trace)
    a, b = helpers.inputs(w.dag)
    with pytest.raises(ArgumentError, match=r"input 'b' is not packed: give what kernel.pack_weights"):
        kernel(a, b)
    with pytest.raises(ArgumentError, match="pack_weights takes b; 2 arrays were given"):
        kernel.pack_weights(a, b)
    with pytest.raises(ArgumentError, match=r"input 'b' has shape \(40, 12\)"):
        kernel.pack_weights(np.ascontiguousarray(b.T))
    plain = kernel_of(ops.workload("matmul", {"m": 4, "n": 40, "k": 12}), helpers.host(), Trace())
    with pytest.raises(ArgumentError, match="was not tuned for weights known ahead.*constant_weights=True"):
        plain.pack_weights(b)


def test_weights_that_a_schedule_reads_as_they_are_come_back_unchanged() -> None:
    w = constant("matmul", {"m": 4, "n": 6, "k": 5})
    kernel = kernel_of(w, helpers.host(), Trace())
    a, b = helpers.inputs(w.dag)
    assert kernel.pack_weights(b) is b
    np.testing.assert_array_equal(kernel(a, b), a @ b)


def test_constants_belong_to_the_identity_and_to_nothing_that_has_none() -> None:
    plain = ops.workload("matmul", {"m": 4, "n": 6, "k": 5})
    w = with_constants(plain, True)
    assert w.digest != plain.digest and "constants" not in plain.json
    assert Workload.from_json(w.json, names=w.names).dag == w.dag and w.dag.constants == ("b",)
    assert describe(w) == "matmul m=4 n=6 k=5 float32 constant b"
    assert "--constant-weights" in tune_command(w, "x.db", 1)
    assert with_constants(plain, False) is plain
    assert with_constants(plain, ["b", "a"]).dag.constants == ("a", "b")


@pytest.mark.parametrize(
    ("op", "params", "which", "message"),
    [
        ("softmax", {"m": 4, "n": 4}, True, "softmax has no weights of its own.*name the inputs.*x"),
        ("matmul", {"m": 4, "n": 4, "k": 4}, ["w"], "'w' is not an input; the inputs are a, b"),
    ],
)
def test_what_cannot_be_constant_is_named(op: str, params: dict[str, Any], which: Any, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        as_workload(op, params, constant_weights=which)


def test_a_dag_refuses_constants_that_are_not_inputs() -> None:
    dag = ops.workload("matmul", {"m": 4, "n": 6, "k": 5}).dag
    with pytest.raises(ValueError, match="constant 'c' is not an input; the inputs are a, b"):
        replace(dag, constants=("c",))
    with pytest.raises(ValueError, match="in the order of the inputs"):
        replace(dag, constants=("b", "a"))


def test_what_one_constant_is_made_of_with_another_input_stays() -> None:
    """A copy that reads an input which is not known ahead cannot be made ahead."""
    a, b, c = (at.te.placeholder((8, 8), "float32", name=n) for n in "abc")
    mixed = at.te.compute((8, 8), lambda i, j: a[i, j] + b[i, j], name="mixed")
    out = at.te.compute((8, 8), lambda i, j: mixed[i, j] * c[i, j], name="out")
    dag = replace(at.te.dag([a, b, c, out]), constants=("b",))
    nest, packing = split_constants(Schedule(dag).nest, dag.constants)
    assert packing == {} and nest == Schedule(dag).nest


def test_what_is_packed_into_its_own_shape_is_packed_in_the_kernel() -> None:
    """Of two arrays of one shape nobody could tell which is packed."""
    w = constant("matmul", {"m": 4, "n": 16, "k": 16})
    s = Schedule(w.dag)
    copy = s.cache_read("c", "b", "global")
    s.reorder_storage(copy, [1, 0])
    a, b = helpers.inputs(w.dag)
    kernel = kernel_of(w, helpers.host(), s.trace)
    assert kernel.pack_weights(b) is b
    np.testing.assert_array_equal(kernel(a, b), a @ b)


@pytest.mark.parametrize("parts", [{}, {1: b"pack"}, {0: b"", 2: b"two"}])
def test_bundles_come_apart_as_they_were_put_together(parts: dict[int, bytes]) -> None:
    assert bundle.split(bundle.join(b"\x7fELF kernel", parts)) == (b"\x7fELF kernel", parts)


@pytest.mark.parametrize("data", [bundle.MAGIC, bundle.MAGIC + b"[[1, 5]]\nabc", bundle.MAGIC + b"{}]\n"])
def test_a_bundle_that_is_cut_off_is_refused(data: bytes) -> None:
    with pytest.raises(CompileError, match="a bundle of objects"):
        bundle.split(data)


@pytest.mark.slow
def test_candidates_are_measured_with_what_they_pack() -> None:
    w = constant("matmul", {"m": 5, "n": 70, "k": 33})
    traces = [t for t in candidates(w, 4) if packs(w.dag, t)][:3]
    with Measurer(w.dag, helpers.host(), options=Options()) as m:
        measured = list(m.measure(traces))
        again = m.finalists(traces, 1, 3)
    assert [x.status for x in measured + again] == ["ok"] * 2 * len(traces)


def wrong_packing(dag: ComputeDAG, trace: Trace, target: Any) -> bytes:
    """A kernel that packs another number of elements than its kernel reads."""
    kernel, packing = bundle.split(build_object(dag, trace, target))
    other = as_workload("matmul", {"m": 3, "n": 64, "k": 41}, constant_weights=True)
    trace = next(t for t in candidates(other, 4) if packs(other.dag, t))
    return bundle.join(kernel, bundle.split(build_object(other.dag, trace, target))[1] if packing else {})


@pytest.mark.slow
def test_an_object_that_packs_something_else_is_refused() -> None:
    w = constant("matmul", {"m": 3, "n": 64, "k": 40})
    trace = next(t for t in candidates(w, 4) if packs(w.dag, t))
    with Measurer(w.dag, helpers.host(), build="test_constants:wrong_packing") as m:
        (got,) = m.measure([trace])
    assert got.status == "compile_error" and "which is not of this workload" in got.reason


@pytest.mark.slow
def test_tune_and_load_through_the_public_names(tmp_path: Path) -> None:
    db, shape = tmp_path / "t.db", {"m": 3, "n": 64, "k": 32}
    at.tune("matmul", trials=24, budget_s=20, threads=1, db=db, constant_weights=True, **shape)
    kernel = at.load("matmul", threads=1, db=db, constant_weights=True, **shape)
    a, b = helpers.inputs(kernel.workload.dag)
    np.testing.assert_array_equal(kernel(a, kernel.pack_weights(b)), a @ b)
    with pytest.raises(at.KernelNotFound):
        at.load("matmul", threads=1, db=db, **shape)
