"""Code for a device in this process, behind the interface of an object of a CPU (`LoadedObject`): arrays of
the host are copied to the device and back at every run."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from autotune import backends
from autotune.backends.drivers import protocol
from autotune.backends.drivers.protocol import Device, DeviceError, Memory
from autotune.codegen.grid_code import GridArray, GridCode
from autotune.errors import CompileError


class DeviceObject:
    """The kernels of one program, loaded on the device that it is for, or on the one given. Raises
    CompileError."""

    threads = 1
    scratch_bytes = 0

    def __init__(
        self, data: bytes, device: Device | None = None, arrays: Sequence[Memory] = ()
    ) -> None:
        """``arrays``: the device's memory for each parameter, where that is somebody else's to give back."""
        self.code = code = GridCode.from_bytes(data)
        self.device = _first(code.kind) if device is None else device
        inputs = [_text(a) for a in code.params if a.name not in code.outputs]
        outputs = [_text(a) for a in code.params if a.name in code.outputs]
        self.signature = f"{' '.join(inputs)} -> {' '.join(outputs)}".strip()
        self.program = self.device.load(code)
        self._one_at_a_time = threading.Lock()
        self._given = list(arrays)
        self._memory: list[Memory] = []
        # Not the program: what was launched on arrays of the device may still be under way.
        weakref.finalize(self, give_back, self.device, self._memory).atexit = False

    @property
    def memory(self) -> list[Memory]:
        """Memory of the device for all arrays. What was not given is made when it is first asked for, and
        given back when this object is closed, or goes."""
        own = (*self.code.params, *self.code.scratch)[len(self._given) :]
        for a in own[len(self._memory) :]:
            self._memory.append(self.device.allocate(a.nbytes))
        return [*self._given, *self._memory]

    def close(self) -> None:
        """Give the memory of the device back. Nothing may run any more."""
        give_back(self.device, self._memory)
        self.program.close()

    def facts(self) -> dict[str, Any]:
        """What the compiler says of its kernels, and the state of the device now."""
        return {**protocol.facts(self.code), **self.device.state()}

    def python_function(self, others: bool = False) -> Callable[..., int] | None:
        """None: every call goes through the checks of `Kernel`."""
        return None

    def run(self, pointers: Sequence[int]) -> None:
        """Run once on data pointers of the host, in the order of the parameters."""
        self._with_copies(pointers, lambda: self.program.run(self.memory))

    def bench(
        self,
        pointers: Sequence[int],
        n: int,
        *,
        threads: int | None = None,
        cpu_clock: bool = False,
        warm: bool = False,
    ) -> int:
        """Nanoseconds that ``n`` runs take together on the device, without the copies; ``warm``: after one
        that is not timed."""

        def run() -> float:
            if warm:
                self.program.run(self.memory)
            return self.program.seconds(self.memory, n)

        return round(float(self._with_copies(pointers, run)) * 1e9)

    def seconds(self, n: int) -> float:
        """Seconds that ``n`` more runs take on what the device holds."""
        return self.program.seconds(self.memory, n)

    def no_memory(self) -> MemoryError:
        return MemoryError("no memory on the device")

    def _with_copies(self, pointers: Sequence[int], run: Callable[[], Any]) -> Any:
        arrays = [_memory(p, a) for p, a in zip(pointers, self.code.params, strict=True)]
        inputs = len(arrays) - len(self.code.outputs)
        with self._one_at_a_time:
            memory = self.memory
            for m, x in zip(memory, arrays):
                self.device.upload(m, x)
            answer = run()
            for m, x in zip(memory[inputs : len(arrays)], arrays[inputs:], strict=True):
                self.device.download(x, m)
        return answer


def _first(kind: str) -> Device:
    """The first device of a kind. Raises CompileError."""
    if kind not in backends.BACKENDS:
        raise CompileError(f"no device here runs code for {kind}")
    return backends.named(kind).device()


def give_back(device: Device, memory: list[Memory]) -> None:
    """Free all of it; what the device refuses to free keeps no other."""
    while memory:
        with suppress(DeviceError):
            device.free(memory.pop())


def _text(a: GridArray) -> str:
    return f"{a.dtype}{a.layout}"


def _memory(address: int, a: GridArray) -> np.ndarray:
    """The memory of an array, in elements, from its first to its last."""
    raw = (ctypes.c_char * a.nbytes).from_address(address)
    return np.frombuffer(memoryview(raw), a.dtype)
