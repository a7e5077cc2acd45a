"""A kernel as a function of C in this process: for numba, Cython, cffi and ctypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from autotune.codegen.runtime.open_signature import OPEN
from autotune.errors import ArgumentError
from autotune.run.export_text import identifiers, pointer
from schedules.ir import Buffer
from schedules.te.open_sizes import OpenSize

if TYPE_CHECKING:
    from autotune.codegen.llvm.compile import LoadedObject
    from autotune.run.kernel import Kernel

# Held while a function is made: a kernel has one, whose address does not change.
_MAKING = Lock()


@dataclass(frozen=True, slots=True)
class CFunction:
    """The address of a function, and what keeps it mapped."""

    address: int
    keep: Any


def address_of(kernel: Kernel) -> int:
    """`Kernel.address`. Raises ArgumentError."""
    *_, sizes = _arguments(kernel)
    with _MAKING:
        if kernel._address is None:
            kernel._address = CFunction(*cast("LoadedObject", kernel._called).c_function(sizes))
        return kernel._address.address


def c_type(kernel: Kernel) -> str:
    """`Kernel.c_type`. Raises ArgumentError."""
    ins, outs, sizes = _arguments(kernel)
    words = identifiers([*(b.name for b in (*ins, *outs)), *(s.name for s in sizes)])
    takes = [pointer(b.dtype, i >= len(ins), words[i]) for i, b in enumerate((*ins, *outs))]
    takes += [f"int64_t {word}" for word in words[len(takes) :]]
    return f"int (*)({', '.join(takes)})"


def _arguments(kernel: Kernel) -> tuple[Sequence[Buffer], Sequence[Buffer], Sequence[OpenSize]]:
    """Inputs, outputs, and the sizes behind them. Raises ArgumentError where no function of C runs the
    kernel."""
    if kernel.target.grid:
        raise ArgumentError(
            f"this kernel of {kernel.workload.op} runs on a device, so no function of C has its code: call "
            "it, or load one for the CPU"
        )
    ins, outs = kernel.parameters
    opened = kernel.workload.dag.open
    return ins, outs, opened.sizes if opened is not None and OPEN in kernel._called.signature else ()
