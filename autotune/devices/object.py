"""Code for a device in this process, behind the interface of an object of a CPU (`LoadedObject`): arrays of
the host are copied to the device and back at every run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from autotune.codegen.gridcode import Array, GridCode
from autotune.devices import cuda, opencl
from autotune.errors import CompileError


class Loaded(Protocol):
    """What every kind of device offers: a program, with memory for its arrays."""

    def upload(self, arrays: Sequence[np.ndarray]) -> None:
        """Copy arrays of the host, in the order of the parameters, to the device."""

    def seconds(self, n: int) -> float:
        """Run ``n`` times on what the device holds; how long that takes together."""

    def download(self, arrays: Sequence[np.ndarray]) -> None:
        """Copy the outputs into arrays of the host."""


DEVICES: dict[str, Callable[[GridCode], Loaded]] = {"cuda": cuda.Loaded, "opencl": opencl.Loaded}


class DeviceObject:
    """The kernels of one program, loaded on the device that it is for. Raises CompileError."""

    threads = 1
    scratch_bytes = 0

    def __init__(self, data: bytes) -> None:
        self.code = code = GridCode.from_bytes(data)
        if code.kind not in DEVICES:
            raise CompileError(f"no device here runs code for {code.kind}")
        inputs = [_text(a) for a in code.params if a.name not in code.outputs]
        outputs = [_text(a) for a in code.params if a.name in code.outputs]
        self.signature = f"{' '.join(inputs)} -> {' '.join(outputs)}".strip()
        self._loaded: Loaded = DEVICES[code.kind](code)

    def python_function(self) -> Callable[..., int] | None:
        """None: every call goes through the checks of `Kernel`."""
        return None

    def run(self, pointers: Sequence[int]) -> None:
        """Run once on data pointers of the host, in the order of the parameters."""
        self.bench(pointers, 1)

    def bench(
        self, pointers: Sequence[int], n: int, *, threads: int | None = None, cpu_clock: bool = False
    ) -> int:
        """Nanoseconds that ``n`` runs take together on the device, without the copies."""
        arrays = [_view(p, a) for p, a in zip(pointers, self.code.params, strict=True)]
        self._loaded.upload(arrays)
        seconds = self._loaded.seconds(n)
        self._loaded.download(arrays[len(arrays) - len(self.code.outputs) :])
        return round(seconds * 1e9)

    def seconds(self, n: int) -> float:
        """Seconds that ``n`` more runs take on what the device holds."""
        return self._loaded.seconds(n)

    def no_memory(self) -> MemoryError:
        return MemoryError("no memory on the device")


def _text(a: Array) -> str:
    return f"{a.dtype}[{','.join(map(str, a.shape))}]"


def _view(address: int, a: Array) -> np.ndarray:
    raw = (ctypes.c_char * a.nbytes).from_address(address)
    return np.frombuffer(memoryview(raw), a.dtype).reshape(a.shape)
