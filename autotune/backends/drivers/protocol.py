"""What every kind of device offers: attributes, memory, and programs that are loaded, run and timed.

One contract test runs over all of them (``tests/autotune/backends/drivers/test_devices.py``). Devices whose
memory has addresses offer `Addressed` programs too, which `autotune.run.device_kernel` launches on arrays of
other libraries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from autotune.codegen.grid_code import GridCode
from schedules.errors import AutotuneError

Memory = Any  # an address, or what the device's library calls a buffer
FLUSH = 2  # times the second cache: what is written between two timed runs


class DeviceError(AutotuneError, RuntimeError):
    """A device's driver reports an error. After a fault nothing works any more in the process that met it,
    which is a worker's wherever candidates are measured."""


class LoadedKernels(Protocol):
    """The kernels of one `GridCode`, loaded. ``memory``: one for each of its ``params``, then ``scratch``."""

    def run(self, memory: Sequence[Memory]) -> None:
        """Run once, and wait for it. Raises DeviceError."""

    def begin(self, memory: Sequence[Memory]) -> None:
        """Run once, after what was begun before, and do not wait. Raises DeviceError."""

    def seconds(self, memory: Sequence[Memory], n: int) -> float:
        """Run ``n`` times, with what the arrays need out of the device's second cache before each; how long
        the runs take together, on the device's clock. Raises DeviceError."""

    def close(self) -> None:
        """Unload. Nothing may run any more."""


class Device(Protocol):
    """``kind``: of the `GridCode` that it takes, and of targets. ``alignment``: bytes; a `part` of memory
    begins at a multiple of it."""

    kind: str
    alignment: int

    def name(self) -> str:
        """What its maker calls it."""

    def arch(self) -> str:
        """What code is compiled for: `Target.arch`."""

    def attributes(self) -> Mapping[str, int]:
        """Its sizes and rates, by the names of `Target.limits`."""

    def state(self) -> dict[str, Any]:
        """Its clocks now (MHz), its temperature (°C), and why it runs slower than it could: ``sm_mhz``,
        ``memory_mhz``, ``temperature_c``, ``throttled`` (words). What is not known is left out."""

    def allocate(self, nbytes: int) -> Memory:
        """Raises DeviceError for want of memory."""

    def free(self, memory: Memory) -> None:
        """Give it back. Raises DeviceError."""

    def upload(self, memory: Memory, array: np.ndarray) -> None:
        """Copy a C-contiguous array of the host there."""

    def download(self, array: np.ndarray, memory: Memory) -> None:
        """Copy from there into a C-contiguous array of the host, once all is done that was begun before."""

    def fill(self, memory: Memory, word: int, width: int, nbytes: int) -> None:
        """Fill with a word of 1, 2 or 4 bytes, before what is begun after it."""

    def part(self, memory: Memory, offset: int, nbytes: int) -> Memory:
        """Memory that is a part of other memory, from byte ``offset`` on. Nobody gives it back."""

    def copy(
        self, to: Memory, source: Memory, offset: int, nbytes: int, stream: int = 0, at: int = 0
    ) -> None:
        """Begin to copy bytes of the device, from byte ``offset`` of the source on, to byte ``at`` and what
        follows it; both at any byte. ``stream``: where the device is `Addressed`."""

    def load(self, code: GridCode) -> LoadedKernels:
        """Raises CompileError where the device refuses the code."""


@runtime_checkable
class Addressed(Protocol):
    """A device whose memory is addresses. ``arrays_on``: where DLPack says that its arrays are."""

    arrays_on: tuple[int, int]

    def launcher(self, program: Any) -> Callable[..., int]:
        """What launches a loaded program: a function of the addresses of its memory and a stream, all ints,
        that returns a status: 0 if all was launched (`autotune.codegen.runtime.launcher`)."""

    def mend(self, status: int, launch: Callable[[], int]) -> None:
        """Launch again where that may succeed, as the device was not the current one of the thread. Raises
        DeviceError where it is not launched."""

    def owns(self, address: int) -> bool:
        """Whether an address is this device's memory."""

    def wait(self, stream: int, other: int) -> None:
        """What is launched on a stream from now on runs after what is on another one. Nobody else waits."""


class Captured(Protocol):
    """Launches that were captured once. They hold the addresses of their memory: keep it for as long."""

    def launch(self, stream: int) -> None:
        """Begin all of them, in their order. Raises DeviceError."""

    def close(self) -> None:
        """Give it back. What was launched may still be under way."""


@runtime_checkable
class Capturing(Protocol):
    """An `Addressed` device that replays launches faster than it launches them one by one."""

    def captured(self, launch: Callable[[int], None]) -> Captured:
        """What ``launch`` launches on the stream that it is given; nothing of it runs now. What ``launch``
        raises is raised, and nothing is left. Raises DeviceError for what cannot be captured."""


def facts(code: GridCode) -> dict[str, int]:
    """What the compiler says of the kernels of a program, the largest of each: registers of a thread, and
    bytes of shared memory, of stack and of registers spilled."""
    found: dict[str, int] = {}
    for kernel in code.facts.values():
        for name, n in kernel.items():
            found[name] = max(n, found.get(name, 0))
    return found
