"""OpenCL devices through pyopencl (extra ``opencl``): GPUs of other makers, and PoCL on any CPU."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from autotune.backends.drivers.protocol import FLUSH, DeviceError, Memory
from autotune.codegen.grid_code import GridCode
from autotune.errors import CompileError
from schedules.distribution import install

EXACT = "-cl-fp32-correctly-rounded-divide-sqrt"  # as other devices do; some can't


@cache
def context() -> Any:
    """A context of the first device whose compiler works, GPUs before others, or None where there is none. A
    context does not survive a fork: each process asks for its own."""
    spec = find_spec("pyopencl")
    if spec is None or spec.origin is None:  # PoCL's wheel leaves a folder of that name, without pyopencl
        return None
    import pyopencl as cl

    try:
        devices = [d for p in cl.get_platforms() for d in p.get_devices()]
    except cl.Error:  # no platform
        return None
    devices.sort(key=lambda d: not d.type & cl.device_type.GPU)
    contexts = (cl.Context([d]) for d in devices)
    return next((c for c in contexts if _compiles(cl, c)), None)


def is_gpu() -> bool:
    """Whether the device is a GPU: PoCL's are CPUs."""
    import pyopencl as cl

    found = context()
    return found is not None and all(d.type & cl.device_type.GPU for d in found.devices)


def _compiles(cl: Any, context: Any) -> bool:
    """PoCL offers a CPU that is newer than its LLVM, and then refuses every program."""
    try:
        _built(cl, context, "__kernel void nothing() {}")
    except cl.Error:
        return False
    return True


def _built(cl: Any, context: Any, source: str) -> Any:
    """A program, without the compiler's remarks. Raises ``cl.Error``."""
    exact = cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
    can = all(d.single_fp_config & exact for d in context.devices)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.CompilerWarning)
        return cl.Program(context, source).build([EXACT] if can else [])


class OpenclProgram:
    """See `LoadedKernels`. Kernels keep their arguments, so that one of them serves one thread at a time."""

    def __init__(self, device: OpenclDevice, code: GridCode) -> None:
        cl = device.cl
        self._cl, self._device = cl, device
        try:
            built = _built(cl, context(), code.source)
        except cl.Error as err:
            raise CompileError(f"OpenCL refused the generated code: {str(err)[:600]}") from None
        self._launches = []
        for x, used in code.numbered():
            size = tuple(g * b for g, b in zip(x.grid, x.block, strict=True))
            self._launches.append((cl.Kernel(built, x.kernel), size, x.block, used))

    def run(self, memory: Sequence[Memory]) -> None:
        self._launched(memory)
        self._device.finish()

    def begin(self, memory: Sequence[Memory]) -> None:
        self._launched(memory)

    def seconds(self, memory: Sequence[Memory], n: int) -> float:
        pairs = []
        for _ in range(n):
            self._device.flush()
            events = self._launched(memory)
            pairs.append((events[0], events[-1]))
        self._device.finish()
        return sum(end.profile.end - start.profile.start for start, end in pairs) * 1e-9

    def _launched(self, memory: Sequence[Memory]) -> list[Any]:
        events = []
        try:
            for kernel, size, block, used in self._launches:
                kernel.set_args(*(memory[i] for i in used))
                events.append(
                    self._cl.enqueue_nd_range_kernel(self._device.queue, kernel, size, block)
                )  # in order: nothing begins before the one before has ended
        except self._cl.Error as err:
            raise DeviceError(str(err)) from None
        return events

    def close(self) -> None:
        self._launches.clear()


class OpenclDevice:
    """The first device: see `Device`."""

    kind = "opencl"

    def __init__(self) -> None:
        """Raises CompileError where there is none."""
        if context() is None:
            raise CompileError(
                f"there is no OpenCL device here; {install('opencl')} and the driver of your device"
            )
        import pyopencl as cl

        self.cl = cl
        self._own = context().devices[0]
        self.alignment = max(1, int(self._own.mem_base_addr_align) // 8)
        self.queue = cl.CommandQueue(context(), properties=cl.command_queue_properties.PROFILING_ENABLE)
        # a CPU's caches are its own affair: emulation's times say nothing anyway
        size = FLUSH * int(self._own.global_mem_cache_size) if self._own.type & cl.device_type.GPU else 0
        self._flush = (self.allocate(size), size) if size else None

    def name(self) -> str:
        return str(self._own.name).strip()

    def arch(self) -> str:
        """The device's own name, with what a file name or an identifier cannot hold taken out."""
        return "-".join("".join(c if c.isalnum() else " " for c in self.name()).split())

    def attributes(self) -> Mapping[str, int]:
        block = int(self._own.max_work_group_size)
        return {
            "block_threads": block,
            "sm_threads": max(block, 2048),
            "sms": int(self._own.max_compute_units),
            "shared_bytes": int(self._own.local_mem_size),
            "clock_mhz": int(self._own.max_clock_frequency) or 1000,
        }

    def state(self) -> dict[str, Any]:
        return {}  # OpenCL has no words for it

    def allocate(self, nbytes: int) -> Memory:
        try:
            return self.cl.Buffer(context(), self.cl.mem_flags.READ_WRITE, max(1, nbytes))
        except self.cl.Error as err:
            raise DeviceError(str(err)) from None

    def free(self, memory: Memory) -> None:
        try:
            memory.release()
        except self.cl.Error as err:
            raise DeviceError(str(err)) from None

    def upload(self, memory: Memory, array: np.ndarray) -> None:
        if array.nbytes:
            self.cl.enqueue_copy(self.queue, memory, array)
        self.finish()

    def download(self, array: np.ndarray, memory: Memory) -> None:
        if array.nbytes:
            self.cl.enqueue_copy(self.queue, array, memory)
        self.finish()

    def fill(self, memory: Memory, word: int, width: int, nbytes: int) -> None:
        if nbytes:
            pattern = np.array(word, dtype=f"u{width}")
            self.cl.enqueue_fill_buffer(self.queue, memory, pattern, 0, nbytes)

    def part(self, memory: Memory, offset: int, nbytes: int) -> Memory:
        try:
            return memory.get_sub_region(offset, max(1, nbytes))
        except self.cl.Error as err:
            raise DeviceError(str(err)) from None

    def copy(
        self, to: Memory, source: Memory, offset: int, nbytes: int, stream: int = 0, at: int = 0
    ) -> None:
        if nbytes:
            self.cl.enqueue_copy(self.queue, to, source, byte_count=nbytes, src_offset=offset, dst_offset=at)

    def load(self, code: GridCode) -> OpenclProgram:
        return OpenclProgram(self, code)

    def finish(self) -> None:
        """Wait for all that was begun."""
        try:
            self.queue.finish()
        except self.cl.Error as err:
            raise DeviceError(str(err)) from None

    def flush(self) -> None:
        """Begin to write so much that nothing else stays in the second cache."""
        if self._flush is not None:
            memory, size = self._flush
            self.cl.enqueue_fill_buffer(self.queue, memory, np.zeros(1, np.uint32), 0, size // 4 * 4)


@cache
def device() -> OpenclDevice:
    """The first device, in this process. Raises CompileError."""
    return OpenclDevice()
