"""What a workload cannot be faster than: special functions, counted and timed."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune import backends
from autotune.backends.peaks import cpu_peaks, instruction_peaks, special
from autotune.backends.peaks.roofline import (
    WARM_RUNS,
    limit_of,
    outgrows_caches,
    waits_for_memory,
    warm_runs,
)
from autotune.run.workloads import as_workload
from autotune.targets import detect, on_cpus, usable_cpu_set
from autotune.tuning.known_limits import MachineLimit
from schedules import ops, te
from schedules.dtypes import is_float
from schedules.functions import FUNCTIONS
from schedules.instructions import Instruction
from schedules.instructions.work import instructions_for, limiting, times_as_fast, work
from schedules.model import Target, Workload
from schedules.space.gc_paused import gc_paused
from schedules.te.flops import count_flops, flops_by_dtype, main_dtype

pytestmark = pytest.mark.usefixtures("two_cpus")


@pytest.mark.parametrize(
    ("op", "params", "expected"),
    [
        ("softmax", {"m": 5, "n": 7}, {("exp", "float32"): 35}),
        ("layer_norm", {"m": 5, "n": 7}, {("sqrt", "float32"): 5}),
        ("matmul_bias_gelu", {"m": 5, "n": 7, "k": 3}, {("erf", "float32"): 35}),
        ("attention", {"heads": 2, "seq": 5, "dim": 3}, {("exp", "float32"): 50}),
        ("matmul", {"m": 5, "n": 7, "k": 3}, {}),
    ],
)
def test_special_functions_are_counted(
    op: str, params: dict[str, int], expected: dict[tuple[str, str], int]
) -> None:
    assert dict(special.evaluations(ops.workload(op, params).dag)) == expected


def test_those_of_a_reduction_count_for_every_step() -> None:
    x = te.placeholder((4, 6), "float64", name="x")
    k = te.reduce_axis(6, name="k")
    y = te.compute((4,), lambda i: te.sum(te.exp(x[i, k]) + te.tanh(x[i, k]), axis=k), name="y")
    found = special.evaluations(te.dag([x, y]))
    assert dict(found) == {("exp", "float64"): 24, ("tanh", "float64"): 24}


@pytest.mark.fast("float32")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_function_has_a_rate(dtype: str) -> None:
    for fn in (f.name for f in FUNCTIONS.values() if not f.cheap):
        assert special.rate(detect(threads=1), fn, dtype) > 1e6


def test_many_functions_on_few_bytes_are_the_limit() -> None:
    """0.1 ms of functions on 8 KB: no bandwidth and no multiply-add would need that long."""
    x = te.placeholder((1024,), "float32", name="x")

    def tower(i: Any) -> Any:
        value = x[i]
        for _ in range(64):
            value = te.tanh(value)
        return value

    target = detect(threads=1)
    workload = as_workload([x, te.compute((1024,), tower, name="y")], {})
    assert limit_of(workload, target)() >= special.seconds(workload.dag, target) > 0


@pytest.mark.parametrize(
    ("op", "params", "modes"),
    [
        ("reduce_sum", {"m": 64, "n": 256}, {"read"}),
        ("add", {"n": 4096}, {"copy", "stream"}),
        ("permute", {"shape": (64, 32), "axes": (1, 0)}, {"copy", "stream"}),
    ],
)
def test_the_bandwidth_is_of_what_the_operator_does(
    op: str, params: dict[str, Any], modes: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[str] = set()
    rates = {"read": 4e9, "copy": 1e9, "stream": 2e9}

    class Loop:
        def __init__(self, target: Target, mode: str, working_set: int) -> None:
            self.mode = mode

        def bytes_a_second(self) -> float:
            return rates[self.mode] / next(slower)

    def bandwidth(target: Target, mode: str, working_set: int) -> float:
        asked.add(mode)
        return rates[mode]

    slower = iter((9, 8, 9, 1, 7, 5, 4, 2))  # arrays are in no cache in a round's first three
    monkeypatch.setattr(cpu_peaks, "MemoryLoop", Loop)
    monkeypatch.setattr(cpu_peaks, "bandwidth", bandwidth)
    workload = ops.workload(op, params)
    limit = limit_of(workload, detect(threads=1), memory_afresh=True)
    once = limit_of(workload, detect(threads=1))
    assert limit is not None and once is not None
    first, second = limit(), limit()
    assert asked == modes
    assert first == ops.compulsory_bytes(workload.dag) / max(rates[m] for m in modes)
    assert second == 2 * first  # measured again
    assert once() == once() == first


RATES = {"float32": 4e9, "float64": 2e9}


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What the machine can do: FLOPs by dtype, and bytes, a second. Special functions take no time."""

    class Loops:
        def __init__(self, target: Target, dtype: str) -> None:
            self.dtype = dtype

        def flops_a_second(self) -> float:
            return told.get(self.dtype, 1e9)

    class OfInstruction(Loops):
        def __init__(self, target: Target, ins: Instruction) -> None:
            super().__init__(target, ins.name)

    told = {**RATES, "bytes": 1e15, "bytes again": 1e15}
    monkeypatch.setattr(cpu_peaks, "FmaLoops", Loops)
    monkeypatch.setattr(instruction_peaks, "InstructionLoops", OfInstruction)
    monkeypatch.setattr(cpu_peaks, "bandwidth", lambda *_: told["bytes"])
    monkeypatch.setattr(cpu_peaks, "measure_bandwidth", lambda *_: told["bytes again"])
    monkeypatch.setattr(special, "seconds", lambda *_: 0.0)
    return told


M, N, K = 4, 6, 64


def product(dtype: str, a: str = "a", b: str = "b") -> list[te.Tensor]:
    x, y = te.placeholder((M, K), dtype, name=a), te.placeholder((K, N), dtype, name=b)
    k = te.reduce_axis(K, name=f"k{a}")
    rule = lambda i, j: te.sum(x[i, k] * y[k, j], axis=k)  # noqa: E731
    return [x, y, te.compute((M, N), rule, name=f"c{a}")]


def then(tensors: list[te.Tensor], dtype: str) -> list[te.Tensor]:
    c = tensors[-1]
    return [*tensors, te.compute((M, N), lambda i, j: te.cast(c[i, j], dtype), name=f"{c.name}_{dtype}")]


def largest_integer(tensors: list[te.Tensor]) -> list[te.Tensor]:
    c, k = tensors[-1], te.reduce_axis(N, name="j")
    rule = lambda i: te.max(te.cast(c[i, k] * 3.0, "int32"), axis=k)  # noqa: E731
    return [*tensors, te.compute((M,), rule, name="most")]


@pytest.mark.parametrize(
    ("tensors", "seconds"),
    [
        (then(product("float32"), "int8"), 2 * M * N * K / 4e9),
        (then(product("float32"), "float64"), 2 * M * N * K / 4e9),
        (then(product("float64"), "float32"), 2 * M * N * K / 2e9),
        (then(product("float32"), "bool"), 2 * M * N * K / 4e9),
        (then(product("bfloat16"), "int8"), 2 * M * N * K / 4e9),
        (largest_integer(product("float32")), 2 * M * N * K / 4e9),
        (then(product("int8"), "float32"), 0.0),
        (product("int8"), 0.0),
        ([*product("float32"), *product("float64", "d", "e")], 2 * M * N * K * (1 / 4e9 + 1 / 2e9)),
    ],
)
def test_arithmetic_counts_at_the_rate_of_its_own_dtype(
    tensors: list[te.Tensor], seconds: float, rates: dict[str, float]
) -> None:
    """Whatever the outputs are: a product that ends in int8 is one of float32."""
    workload = as_workload(tensors, {})
    limit = limit_of(workload, with_features())
    moving = ops.compulsory_bytes(workload.dag) / 1e15
    assert limit() == pytest.approx(max(seconds, moving), rel=0.05)  # casts and places may count a little
    if seconds:
        assert limit.rates["flops_a_second"] * limit() == pytest.approx(float_part(workload), rel=1e-9)
    else:
        assert "flops_a_second" not in limit.rates


def with_features(*features: str) -> Target:
    """This machine, with such extensions alone."""
    return replace(detect(threads=1), features=features)


def float_part(workload: Workload) -> float:
    return sum(work(workload.dag, workload.flops).values())


BF16, AMX = ("avx512bf16",), ("amx-bf16", "amx-int8", "amx-tile")


@pytest.mark.parametrize(
    ("tensors", "features", "seconds", "by"),
    [
        (product("bfloat16"), BF16, 2 * M * N * K / 8e9, "vdpbf16ps"),
        (product("bfloat16"), (*BF16, *AMX), 2 * M * N * K / 64e9, "tdpbf16ps"),
        (product("bfloat16"), (), 2 * M * N * K / 4e9, None),
        (then(product("bfloat16"), "bfloat16"), BF16, 2 * M * N * K / 8e9, "vdpbf16ps"),
        (product("float32"), (*BF16, *AMX), 2 * M * N * K / 4e9, None),
        (product("int8"), AMX, 2 * M * N * K / 128e9, "tdpbssd"),
        (product("int8"), BF16, 0.0, None),
        ([*product("int8"), *product("bfloat16", "d", "e")], AMX, 2 * M * N * K * (1 / 64e9 + 1 / 128e9),
         "tdpbf16ps"),
        ([*product("int8"), *product("float64", "d", "e")], AMX, 2 * M * N * K * (1 / 2e9 + 1 / 128e9), None),
    ],
)  # fmt: skip
def test_products_count_at_the_rate_of_their_instruction(
    tensors: list[te.Tensor],
    features: tuple[str, ...],
    seconds: float,
    by: str | None,
    rates: dict[str, float],
) -> None:
    """Of what takes most of the time the name is told."""
    rates |= {"vdpbf16ps": 8e9, "tdpbf16ps": 64e9, "tdpbssd": 128e9}
    workload = as_workload(tensors, {})
    limit = limit_of(workload, with_features(*features))
    found = limit()
    assert found == pytest.approx(max(seconds, ops.compulsory_bytes(workload.dag) / 1e15), rel=0.01)
    assert limiting(workload.dag, workload.flops, found, limit.rates) == by
    if by is not None:
        assert limit.rates[f"{by}_a_second"] == rates[by]
        assert limiting(workload.dag, workload.flops, 2 * found, limit.rates) is None  # bytes are it


def test_an_instruction_that_is_slower_than_multiply_adds_is_none(rates: dict[str, float]) -> None:
    """As vdpbf16ps is on CPUs with AMX."""
    rates["vdpbf16ps"] = 2e9
    limit = limit_of(as_workload(product("bfloat16"), {}), with_features(*BF16))
    assert limit() == pytest.approx(2 * M * N * K / 4e9) and "vdpbf16ps_a_second" not in limit.rates


def test_of_equals_the_first_is_told(rates: dict[str, float]) -> None:
    """tdpbsud with its operands turned is as fast as tdpbusd: samples of either may be the faster."""
    a, b = te.placeholder((M, K), "uint8", "a"), te.placeholder((K, N), "int8", "b")
    k = te.reduce_axis(K, "k")
    c = te.compute((M, N), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c")
    rates |= {"tdpbusd": 1e11, "tdpbsud": 1.1e11, "vpdpbusd": 1e10}
    limit = limit_of(as_workload([a, b, c], {}), with_features("avx512vnni", *AMX))
    limit()
    assert limit.rates["tdpbusd_a_second"] == 1e11 == limit.rates["flops_a_second"]


def test_instructions_are_those_of_the_target_and_the_expression() -> None:
    dag = as_workload(product("bfloat16"), {}).dag
    assert [i.name for i in instructions_for(dag, (*BF16, *AMX))] == ["vdpbf16ps", "tdpbf16ps"]
    assert not instructions_for(as_workload(product("float32"), {}).dag, (*BF16, *AMX))
    assert not instructions_for(dag, ())


def test_rates_of_unknown_names_are_left_out() -> None:
    """A log may come from anywhere."""
    w = as_workload(product("bfloat16"), {})
    rates = {"flops_a_second": 8e9, "evil_a_second": 9e9, "vdpbf16ps": 1.0, "bytes_a_second": 1.0}
    assert limiting(w.dag, w.flops, 1e-9, rates) is None


@given(data=st.data())
def test_flops_by_dtype_are_all_flops(data: st.DataObject) -> None:
    dag = random_stages(data)
    counted = flops_by_dtype(dag)
    assert counted.total() == count_flops(dag)
    flops = data.draw(st.integers(0, 10**6))
    parts = work(dag, flops)
    integers = sum(n for d, n in counted.items() if not is_float(d))
    if counted.total():
        assert sum(parts.values()) == pytest.approx(flops * (1 - integers / counted.total()))
    if counted:
        assert counted[main_dtype(dag)] == max(counted.values())


def random_stages(data: st.DataObject) -> te.ComputeDAG:
    """Some elementwise stages and sums of different dtypes, one after another."""
    dtypes = st.sampled_from(["float16", "bfloat16", "float32", "float64", "int8", "int32", "int64"])
    tensors = [te.placeholder((4, 6), data.draw(dtypes), "x")]
    for n in range(data.draw(st.integers(1, 4))):
        last, dtype, terms = tensors[-1], data.draw(dtypes), data.draw(st.integers(0, 3))
        k = te.reduce_axis(6, f"k{n}")

        def value(i: Any, j: Any, last: Any = last, dtype: str = dtype, terms: int = terms) -> Any:
            x = last[i, j]
            for _ in range(terms):
                x = x * x
            return te.cast(x, dtype)

        def total(i: Any, j: Any, last: Any = last, k: Any = k) -> Any:
            return te.sum(last[i, k] * last[i, k], axis=k)

        tensors.append(te.compute((4, 6), data.draw(st.sampled_from([value, total])), f"y{n}"))
    return te.dag(tensors)


def test_what_was_disturbed_is_measured_again(rates: dict[str, float]) -> None:
    """Bandwidths are kept for the life of a process, so that another sample would say the same."""
    workload = as_workload(product("int8"), {})
    rates |= {"bytes": 1e9, "bytes again": 4e9}
    limit = MachineLimit(limit_of(workload, with_features()))
    limit.sample()
    slow = ops.compulsory_bytes(workload.dag) / 1e9
    limit.news()
    limit.check(slow / 1.05)  # a clock may be as much faster
    assert limit.seconds == slow and not limit.news()
    limit.check(slow / 2)
    assert limit.seconds == slow / 4
    assert limit.news() == {"limit": {"seconds": slow / 4, "bytes_a_second": 4e9}}
    limit.check(None)
    MachineLimit().check(1.0)


@pytest.mark.parametrize(
    ("op", "params", "waits"),
    [
        ("layer_norm", {"m": 4096, "n": 1024}, True),
        ("permute", {"shape": (4096, 4096), "axes": (1, 0)}, True),
        ("matmul", {"m": 1, "n": 4096, "k": 4096}, True),
        ("layer_norm", {"m": 16, "n": 1024}, False),  # the caches of a core hold it
        ("matmul", {"m": 1024, "n": 1024, "k": 1024}, False),  # the FMA units are busy
    ],
)
def test_what_waits_for_memory(op: str, params: dict[str, Any], waits: bool) -> None:
    dag = ops.workload(op, params).dag
    def told(kind: str, l2_bytes: int) -> bool:
        target = Target(kind, "sm_90", limits=(("l2_bytes", l2_bytes),))
        return backends.of(target).waits_for_memory(dag, target)

    assert told("cpu", 1 << 20) is waits
    assert not told("cpu", 1 << 30)
    assert not told("cuda", 1 << 20)


def test_a_fast_instruction_waits_for_memory_sooner() -> None:
    """Tiles of bfloat16 do 16 times as much as multiply-adds of float32 while a byte comes."""
    m, n, k = 64, 1024, 1024  # 60 operations a byte
    x, y = te.placeholder((m, k), "bfloat16", "a"), te.placeholder((k, n), "bfloat16", "b")
    r = te.reduce_axis(k, "k")
    dag = te.dag([x, y, te.compute((m, n), lambda i, j: te.sum(x[i, r] * y[r, j], axis=r), "c")])
    limits = (("l2_bytes", 1 << 20), ("vector_bytes", 64))

    def waits(*features: str) -> bool:
        return waits_for_memory(dag, Target("cpu", "x", features=features, limits=limits))

    assert not waits() and not waits(*BF16) and waits(*AMX)
    plain = ops.workload("matmul", {"m": m, "n": n, "k": k}).dag
    assert times_as_fast(plain, Target("cpu", "x", features=AMX, limits=limits)) == 1.0
    told = {f: times_as_fast(dag, Target("cpu", "x", features=f, limits=limits)) for f in (BF16, AMX)}
    assert told == {BF16: 2.0, AMX: 16.0}


@pytest.mark.parametrize(
    ("op", "params", "l3_bytes", "runs"),
    [
        ("matmul", {"m": 512, "n": 512, "k": 512}, 12 << 20, 0),  # 3 MB: reading them is enough
        ("matmul", {"m": 512, "n": 512, "k": 512}, (12 << 20) - 4, 1),
        ("layer_norm", {"m": 4096, "n": 1024}, 1 << 30, WARM_RUNS),
    ],
)
def test_runs_that_bring_arrays_back(op: str, params: dict[str, Any], l3_bytes: int, runs: int) -> None:
    """None where a quarter of the last cache holds them."""
    dag, limits = ops.workload(op, params).dag, (("l2_bytes", 1 << 20), ("l3_bytes", l3_bytes))
    assert warm_runs(dag, Target("cpu", "x", limits=limits)) == runs
    assert outgrows_caches(dag, Target("cpu", "x", limits=limits)) is (runs == 1)
    gpu = Target("cuda", "sm_90", limits=limits)
    assert not backends.of(gpu).warm_runs(dag, gpu)


def test_loops_that_ran_one_after_the_other_are_not_twice_as_fast() -> None:
    turn = threading.Lock()

    def job() -> float:
        begin = time.perf_counter()
        with turn:
            time.sleep(0.02)
        return time.perf_counter() - begin

    assert 0.02 <= cpu_peaks.Together([job]).seconds()
    assert cpu_peaks.Together([job, job]).seconds() >= 0.04


@pytest.mark.skipif(not usable_cpu_set(), reason="this system does not tell CPUs")
def test_loops_keep_the_cpus_of_when_they_were_made() -> None:
    """Importing torch may bind whoever imports it to one CPU."""
    cpus = usable_cpu_set()
    seen: list[frozenset[int]] = []

    def job() -> float:
        seen.append(usable_cpu_set())
        return 0.0

    both = cpu_peaks.Together([job, job])
    with on_cpus(frozenset([min(cpus)])):
        both.seconds()
    assert seen == [cpus] * 4


def test_a_memory_loop_is_gone_with_its_last_reference() -> None:
    gc.collect()
    with gc_paused():
        loop = cpu_peaks.MemoryLoop(detect(threads=2), "copy", 1 << 16)
        arrays = weakref.ref(loop._arrays[0][0])
        del loop
        for _ in range(100):  # the threads end in a moment
            if arrays() is None:
                break
            time.sleep(0.01)
        assert arrays() is None
