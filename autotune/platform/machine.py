"""What the system tells of the machine: its processor, its memory, its boot."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path

from autotune.platform.files import CPU_FOLDERS, PROC, read

# Of the first CPU: a folder for each cache.
CPU_CACHES = CPU_FOLDERS / "cpu0" / "cache"
CPU_INFO, BOOT = PROC / "cpuinfo", PROC / "sys/kernel/random/boot_id"
# Names of shared libraries that drivers bring: {system: {library: file}}.
_LIBRARIES = {"windows": {"cuda": "nvcuda.dll"}}


def system() -> str:
    """The operating system as triples of LLVM name it: "linux", "darwin", "windows", or what Python says."""
    return {"win32": "windows"}.get(sys.platform, sys.platform)


def host_flags(path: Path = CPU_INFO) -> frozenset[str] | None:
    """The extensions of the first CPU that Linux lists; None where there is no such file."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return None


def cpu_model() -> str:
    """The name of the processor, as Linux has it, else as Python does."""
    for line in read(CPU_INFO).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def memory_gib() -> int:
    """Memory of the machine; 0 where the system does not tell."""
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30)
    except (ValueError, OSError, AttributeError):
        return 0


def nvidia_driver() -> str | None:
    """The version of NVIDIA's driver in Linux; None where there is none."""
    found = re.search(r"Kernel Module(?: for \S+)?\s+([0-9.]+)", read(PROC / "driver/nvidia/version"))
    return found[1] if found else None


def boot() -> str | None:
    """Names this boot of this machine, and nothing else; None where the system does not tell."""
    return read(BOOT) or None


def driver_library(name: str) -> str:
    """The file name of a driver's shared library, such as "cuda"."""
    return _LIBRARIES.get(system(), {}).get(name, f"lib{name}.so.1")
