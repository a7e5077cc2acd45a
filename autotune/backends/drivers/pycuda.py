"""NVIDIA GPUs through PyCUDA (extra ``pycuda``), where ``cuda-bindings`` cannot be had: it measures and runs
on arrays of the host. Launching on arrays of other libraries needs the driver's handles, which it keeps to
itself; and it has no graphs, so that whole models are launched kernel after kernel.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from importlib.util import find_spec
from math import prod
from typing import Any

import numpy as np

from autotune.backends.drivers import nvml
from autotune.backends.drivers.cuda import AHEAD, limits, refused_shared
from autotune.backends.drivers.protocol import FLUSH, DeviceError, Memory
from autotune.codegen.grid_code import GridCode, Launch
from autotune.errors import CompileError
from autotune.platform.machine import driver_library
from schedules.gpu_architectures import STATIC_SHARED


@cache
def _driver() -> Any:
    """``pycuda.driver``, ready, or None without PyCUDA, a driver or a GPU."""
    if find_spec("pycuda") is None:
        return None
    try:
        ctypes.CDLL(driver_library("cuda"))
        import pycuda.driver as driver

        driver.init()
        return driver if driver.Device.count() else None
    except (OSError, ImportError, RuntimeError):  # PyCUDA's own error derives from neither
        return None
    except Exception as err:
        if type(err).__module__.startswith("pycuda"):
            return None
        raise


def available() -> bool:
    """Whether there are PyCUDA, a driver, and a GPU."""
    return _driver() is not None


class PycudaProgram:
    """See `LoadedKernels`."""

    def __init__(self, device: PycudaDevice, code: GridCode) -> None:
        self._d, self._device = device.driver, device
        self._launches = []
        with device.current():
            try:
                self._module = self._d.module_from_buffer(code.binary)
            except self._d.Error as err:
                raise CompileError(f"the driver refused the code: {err}") from None
            for x, used in code.numbered():
                function = self._module.get_function(x.kernel)
                if max(used, default=0) >= len(code.params) + len(code.scratch):
                    raise CompileError(f"{x.kernel} takes tensor maps, which PyCUDA does not make")
                function.prepare("P" * len(used))
                self._allow(function, x)
                self._launches.append((function, x, used))

    def _allow(self, function: Any, x: Launch) -> None:
        """A kernel may ask for as much shared memory as it does. Raises CompileError, also for clusters."""
        if prod(x.cluster) > 1:
            raise CompileError(f"{x.kernel} runs blocks in clusters, which PyCUDA does not launch")
        if x.shared > STATIC_SHARED:
            try:
                function.set_attribute(self._d.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, x.shared)
            except self._d.Error as err:
                raise CompileError(refused_shared(x, str(err))) from None

    def run(self, memory: Sequence[Memory]) -> None:
        with self._device.current():
            self._launched(memory)
            self._d.Context.synchronize()

    def begin(self, memory: Sequence[Memory]) -> None:
        with self._device.current():
            self._launched(memory)

    def seconds(self, memory: Sequence[Memory], n: int) -> float:
        total, left = 0.0, n
        with self._device.current():
            flush, size = self._device.flush
            while left:
                pairs = self._device.events[: min(left, AHEAD)]
                for start, end in pairs:
                    self._d.memset_d8_async(flush, 0, size)
                    start.record()
                    self._launched(memory)
                    end.record()
                pairs[-1][1].synchronize()
                total += sum(end.time_since(start) for start, end in pairs) * 1e-3
                left -= len(pairs)
        return total

    def _launched(self, memory: Sequence[Memory]) -> None:
        for function, x, used in self._launches:
            arrays = (int(memory[i]) for i in used)
            function.prepared_async_call(x.grid, x.block, None, *arrays, shared_size=x.shared)

    def close(self) -> None:
        with self._device.current():
            self._launches.clear()
            self._module = None

    __del__ = close  # PyCUDA unloads nothing in a thread where the device is not current: it hangs


class PycudaDevice:
    """The first GPU: see `Device`."""

    kind = "cuda"
    alignment = 256

    def __init__(self) -> None:
        """Raises CompileError where there is no GPU."""
        self.driver = _driver()
        if self.driver is None:
            raise CompileError("there is no PyCUDA here, or no NVIDIA GPU; use target='cuda-emulator'")
        self._own = self.driver.Device(0)
        self._flush: tuple[Any, int] | None = None
        self._events: list[tuple[Any, Any]] = []

    @cached_property
    def _context(self) -> Any:
        return self._own.retain_primary_context()

    @contextmanager
    def current(self) -> Iterator[None]:
        """The device is the current one of the calling thread meanwhile; then the one before is again. Raises
        DeviceError for what PyCUDA raises."""
        try:
            self._context.push()
            try:
                yield
            finally:
                self._context.pop()
        except self.driver.Error as err:
            raise DeviceError(str(err)) from None

    def name(self) -> str:
        return str(self._own.name())

    def arch(self) -> str:
        major, minor = self._own.compute_capability()
        return f"sm_{major}{minor}"

    def attributes(self) -> Mapping[str, int]:
        which = self.driver.device_attribute
        known = {name: getattr(which, name) for name in dir(which) if name.isupper()}
        return limits(lambda name: int(self._own.get_attribute(known[name])) if name in known else 0)

    def state(self) -> dict[str, Any]:
        return nvml.state(self._own.pci_bus_id())

    def allocate(self, nbytes: int) -> Memory:
        with self.current():
            return self.driver.mem_alloc(max(1, nbytes))

    def free(self, memory: Memory) -> None:
        with self.current():
            memory.free()

    def upload(self, memory: Memory, array: np.ndarray) -> None:
        with self.current():
            self.driver.memcpy_htod(memory, array)

    def download(self, array: np.ndarray, memory: Memory) -> None:
        with self.current():
            self.driver.memcpy_dtoh(array, memory)

    def fill(self, memory: Memory, word: int, width: int, nbytes: int) -> None:
        d = self.driver
        fill = {1: d.memset_d8, 2: d.memset_d16, 4: d.memset_d32}[width]
        if nbytes:
            with self.current():
                fill(memory, word, nbytes // width)

    def part(self, memory: Memory, offset: int, nbytes: int) -> Memory:
        return int(memory) + offset

    def copy(
        self, to: Memory, source: Memory, offset: int, nbytes: int, stream: int = 0, at: int = 0
    ) -> None:
        with self.current():
            self.driver.memcpy_dtod(int(to) + at, int(source) + offset, nbytes)

    def load(self, code: GridCode) -> PycudaProgram:
        return PycudaProgram(self, code)

    @property
    def flush(self) -> tuple[Any, int]:
        """Memory to write between timed runs, and its bytes."""
        if self._flush is None:
            size = FLUSH * self.attributes().get("l2_bytes", 64 << 20)
            self._flush = self.allocate(size), size
        return self._flush

    @property
    def events(self) -> list[tuple[Any, Any]]:
        """Beginnings and ends of timed runs."""
        if not self._events:
            self._events = [(self.driver.Event(), self.driver.Event()) for _ in range(AHEAD)]
        return self._events


@cache
def device() -> PycudaDevice:
    """The first GPU, in this process. Raises CompileError."""
    return PycudaDevice()
