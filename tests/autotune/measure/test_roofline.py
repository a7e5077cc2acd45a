"""What a workload cannot be faster than: special functions, counted and timed."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any

import pytest

from autotune import backends
from autotune.compare.bench import collector_off
from autotune.measure import cpu_peaks, special
from autotune.measure.roofline import WARM_RUNS, limit_of, outgrows_caches, warm_runs
from autotune.targets import detect, on_cpus, usable_cpu_set
from autotune.workloads import as_workload
from schedules import ops, te
from schedules.functions import FUNCTIONS
from schedules.model import Target


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
    with collector_off():
        loop = cpu_peaks.MemoryLoop(detect(threads=2), "copy", 1 << 16)
        arrays = weakref.ref(loop._arrays[0][0])
        del loop
        for _ in range(100):  # the threads end in a moment
            if arrays() is None:
                break
            time.sleep(0.01)
        assert arrays() is None
