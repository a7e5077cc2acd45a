"""A kernel as a function of C in this process: for numba, Cython, cffi and ctypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from autotune.codegen.runtime.open_signature import OPEN
from autotune.errors import ArgumentError
from autotune.run.export_text import C_TYPES, identifiers
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
    _, sizes = _arguments(kernel)
    with _MAKING:
        if kernel._address is None:
            kernel._address = CFunction(*cast("LoadedObject", kernel._called).c_function(sizes))
        return kernel._address.address


def c_type(kernel: Kernel) -> str:
    """`Kernel.c_type`. Raises ArgumentError."""
    arrays, sizes = _arguments(kernel)
    words = identifiers([*(name for _, name in arrays), *(s.name for s in sizes)])
    types = [*(t for t, _ in arrays), *("int64_t " for _ in sizes)]
    return f"int (*)({', '.join(t + word for t, word in zip(types, words, strict=True))})"


def _arguments(kernel: Kernel) -> tuple[list[tuple[str, str]], Sequence[OpenSize]]:
    """((type, name) of each array, the sizes behind them). Raises ArgumentError where no function of C runs
    the kernel."""
    if kernel.target.grid:
        raise ArgumentError(
            f"this kernel of {kernel.workload.op} runs on a device, so no function of C has its code: call "
            "it, or load one for the CPU"
        )
    ins, outs = kernel.parameters
    arrays = [(f"const {C_TYPES[b.dtype]} *", b.name) for b in ins]
    arrays += [(f"{C_TYPES[b.dtype]} *", b.name) for b in outs]
    opened = kernel.workload.dag.open
    return arrays, opened.sizes if opened is not None and OPEN in kernel._called.signature else ()
