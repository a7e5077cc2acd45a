"""Launches that are captured into a graph of CUDA once, and replayed: on a fake driver where there is no GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import gpu_fakes as fakes
import numpy as np
import pytest
from grid_cases import case, program, sampled, turned

from autotune.backends.drivers import cuda
from autotune.backends.drivers.object import DeviceObject
from autotune.backends.drivers.protocol import Addressed, Capturing, DeviceError

if not cuda.available():
    pytest.skip("there is no driver; test_devices.py runs this on a fake one", allow_module_level=True)


@pytest.fixture
def device() -> cuda.CudaDevice:
    return cuda.device()


@pytest.fixture
def calls(
    device: cuda.CudaDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], Counter[str]]:
    """How often the fake driver has been called, by name, since it was last asked."""
    if device.name() != fakes.FAKE:
        pytest.skip("needs the fake driver")
    return fakes.counted_calls(tmp_path, monkeypatch)


class Twice:
    """b = softmax(a) and c = softmax(b): two launches that follow one another, in memory of the device."""

    def __init__(self, device: cuda.CudaDevice) -> None:
        self.c = case("softmax")
        found = program(self.c.dag, next(sampled(self.c.dag, 1))[1])
        self.loaded = DeviceObject(fakes.code_for(found, device).to_bytes(), device)
        self.device, self.x = device, self.c.inputs[0]
        self.a, self.b, self.d = (device.allocate(self.x.nbytes) for _ in range(3))

    def launch(self, stream: int) -> None:
        run = self.device.launcher(self.loaded.program)
        assert run(self.a, self.b, stream) == 0
        assert run(self.b, self.d, stream) == 0

    def given(self, x: np.ndarray) -> None:
        self.device.upload(self.a, x)
        for m in (self.b, self.d):
            self.device.fill(m, 0, 4, x.nbytes)

    def found(self) -> np.ndarray:
        out = np.empty_like(self.x)
        self.device.download(out, self.d)
        return out

    def expected(self, x: np.ndarray) -> np.ndarray:
        self.given(x)
        with self.device.current():
            self.launch(0)
        return self.found()


def test_devices_of_cuda_capture(device: cuda.CudaDevice) -> None:
    assert isinstance(device, Addressed) and isinstance(device, Capturing)


def test_what_was_captured_runs_when_it_is_launched_and_not_before(device: cuda.CudaDevice) -> None:
    two = Twice(device)
    first, second = two.x, np.ascontiguousarray(two.x[::-1])
    expected = [two.expected(x) for x in (first, second)]
    assert not np.array_equal(*expected) and expected[0].any()
    two.given(first)
    captured = device.captured(two.launch)
    assert not two.found().any()
    for x, y in [(first, expected[0]), (second, expected[1]), (first, expected[0])]:
        two.given(x)
        captured.launch(0)
        np.testing.assert_array_equal(two.found(), y)
    captured.close()


def test_what_was_captured_asks_for_the_memory_that_blocks_share(device: cuda.CudaDevice) -> None:
    x, p = turned(200)
    loaded = DeviceObject(fakes.code_for(p, device).to_bytes(), device)
    given, made = (device.allocate(x.nbytes) for _ in range(2))
    device.upload(given, x)
    device.fill(made, 0, 4, x.nbytes)
    launch = device.launcher(loaded.program)

    def once(stream: int) -> None:
        assert launch(given, made, stream) == 0

    captured = device.captured(once)
    captured.launch(0)
    out = np.empty_like(x)
    device.download(out, made)
    np.testing.assert_array_equal(out, x[:, ::-1, ::-1])
    captured.close()


def test_a_graph_is_launched_by_one_call_and_everything_is_given_back(
    device: cuda.CudaDevice, calls: Callable[[], Counter[str]]
) -> None:
    two = Twice(device)
    calls()
    captured = device.captured(two.launch)
    made = calls()
    assert made["record_launch"] == 2 and made["launch"] == 0
    assert made["capture"] == made["capture_end"] == made["instantiate"] == made["graph_end"] == 1
    assert made["stream"] == made["stream_end"] == 1
    for _ in range(3):
        captured.launch(0)
    assert calls() == {"push": 3, "replay": 3}
    captured.close()
    assert calls() == {"push": 1, "exec_end": 1}


def test_copies_inside_the_device_are_captured(device: cuda.CudaDevice) -> None:
    x = np.arange(8, dtype="f4")
    a, b = device.allocate(32), device.allocate(32)
    device.upload(a, x)
    device.fill(b, 0, 4, 32)
    captured = device.captured(lambda stream: device.copy(device.part(b, 16, 16), a, 4, 12, stream))
    out = np.ones(8, "f4")
    device.download(out, b)
    assert not out.any()
    captured.launch(0)
    device.download(out, b)
    np.testing.assert_array_equal(out, [0, 0, 0, 0, 1, 2, 3, 0])
    captured.close()


@pytest.mark.parametrize("which", ["raises", "allocates"])
def test_an_error_while_capturing_leaves_the_device_usable(
    device: cuda.CudaDevice, calls: Callable[[], Counter[str]], which: str
) -> None:
    two = Twice(device)
    expected = two.expected(two.x)

    def launch(stream: int) -> None:
        two.launch(stream)
        if which == "raises":
            raise ValueError("in the midst of it")
        device.driver.cuMemAlloc(16)  # refused; it spoils the capture, which is told at its end

    calls()
    error = (
        (ValueError, "in the midst of it")
        if which == "raises"
        else (DeviceError, "failed due to a previous error during capture")
    )
    two.given(two.x)
    with pytest.raises(error[0], match=error[1]):
        device.captured(launch)
    made = calls()
    assert made["capture"] == made["capture_end"] == made["stream"] == made["stream_end"] == 1
    assert made["instantiate"] == 0 and made["graph_end"] == (which == "raises")
    assert not two.found().any()
    device.free(device.allocate(16))
    captured = device.captured(two.launch)
    captured.launch(0)
    np.testing.assert_array_equal(two.found(), expected)
    captured.close()


def test_memory_of_the_device_may_be_had_while_it_captures(device: cuda.CudaDevice) -> None:
    """Through `allocate`, which asks the driver not to mind: it is no part of the graph."""
    two = Twice(device)
    expected = two.expected(two.x)

    def launch(stream: int) -> None:
        two.launch(stream)
        device.free(device.allocate(16))

    captured = device.captured(launch)
    captured.launch(0)
    np.testing.assert_array_equal(two.found(), expected)
    captured.close()
