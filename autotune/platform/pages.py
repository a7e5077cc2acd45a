"""Pages of memory: reserved, protected, advised, by functions of POSIX."""

from __future__ import annotations

import ctypes
import mmap
from functools import cache

PAGE = mmap.PAGESIZE
HUGE_PAGE = 2 << 20  # bytes of a huge page
# Modes of `protect`: of mprotect, and so of all systems of POSIX.
NONE, READ, WRITE, EXECUTE = 0, 1, 2, 4
# Whether memory of its own for a process that is forked can be had, and the system told that it is idle.
KEEPS_IDLE = all(hasattr(mmap, name) for name in ("MAP_PRIVATE", "MAP_ANONYMOUS", "MADV_FREE"))
_FLAGS = [getattr(mmap, f"MAP_{name}", 0) for name in ("PRIVATE", "ANONYMOUS", "NORESERVE")]


def block(size: int) -> mmap.mmap:
    """Memory of ``size`` bytes for this process alone, in huge pages where the system has such. Raises
    `OSError` and OverflowError."""
    made = mmap.mmap(-1, size, flags=_FLAGS[0] | _FLAGS[1])
    if hasattr(mmap, "MADV_HUGEPAGE"):
        _advise(made, mmap.MADV_HUGEPAGE)
    return made


def idle(unused: mmap.mmap) -> None:
    """Say that nobody uses a `block` now: the system may take its pages back until it is written to."""
    _advise(unused, mmap.MADV_FREE)


def _advise(of: mmap.mmap, what: int) -> None:
    try:
        of.madvise(what)
    except OSError:  # an older kernel, or a sandbox: it is memory all the same
        pass


def reserve(size: int) -> int:
    """Address of ``size`` bytes that nobody may touch, and that cost no memory. Raises MemoryError."""
    base = _libc().mmap(None, size, NONE, _FLAGS[0] | _FLAGS[1] | _FLAGS[2], -1, 0)
    if base is None or base == ctypes.c_void_p(-1).value:
        raise MemoryError(f"cannot map {size} bytes for a kernel's arrays")
    return int(base)


def protect(address: int, size: int, mode: int) -> None:
    """Change who may touch pages. ``mode``: a sum of `NONE`, `READ`, `WRITE` and `EXECUTE`. Raises
    MemoryError."""
    if size and _libc().mprotect(address, size, mode):
        raise MemoryError(f"cannot change the protection of {size} bytes")


def prefer_huge(address: int, size: int) -> None:
    """Ask for huge pages. Nothing where the system has no such wish."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        _libc().madvise(address, size, mmap.MADV_HUGEPAGE)


def give_back(address: int, size: int) -> None:
    """Give back what `reserve` gave."""
    _libc().munmap(address, size)


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    pointer, size, word = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes, libc.mmap.restype = [pointer, size, word, word, word, ctypes.c_long], pointer
    libc.munmap.argtypes = [pointer, size]
    libc.mprotect.argtypes = libc.madvise.argtypes = [pointer, size, word]
    return libc
