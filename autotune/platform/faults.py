"""Faults of native code: a handler of signals that the C library of Linux calls, and what it is told.

Its layout is that of Linux: 128 bytes of `siginfo_t`, whose first word is the signal, the third the code, and
whose address is 16 bytes in. On x86-64 the error code of a page fault is in the context.
"""

from __future__ import annotations

import ctypes
import platform
import signal
import sys
from typing import Any

# Signals that the handler reports. Windows lacks one of them.
FAULTS = tuple(getattr(signal, n) for n in ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE") if hasattr(signal, n))
# Bytes of siginfo_t.
INFO_BYTES = 128
# Offset of gregs[REG_ERR] in ucontext_t (bytes), where it has one.
ERROR_CODE_AT = 192 if platform.machine() == "x86_64" else None
# si_code SI_KERNEL: the processor gave no address.
GENERAL_PROTECTION = 128


def handle(handler: int) -> Any:
    """From now on the native function at ``handler`` is called with (signal, siginfo_t, ucontext_t) at a
    fault, on a stack of its own; then the process is killed as before. Keep the result. None elsewhere than
    on Linux, where nothing is handled."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    stack = ctypes.create_string_buffer(1 << 16)  # a kernel may have overrun the ordinary one
    libc.sigaltstack(ctypes.byref(_Stack(ctypes.addressof(stack), 0, 1 << 16)), None)
    action = _Action(handler=handler, flags=0x4 | 0x08000000 | 0x80000000)
    for number in FAULTS:  # SA_SIGINFO | SA_ONSTACK | SA_RESETHAND
        libc.sigaction(int(number), ctypes.byref(action), None)
    return stack


class _Stack(ctypes.Structure):
    _fields_ = [("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]


class _Action(ctypes.Structure):
    """struct sigaction of the C libraries of Linux."""

    _fields_ = [
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * (1024 // (8 * ctypes.sizeof(ctypes.c_ulong)))),
        ("flags", ctypes.c_uint),
        ("restorer", ctypes.c_void_p),
    ]
