"""NVIDIA GPUs through the driver's own interface (``cuda-bindings``, extra ``cuda``).

Machine code is made by NVRTC beforehand; here it is loaded, run on arrays of the device, and timed by events,
with the second cache flushed before every run. An error of the device is sticky: it ends the process that
meets it, which is a worker's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from autotune.codegen.gridcode import GridCode
from autotune.errors import CompileError

FLUSH = 2  # times the second cache: what is written between two runs


class DeviceError(RuntimeError):
    """The driver reports an error."""


def available() -> bool:
    """Whether there are bindings, a driver, and a GPU."""
    return _device() is not None


@cache
def _device() -> Any:
    """The first GPU, or None. The driver library is looked for first: the bindings may hang without it."""
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        return None
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    from cuda.bindings import driver

    if int(driver.cuInit(0)[0]) != 0:
        return None
    status, count = driver.cuDeviceGetCount()
    return _ok(driver.cuDeviceGet(0)) if int(status) == 0 and count else None


def _ok(answer: tuple[Any, ...]) -> Any:
    """The value of a driver call. Raises DeviceError."""
    from cuda.bindings import driver

    if int(answer[0]) != 0:
        raise DeviceError(driver.cuGetErrorString(answer[0])[1].decode())
    return answer[1] if len(answer) == 2 else answer[1:] or None


def attribute(name: str) -> int:
    """An attribute of the device by the driver's name for it, such as "WARP_SIZE"."""
    from cuda.bindings import driver

    which = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(_ok(driver.cuDeviceGetAttribute(which, _device())))


def arch() -> str:
    """Such as "sm_90"."""
    return f"sm_{attribute('COMPUTE_CAPABILITY_MAJOR')}{attribute('COMPUTE_CAPABILITY_MINOR')}"


def limits() -> dict[str, int]:
    """What the device says of itself, by the names of `Target.limits`."""
    clock = attribute("MEMORY_CLOCK_RATE") // 1000  # MHz; two transfers a cycle
    return {
        "block_threads": attribute("MAX_THREADS_PER_BLOCK"),
        "bandwidth_gbs": 2 * clock * attribute("GLOBAL_MEMORY_BUS_WIDTH") // 8000,
        "clock_mhz": attribute("CLOCK_RATE") // 1000,
        "fma": 64 if attribute("COMPUTE_CAPABILITY_MAJOR") < 8 or arch() == "sm_80" else 128,
        "l2_bytes": attribute("L2_CACHE_SIZE"),
        "registers": attribute("MAX_REGISTERS_PER_BLOCK"),
        "shared_bytes": attribute("MAX_SHARED_MEMORY_PER_BLOCK"),
        "sm_shared_bytes": attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        "sm_threads": attribute("MAX_THREADS_PER_MULTIPROCESSOR"),
        "sms": attribute("MULTIPROCESSOR_COUNT"),
        "thread_registers": 255,
    }


class Loaded:
    """A program on the device, with memory for its arrays. The context is the device's primary one, which
    torch and CuPy use as well."""

    def __init__(self, code: GridCode) -> None:
        """Raises CompileError where there is no GPU, or the driver refuses the code."""
        if not available():
            raise CompileError("there is no NVIDIA GPU here; use target='cuda-emulator'")
        from cuda.bindings import driver

        self.code, self._d = code, driver
        _ok(driver.cuCtxSetCurrent(_ok(driver.cuDevicePrimaryCtxRetain(_device()))))
        try:
            self._module = _ok(driver.cuModuleLoadData(code.binary))
        except DeviceError as err:
            raise CompileError(f"the driver refused the code: {err}") from None
        self._held = {a.name: _ok(driver.cuMemAlloc(max(1, a.nbytes))) for a in (*code.params, *code.scratch)}
        self._flush = _ok(driver.cuMemAlloc(FLUSH * attribute("L2_CACHE_SIZE")))
        self._events = [_ok(driver.cuEventCreate(0)) for _ in range(2)]
        self._calls = []
        for x in code.launches:
            function = _ok(driver.cuModuleGetFunction(self._module, x.kernel.encode()))
            pointers = tuple(int(self._held[n]) for n in x.arrays)
            self._calls.append((function, x.grid, x.block, (pointers, (ctypes.c_void_p,) * len(pointers))))

    def close(self) -> None:
        """Give the memory of the device back."""
        for memory in (*self._held.values(), self._flush):
            _ok(self._d.cuMemFree(memory))
        _ok(self._d.cuModuleUnload(self._module))

    def upload(self, arrays: Sequence[np.ndarray]) -> None:
        """Copy arrays of the host, in the order of the parameters, to the device."""
        for a, x in zip(self.code.params, arrays, strict=True):
            _ok(self._d.cuMemcpyHtoD(self._held[a.name], x.ctypes.data, a.nbytes))

    def seconds(self, n: int) -> float:
        """Run ``n`` times, the second cache flushed before each; how long the runs take together, by
        events."""
        total = 0.0
        start, end = self._events
        for _ in range(n):
            _ok(self._d.cuMemsetD8Async(self._flush, 0, FLUSH * attribute("L2_CACHE_SIZE"), 0))
            _ok(self._d.cuEventRecord(start, 0))
            for function, grid, block, arguments in self._calls:
                _ok(self._d.cuLaunchKernel(function, *grid, *block, 0, 0, arguments, 0))
            _ok(self._d.cuEventRecord(end, 0))
            _ok(self._d.cuEventSynchronize(end))
            total += _ok(self._d.cuEventElapsedTime(start, end)) * 1e-3
        return total

    def download(self, arrays: Sequence[np.ndarray]) -> None:
        """Copy the outputs into arrays of the host."""
        sizes = {a.name: a.nbytes for a in self.code.params}
        for name, x in zip(self.code.outputs, arrays, strict=True):
            _ok(self._d.cuMemcpyDtoH(x.ctypes.data, self._held[name], sizes[name]))
