"""Kernels on arrays of a device, in place: on emulation, and on NVIDIA's driver, a fake one without a GPU."""

from __future__ import annotations

import ctypes
import inspect
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import gpu_fakes as fakes
import numpy as np
import pytest
from emulated_device import EmulatedDevice
from grid_cases import TARGET, Case, case, need_cxx, program, sampled
from needs import imported

import autotune as at
from autotune import te
from autotune.backends.drivers import cuda
from autotune.backends.drivers.object import DeviceObject
from autotune.backends.drivers.protocol import DeviceError
from autotune.codegen.simt import cuda as cuda_c
from autotune.run import device_arrays
from autotune.run.device_kernel import DeviceKernel
from schedules.ir.grid import GridProgram
from schedules.ir.nest import tensor_buffer
from schedules.model import Workload

torch = imported("torch")


class EmulatedGpu(EmulatedDevice):
    """Emulation whose arrays say that they are on a GPU."""

    arrays_on = (2, 0)

    def owns(self, address: int) -> bool:
        return any(at <= address < at + max(1, len(raw) - 255) for at, raw in self._held.items())


@pytest.fixture(params=["emulator", "cuda"])
def space(request: pytest.FixtureRequest) -> Iterator[fakes.Space]:
    """A library of arrays on a device, which it has made the current one."""
    if request.param == "cuda":
        if not cuda.available():
            pytest.skip("there is no driver; test_devices.py runs this on a fake one")
        with cuda.device().current():
            yield fakes.Space(cuda.device())
        return
    need_cxx()
    yield fakes.Space(EmulatedGpu())


def kernel_of(c: Case, device: object, which: Callable[[GridProgram], bool] = lambda p: True) -> DeviceKernel:
    found = next(filter(which, (program(c.dag, t) for _, t in sampled(c.dag, 20))))
    loaded = DeviceObject(fakes.code_for(found, device).to_bytes(), device)
    params = tuple(map(tensor_buffer, c.dag.params))
    return DeviceKernel(loaded, params, c.dag.outputs, Workload(c.dag), TARGET)


def arrays(c: Case, space: fakes.Space, **interface: object) -> list[fakes.FakeArray]:
    return [fakes.FakeArray(space, x, **interface) for x in c.inputs]


@pytest.mark.fast(but=["emulator-attention-float32", "emulator-attention-float16"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("op", ["softmax", "attention"])
def test_it_runs_where_the_arrays_are(space: fakes.Space, op: str, dtype: str) -> None:
    c = case(op, dtype)
    k = kernel_of(c, space.device)
    given = arrays(c, space)
    fresh = k(*given)
    assert isinstance(fresh, fakes.FakeArray) and space.made == 1
    c.check([fresh.get()], op)
    out = fakes.FakeArray(space, c.poisoned()[0])
    assert k(*given, out=out) is out and space.made == 1
    c.check([out.get()], op)
    for x, data in zip(given, c.inputs):
        np.testing.assert_array_equal(x.get(), data)


def test_arrays_of_the_host_are_copied_if_all_are(space: fakes.Space) -> None:
    c = case("softmax")
    k = kernel_of(c, space.device)
    c.check([k(*c.inputs)], "softmax")
    with pytest.raises(at.ArgumentError, match="stream is for arrays of the device"):
        k(*c.inputs, stream=5)
    with pytest.raises(at.ArgumentError, match="output 'y' is not on cuda:0, where other arrays are"):
        k(*arrays(c, space), out=c.poisoned()[0])


def launches(k: DeviceKernel) -> list[tuple[int, ...]]:
    """Every launch of a kernel from now on, as it is called."""
    seen: list[tuple[int, ...]] = []
    real = k._launch

    def launch(*args: int) -> int:
        seen.append(args)
        return real(*args)

    k._launch = launch
    return seen


def test_the_stream_is_the_callers(space: fakes.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    c = case("matmul")
    k = kernel_of(c, space.device)
    seen = launches(k)
    waits: list[tuple[int, int]] = []
    monkeypatch.setattr(space.device, "wait", lambda stream, other: waits.append((stream, other)))
    out = fakes.FakeArray(space, c.poisoned()[0])
    s, t, u = space.streams(3)
    k(*arrays(c, space), out=out)
    k(*arrays(c, space, stream=1), out=out)
    k(*arrays(c, space, stream=s), out=out)
    k(*arrays(c, space), out=out, stream=t)
    assert [args[-1] for args in seen] == [0, 1, s, t] and waits == []
    one, other = arrays(c, space)
    one.interface["stream"], other.interface["stream"] = s, u
    k(one, other, out=out)
    assert seen[-1][-1] == s and waits == [(s, u), (u, s)]
    waits.clear()
    k(one, other, out=out, stream=u)
    assert seen[-1][-1] == u and waits == [(u, s), (s, u)]
    waits.clear()
    one.interface["stream"], other.interface["stream"] = None, 1
    k(one, other, out=out, stream=0)
    assert seen[-1][-1] == 0 and waits == []  # two names of the default stream
    c.check([out.get()], "matmul")


def test_streams_are_known_by_their_libraries_names() -> None:
    class Torch:
        cuda_stream = 7

    class CuPy:
        ptr = 8

    class Core:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 9

    assert [device_arrays.handle(x) for x in (Torch(), CuPy(), Core(), 3, ctypes.c_void_p(5).value)] == [
        7,
        8,
        9,
        3,
        5,
    ]
    with pytest.raises(at.ArgumentError, match="stream is a str"):
        device_arrays.handle("default")


def test_what_does_not_fit_is_explained(space: fakes.Space) -> None:
    c = case("matmul")
    k = kernel_of(c, space.device)
    a, b = arrays(c, space)
    good = fakes.FakeArray(space, c.poisoned()[0])
    fake = fakes.FakeArray

    def refused(match: str, *inputs: object, out: object = None) -> None:
        seen = launches(k)
        with pytest.raises(at.ArgumentError, match=match):
            k(*inputs, out=out)
        assert not seen

    refused("takes 2 inputs", a)
    refused("takes 2 inputs .* give outputs by out=", a, b, good)
    refused(
        "input 'a' is float64, but the kernel takes float32: convert",
        fake(space, c.inputs[0].astype("f8")),
        b,
    )
    refused(
        "output 'c' is float64, .* give an array of float32",
        a,
        b,
        out=fake(space, c.poisoned()[0].astype("f8")),
    )
    refused(
        r"input 'b' has shape \(3, 4\), but the kernel is compiled for",
        a,
        fake(space, np.zeros((3, 4), "f4")),
    )
    refused("input 'a' is not C-contiguous", fake(space, c.inputs[0], strides=(4, 4 * 37)), b)
    refused("input 'a' is >f4", fake(space, c.inputs[0], typestr=">f4"), b)
    refused("output 'c' is read-only", a, b, out=fake(space, c.poisoned()[0], data=(good.address, True)))
    refused(
        "output 'c' shares memory with input 'b'",
        a,
        b,
        out=fake(space, c.poisoned()[0], data=(b.address, False)),
    )
    refused("input 'a' has a mask", fake(space, c.inputs[0], mask=b), b)
    refused("input 'a' names stream 0", fake(space, c.inputs[0], stream=0), b)
    refused("damaged __cuda_array_interface__", fake(space, c.inputs[0], shape=None), b)
    refused("input 'a' is no memory of cuda:0", fake(space, c.inputs[0], data=(1 << 40, False)), b)
    refused("input 'b' is not on cuda:0, where other arrays are", a, c.inputs[1])
    refused("output 'c' is not on cuda:0", a, b, out=(good, good))
    other = fake(space, c.inputs[0])
    other.__class__ = type("Elsewhere", (fake,), {"__dlpack_device__": lambda self: (2, 1)})
    refused("input 'a' is on cuda:1, but the kernel runs on cuda:0", other, b)


def test_vectors_need_aligned_arrays(space: fakes.Space) -> None:
    c = case("fused_multiply_add")
    wide = kernel_of(c, space.device, lambda p: cuda_c.generate(p).align.get("b") == 16)
    narrow = kernel_of(c, space.device, lambda p: not cuda_c.generate(p).align)
    given = arrays(c, space)
    c.check([wide(*given).get()], "aligned")
    given[1] = fakes.FakeArray(space, c.inputs[1], offset=4)
    with pytest.raises(at.ArgumentError, match="input 'b' begins at no multiple of 16 bytes"):
        wide(*given)
    c.check([narrow(*given).get()], "not aligned")
    if space.device.name() == "emulator":  # what the check is there for
        out = fakes.FakeArray(space, c.poisoned()[0])
        with pytest.raises(DeviceError, match="16 bytes at a misaligned address"):
            wide._loaded.program.run([x.address for x in (*given, out)])


def test_what_steps_pass_on_is_kept_for_each_stream(
    space: fakes.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = case("attention")
    k = kernel_of(c, space.device)
    assert k._loaded.code.scratch
    given, out = arrays(c, space), fakes.FakeArray(space, c.poisoned()[0])
    seen = launches(k)
    (other,) = space.streams(1)
    for stream in (0, other, 0, other):
        k(*given, out=out, stream=stream)
    assert seen[0] == seen[2] and seen[1] == seen[3]
    assert set(seen[0][4:-1]).isdisjoint(seen[1][4:-1])
    # from now on nothing is allocated: a call can be captured
    monkeypatch.setattr(type(space.device), "allocate", lambda *_: pytest.fail("allocates"))
    monkeypatch.setattr(type(space.device), "download", lambda *_: pytest.fail("waits"))
    k(*given, out=out, stream=0)


def test_threads_call_at_once(space: fakes.Space) -> None:
    if space.device.name() == "emulator":
        pytest.skip("emulation has one processor")
    c = case("softmax")
    k = kernel_of(c, space.device)
    given, out = arrays(c, space), fakes.FakeArray(space, c.poisoned()[0])
    failed: list[BaseException] = []

    def call() -> None:  # a thread that has not met the device yet
        try:
            k(*given, out=out)
        except BaseException as err:
            failed.append(err)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert not failed
    c.check([out.get()], "in a thread")


def test_cuda_allocates_for_a_stream_that_is_captured(space: fakes.Space, tmp_path: Path) -> None:
    if space.device.name() != fakes.FAKE:
        pytest.skip("needs the fake driver")
    driver = ctypes.CDLL("libcuda.so.1")
    c = case("attention")
    k = kernel_of(c, space.device)
    given, out = arrays(c, space), fakes.FakeArray(space, c.poisoned()[0])
    log = tmp_path / "calls"
    driver.at_fake_capture(1)
    os.environ["AT_FAKE_LOG"] = str(log)
    try:
        k(*given, out=out, stream=0x70)
        first = log.read_text().split("\n")
        log.unlink()
        k(*given, out=out, stream=0x70)
    finally:
        del os.environ["AT_FAKE_LOG"]
        driver.at_fake_capture(0)
    assert any(x.startswith("allocate") for x in first)
    words = {x.split()[0] for x in log.read_text().splitlines()}
    assert words == {"launch", "push"}  # nothing else: no copy, no allocation, no synchronisation
    c.check([out.get()], "captured")


def test_cuda_waits_for_streams_on_the_device(space: fakes.Space, tmp_path: Path) -> None:
    if space.device.name() != fakes.FAKE:
        pytest.skip("needs the fake driver")
    c = case("matmul")
    k = kernel_of(c, space.device)
    one, other = arrays(c, space)
    one.interface["stream"], other.interface["stream"] = 0x70, 0x90
    out = fakes.FakeArray(space, c.poisoned()[0])
    log = tmp_path / "calls"
    os.environ["AT_FAKE_LOG"] = str(log)
    try:
        k(one, other, out=out)
    finally:
        del os.environ["AT_FAKE_LOG"]
    lines = [
        tuple(x.split()[:2]) for x in log.read_text().splitlines() if not x.startswith(("event", "push"))
    ]
    s, o = str(0x70), str(0x90)
    assert lines == [("record", o), ("wait", s), ("launch", s), ("record", s), ("wait", o)]


@pytest.fixture
def on_cpu() -> Iterator[EmulatedDevice]:
    """Emulation whose arrays are torch's on the CPU."""
    need_cxx()
    yield EmulatedDevice()


def test_tensors_of_torch(on_cpu: EmulatedDevice) -> None:
    c = case("softmax")
    k = kernel_of(c, on_cpu)
    (x,) = (torch.from_numpy(a.copy()) for a in c.inputs)
    seen = launches(k)
    y = k(x)
    assert isinstance(y, torch.Tensor) and seen[-1] == (x.data_ptr(), y.data_ptr(), 0)
    c.check([y.numpy()], "torch")
    out = torch.full(y.shape, float("nan"))
    assert k(x, out=out) is out
    c.check([out.numpy()], "torch out")
    with pytest.raises(at.ArgumentError, match=r"input 'x' requires a gradient.* x.detach\(\)"):
        k(x.clone().requires_grad_())
    with torch.no_grad():
        y = k(torch.nn.Parameter(x))
    c.check([y.numpy()], "a parameter, without gradients")
    saving = torch.ones(y.shape, requires_grad=True) * out
    for place in (out, torch.zeros(y.shape)):  # the second has nothing saved of it
        before = place._version
        k(x, out=place)
        assert place._version == before + 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saving.sum().backward()
    with pytest.raises(at.ArgumentError, match="input 'x' has no memory"):
        torch.func.functionalize(k)(x)
    with pytest.raises(at.ArgumentError, match="input 'x' is float64"):
        k(x.double())
    with pytest.raises(at.ArgumentError, match="input 'x' is not C-contiguous"):
        k(torch.empty(x.shape[::-1]).t())
    with pytest.raises(at.ArgumentError, match="input 'x' is on device type 0"):
        k(x.to("meta"))
    with pytest.raises(at.ArgumentError, match="output 'y' shares memory with input 'x'"):
        k(x, out=x)
    with pytest.raises(at.ArgumentError, match="no plain tensor"):
        k(torch._neg_view(x))


def test_what_torch_makes_is_waited_for_where_its_stream_is_another(on_cpu: EmulatedDevice) -> None:
    c = case("softmax")
    k = kernel_of(c, on_cpu)
    (x,) = (torch.from_numpy(a.copy()) for a in c.inputs)
    seen = launches(k)
    y = k(x, stream=0x70)  # memory of the current stream: 0
    assert seen[-1][-1] == 0x70 and on_cpu.waits == [(0x70, 0), (0, 0x70)]
    c.check([y.numpy()], "torch")
    k(x, stream=0)
    k(x, out=y, stream=0x70)
    k(x)
    assert len(on_cpu.waits) == 2


def test_tensors_of_float16(on_cpu: EmulatedDevice) -> None:
    c = case("softmax", "float16")
    k = kernel_of(c, on_cpu)
    x = torch.from_numpy(c.inputs[0].copy())
    y = k(x)
    assert y.dtype is torch.float16
    c.check([y.numpy()], "torch")
    out = c.poisoned()[0]
    k(Pack(c.inputs[0].copy(), old=False), out=Pack(out, old=False))
    c.check([out], "dlpack")
    for wrong, name in ((x.float(), "float32"), (x.bfloat16(), "bfloat16")):
        with pytest.raises(at.ArgumentError, match=f"input 'x' is {name}, but the kernel takes float16"):
            k(wrong)


def test_the_short_way_for_tensors_is_taken(on_cpu: EmulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    c = case("matmul")
    k = kernel_of(c, on_cpu)
    monkeypatch.setattr(DeviceKernel, "_checked", lambda *_: pytest.fail("takes the long way"))
    tensors = [torch.from_numpy(a.copy()) for a in c.inputs]
    c.check([k(*tensors).numpy()], "short")
    c.check([k(*tensors, out=torch.empty(c.expected[0].shape)).numpy()], "short with out")


class Pack:
    """An array that offers DLPack only, of either protocol."""

    def __init__(self, data: np.ndarray, old: bool, device: tuple[int, int] = (1, 0)) -> None:
        self.data, self.old, self.device = data, old, device
        self.asked: list[dict[str, object]] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: object) -> object:
        self.asked.append(dict(options))
        if self.old and "max_version" in options:
            raise TypeError("unexpected keyword argument 'max_version'")
        options.pop("stream", None)
        return self.data.__dlpack__(**options)


@pytest.mark.parametrize("old", [False, True])
def test_arrays_with_dlpack(on_cpu: EmulatedDevice, old: bool) -> None:
    c = case("matmul")
    k = kernel_of(c, on_cpu)
    out = c.poisoned()[0]
    k(*(Pack(x.copy(), old) for x in c.inputs), out=Pack(out, old))
    c.check([out], "dlpack")
    with pytest.raises(at.ArgumentError, match="library of Pack does not tell .* give outputs by out="):
        k(*(Pack(x.copy(), old) for x in c.inputs))
    with pytest.raises(at.ArgumentError, match="not C-contiguous"):
        k(Pack(np.asfortranarray(c.inputs[0]), old), Pack(c.inputs[1].copy(), old), out=Pack(out, old))
    if not old:
        fixed = c.poisoned()[0]
        fixed.flags.writeable = False
        with pytest.raises(at.ArgumentError, match="read-only"):
            k(*(Pack(x.copy(), old) for x in c.inputs), out=Pack(fixed, old))


def test_dlpack_is_told_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    need_cxx()
    c = case("matmul")
    k = kernel_of(c, EmulatedGpu())
    given = [Pack(x.copy(), False, (2, 0)) for x in c.inputs]
    out = Pack(c.poisoned()[0], False, (2, 0))
    seen = launches(k)
    k(*(x for x in given), out=out, stream=0x70)
    k(*(x for x in given), out=out)
    assert [x["stream"] for x in given[0].asked] == [0x70, 1] and [s[-1] for s in seen] == [0x70, 0]


def test_dlpack_is_told_the_stream_that_another_array_names() -> None:
    need_cxx()
    c, device = case("matmul"), EmulatedGpu()
    k = kernel_of(c, device)
    one = Pack(c.inputs[0].copy(), False, (2, 0))
    other = fakes.FakeArray(fakes.Space(device), c.inputs[1], stream=0x70)
    out = fakes.FakeArray(fakes.Space(device), c.poisoned()[0], stream=0x90)
    seen = launches(k)
    k(one, other, out=out)
    assert seen[-1][-1] == 0x70 and [x["stream"] for x in one.asked] == [0x70]
    assert device.waits == [(0x70, 0x90), (0x90, 0x70)]
    c.check([out.get()], "dlpack and interface")


class CupyArray(fakes.FakeArray):
    """As CuPy's: its library is known by its module, and its arrays by where they say that they are."""

    def __init__(self, device: CupyDevice, host: np.ndarray, **interface: object) -> None:
        super().__init__(fakes.Space(device.gpu), host, **interface)
        self.device = device

    __array_namespace__ = None

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


class CupyDevice:
    """Of an array: a context in which new arrays are made there."""

    def __init__(self, gpu: EmulatedGpu) -> None:
        self.gpu, self.current = gpu, False

    def __enter__(self) -> None:
        self.current = True

    def __exit__(self, *_: object) -> None:
        self.current = False


def test_arrays_of_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    need_cxx()
    device = CupyDevice(EmulatedGpu())

    def empty(shape: tuple[int, ...], dtype: object = float, order: str = "C") -> CupyArray:
        assert device.current
        return CupyArray(device, np.full(shape, np.nan, dtype), stream=0x70)

    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(ndarray=CupyArray, empty=empty))
    c = case("softmax", "float16")
    k = kernel_of(c, device.gpu)
    seen = launches(k)
    (x,) = (CupyArray(device, a, stream=0x70) for a in c.inputs)
    monkeypatch.setattr(EmulatedGpu, "download", lambda *_: pytest.fail("waits"))
    made = len(device.gpu._held)
    y = k(x)
    assert isinstance(y, CupyArray) and not device.current
    assert len(device.gpu._held) == made + 1  # the output
    assert seen == [(x.address, y.address, 0x70)] and device.gpu.waits == []
    assert k(x, out=y) is y and k(x, out=y, stream=types.SimpleNamespace(ptr=0x80)) is y
    assert [s[-1] for s in seen] == [0x70, 0x70, 0x80]
    assert device.gpu.waits == [(0x80, 0x70), (0x70, 0x80)]  # on the device: nobody else waits
    monkeypatch.undo()
    c.check([y.get()], "cupy")


def test_its_signature_has_a_stream(on_cpu: EmulatedDevice) -> None:
    k = kernel_of(case("softmax"), on_cpu)
    assert list(inspect.signature(k).parameters) == ["x", "out", "stream"]
    (x,) = case("softmax").inputs
    np.testing.assert_array_equal(k(x=x), k(x))


# -- views ---------------------------------------------------------------------------------------------


def on_views() -> tuple[Case, list[np.ndarray]]:
    """A product of a transposed array into rows with gaps, and its operands as they lie."""
    c = case("matmul")
    m, n = c.expected[0].shape
    dag = te.with_strides(c.dag, {"a": (1, m), "c": (n + 10, 1)})
    a = np.ascontiguousarray(c.inputs[0].T).T
    return Case(dag, (a, c.inputs[1]), c.expected), [np.full((m, n + 10), 7, "float32")]


def test_views_of_torch_stay_where_they_are(on_cpu: EmulatedDevice) -> None:
    c, (memory,) = on_views()
    k = kernel_of(c, on_cpu)
    a, b = map(torch.from_numpy, c.inputs)
    n = c.inputs[1].shape[1]
    made = k(a, b)
    assert made.stride() == (n + 10, 1) and k._short.ready((a, b), None) is not None
    c.check([made.numpy()], "new")
    k(a, b, out=torch.from_numpy(memory)[:, :n])
    c.check([memory[:, :n]], "given")
    assert (memory[:, n:] == 7).all()
    with pytest.raises(at.ArgumentError, match=r"input 'a' has strides \(36, 1\).* compiled for \(1, 37\)"):
        k(a.contiguous(), b)
    with pytest.raises(at.ArgumentError, match=r"output 'c' has strides \(22, 1\).* compiled for \(32, 1\)"):
        k(a, b, out=torch.empty(a.shape[0], n))


@pytest.mark.parametrize("old", [False, True])
def test_views_with_dlpack(on_cpu: EmulatedDevice, old: bool) -> None:
    c, (memory,) = on_views()
    k, n = kernel_of(c, on_cpu), c.inputs[1].shape[1]
    k(*(Pack(x, old) for x in c.inputs), out=Pack(memory[:, :n], old))
    c.check([memory[:, :n]], "dlpack")
    with pytest.raises(at.ArgumentError, match=r"input 'a' has strides \(36, 1\).* compiled for \(1, 37\)"):
        k(Pack(c.inputs[0].copy(), old), Pack(c.inputs[1], old), out=Pack(memory[:, :n], old))
    with pytest.raises(at.ArgumentError, match=r"make an array with strides \[32, 1\]: give outputs by out="):
        k(*(Pack(x, old) for x in c.inputs))


def test_views_by_the_array_interface(space: fakes.Space) -> None:
    c, (memory,) = on_views()
    k, (m, n) = kernel_of(c, space.device), c.expected[0].shape
    a, b = c.inputs
    given = fakes.FakeArray(space, np.ascontiguousarray(a.T), shape=a.shape, strides=(4, 4 * m))
    out = fakes.FakeArray(space, memory, shape=(m, n), strides=(4 * (n + 10), 4))
    k(given, fakes.FakeArray(space, b), out=out)
    c.check([out.get()[:, :n]], "interface")
    assert (out.get()[:, n:] == 7).all()
    with pytest.raises(at.ArgumentError, match=r"input 'a' has strides \(36, 1\).* compiled for \(1, 37\)"):
        k(*(fakes.FakeArray(space, x) for x in c.inputs), out=out)
    # no whole number of elements
    odd = fakes.FakeArray(space, np.ascontiguousarray(a.T), shape=a.shape, strides=(6, 4 * m))
    with pytest.raises(at.ArgumentError, match=r"input 'a' has strides \(1.5, 37\)"):
        k(odd, fakes.FakeArray(space, b), out=out)


def test_views_of_the_host_are_copied_with_their_gaps(space: fakes.Space) -> None:
    c, (memory,) = on_views()
    k, n = kernel_of(c, space.device), c.inputs[1].shape[1]
    k(*c.inputs, out=memory[:, :n])
    c.check([memory[:, :n]], "host")
    assert (memory[:, n:] == 7).all()
    assert k._loaded.signature == "float32[37,36;1,37] float32[36,22] -> float32[37,22;32,1]"
