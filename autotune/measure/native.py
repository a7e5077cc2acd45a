"""The native functions that measuring needs: a timing loop, and a handler that reports where a fault was.

They are compiled once in the zygote. The processes forked from it inherit the code.
"""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autotune.codegen.llvm.compile import compile_module, link
from autotune.codegen.runtime.support import NOW
from autotune.platform import faults
from autotune.platform.faults import ERROR_CODE_AT, INFO_BYTES
from schedules.model import Target

# Bytes of a fault record: what the system tells, and the page-fault error code of x86.
RECORD_BYTES = INFO_BYTES + 8


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of native code. ``address``: None if the processor gives none. ``write``: None if not known."""

    signal: int
    address: int | None
    write: bool | None


class Native:
    """The compiled functions. ``time(kernel, args, scratch, threads, runs, clock)`` returns nanoseconds."""

    def __init__(self, target: Target) -> None:
        obj = compile_module(_text(), target)
        self._at, self._keep = link(obj, ("at_time", "at_fault", "at_fault_fd"), {})
        prototype = ctypes.CFUNCTYPE(
            ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64,
            ctypes.c_int32,
        )  # fmt: skip
        self.time: Callable[..., int] = prototype(self._at["at_time"])
        self._stack: Any = None

    def watch(self, fd: int) -> None:
        """From now on a fault writes `RECORD_BYTES` to the start of file ``fd``, then kills the process as
        before. Linux only; elsewhere a fault has no address."""
        ctypes.c_int32.from_address(self._at["at_fault_fd"]).value = fd
        self._stack = faults.handle(self._at["at_fault"])


def read_fault(record: bytes) -> Fault | None:
    """The fault in a record that the handler wrote; None if there is none."""
    if len(record) < RECORD_BYTES:
        return None
    number = int.from_bytes(record[0:4], "little")
    code = int.from_bytes(record[8:12], "little", signed=True)
    address: int | None = int.from_bytes(record[16:24], "little")
    write: bool | None = None
    if number == signal.SIGSEGV and code == faults.GENERAL_PROTECTION:
        address = None
    elif ERROR_CODE_AT is not None and number == signal.SIGSEGV:
        write = bool(int.from_bytes(record[INFO_BYTES:RECORD_BYTES], "little") & 2)
    return Fault(number, address, write)


def _text() -> str:
    base, at = ("@zero", 0) if ERROR_CODE_AT is None else ("%context", ERROR_CODE_AT)
    return f"""
@at_fault_fd = global i32 -1
@zero = private constant i64 0
declare i32 @clock_gettime(i32, ptr)
declare i64 @pwrite(i32, ptr, i64, i64)
{NOW}
define i64 @at_time(ptr %kernel, ptr %args, ptr %scratch, i32 %threads, i64 %runs, i32 %clock) {{
entry:
  %start = call i64 @now(i32 %clock)
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  call void %kernel(ptr %args, ptr %scratch, i32 %threads)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %runs
  br i1 %more, label %loop, label %done
done:
  %end = call i64 @now(i32 %clock)
  %ns = sub i64 %end, %start
  ret i64 %ns
}}
define void @at_fault(i32 %signal, ptr %info, ptr %context) {{
  %fd = load i32, ptr @at_fault_fd
  %w1 = call i64 @pwrite(i32 %fd, ptr %info, i64 {INFO_BYTES}, i64 0)
  %code = getelementptr i8, ptr {base}, i64 {at}
  %w2 = call i64 @pwrite(i32 %fd, ptr %code, i64 8, i64 {INFO_BYTES})
  ret void
}}
"""
