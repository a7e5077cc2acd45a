"""OpenCL devices through pyopencl (extra ``opencl``): GPUs of other makers, and PoCL on any CPU."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from autotune.codegen.gridcode import Array, GridCode
from autotune.errors import CompileError


@cache
def context() -> Any:
    """A context of the first device, GPUs before others, or None where there is no device. A context does
    not survive a fork: each process asks for its own."""
    if find_spec("pyopencl") is None:
        return None
    import pyopencl as cl

    try:
        devices = [d for p in cl.get_platforms() for d in p.get_devices()]
    except cl.Error:  # no platform
        return None
    devices.sort(key=lambda d: not d.type & cl.device_type.GPU)
    return cl.Context(devices[:1]) if devices else None


def limits() -> dict[str, int]:
    """What the device says of itself, by the names of `Target.limits`."""
    d = context().devices[0]
    block = int(d.max_work_group_size)
    return {
        "block_threads": block,
        "sm_threads": max(block, 2048),
        "sms": int(d.max_compute_units),
        "shared_bytes": int(d.local_mem_size),
        "clock_mhz": int(d.max_clock_frequency) or 1000,
    }


def name() -> str:
    """The device's own name, with what a file name or an identifier cannot hold taken out."""
    return "-".join("".join(c if c.isalnum() else " " for c in context().devices[0].name).split())


class Loaded:
    """A program on a device, with memory for its arrays."""

    def __init__(self, code: GridCode) -> None:
        """Raises CompileError, also where there is no device."""
        if context() is None:
            raise CompileError(
                "there is no OpenCL device here; pip install 'autotune[opencl]' and the driver of your device"
            )
        import pyopencl as cl

        self.code = code
        self._queue = cl.CommandQueue(context())
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", cl.CompilerWarning)
                built = cl.Program(context(), code.source).build()
        except cl.Error as err:
            raise CompileError(f"OpenCL refused the generated code: {str(err)[:600]}") from None
        self._held = {a.name: self._memory(a) for a in (*code.params, *code.scratch)}
        self._calls = []
        for x in code.launches:
            kernel = cl.Kernel(built, x.kernel)
            kernel.set_args(*(self._held[n] for n in x.arrays))
            size = tuple(g * b for g, b in zip(x.grid, x.block, strict=True))
            self._calls.append((kernel, size, x.block))

    def _memory(self, a: Array) -> Any:
        import pyopencl as cl

        return cl.Buffer(context(), cl.mem_flags.READ_WRITE, max(1, a.nbytes))

    def upload(self, arrays: Sequence[np.ndarray]) -> None:
        """Copy arrays of the host, in the order of the parameters, to the device."""
        import pyopencl as cl

        for a, x in zip(self.code.params, arrays, strict=True):
            cl.enqueue_copy(self._queue, self._held[a.name], x)
        self._queue.finish()

    def seconds(self, n: int) -> float:
        """Run ``n`` times, one after the other; how long that takes together."""
        import pyopencl as cl

        start = time.perf_counter()
        for _ in range(n):
            for kernel, size, block in self._calls:
                cl.enqueue_nd_range_kernel(self._queue, kernel, size, block)
        self._queue.finish()
        return time.perf_counter() - start

    def download(self, arrays: Sequence[np.ndarray]) -> None:
        """Copy the outputs into arrays of the host."""
        import pyopencl as cl

        for n, x in zip(self.code.outputs, arrays, strict=True):
            cl.enqueue_copy(self._queue, x, self._held[n])
        self._queue.finish()
