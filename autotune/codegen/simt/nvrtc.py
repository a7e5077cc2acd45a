"""Compiles CUDA C to cubin with NVRTC. It needs NVRTC's wheel (extra ``cuda``), but neither a GPU nor a
driver.

Version 13 is used, and version 12 (extra ``cuda12``) for architectures that 13 has dropped, such as V100.
NVRTC is called through ctypes, because its bindings only know the version that they were made for.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from autotune.errors import CompileError
from schedules.distribution import install

# Flags of NVRTC.
FLAGS = (b"--std=c++17", b"--fmad=false", b"--disable-warnings", b"--ptxas-options=-v")
# What ptxas says of code that waits for asynchronous matrix units more often than was written.
_LOST = re.compile(r"(\(C75\d\d\).*)")
# Lines of ptxas' report: the beginning of a kernel, and its facts.
_NAME = re.compile(r"Function properties for (\w+)|Compiling entry function '(\w+)'")
_FACTS = {
    "registers": re.compile(r"Used (\d+) registers"),
    "shared_bytes": re.compile(r"(\d+) bytes smem"),
    "stack_bytes": re.compile(r"(\d+) bytes stack frame"),
    "spill_bytes": re.compile(r"(\d+) bytes spill stores"),
}


@dataclass(frozen=True)
class Cubin:
    """Machine code for one architecture. ``facts``: {kernel: {fact: value}}: registers a thread, and bytes of
    shared memory, stack and spilled registers."""

    data: bytes
    facts: dict[str, dict[str, int]]


# Oldest architecture (sm_..) that version 13 compiles for.
FIRST_OF_13 = 75
# {version: file in the package ``nvidia``}.
_FILES = {13: "cu13/lib/libnvrtc.so.13", 12: "cuda_nvrtc/lib/libnvrtc.so.12"}


def available(version: int = 13) -> bool:
    """Whether a version of NVRTC is installed."""
    return _path(version) is not None


def compile_cubin(source: str, arch: str) -> Cubin:
    """Compile for an architecture such as "sm_90". Raises CompileError with the compiler's message, also
    where it had to put waits between the instructions of matrix units (C7511 and the like)."""
    number = re.match(r"sm_(\d+)", arch)
    version = 12 if number and int(number.group(1)) < FIRST_OF_13 else 13
    library = _library(version)

    def ok(status: int) -> None:
        if status:
            raise CompileError(f"NVRTC: {library.nvrtcGetErrorString(status).decode()}")

    def said(size: str, get: str) -> bytes:
        n = ctypes.c_size_t()
        ok(getattr(library, size)(program, ctypes.byref(n)))
        data = ctypes.create_string_buffer(n.value)
        ok(getattr(library, get)(program, data))
        return data.raw

    program = ctypes.c_void_p()
    ok(library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None))
    try:
        options = [*FLAGS, f"--gpu-architecture={arch}".encode()]
        words = (ctypes.c_char_p * len(options))(*options)
        failed = library.nvrtcCompileProgram(program, len(options), words)
        log = said("nvrtcGetProgramLogSize", "nvrtcGetProgramLog").decode(errors="replace").rstrip("\0 ")
        if failed:
            # Without the lines about other kernels.
            told = [line for line in log.splitlines() if not line.startswith("ptxas info")]
            why = "\n".join(told).strip() or library.nvrtcGetErrorString(failed).decode()
            raise CompileError(f"NVRTC {version} refused the generated code for {arch}: {why[:600]}")
        if lost := _LOST.search(log):
            raise CompileError(f"NVRTC {version} slows the matrix units down for {arch}: {lost[1][:600]}")
        return Cubin(said("nvrtcGetCUBINSize", "nvrtcGetCUBIN"), facts(log))
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def in_wheel(name: str) -> Path | None:
    """A file of the package ``nvidia``, to which several wheels add theirs."""
    spec = find_spec("nvidia")
    places = () if spec is None else spec.submodule_search_locations or ()
    return next((f for p in places if (f := Path(p) / name).exists()), None)


def _path(version: int) -> Path | None:
    return in_wheel(_FILES[version])


@cache
def _library(version: int) -> ctypes.CDLL:
    """The library of a version. Raises CompileError if it is not installed."""
    path = _path(version)
    if path is None:
        extra, what = ("cuda", "CUDA") if version == 13 else ("cuda12", "GPUs before Turing")
        raise CompileError(f"compiling for {what} needs NVRTC {version}; {install(extra)}")
    for other in path.parent.glob(f"libnvrtc-builtins.so.{version}.*"):  # NVRTC looks for it by name only
        ctypes.CDLL(str(other))
    library = ctypes.CDLL(str(path))
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def facts(log: str) -> dict[str, dict[str, int]]:
    """Parse ptxas' report on each kernel."""
    found: dict[str, dict[str, int]] = {}
    kernel = ""
    for line in log.splitlines():
        name = _NAME.search(line)
        if name:
            kernel = name.group(1) or name.group(2)
        for key, pattern in _FACTS.items():
            value = pattern.search(line)
            if value and kernel:
                found.setdefault(kernel, dict.fromkeys(_FACTS, 0))[key] = int(value.group(1))
    return found
