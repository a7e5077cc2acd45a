"""float16: stored as it is, computed with as float32, rounded where a cast says so; on every back end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grid_cases import SMALL, Case, case, need_cxx, program, sampled
from helpers import check_compiled, checker, execute, expected, host
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import imported, missing
from space_cases import target

import autotune as at
from autotune import backends
from autotune.backends.building.from_trace import emit_module
from autotune.backends.drivers import opencl
from autotune.backends.drivers.object import DeviceObject
from autotune.backends.peaks import roofline
from autotune.codegen.grid_code import grid_code
from autotune.codegen.llvm.compile import assembly
from autotune.codegen.simt import cuda, emulator
from autotune.codegen.simt.opencl import generate
from autotune.measure.compare.bench import agree, arrays_for
from autotune.measure.compare.peers import peer as find_peer
from schedules import expr as E
from schedules import ops, te
from schedules.errors import WorkloadError
from schedules.ir import interp
from schedules.model import Target, Trace
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.te.compute_dag import ComputeDAG
from schedules.te.evaluator import evaluate

HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
A = te.placeholder((4, 6), "float16", name="A")
F = te.placeholder((4, 6), "float32", name="F")
D = te.placeholder((4, 6), "float64", name="D")


def dtype(value: Any) -> str:
    return te.compute((4, 6), value, "out").dtype


def floats() -> np.ndarray:
    """Every float16, the ties between neighbours, and the floats next to both, as float32."""
    finite = np.sort(HALVES[np.isfinite(HALVES)].astype(np.float64))
    ties = np.append((finite[1:] + finite[:-1]) / 2, [65520.0, -65520.0, 1e30, -1e30, 1e-30, -1e-40])
    x = np.concatenate([finite, ties]).astype(np.float32)
    up, down = np.nextafter(x, np.float32(np.inf)), np.nextafter(x, np.float32(-np.inf))
    return np.concatenate([x, up, down, np.float32([np.inf, -np.inf, np.nan])])


def widening() -> ComputeDAG:
    x = te.placeholder(HALVES.shape, "float16", name="x")
    return te.dag([x, te.compute(x.shape, lambda i: te.cast(x[i], "float32"), "y")])


def rounding() -> ComputeDAG:
    x = te.placeholder(floats().shape, "float32", name="x")
    return te.dag([x, te.compute(x.shape, lambda i: te.cast(x[i], "float16"), "y")])


def conversions() -> list[Case]:
    with np.errstate(over="ignore"):
        return [
            Case(widening(), (HALVES,), (HALVES.astype(np.float32),)),
            Case(rounding(), (floats(),), (floats().astype(np.float16),)),
        ]


def equal(got: np.ndarray, want: np.ndarray) -> None:
    """Bit for bit, the sign of 0 too; any NaN equals any NaN."""
    bits = f"u{want.itemsize}"
    same = (got.view(bits) == want.view(bits)) | (np.isnan(got) & np.isnan(want))
    assert same.all(), (got[~same][:5], want[~same][:5])


# -- expressions ------------------------------------------------------------------------------------------


def test_it_is_computed_with_as_float32() -> None:
    k = te.reduce_axis(6, "k")
    for value in (
        lambda i, j: A[i, j] + A[i, j],
        lambda i, j: 0.1 * A[i, j],
        lambda i, j: 1 / A[i, j],
        lambda i, j: -A[i, j],
        lambda i, j: A[i, j] + F[i, j],
        lambda i, j: F[i, j] + A[i, j],
        lambda i, j: te.maximum(A[i, j], 0),
        lambda i, j: te.exp(A[i, j]),
        lambda i, j: te.abs(A[i, j]),
        lambda i, j: te.select(i < 2, A[i, j], F[i, j]),
        lambda i, j: te.select(A[i, j] < 0.5, 1.0, 2.0),
        lambda i, j: te.sum(A[i, k] * A[i, k], axis=k),
        lambda i, j: te.max(A[i, k], axis=k),
        lambda i, j: te.prod(A[i, k], axis=k),
    ):
        assert dtype(value) == "float32"
    assert E.Const(0.1, "float32") in list(E.walk(A[0, 0] * 0.1))  # not rounded to float16 on its way


def test_what_is_only_moved_stays() -> None:
    for value in (
        lambda i, j: A[i, j],
        lambda i, j: te.select(i < 2, A[i, j], 0),
        lambda i, j: te.select(i < 2, float("-inf"), A[i, j]),
        lambda i, j: te.select(i < 2, A[i, j], A[i, 0]),
        lambda i, j: te.cast(F[i, j], "float16"),
        lambda i, j: te.max_value("float16"),
    ):
        assert dtype(value) == "float16"
    assert te.max_value("float16").value == 65504


def test_casts_go_by_way_of_float32() -> None:
    for other in ("float64", "int32", "int64"):
        to, back = te.cast(te.cast(A[0, 0], other), "float16"), te.cast(D[0, 0], "float16")
        for e in (to, back):
            pairs = [(x.dtype, E.dtype_of(x.a)) for x in E.walk(e) if isinstance(x, E.Cast)]
            assert all("float16" not in p or "float32" in p for p in pairs)
    one = te.compute((4, 6), lambda i, j: te.cast(te.cast(A[i, j], "int32"), "float16"), "y")
    x = np.linspace(-3, 3, 24).reshape(4, 6).astype("float16")
    np.testing.assert_array_equal(evaluate(te.dag([A, one]), [x])[0], np.trunc(x))


def test_mixing_it_with_float64_needs_a_cast() -> None:
    with pytest.raises(WorkloadError, match="operands have different dtypes, float32 and float64"):
        te.compute((4, 6), lambda i, j: A[i, j] + D[i, j])


def test_constants_of_a_reducer_take_the_dtype_of_its_values() -> None:
    k = te.reduce_axis(6, "k")
    best = te.reducer((te.min_value("float16"),), lambda x, y: (te.maximum(x[0], y[0]),), "best")
    (identity,) = best(A[0, k], axis=k).reducer.identity
    assert identity == E.Const(-65504.0, "float32")


@pytest.mark.parametrize(
    "value",
    [
        ["+", ["load", "A", "float16", ["var", "i"]], ["load", "A", "float16", ["var", "i"]]],
        ["call", "exp", ["load", "A", "float16", ["var", "i"]]],
        ["cast", "int32", ["load", "A", "float16", ["var", "i"]]],
        ["cast", "float16", ["cast", "float64", ["cast", "float32", ["load", "A", "float16", ["var", "i"]]]]],
    ],
)
def test_a_dag_that_computes_in_float16_is_refused(value: list[Any]) -> None:
    """Of a log, say: no back end has to know of it."""
    x = te.placeholder((4,), "float16", name="A")
    data = te.dag([x, te.compute((4,), lambda i: x[i], "y")]).to_json()
    assert ComputeDAG.from_json(data).to_json() == data
    data["stages"][0]["values"] = [value]
    with pytest.raises(ValueError, match="stage y: .* computes in float16, a dtype for storage only"):
        ComputeDAG.from_json(data)


# -- conversions: every value, on every back end ----------------------------------------------------------


@pytest.mark.parametrize("which", [0, 1])
def test_conversions_of_the_reference(which: int) -> None:
    c = conversions()[which]
    equal(evaluate(c.dag, c.inputs)[0], c.expected[0])


@given(st.floats(width=32), st.floats(width=16))
@settings(max_examples=200)
def test_conversions_of_the_interpreter(x: float, h: float) -> None:
    with np.errstate(over="ignore"):
        want, found = np.float32(x).astype(np.float16), interp.rounding("float16")(x)
    equal(np.array([found]).astype("float16"), np.array([want]))
    assert interp.rounding("float16")(h) == h or h != h


def cpu_code(dag: ComputeDAG, lanes: int) -> tuple[Trace, Any]:
    s = Schedule(dag)
    _, inner = s.split(s.loops("y")[-1], [None, lanes])
    s.vectorize(inner)
    return s.trace, host()


@pytest.mark.parametrize("lanes", [1, 8, 16, 11])
@pytest.mark.parametrize("which", [0, 1])
def test_conversions_of_the_cpu(which: int, lanes: int) -> None:
    c = conversions()[which]
    trace, here = cpu_code(c.dag, lanes)
    check_compiled(c.dag, trace, here, c.inputs, c.expected)  # scalars, whole vectors, masked ones


def test_vectors_of_it_are_converted_by_single_instructions() -> None:
    avx2 = backends.parse("x86-64-v3")
    for c, name in zip(conversions(), ("vcvtph2ps", "vcvtps2ph"), strict=True):
        text = assembly(emit_module(c.dag, cpu_code(c.dag, 8)[0], avx2).text, avx2)
        assert any(name in line and "ymm" in line for line in text.splitlines()), name


def test_an_x86_without_conversions_is_refused() -> None:
    here = host()
    if not here.triple.startswith("x86_64"):
        pytest.skip("of x86 alone")
    old = replace(here, arch="x86-64-v2", features=("sse4.2",))
    c = conversions()[0]
    with pytest.raises(at.CompileError, match="x is float16, but x86-64-v2 lacks the F16C"):
        emit_module(c.dag, cpu_code(c.dag, 4)[0], old)
    emit_module(case("add").dag, Schedule(case("add").dag).trace, old)


@pytest.mark.fast("0")
@pytest.mark.parametrize("which", [0, 1])
def test_conversions_of_the_emulator(which: int) -> None:
    need_cxx()
    c = conversions()[which]
    p = program(c.dag, next(sampled(c.dag, 1))[1])
    outputs = c.poisoned()
    assert emulator.run(emulator.build(p), p, [*c.inputs, *outputs]) is None
    equal(outputs[0], c.expected[0])


@pytest.mark.parametrize("which", [0, 1])
def test_conversions_of_opencl(which: int) -> None:
    if opencl.context() is None:
        missing("opencl")
    c = conversions()[which]
    p = program(c.dag, next(sampled(c.dag, 1))[1])
    loaded = DeviceObject(grid_code(p, "opencl", generate(p)).to_bytes())
    outputs = c.poisoned()
    loaded.run([x.ctypes.data for x in (*c.inputs, *outputs)])
    loaded.close()
    equal(outputs[0], c.expected[0])


# -- operators --------------------------------------------------------------------------------------------


@pytest.mark.fast(but=["matmul", "conv2d", "depthwise_conv2d"])
@pytest.mark.parametrize(
    "op", ["add", "softmax", "reduce_sum", "matmul", "conv2d", "depthwise_conv2d", "permute"]
)
def test_compiled_candidates_are_what_the_interpreter_computes(op: str) -> None:
    """Of small whole numbers sums are exact, so that there is one result; exp is only near it."""
    c = case(op, "float16")
    space = derive(c.dag, target(1, 32))
    rng = np.random.default_rng(0)
    want = expected(c.dag, c.inputs)
    for number in range(len(space.sketches)):
        rows = space.sample(number, 200, rng)
        for row in rows[space.valid(number, rows)][:2]:
            if op == "softmax":
                for got in execute(c.dag, space.trace(number, row), target(1, 32), c.inputs).values():
                    c.check(got, op)
            else:
                check_compiled(c.dag, space.trace(number, row), target(1, 32), c.inputs, want)


def test_special_values_go_through_arithmetic() -> None:
    special = np.float16([0.0, -0.0, np.nan, np.inf, -np.inf, 6e-8, -6e-8, 6.1e-5, 65504, -65504, 1, 1e-3])
    a, b = (x.ravel().copy() for x in np.meshgrid(special, special))
    dag = ops.workload("add", {"n": a.size}, "float16").dag
    with np.errstate(all="ignore"):
        want = a + b
    space = derive(dag, target(1, 32))
    for row in space.sample(0, 3, np.random.default_rng(0)):
        check_compiled(dag, space.trace(0, row), target(1, 32), [a, b], [want])


def test_sums_do_not_stop_where_float16_would() -> None:
    """4096 ones: in float16, 2048 + 1 is 2048."""
    dag = ops.workload("reduce_sum", {"m": 2, "n": 4096}, "float16").dag
    ones = np.ones((2, 4096), "float16")
    assert np.add.reduce(ones, 1, dtype="float16").dtype == "float16"
    (sums,) = evaluate(dag, [ones])
    np.testing.assert_array_equal(sums, np.float16([4096, 4096]))
    space = derive(dag, target(1, 32))
    rows = space.sample(0, 50, np.random.default_rng(0))
    for row in rows[space.valid(0, rows)][:3]:
        check_compiled(dag, space.trace(0, row), target(1, 32), [ones], [sums])


@pytest.mark.slow
def test_gpus_load_sixteen_bytes_at_a_time() -> None:
    """Of a row too, which is float32 in registers."""
    for op, params in (("add", {"n": 4096}), ("softmax", {"m": 8, "n": 512})):
        dag = ops.workload(op, params, "float16").dag
        text = "".join(cuda.source(program(dag, trace)) for _, trace in sampled(dag, 30))
        for n in (2, 4, 8):
            assert f"AT_LOAD(at_bits16, {n}," in text and f"AT_STORE(at_bits16, {n}," in text, (op, n)


def test_every_operator_has_it() -> None:
    for op in SMALL:
        if op.startswith(("quantized_", "weight_only_")):  # which have integers beside
            continue
        dag = ops.workload(op, SMALL[op], "float16").dag
        places = {"int32"} if op in ("argmax", "argmin") else set()
        assert {t.dtype for t in dag.params} == {"float16"} | places


# -- what is right ----------------------------------------------------------------------------------------


def test_an_output_may_be_off_by_its_rounding_and_no_more() -> None:
    """Where float32 may be on either side of a rounding boundary, both halves are right, and none beyond."""
    x, k = te.placeholder((400, 40), "float16", "x"), te.reduce_axis(40, "k")
    total = te.compute((400,), lambda i: te.sum(x[i, k], axis=k), "total")
    dag = te.dag([x, te.compute((400,), lambda i: te.cast(total[i] * 0.3, "float16"), "y")])
    a = np.random.default_rng(0).standard_normal((400, 40)).astype("float16")
    (ref,) = evaluate(dag, [a])
    check = checker(dag, [a]).check
    for order in (a, a[:, ::-1], a[:, np.random.default_rng(1).permutation(40)]):
        total32 = np.add.accumulate(order.astype("float32"), axis=1)[:, -1]
        assert not check([(total32 * np.float32(0.3)).astype("float16")], 0).reason
    for i in (int(np.abs(ref).argmax()), 7):
        wrong = ref.copy()
        wrong[i] = np.nextafter(np.nextafter(wrong[i], np.float16(0)), np.float16(0))
        assert f"1 of 400 elements wrong, first at [{i}]" in check([wrong], 0).reason


def test_a_term_left_out_of_a_long_sum_is_found() -> None:
    n = 4096
    x = np.random.default_rng(1).standard_normal((64, n)).astype("float16")
    dag = ops.workload("reduce_sum", {"m": 64, "n": n}, "float16").dag
    short = x[:, :-1].astype("float64").sum(1).astype("float16")
    assert "elements wrong" in checker(dag, [x]).check([short], 0).reason
    other = x[:, ::-1].astype("float32").sum(1).astype("float16")
    assert not checker(dag, [x]).check([other], 0).reason


def test_a_step_of_float16_on_the_way_counts() -> None:
    """A value that float32 leaves on either side of a boundary of float16 may be either of them then."""
    t = te.compute((4, 6), lambda i, j: te.cast(te.exp(te.cast(A[i, j], "float32")), "float16"), "t")
    u = te.compute((4, 6), lambda i, j: te.cast(t[i, j] * 100.0, "float32"), "u")
    dag = te.dag([A, u])
    a = np.random.default_rng(0).standard_normal((4, 6)).astype("float16")
    exact = np.exp(a.astype("float64"))
    half = exact.astype("float16")
    check = checker(dag, [a]).check
    right = half.astype("float32") * np.float32(100)
    assert not check([right], 0).reason
    step = np.nextafter(half, np.float16(np.inf)).astype("float32") * np.float32(100)
    assert "elements wrong" in check([step], 0).reason  # no value is that near to a boundary


# -- tuned, loaded, called --------------------------------------------------------------------------------


@pytest.mark.slow
def test_tune_then_load(tmp_path: Path) -> None:
    db, shape = tmp_path / "tuning.db", {"m": 9, "n": 130}
    result = at.tune("softmax", dtype="float16", threads=1, trials=6, budget_s=30, db=db, **shape)
    assert result.best is not None and not set(result.failed) - {"slow"}
    kernel = at.load("softmax", dtype="float16", threads=1, db=db, **shape)
    x = np.random.default_rng(0).standard_normal((9, 130)).astype("float16")
    want = ops.reference(ops.workload("softmax", shape, "float16"), [x])
    y = kernel(x)
    assert y.dtype == np.float16
    np.testing.assert_allclose(y.astype("float32"), want[0].astype("float32"), rtol=1e-3)
    assert not checker(ops.workload("softmax", shape, "float16").dag, [x]).check([y], 0).reason
    with pytest.raises(at.ArgumentError, match=r"'x' is float32, but the kernel takes float16: .*'float16'"):
        kernel(x.astype("float32"))
    with pytest.raises(at.ArgumentError, match="output 'y' is float32"):
        kernel(x, out=np.empty((9, 130), "float32"))
    torch = imported("torch")
    out = torch.empty((9, 130), dtype=torch.float16)
    kernel(torch.from_numpy(x), out=out)
    np.testing.assert_array_equal(out.numpy(), y)
    with pytest.raises(at.ArgumentError):
        kernel(torch.from_numpy(x).bfloat16())
    with pytest.raises(at.KernelNotFound):
        at.load("softmax", threads=1, db=db, **shape)  # float32 is another workload


@pytest.mark.parametrize("peer", ["numpy", "torch"])
@pytest.mark.parametrize(
    "op", ["add", "fused_multiply_add", "softmax", "layer_norm", "reduce_sum", "permute"]
)
def test_peers_agree_though_they_round_more_often(peer: str, op: str) -> None:
    if peer == "torch":
        imported("torch")
    workload = ops.workload(op, SMALL[op], "float16")
    inputs, outputs = arrays_for(workload, 0)
    want = evaluate(workload.dag, inputs)
    with find_peer(peer).prepare(workload, inputs, outputs, 1) as made:
        made.call()
        agree(workload, peer, made.result(), want)


def test_the_limit_of_a_product_is_that_of_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Loop(roofline.cpu_peaks.FmaLoop):
        def __init__(self, target: Target, dtype: str) -> None:
            asked.append(dtype)
            super().__init__(target, dtype)

    monkeypatch.setattr(roofline.cpu_peaks, "FmaLoop", Loop)
    limit = roofline.limit_of(ops.workload("matmul", {"m": 64, "n": 64, "k": 512}, "float16"), target(1, 32))
    assert limit is not None and limit() > 0 and asked == ["float32"]
