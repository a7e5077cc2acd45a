"""Kernels of an NVIDIA GPU in any thread, and beside another GPU: its context is a thread's only while it is
needed."""

from __future__ import annotations

import ctypes
import gc
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gpu_fakes as fakes
import pytest
from grid_cases import case
from test_device_kernel import arrays, kernel_of

from autotune import backends
from autotune.backends.drivers import cuda

if not cuda.available():
    pytest.skip("there is no driver; test_devices.py runs this on a fake one", allow_module_level=True)


def elsewhere(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What a call gives in a thread that has not met the device."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call, *args, **options).result()


@pytest.fixture
def space() -> fakes.Space:
    return fakes.Space(cuda.device())


@pytest.fixture
def driver() -> Iterator[ctypes.CDLL]:
    """The fake one, with no context current in this thread, before and after."""
    if cuda.device().name() != fakes.FAKE:
        pytest.skip("needs the fake driver")
    library = ctypes.CDLL("libcuda.so.1")
    library.at_fake_other.restype = ctypes.c_void_p
    library.cuCtxSetCurrent.argtypes = [ctypes.c_void_p]
    library.cuCtxSetCurrent(None)
    yield library
    library.cuCtxSetCurrent(None)


@pytest.fixture
def calls(driver: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Counter[str]]:
    """How often the driver has been called, by name, since it was last asked."""
    return fakes.counted_calls(tmp_path, monkeypatch)


def current(driver: ctypes.CDLL) -> int | None:
    context = ctypes.c_void_p()
    assert driver.cuCtxGetCurrent(ctypes.byref(context)) == 0
    return context.value


def test_a_thread_calls_on_arrays_of_the_host(space: fakes.Space) -> None:
    c = case("softmax")
    k = kernel_of(c, space.device)
    c.check([elsewhere(k, *c.inputs)], "in a thread")


def test_a_thread_loads_and_times(space: fakes.Space) -> None:
    c = case("softmax")
    k = elsewhere(kernel_of, c, space.device)
    outputs = c.poisoned()
    assert elsewhere(k._loaded.bench, [x.ctypes.data for x in (*c.inputs, *outputs)], 2) > 0
    c.check(outputs, "in threads")
    elsewhere(k._loaded.close)


def test_a_thread_makes_what_steps_pass_on(space: fakes.Space) -> None:
    c = case("attention")
    k = kernel_of(c, space.device)
    given, out = arrays(c, space), fakes.FakeArray(space, c.poisoned()[0])
    (stream,) = space.streams(1)
    elsewhere(k, *given, out=out, stream=stream)
    c.check([out.get()], "in a thread")


def test_a_thread_lets_streams_wait(space: fakes.Space) -> None:
    c = case("matmul")
    k = kernel_of(c, space.device)
    one, other = arrays(c, space)
    one.interface["stream"], other.interface["stream"] = space.streams(2)
    c.check([elsewhere(k, one, other).get()], "in a thread")


def test_a_thread_gives_memory_back(space: fakes.Space, calls: Callable[[], Counter[str]]) -> None:
    c = case("attention")
    k = kernel_of(c, space.device)
    given, out = arrays(c, space), fakes.FakeArray(space, c.poisoned()[0])
    calls()
    k(*given, out=out)
    k(*c.inputs)
    held = [k]
    made = calls()["allocate"]
    assert made == 2 * len(k._loaded.code.scratch) + len(k._params)
    del k
    elsewhere(held.clear)
    gc.collect()
    assert calls()["free"] == made


def test_what_a_gpu_is_takes_no_context(
    space: fakes.Space, calls: Callable[[], Counter[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = cuda.CudaDevice()
    monkeypatch.setattr(cuda, "device", lambda: device)
    assert backends.runnable(backends.parse("cuda")) and device.name() and device.state() is not None
    assert not calls()
    device.free(device.allocate(4))
    device.free(device.allocate(4))
    assert calls()["retain"] == 1


def test_memory_is_given_back_while_a_stream_is_captured(
    driver: ctypes.CDLL, space: fakes.Space, calls: Callable[[], Counter[str]]
) -> None:
    c = case("attention")
    k = kernel_of(c, space.device)
    k(*c.inputs)
    made = calls()["allocate"]
    driver.at_fake_capture(1)
    try:
        del k
        gc.collect()
    finally:
        driver.at_fake_capture(0)
    assert calls()["free"] == made > 0


@pytest.mark.parametrize("beside", [True, False])
def test_the_current_gpu_of_a_thread_stays(driver: ctypes.CDLL, space: fakes.Space, beside: bool) -> None:
    before = driver.at_fake_other() if beside else None
    for op in ("matmul", "attention"):
        c = case(op)
        driver.cuCtxSetCurrent(before)
        k = kernel_of(c, cuda.CudaDevice())
        assert current(driver) == before
        c.check([k(*c.inputs)], "of the host")
        given, out = arrays(c, space), fakes.FakeArray(space, c.poisoned()[0])
        given[0].interface["stream"], given[1].interface["stream"] = 0x70, 0x90
        k(*given, out=out)
        c.check([out.get()], "in place")
        del k, given, out
        gc.collect()
        assert current(driver) == before


def test_a_launch_is_all_where_the_gpu_is_current(
    space: fakes.Space, calls: Callable[[], Counter[str]]
) -> None:
    c = case("softmax")
    k = kernel_of(c, space.device)
    addresses = [x.address for x in (*arrays(c, space), fakes.FakeArray(space, c.poisoned()[0]))]
    calls()
    k._run(addresses, 0)
    assert calls() == {"launch": 1, "push": 1}
    with space.device.current():
        calls()
        k._run(addresses, 0)
        assert calls() == {"launch": 1}
