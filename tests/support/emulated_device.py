"""A GPU whose memory is this process's own, and whose driver is emulation (``codegen/simt/emulator.h``): for
tests of what is done with devices. Streams follow one another there; its times say nothing about a GPU."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from autotune.backends.drivers.protocol import DeviceError, Memory
from autotune.codegen.grid_code import GridCode
from autotune.codegen.runtime import launcher
from autotune.codegen.simt import emulator
from autotune.targets import from_name

CPU = (1, 0)  # where DLPack says that its arrays are


class EmulatedProgram:
    """See `LoadedKernels`."""

    def __init__(self, code: GridCode) -> None:
        from autotune.codegen.llvm.compile import link

        names = [emulator.launched(x.kernel) for x in code.launches]
        at, self._keep = link(emulator.driver(code), ("at_cuLaunchKernel", "at_fault_text", *names), {})
        self._text = ctypes.CFUNCTYPE(ctypes.c_char_p)(at["at_fault_text"])
        launches = [(at[n], x, used) for n, (x, used) in zip(names, code.numbered(), strict=True)]
        driver = launcher.DriverFunctions(at["at_cuLaunchKernel"])
        self.launch = launcher.bind(driver, launches, len(code.params) + len(code.scratch))

    def run(self, memory: Sequence[Memory]) -> None:
        if self.launch(*memory, 0):
            raise DeviceError((self._text() or b"").decode())

    begin = run  # streams follow one another

    def seconds(self, memory: Sequence[Memory], n: int) -> float:
        start = time.perf_counter()
        for _ in range(n):
            self.run(memory)
        return time.perf_counter() - start

    def close(self) -> None:
        pass


class EmulatedDevice:
    """See `Device` and `Addressed`."""

    kind = "cuda"
    alignment = 256
    arrays_on = CPU

    def __init__(self) -> None:
        self._held: dict[int, Any] = {}
        self.waits: list[tuple[int, int]] = []

    def name(self) -> str:
        return "emulator"

    def arch(self) -> str:
        return "emulator"

    def attributes(self) -> Mapping[str, int]:
        return dict(from_name("cuda-emulator").limits)

    def state(self) -> dict[str, Any]:
        return {}

    def allocate(self, nbytes: int) -> Memory:
        raw = np.empty(nbytes + 255, np.uint8)
        at = -(-raw.ctypes.data // 256) * 256  # as a GPU's memory begins
        self._held[at] = raw
        return at

    def free(self, memory: Memory) -> None:
        if self._held.pop(memory, None) is None:
            raise DeviceError("no memory of this device")

    def upload(self, memory: Memory, array: np.ndarray) -> None:
        ctypes.memmove(memory, array.ctypes.data, array.nbytes)

    def download(self, array: np.ndarray, memory: Memory) -> None:
        ctypes.memmove(array.ctypes.data, memory, array.nbytes)

    def fill(self, memory: Memory, word: int, width: int, nbytes: int) -> None:
        ctypes.memmove(memory, word.to_bytes(width, "little") * (nbytes // width), nbytes)

    def part(self, memory: Memory, offset: int, nbytes: int) -> Memory:
        return memory + offset

    def copy(
        self, to: Memory, source: Memory, offset: int, nbytes: int, stream: int = 0, at: int = 0
    ) -> None:
        ctypes.memmove(to + at, source + offset, nbytes)

    def load(self, code: GridCode) -> EmulatedProgram:
        return EmulatedProgram(code)

    def launcher(self, program: EmulatedProgram) -> Callable[..., int]:
        return program.launch

    def mend(self, status: int, launch: Callable[[], int]) -> None:
        raise DeviceError(f"emulation ended with status {status}")

    def owns(self, address: int) -> bool:
        return True

    def wait(self, stream: int, other: int) -> None:
        self.waits.append((stream, other))
