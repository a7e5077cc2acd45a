"""Which device runs what: by the kind of a target."""

from __future__ import annotations

from autotune.devices import cuda, opencl, pycuda
from autotune.devices.protocol import Device
from autotune.errors import CompileError

KINDS = ("cuda", "opencl")


def available(kind: str) -> bool:
    """Whether there is a device of a kind."""
    if kind == "cuda":
        return cuda.available() or pycuda.available()
    return kind == "opencl" and opencl.context() is not None


def device(kind: str) -> Device:
    """The first device of a kind, in this process. Raises CompileError where there is none."""
    if kind == "opencl":
        return opencl.device()
    if kind != "cuda":
        raise CompileError(f"no device here runs code for {kind}")
    return pycuda.device() if not cuda.available() and pycuda.available() else cuda.device()
