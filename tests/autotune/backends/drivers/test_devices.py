"""One contract for every kind of device: load, run, time, attributes, memory.

The drivers of NVIDIA's GPUs are met by a fake one where there is no GPU (``tests/support/fake_driver.cpp``),
in a process of its own.
"""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from socket import socketpair
from typing import Any, NoReturn, cast

import gpu_fakes as fakes
import measure_fakes
import numpy as np
import pytest
from children import ROOT
from emulated_device import EmulatedDevice
from grid_cases import case, need_cxx, program, sampled, turned
from needs import missing

import autotune as at
from autotune import backends
from autotune.backends.cuda import Cuda
from autotune.backends.drivers import cuda, nvml, opencl, pycuda
from autotune.backends.drivers.object import DeviceObject, give_back
from autotune.backends.drivers.protocol import Device, DeviceError
from autotune.codegen.grid_code import MAGIC, GridArray, GridCode, Launch, TensorMap
from autotune.codegen.simt import cuda as cuda_c
from autotune.codegen.simt import cxx, nvrtc
from autotune.measure import Measurement, Measurer, Options
from autotune.measure.arena import POISON, Arena, KernelParam
from autotune.measure.on_device import DeviceArrays, OnDevice
from autotune.measure.process import Child
from autotune.measure.runner import DEVICE_S, Runner
from schedules import te
from schedules.gpu_architectures import STATIC_SHARED
from schedules.model import Target
from schedules.te.compute_dag import ComputeDAG

DEVICES: dict[str, tuple[Callable[[], bool], Callable[[], Device]]] = {
    "emulator": (lambda: cxx.command() is not None, EmulatedDevice),
    "opencl": (lambda: opencl.context() is not None, opencl.device),
    "cuda": (cuda.available, cuda.device),
    "pycuda": (pycuda.available, pycuda.device),
}
OPERATORS = ("matmul", "attention")  # the latter in several kernels


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Device:
    available, make = DEVICES[request.param]
    if not available():
        missing({"emulator": "c++"}.get(request.param, request.param))
    return make()


def test_it_tells_what_it_is(device: Device) -> None:
    assert device.name() and device.arch() and device.kind in ("cuda", "opencl")
    found = device.attributes()
    assert {"block_threads", "sms", "shared_bytes", "sm_threads", "clock_mhz"} <= set(found)
    assert all(isinstance(n, int) and n > 0 for n in found.values()), found
    assert set(device.state()) <= {"sm_mhz", "memory_mhz", "temperature_c", "throttled"}


def test_memory_keeps_what_is_put_there(device: Device) -> None:
    data = [np.arange(n, dtype="f4") + n for n in (1, 7, 1000)]
    held = [device.allocate(x.nbytes) for x in data]
    for memory, x in zip(held, data):
        device.upload(memory, x)
    for memory, x in zip(held, data):
        out = np.empty_like(x)
        device.download(out, memory)
        np.testing.assert_array_equal(out, x)
        device.free(memory)


def test_memory_has_parts_and_is_copied_inside_the_device(device: Device) -> None:
    a, b = (device.allocate(4 * device.alignment) for _ in range(2))
    x = np.arange(device.alignment, dtype="f4")
    device.upload(a, x)
    device.fill(b, 0, 4, x.nbytes)
    device.copy(device.part(b, device.alignment, 12), a, 20, 12)
    out, part = np.ones_like(x), np.empty(3, "f4")
    device.download(out, b)
    device.download(part, device.part(b, device.alignment, 12))
    first = device.alignment // 4
    np.testing.assert_array_equal(out[first : first + 3], x[5:8])
    np.testing.assert_array_equal(part, x[5:8])
    assert np.count_nonzero(out) == 3
    for memory in (a, b):
        device.free(memory)


@pytest.mark.parametrize("dtype", sorted(POISON))
def test_memory_is_filled_with_words(device: Device, dtype: str) -> None:
    kind, value = POISON[dtype]
    width = min(4, kind().itemsize)
    out, memory = np.zeros(7, kind), device.allocate(7 * kind().itemsize)
    device.fill(memory, value & (1 << 8 * width) - 1, width, out.nbytes)
    device.download(out, memory)
    assert (out == kind(value)).all()
    device.free(memory)


def test_too_much_memory_is_an_error(device: Device) -> None:
    if device.arch() == "emulator":
        pytest.skip("its memory is this process's own")
    with pytest.raises(DeviceError):
        device.allocate(1 << 50)


@pytest.mark.fast(but=["emulator-*", "opencl-attention"])
@pytest.mark.parametrize("op", OPERATORS)
def test_programs_run_again_and_again_beside_each_other(device: Device, op: str) -> None:
    c = case(op)
    loaded = []
    for _, trace in sampled(c.dag, 1):
        loaded.append(DeviceObject(fakes.code_for(program(c.dag, trace), device).to_bytes(), device))
        if len(loaded) == 2:
            break
    assert op != "attention" or len(loaded[0].code.launches) > 1
    for _ in range(2):
        for x in loaded:
            outputs = c.poisoned()
            x.run([a.ctypes.data for a in (*c.inputs, *outputs)])
            c.check(outputs, op)
    for x in loaded:
        outputs = c.poisoned()
        pointers = [a.ctypes.data for a in (*c.inputs, *outputs)]
        assert x.bench(pointers, 4) > 0
        c.check(outputs, op)
        assert x.seconds(1) > 0
        x.close()


@pytest.mark.fast("emulator")
def test_blocks_share_as_much_memory_as_their_launch_asks_for(device: Device) -> None:
    if device.kind == "opencl":
        pytest.skip("its compiler places all of it")
    data, p = turned(200)
    code = fakes.code_for(p, device)
    assert code.launches[0].shared == 64 * 200 * 4 > STATIC_SHARED
    read = GridCode.from_bytes(code.to_bytes())
    assert read == code
    loaded, out = DeviceObject(read.to_bytes(), device), np.zeros_like(data)
    for run in (loaded.run, lambda at: loaded.bench(at, 2)):
        out[:] = 0
        run([data.ctypes.data, out.ctypes.data])
        np.testing.assert_array_equal(out, data[:, ::-1, ::-1])
    loaded.close()


def test_a_block_that_asks_for_more_than_there_is_is_refused(device: Device) -> None:
    if device.kind == "opencl" or device.arch() == "emulator":
        pytest.skip("it takes as much as there is")
    code = fakes.code_for(turned(200)[1], device)
    (x,) = code.launches
    with pytest.raises(
        at.CompileError, match="kernel0 asks for 500000 bytes that threads share, and the dev"
    ):
        device.load(replace(code, launches=(replace(x, shared=500_000),)))


def test_emulation_finds_a_launch_that_asks_for_too_little() -> None:
    need_cxx()
    data, p = turned(200)
    device, code = EmulatedDevice(), fakes.code_for(p, EmulatedDevice())
    (x,) = code.launches
    less = replace(code, launches=(replace(x, shared=x.shared - 1),))
    with pytest.raises(
        DeviceError, match="v_x_shared ends at byte 51200 of shared memory, and the launch ask"
    ):
        device.load(less).run([data.ctypes.data, np.zeros_like(data).ctypes.data])


def test_memory_that_is_always_there_is_not_asked_for() -> None:
    _, p = turned(192)  # 48 KB
    made = cuda_c.generate(p)
    assert not made.shared and "AT_SHARED(float, v_x_shared, 12288);" in made.text


def test_clusters_are_launched_where_the_driver_can(device: Device) -> None:
    if device.kind == "opencl":
        pytest.skip("it has none")
    data, p = turned(200)
    code = fakes.code_for(p, device)
    clustered = replace(code, launches=(replace(code.launches[0], cluster=(2, 1, 1)),))
    assert GridCode.from_bytes(clustered.to_bytes()) == clustered
    if not isinstance(device, cuda.CudaDevice):
        with pytest.raises(
            at.CompileError, match="kernel0 runs blocks in clusters, which .* does not launch"
        ):
            device.load(clustered)
        return
    loaded, out = DeviceObject(clustered.to_bytes(), device), np.zeros_like(data)
    loaded.run([data.ctypes.data, out.ctypes.data])
    np.testing.assert_array_equal(out, data[:, ::-1, ::-1])
    torn = replace(code, launches=(replace(code.launches[0], cluster=(4, 1, 1)),))
    with pytest.raises(
        at.CompileError, match=r"a grid of \(2, 1, 1\) blocks is not cut into clusters of \(4, 1"
    ):
        DeviceObject(torn.to_bytes(), device)


MAPPED = r"""
typedef int (*launched)(void **);
extern "C" const int at_kernel0_count = 2;
extern "C" int at_kernel0(void **params) {
  for (int i = 0; i < 16; ++i) (*(long long **)params[1])[i] = ((long long *)params[0])[i];
  return 0;
}
extern "C" int at_cuLaunchKernel(void *f, int, int, int, int, int, int, int, void *, void **params, void **) {
  return ((launched)f)(params);
}
"""


def test_kernels_take_tensor_maps_of_their_arrays(device: Device) -> None:
    """One that returns what it is told of its array, as the fake driver encodes it."""
    x, out = GridArray("x", "float16", (48, 96), 16), GridArray("out", "int64", (16,), 8)
    m = TensorMap("x_map", "x", "bfloat16", (48, 96), (96, 1), (16, 64), 128)
    launch = Launch("kernel0", (1, 1, 1), (1, 1, 1), ("x_map", "out"))
    code = GridCode("cuda", (x, out), ("out",), (), (launch,), "", maps=(m,))
    assert GridCode.from_bytes(code.to_bytes()) == code
    if device.name() != fakes.FAKE:
        pytest.skip("needs the fake driver")
    code = replace(code, binary=cxx.build(MAPPED, "-shared", "-fPIC"))
    if not isinstance(device, cuda.CudaDevice):
        with pytest.raises(at.CompileError, match="kernel0 takes tensor maps, which PyCUDA does not make"):
            device.load(code)
        return
    loaded = DeviceObject(code.to_bytes(), device)
    given, told = np.zeros((48, 96), "f2"), np.zeros(16, "i8")
    for _ in range(2):
        told[:] = 0
        loaded.run([given.ctypes.data, told.ctypes.data])
        where, two_bytes = int(loaded.memory[0]), 1
        assert told.tolist() == [where, two_bytes, 2, 3, 96, 48, 0, 0, 0, 2 * 96, 64, 16, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"shape": (2,) * 6, "strides": (16,) * 5 + (1,), "box": (1,) * 6}, "1 to 5 dimensions"),
        ({"strides": (96, 2)}, "whose last has stride 1"),
        ({"box": (16,)}, "1 to 5 dimensions"),
        ({"strides": (97, 1)}, "no multiples of 16 bytes"),
        ({"box": (16, 60)}, "no multiples of 16 bytes"),
        ({"box": (257, 64)}, "1 to 256 elements"),
        ({"swizzle": 64}, "fit into the swizzle"),
        ({"swizzle": 48}, "of 32, 64 or 128 bytes"),
    ],
)
def test_tensor_maps_that_no_driver_takes_are_refused(wrong: dict[str, Any], said: str) -> None:
    right = TensorMap("x_map", "x", "float16", (48, 96), (96, 1), (16, 64), 128)
    with pytest.raises(ValueError, match=f"x_map: .*{said}"):
        replace(right, **wrong)


def test_threads_that_have_not_met_it_run_programs(device: Device) -> None:
    c = case("softmax")
    code = fakes.code_for(program(c.dag, next(sampled(c.dag, 1))[1]), device).to_bytes()
    loaded, outputs = [DeviceObject(code, device)], c.poisoned()
    pointers = [a.ctypes.data for a in (*c.inputs, *outputs)]

    def each(call: Callable[[], object]) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(call).result()

    each(lambda: loaded[0].run(pointers))
    c.check(outputs, "softmax")
    each(lambda: loaded[0].bench(pointers, 2))
    each(lambda: loaded.append(DeviceObject(code, device)))
    loaded[1].run(pointers)
    each(loaded[0].close)
    each(loaded.clear)


def test_damaged_code_is_refused(device: Device) -> None:
    c = case("softmax")
    code = fakes.code_for(program(c.dag, next(sampled(c.dag, 1))[1]), device).to_bytes()
    bad = code.replace(b"\x7fELF", b"\x7fELG") if b"\x7fELF" in code else code.replace(b"void", b"v0id")
    with pytest.raises(at.CompileError, match="refused"):
        DeviceObject(bad, device)


def test_a_driver_of_cuda_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    if not cuda.available() or cuda.device().name() != fakes.FAKE:
        pytest.skip("needs the fake driver")
    c, device = case("softmax"), cuda.device()
    code = fakes.code_for(program(c.dag, next(sampled(c.dag, 1))[1]), device).to_bytes()
    bad = code.replace(b"\x7fELF", b"\x7fELG")
    monkeypatch.setenv("AT_FAKE_VERSION", "12040")
    with pytest.raises(at.CompileError, match=r"for CUDA 12\.4, .* driver of version 580"):
        DeviceObject(bad, device)
    assert backends.parse("cuda").limit("sm_blocks") == 32


def sum_of_two() -> ComputeDAG:
    a, b = (te.placeholder((37, 5), "float32", name=n) for n in "AB")
    return te.dag([a, b, te.compute((37, 5), lambda *i: a[i] + b[i], name="C")])


def measured(target: Target, kinds: list[str], timeout_s: float = 60.0, finals: int = 0) -> list[Measurement]:
    """Of kernels of these kinds, and, as the last of them, of the first so many again in turns."""
    dag = sum_of_two()
    options = Options(timeout_s=timeout_s, build_timeout_s=60.0)
    with Measurer(dag, target, build=fakes.NAME, options=options) as m:
        traces = [measure_fakes.trace(k, n) for n, k in enumerate(kinds)]
        return [*m.measure(traces), *(m.finalists(traces[:finals], 1, 1) if finals else ())]


@pytest.mark.fast("cuda")
@pytest.mark.parametrize("kind", ["opencl", "cuda"])
def test_a_fault_costs_the_candidate_and_its_worker_only(kind: str) -> None:
    available, make = DEVICES[kind]
    if not available():
        missing(kind)
    if kind == "cuda" and make().name() != fakes.FAKE:
        pytest.skip("these kernels are for the fake driver")
    found = measured(backends.parse(kind), ["right", "faults", "right", "wrong", "right"])
    statuses = [
        "ok" if m.status == "slow" else m.status for m in found
    ]  # on a machine that is busy elsewhere
    assert statuses == ["ok", "crash", "ok", "wrong_result", "ok"], found
    if kind == "cuda":
        assert "unspecified launch failure" in found[1].reason
    assert all(m.time_s for m in found if m.ok)


@pytest.mark.slow
def test_a_candidate_that_writes_to_its_inputs_harms_no_other() -> None:
    need_cxx()
    target, device, dag = backends.parse("cuda-emulator"), EmulatedDevice(), sum_of_two()
    a, b = (np.arange(37 * 5, dtype="f4").reshape(37, 5) * n for n in (1, 2))
    arena = Arena([KernelParam(t.name, t.shape, t.dtype) for t in dag.params], [a, b])
    arrays = DeviceArrays(device, arena)

    def candidate(kind: str) -> OnDevice:
        return OnDevice(arena, arrays, fakes.build(dag, measure_fakes.trace(kind, 0), target))

    def right(x: OnDevice) -> bool:
        x.run(arena.timing, 0)
        return np.array_equal(arena.timing.outputs[0], a + b)

    first, scribbler, second = (candidate(k) for k in ("right", "scribbles", "right"))
    assert right(first)
    assert not right(scribbler) and scribbler.again() and not right(scribbler)
    assert not scribbler.again(), "it had the inputs as they should be"
    assert not right(second) and second.again() and right(second)
    for x in (first, scribbler, second):
        x.close()
    arena.close()


def test_a_device_without_room_for_the_arrays_keeps_none(monkeypatch: pytest.MonkeyPatch) -> None:
    device, dag = EmulatedDevice(), sum_of_two()
    allocate, room = device.allocate, iter([True, True, False])
    monkeypatch.setattr(device, "allocate", lambda n: allocate(n) if next(room, True) else no_room())
    a = np.ones((37, 5), "f4")
    with contextlib.closing(
        Arena([KernelParam(t.name, t.shape, t.dtype) for t in dag.params], [a, a], elsewhere=True)
    ) as arena:
        with pytest.raises(DeviceError, match="no room"):
            DeviceArrays(device, arena)
        assert not device._held


def test_a_worker_of_cuda_gives_back_what_candidates_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not cuda.available() or cuda.device().name() != fakes.FAKE:
        pytest.skip("needs the fake driver")
    log = tmp_path / "calls"
    monkeypatch.setenv("AT_FAKE_LOG", str(log))
    found = measured(backends.parse("cuda"), ["right", "right", "right"], finals=2)
    assert {m.status for m in found} <= {"ok", "slow"}, found
    calls = Counter(line.split()[0] for line in log.read_text().splitlines())
    assert calls["unload"] == calls["load"] >= 5  # more where one was slow and is measured again
    assert calls["allocate"] - calls["free"] == 4  # the arrays stay, and what flushes the cache
    assert calls["flush"] == calls["record"] / 2 > 0  # before every run that is timed


def test_an_object_that_goes_gives_its_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    need_cxx()
    device = EmulatedDevice()
    c = case("softmax")
    loaded = DeviceObject(
        fakes.code_for(program(c.dag, next(sampled(c.dag, 1))[1]), device).to_bytes(), device
    )
    allocate, room = device.allocate, iter([True, False])
    monkeypatch.setattr(device, "allocate", lambda n: allocate(n) if next(room, True) else no_room())
    with pytest.raises(DeviceError, match="no room"):
        _ = loaded.memory  # the first array has been given some
    outputs = c.poisoned()
    loaded.run([a.ctypes.data for a in (*c.inputs, *outputs)])
    c.check(outputs, "after there was room")
    assert len(device._held) == len(loaded.memory)
    del loaded
    gc.collect()
    assert not device._held


def test_memory_that_is_refused_keeps_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    need_cxx()
    device = EmulatedDevice()
    given = [device.allocate(n) for n in (4, 8)]
    give_back(device, [given[0], 1 << 40, given[1]])
    assert not device._held


def no_room() -> NoReturn:
    raise DeviceError("no room")


def test_finalists_are_timed_on_their_inputs_and_keep_their_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    need_cxx()
    device = EmulatedDevice()
    monkeypatch.setattr(Cuda, "device", lambda self: device)
    c = case("softmax")
    code = fakes.code_for(program(c.dag, next(sampled(c.dag, 1))[1]), device)
    code = replace(code, facts={"kernel0": {"registers": 40, "spill_bytes": 0}})
    arena = Arena([KernelParam(t.name, t.shape, t.dtype) for t in c.dag.params], c.inputs)
    arena.fill_outputs()
    arrays = DeviceArrays(device, arena)
    loaded = OnDevice(arena, arrays, code.to_bytes())
    assert loaded.timer()(2) > 0
    arrays.fetch(arena.timing)
    c.check(arena.timing.outputs, "what was timed")
    assert loaded.facts()["registers"] == 40
    held = len(device._held)
    loaded.close()
    assert len(device._held) == held - len(code.scratch)
    arena.close()


def test_opening_a_device_is_no_candidates_time() -> None:
    ours, theirs = socketpair()
    runner = Runner(cast(Any, None), None)
    runner.child = Child(0, ours, -1, -1)
    limits = []
    for _ in range(2):
        begin = time.monotonic()
        runner.submit(0, MAGIC, 1e-6, Options(timeout_s=60.0))
        limits.append(runner.deadline - begin)
    ours.close()
    theirs.close()
    assert limits[0] > 60.0 + DEVICE_S > limits[1] >= 60.0


@pytest.mark.soak
def test_a_kernel_without_an_end_is_killed() -> None:
    if opencl.context() is None:
        missing("opencl")
    found = measured(backends.parse("opencl"), ["hangs", "right"], timeout_s=8.0)
    assert [m.status for m in found] == ["timeout", "ok"], found


def test_reasons_of_throttling_are_words() -> None:
    class Library:
        nvmlClocksEventReasonGpuIdle = 1
        nvmlClocksThrottleReasonHwSlowdown = 8
        nvmlClocksEventReasonSwThermalSlowdown = 32
        nvmlClocksEventReasonAll = 63

    assert nvml.throttled(Library, 1) == []
    assert nvml.throttled(Library, 1 | 8 | 32) == ["HwSlowdown", "SwThermalSlowdown"]


def test_clocks_are_read_where_the_library_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        class NVMLError(Exception):
            pass

        NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
        nvmlClocksEventReasonHwSlowdown = 8

        @staticmethod
        def nvmlDeviceGetHandleByPciBusId(pci: bytes) -> str:
            if pci != b"0000:01:00.0":
                raise Library.NVMLError
            return "gpu"

        @staticmethod
        def nvmlDeviceGetClockInfo(gpu: str, which: int) -> int:
            return 1980 if which == 1 else 2619

        @staticmethod
        def nvmlDeviceGetTemperature(gpu: str, which: int) -> int:
            raise Library.NVMLError

        @staticmethod
        def nvmlDeviceGetCurrentClocksEventReasons(gpu: str) -> int:
            return 8

    monkeypatch.setattr(nvml, "_library", lambda: Library)
    assert nvml.state("0000:01:00.0") == {"sm_mhz": 1980, "memory_mhz": 2619, "throttled": ["HwSlowdown"]}
    assert nvml.state("0000:02:00.0") == {}


@pytest.mark.slow
@pytest.mark.skipif(cuda.available(), reason="there is a driver already")
def test_what_is_for_nvidia_runs_on_a_driver_of_our_own(tmp_path: Path) -> None:
    need_cxx()
    if not nvrtc.available():  # the same wheels
        missing("nvrtc")
    names = (
        "backends/drivers/test_devices.py",
        "backends/drivers/test_cuda_graphs.py",
        "run/test_device_kernel.py",
        "run/test_cuda_contexts.py",
        "models/test_device_program.py",
    )
    tests = [str(ROOT / "tests" / "autotune" / name) for name in names]
    # PyCUDA is linked with all of the driver, of which the fake one has what we use: symbols are bound when
    # called
    start = (
        "import ctypes, os, sys, pytest; sys.setdlopenflags(os.RTLD_LAZY); "
        "ctypes.CDLL('libcuda.so.1', ctypes.RTLD_GLOBAL); sys.exit(pytest.main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", start, *"-q -rs -k cuda -p no:cacheprovider -m".split(), "not soak", *tests],
        env=fakes.fake_driver(tmp_path), capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout.splitlines()[-1]
