"""`load`: which record is taken, the cache of objects, and what is said when there is nothing."""

from __future__ import annotations

import inspect
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_device import EmulatedDevice
from grid_cases import need_cxx
from log_filler import Entry, fill, host

import autotune as at
from autotune import backends, targets
from autotune.backends import base
from autotune.backends.building import from_trace
from autotune.backends.cuda import Cuda
from autotune.codegen.simt import emulator
from autotune.run import kernels, recent
from autotune.run.workloads import as_workload, with_constants
from kernels_db import NewRecord
from schedules import ops, te
from schedules.model import Step, Target
from schedules.trace_names import to_canonical

SHAPE = {"m": 8, "n": 12, "k": 4}


def entry(time_s: float = 1e-4) -> Entry:
    return ("matmul", SHAPE, time_s)


def check(kernel: at.Kernel) -> None:
    random = np.random.default_rng(0)
    a = random.integers(-4, 5, (8, 4)).astype(np.float32)
    b = random.integers(-4, 5, (4, 12)).astype(np.float32)
    assert np.array_equal(kernel(a, b), a @ b)


@pytest.fixture
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "usable_cpus", lambda: 2)
    monkeypatch.setattr(targets.cpus, "usable_cpus", lambda: 2)


def test_a_stored_kernel_computes(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    (uid,) = fill(db, [entry()])
    kernel = at.load("matmul", **SHAPE, db=db)
    check(kernel)
    assert kernel.record.uid == uid and kernel.workload.op == "matmul" and kernel.target == host()
    assert kernel.trace.steps[0].primitive == "split" and "@kernel" in kernel.source()


@pytest.mark.usefixtures("two_cpus")
def test_the_fastest_thread_count_that_can_run_is_taken(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    for threads, time_s in ((1, 3e-4), (2, 2e-4), (4, 1e-4)):
        fill(db, [entry(time_s)], replace(host(), threads=threads))
    assert at.best("matmul", **SHAPE, db=db).target.threads == 2
    assert at.best("matmul", **SHAPE, threads=1, db=db).target.threads == 1
    with pytest.raises(at.TargetError, match="threads=4"):
        at.best("matmul", **SHAPE, threads=4, db=db)


def test_a_kernel_for_other_instructions_is_never_taken(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    alien = replace(host(), features=tuple(sorted({*host().features, "amx-fp16"})), arch="future")
    if backends.runnable(alien):
        pytest.skip("this CPU has the newest extension there is")
    fill(db, [entry(1e-9)], alien)
    with pytest.raises(at.KernelNotFound, match="future, 1 thread"):
        at.load("matmul", **SHAPE, db=db)


def relative(**change: object) -> Target:
    """This machine with other caches, and whatever else is changed."""
    limits = tuple((k, 2 * v if k == "l2_bytes" else v) for k, v in host().limits)
    return replace(host(), limits=limits, **change)  # type: ignore[arg-type]


def test_the_record_of_a_relative_is_taken_only_when_asked_for(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    fill(db, [entry(1e-9)], relative())
    with pytest.raises(at.KernelNotFound, match="--nearest"):
        at.best("matmul", **SHAPE, threads=1, db=db)
    with pytest.raises(at.KernelNotFound, match="nearest=True"):
        at.load("matmul", **SHAPE, threads=1, db=db)
    fill(db, [entry(1e-3)])
    for nearest in (False, True):  # this machine's own comes first, however slow
        assert at.best("matmul", **SHAPE, threads=1, db=db, nearest=nearest).target == host()


@pytest.mark.parametrize("faster", [True, False])
def test_the_nearest_is_used_only_where_it_beats_the_default_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faster: bool
) -> None:
    db = tmp_path / "t.db"
    far = relative(arch="x86-64", features=tuple(f for f in host().features if f.startswith("sse")))
    (uid,) = fill(db, [entry(1e-3)], relative())
    fill(db, [entry(1e-9)], far)
    times = {True: 1e-6 if faster else 2e-6, False: 1.5e-6}
    monkeypatch.setattr(at.Kernel, "time", lambda kernel, repeat: times[kernel.record is not None])
    with pytest.warns(UserWarning, match="it is used" if faster else "the default schedule is used"):
        kernel = at.load("matmul", **SHAPE, threads=1, db=db, nearest=True)
    check(kernel)
    assert (kernel.record.uid if faster else kernel.record) == (uid if faster else None)
    if faster:
        with pytest.warns(UserWarning, match=rf"{uid}.*takes 1e-06 s here, the default schedule 1\.5e-06"):
            assert at.best("matmul", **SHAPE, threads=1, db=db, nearest=True).record.uid == uid
    else:
        with pytest.raises(at.KernelNotFound, match="beats the default schedule here"):
            at.best("matmul", **SHAPE, threads=1, db=db, nearest=True)


def test_nearest_times_both_for_real_and_finds_nothing_where_nothing_is(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    with pytest.raises(at.KernelNotFound):
        at.load("matmul", **SHAPE, db=db, nearest=True)
    fill(db, [entry(1e-3)], relative())
    with pytest.warns(UserWarning, match="the nearest is record"):
        check(at.load("matmul", **SHAPE, threads=1, db=db, nearest=True))


@pytest.mark.slow
@pytest.mark.parametrize("faster", [True, False])
def test_sizes_of_a_range_take_the_nearest_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faster: bool
) -> None:
    db = tmp_path / "t.db"
    small = {**SHAPE, "m": 2}
    fill(db, [("matmul", small, 1e-3)], relative())
    times = {True: 1e-6 if faster else 2e-6, False: 1.5e-6}
    monkeypatch.setattr(at.Kernel, "time", lambda kernel, repeat: times[kernel.record is not None])
    asked = {**SHAPE, "m": at.dim(1, 4), "db": db}
    for given in ({}, {"nearest": True, "target": host()}):
        with pytest.raises(at.KernelNotFound, match="nearest=True"):
            at.load("matmul", **asked, **given)  # type: ignore[arg-type]
    with pytest.warns(UserWarning) as caught:
        kernel = at.load("matmul", **asked, nearest=True)
    assert [str(w.message).partition(";")[0] for w in caught] == [
        f"nothing is stored of matmul m=2 n={SHAPE['n']} k={SHAPE['k']} float32 for this machine"
    ]
    assert caught[0].filename == __file__
    assert kernel.target.threads == 1  # as the record, which was tuned with one
    assert kernel.at(m=2).chosen_by == ("similar_machine" if faster else "default")  # type: ignore[attr-defined]
    assert kernel.at(m=4).chosen_by in ("similar_shape", "similar_machine", "model", "default")  # type: ignore[attr-defined]
    a, b = np.ones((2, SHAPE["k"]), np.float32), np.ones((SHAPE["k"], SHAPE["n"]), np.float32)
    assert np.array_equal(kernel(a, b), a @ b)


def test_a_pinned_record_is_taken_whatever_comes_later(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    (uid,) = fill(db, [entry(1e-3)])
    with at.Log(db) as log:
        log.pin()
        fill(db, [entry(1e-6)])
        fill(db, [entry(1e-9)], replace(host(), threads=2))  # a task that nobody pinned
        hit = at.best("matmul", **SHAPE, db=db)
        assert (hit.record.uid, hit.pinned) == (uid, True)
        assert at.load("matmul", **SHAPE, db=db).record.uid == uid
        assert log.unpin() == 1
    assert at.best("matmul", **SHAPE, threads=1, db=db).time_s == 1e-6


@pytest.mark.slow
def test_a_pinned_record_that_is_not_legal_is_not_replaced_by_another(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    (uid,) = fill(db, [entry(1e-3)])
    workload = ops.workload("matmul", SHAPE)
    with at.Log(db) as log:
        run = log.start_run(workload, host(), {"cpu": "elsewhere"}, seed=0).uid
        bad = at.Trace((Step("unroll", (("loop", "nowhere"),)),))
        log.add(NewRecord(run, 0, "x", bad, "ok", times_s=[1e-9]))
        with pytest.warns(UserWarning, match="record .* cannot be used.*nowhere"):
            assert at.load("matmul", **SHAPE, db=db).record.uid == uid
        log.pin()
    for use in (at.load, at.best):
        with pytest.raises(at.ScheduleError, match="pinned record .* cannot be used"):
            use("matmul", **SHAPE, db=db)
    with pytest.warns(UserWarning, match="not tuned"):
        assert at.load("matmul", **SHAPE, db=db, fallback=True).record is None


def test_a_target_given_is_meant_exactly(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    fill(db, [entry()])
    other = Target("cpu", "x86-64", host().triple, ("sse", "sse2"), 1, host().limits)
    with pytest.raises(at.KernelNotFound):
        at.best("matmul", **SHAPE, target=other, db=db)
    assert at.best("matmul", **SHAPE, target=host(), db=db).time_s == 1e-4


def test_not_found_names_everything_and_the_command(tmp_path: Path) -> None:
    with pytest.raises(at.KernelNotFound) as caught:
        at.load("conv2d", h=8, w=8, ci=4, co=4, k=3, padding=1, layout="NCHW", db=tmp_path / "my log.db")
    text = str(caught.value)
    assert "conv2d h=8 w=8 ci=4 co=4 kh=3 kw=3 padding=1 layout=NCHW float32" in text
    assert (
        f"autotune tune conv2d --shape h=8,w=8,ci=4,co=4,kh=3,kw=3,padding=1 --dtype float32 --layout NCHW "
        f"--db '{tmp_path / 'my log.db'}'"
    ) in text
    te = at.te
    a = te.placeholder((3,), "float32", name="A")
    with pytest.raises(at.KernelNotFound, match=r"expression of B\[3\] float32"):
        at.load([a, te.compute((3,), lambda i: a[i] + 1.0, name="B")], db=tmp_path / "t.db")


@pytest.mark.parametrize("ahead", [False, True])
def test_the_other_kind_of_weights_is_pointed_at(tmp_path: Path, ahead: bool) -> None:
    db = tmp_path / "t.db"
    stored = with_constants(ops.workload("matmul", SHAPE), not ahead)
    with at.Log(db) as log:
        run = log.start_run(stored, host(), {"cpu": "here"}, seed=0).uid
        log.add(NewRecord(run, 0, "x", at.Trace(), "ok", times_s=[1e-3]))
    said = "as arguments: without --constant-weights" if ahead else "known ahead: --constant-weights"
    with pytest.raises(at.KernelNotFound, match=f"stored there with its weights {said}"):
        at.load("matmul", **SHAPE, constant_weights=ahead, db=db)
    assert at.best("matmul", **SHAPE, constant_weights=not ahead, db=db).time_s == 1e-3


def expression(
    given: str = "A", made: str = "C", axis: str = "k", row: str = "i", reducer: str = "sum"
) -> list[Any]:
    te = at.te
    a, k = te.placeholder((3, 4), name=given), te.reduce_axis(4, axis)
    add = te.reducer((0,), lambda x, y: (x[0] + y[0],), reducer)
    function = eval(f"lambda {row}: add(a[{row}, k], axis=k)", {"add": add, "a": a, "k": k})
    c = te.compute((3,), function, made)
    return [a, c, te.compute((3,), lambda i: c[i] * 2.0, "D")]


@pytest.mark.parametrize(
    "other",
    [
        {"given": "left"},
        {"made": "product"},
        {"axis": "r"},
        {"row": "x"},
        {"reducer": "plus"},
        {"given": "C", "made": "A"},
        {"given": "T1", "made": "T0", "axis": "i0", "row": "k0"},
    ],
)
def test_a_renamed_expression_loads_what_was_tuned_under_another_name(
    tmp_path: Path, other: dict[str, str]
) -> None:
    db = tmp_path / "t.db"
    tuned = as_workload(expression(), {})
    s = at.Schedule(tuned.dag)
    s.split("C_i", (None, 2))
    s.unroll("C_i_1")
    with at.Log(db) as log:
        run = log.start_run(tuned, host(), {"cpu": "here"}, seed=0).uid
        log.add(NewRecord(run, 0, "x", to_canonical(tuned, s.trace)[0], "ok", times_s=[1e-3]))
        assert log.stats()["workloads"] == 1
    given, made = other.get("given", "A"), other.get("made", "C")
    for names in ({}, other):
        assert at.best(expression(**names), db=db).time_s == 1e-3
        kernel = at.load(expression(**names), db=db)
        x = np.arange(12, dtype=np.float32).reshape(3, 4)
        c, d = kernel(x)
        assert np.array_equal(c, x.sum(1)) and np.array_equal(d, 2 * x.sum(1))
    assert list(inspect.signature(kernel).parameters) == [given, "out"]
    row = other.get("row", "i")
    assert kernel.trace is not None and kernel.trace.steps[1].args == (("loop", f"{made}_{row}_1"),)
    assert at.Schedule.replay(kernel.workload.dag, kernel.trace).blocks()[0] == made
    with pytest.raises(at.ArgumentError, match=f"input '{given}' is float64"):
        kernel(x.astype(np.float64))
    with pytest.raises(at.KernelNotFound):  # nothing of the kind
        at.load([*expression(**other)[:2]], db=db)


def test_a_stored_schedule_that_is_not_legal_is_told_in_the_names_of_the_expression(tmp_path: Path) -> None:
    tuned = as_workload(expression(), {})
    with at.Log(tmp_path / "t.db") as log:
        run = log.start_run(tuned, host(), {"cpu": "here"}, seed=0).uid
        bad = at.Trace((Step("vectorize", (("loop", "C_none"),)),))
        log.add(NewRecord(run, 0, "x", to_canonical(tuned, bad)[0], "ok", times_s=[1e-3]))
    for find in (at.load, at.best):
        with pytest.raises(at.ScheduleError, match="no loop 'total_none'; the loops are total_x, total_k"):
            find(expression(made="total", row="x"), db=tmp_path / "t.db")


@pytest.mark.parametrize("order", [(1, 0, 2, 3), (0, 1, 3, 2), (1, 0, 3, 2)])
def test_tensors_in_another_order_are_told_the_order_of_the_log(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    a, b = (te.placeholder((8,), name=n) for n in "AB")
    c = te.compute((8,), lambda i: a[i] - b[i], "C")
    listed = [a, b, c, te.compute((8,), lambda i: a[i] / b[i], "D")]
    with at.Log(tmp_path / "t.db") as log:
        run = log.start_run(as_workload(listed, {}), host(), {"cpu": "here"}, seed=0).uid
        log.add(NewRecord(run, 0, "x", at.Trace(), "ok", times_s=[1e-3]))
    with pytest.raises(
        at.KernelNotFound, match="stored there with its tensors in another order: A, B, C, D; list"
    ):
        at.load([listed[k] for k in order], db=tmp_path / "t.db")


@pytest.mark.slow
def test_fallback_gives_an_untuned_kernel_and_says_so(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="not tuned"):
        kernel = at.load("matmul", **SHAPE, db=tmp_path / "none.db", fallback=True, threads=1)
    check(kernel)
    assert kernel.record is None


def test_the_second_load_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db = tmp_path / "t.db"
    fill(db, [entry()])
    at.load("matmul", **SHAPE, db=db)

    def never(*_: object) -> bytes:
        raise AssertionError("compiled again")

    monkeypatch.setattr("autotune.codegen.llvm.compile.compile_module", never)
    recent.clear()  # as in another process
    check(at.load("matmul", **SHAPE, db=db))
    recent.clear()
    monkeypatch.setattr(base, "generator_version", lambda: "another generator")
    with pytest.raises(AssertionError, match="compiled again"):
        at.load("matmul", **SHAPE, db=db)


@pytest.mark.slow
def test_another_nvrtc_compiles_again_and_without_one_the_last_object_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    need_cxx()
    installed, built = {"nvidia-cuda-nvrtc": "13.0.48"}, []

    def version(package: str) -> str:
        if package not in installed:
            raise metadata.PackageNotFoundError(package)
        return installed[package]

    def build(dag: at.ComputeDAG, trace: at.Trace, target: Target) -> bytes:
        built.append(target.arch)
        return emulator.build(from_trace.grid_program(dag, trace, target))

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(from_trace, "build_object", build)
    monkeypatch.setattr(Cuda, "device", lambda self: EmulatedDevice())
    workload = ops.workload("matmul", SHAPE)

    def load(target: str) -> int:
        check(kernels.kernel_of(workload, targets.from_name(target), at.Trace()))
        return len(built)

    assert load("h100") == load("h100") == 1
    installed["nvidia-cuda-nvrtc"] = "13.0.88"
    assert load("h100") == load("h100") == 2
    installed.clear()
    assert load("h100") == 2
    assert load("v100") == 3
    installed["nvidia-cuda-nvrtc"] = "13.0.88"  # which is not what compiles for it
    assert load("v100") == 3
    installed["nvidia-cuda-nvrtc-cu12"] = "12.9.86"
    assert load("v100") == load("v100") == 4
    assert load("h100") == 4


def test_schedules_by_hand_of_two_namings_are_two_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same steps mean another schedule where the axes' names have changed places."""
    built: list[at.Trace] = []
    build = from_trace.build_object

    def counted(dag: at.ComputeDAG, trace: at.Trace, target: Target) -> bytes:
        built.append(trace)
        return build(dag, trace, target)

    monkeypatch.setattr(from_trace, "build_object", counted)
    a = te.placeholder((6, 10), name="A")
    for made in (lambda i, j: a[i, j] + 7.5, lambda j, i: a[j, i] + 7.5):
        s = at.Schedule([a, te.compute((6, 10), made, "C")])
        s.split("C_i", (None, 2))
        kernel = at.build(s, threads=1)
        x = np.arange(60, dtype=np.float32).reshape(6, 10)
        assert np.array_equal(kernel(x), x + np.float32(7.5)) and kernel.trace == s.trace
    assert len(built) == 2 and built[0] == built[1]


def test_a_damaged_object_is_compiled_again(tmp_path: Path, own_places: Path) -> None:
    db = tmp_path / "t.db"
    fill(db, [entry()])
    at.load("matmul", **SHAPE, db=db)
    (cached,) = (own_places / "cache").rglob("*.o")
    cached.write_bytes(cached.read_bytes()[:-100])
    check(at.load("matmul", **SHAPE, db=db))


def test_parameters_belong_to_operators_only() -> None:
    te = at.te
    a = te.placeholder((3,), "float32", name="A")
    b = te.compute((3,), lambda i: a[i] + 1.0, name="B")
    with pytest.raises(at.WorkloadError, match="m="):
        at.load([a, b], m=3)
    with pytest.raises(at.WorkloadError, match="int is not a program"):
        at.load(3)  # type: ignore[arg-type]


def test_flops_of_an_expression_are_those_of_the_operator() -> None:
    from schedules.te.flops import count_flops

    for op, params in (("matmul", SHAPE), ("conv2d", {"h": 6, "w": 6, "ci": 3, "co": 5, "k": 3})):
        workload = ops.workload(op, params)
        assert count_flops(workload.dag) == workload.flops, op


def test_flops_of_what_is_used_several_times_count_once() -> None:
    """Eight steps that square what the one before computed, twice; indices are no arithmetic of tensors."""
    from schedules.te.flops import count_flops

    te = at.te
    a = te.placeholder((3, 5), "float32", name="A")

    def powers(i: Any, j: Any) -> Any:
        value = a[i, j]
        for _ in range(8):
            value = value * value + 0.5
        return value, value + te.cast(i * 5 + j, "float32")

    assert count_flops(te.dag([a, *te.compute((3, 5), powers, name="B")])) == 15 * (8 * 2 + 1)
    k = te.reduce_axis(5, "k")
    squares = te.compute((3,), lambda i: te.sum((a[i, k] - 1.0) * (a[i, k] - 1.0), axis=k), name="S")
    assert count_flops(te.dag([a, squares])) == 15 * 3
