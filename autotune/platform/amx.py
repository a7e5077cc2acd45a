"""Whether processes on this host may use the tile registers of AMX.

Linux has a process ask for them before its first use. What one thread of it was granted all have, and its
children after a fork. Some hosts name the extension and then fault (oneDNN issue 5689), so that a child tries
it once.

Source: Documentation/arch/x86/xstate.rst of Linux.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import signal
import struct
import sys
from functools import cache

from autotune.platform.pages import EXECUTE, PAGE, READ

# arch_prctl and what is asked of it; the number of the state component of tiles.
ARCH_PRCTL, _GET_SUPPORTED, REQUEST = 158, 0x1021, 0x1023
TILE_DATA = 18
_WAIT_FOR_ALL = 0x40000000  # children that end without a signal, too
# A function of the address of a configuration: a child process loads it, clears a tile and ends with 0. It
# returns the child's number. No library's code runs in the child.
_TRY = bytes.fromhex(
    "4989f9"  # mov r9, rdi
    "31ff 31f6 31d2 4531d2 4531c0"  # flags, stack, ... = 0
    "b838000000 0f05"  # eax = clone(0, 0, 0, 0, 0)
    "85c0 7530"  # in the parent: to the end
    "bf04000000 498d7140 31d2 41ba08000000"  # SIGILL, r9 + 64, 0, 8
    "b80d000000 0f05"  # rt_sigaction: handlers of this process do not run
    "c4c2784901"  # ldtilecfg [r9]
    "c4e27b49c0"  # tilezero tmm0
    "c4e27849c0"  # tilerelease
    "31ff b8e7000000 0f05"  # exit_group(0)
    "c3"  # ret
)
# Palette 1; tile 0 has 16 rows of 64 bytes. Then no handler of a signal.
_CONFIGURATION = struct.pack("<B15xH30xB15x32x", 1, 64, 16)


def refusal() -> str | None:
    """Ask that this process may use tiles. The reason why it may not, None if it may."""
    if not sys.platform.startswith("linux") or platform.machine() not in ("x86_64", "AMD64"):
        return "no permission for AMX is known of this operating system"
    libc = ctypes.CDLL(None, use_errno=True)
    mask = ctypes.c_uint64(0)
    if libc.syscall(ARCH_PRCTL, _GET_SUPPORTED, ctypes.byref(mask)) or not mask.value >> TILE_DATA & 1:
        return "the operating system does not support AMX: Linux does from version 5.16 on"
    if libc.syscall(ARCH_PRCTL, REQUEST, ctypes.c_ulong(TILE_DATA)):
        code = ctypes.get_errno()
        if code == errno.ENOSPC:
            return "a thread of this process has an alternate signal stack that is too small for AMX"
        return f"the operating system refuses AMX to this process: {os.strerror(code)}"
    return None


@cache
def trouble() -> str | None:
    """Why this host cannot use AMX, although its processor names it. None if it can. The first call asks for
    the permission, and has a child process try. Raises nothing."""
    reason = refusal()
    if reason is not None:
        return reason
    try:
        ended = _tried()
    except OSError as err:  # nothing was found out: no memory for code, or another one waited for the child
        return None if isinstance(err, ChildProcessError) else f"AMX cannot be tried: {err.strerror}"
    if ended == 0:
        return None
    how = signal.Signals(-ended).name if ended < 0 else f"status {ended}"
    return f"the processor names AMX, but a process that used it ended by {how}"


def _tried() -> int:
    """How a child that uses a tile ended: 0, or minus the number of a signal. Raises OSError."""
    with mmap.mmap(-1, PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as code:
        code[: len(_TRY)] = _TRY
        start = ctypes.c_char.from_buffer(code)
        address = ctypes.addressof(start)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(PAGE), READ | EXECUTE):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        try:
            child = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_char_p)(address)(_CONFIGURATION)
        finally:
            del start  # a mapping in use cannot be closed
        if child < 0:
            raise OSError(-child, os.strerror(-child))
        return os.waitstatus_to_exitcode(os.waitpid(child, _WAIT_FOR_ALL)[1])
