"""OpenCL devices through pyopencl (extra ``opencl``): GPUs of other makers, and PoCL on any CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from autotune.codegen import opencl
from autotune.codegen.simt import ITEM
from autotune.errors import CompileError
from schedules.ir import Buffer, const
from schedules.simt import GridProgram


@cache
def context() -> Any:
    """A context of the first device that there is, or None."""
    if find_spec("pyopencl") is None:
        return None
    import pyopencl as cl

    try:
        devices = [d for p in cl.get_platforms() for d in p.get_devices()]
    except cl.Error:  # no platform
        return None
    return cl.Context(devices[:1]) if devices else None


class Loaded:
    """The kernels of a program on a device, and the arrays that only they use."""

    def __init__(self, program: GridProgram) -> None:
        """Raises CompileError, also where there is no device."""
        if context() is None:
            raise CompileError(
                "there is no OpenCL device here; pip install 'autotune[opencl]' and the driver of your device"
            )
        import pyopencl as cl

        self._program = program
        self._queue = cl.CommandQueue(context())
        try:
            built = cl.Program(context(), opencl.source(program)).build()
        except cl.Error as err:
            raise CompileError(f"OpenCL refused the generated code: {str(err)[:600]}") from None
        self._kernels = [cl.Kernel(built, k.name) for k in program.kernels]
        flags = cl.mem_flags.READ_WRITE
        self._scratch = {b.name: cl.Buffer(context(), flags, _bytes(b)) for b in program.scratch}

    def run(self, arrays: Sequence[np.ndarray]) -> None:
        """Run once on arrays of the host, inputs then outputs, copied to the device and back."""
        import pyopencl as cl

        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        held = {b.name: cl.Buffer(context(), flags, hostbuf=a) for b, a in zip(self._program.params, arrays)}
        for k, kernel in zip(self._program.kernels, self._kernels, strict=True):
            size = tuple(g * b for g, b in zip(k.grid, k.block, strict=True))
            args = [held.get(b.name) or self._scratch[b.name] for b in k.params]
            kernel(self._queue, size, k.block, *args)
        for b, a in zip(self._program.params, arrays, strict=True):
            if b.name in self._program.outputs:
                cl.enqueue_copy(self._queue, a, held[b.name])
        self._queue.finish()


def _bytes(b: Buffer) -> int:
    return max(1, math.prod(const(n) or 1 for n in b.shape)) * ITEM[b.dtype]
