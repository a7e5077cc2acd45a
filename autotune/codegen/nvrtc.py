"""CUDA C to cubin with NVRTC: needs its wheels (extra ``cuda``), but neither a GPU nor a driver."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from autotune.errors import CompileError

FLAGS = (b"--std=c++17", b"--ptxas-options=-v")
_NAME = re.compile(r"Function properties for (\w+)|Compiling entry function '(\w+)'")
_FACTS = {
    "registers": re.compile(r"Used (\d+) registers"),
    "shared_bytes": re.compile(r"(\d+) bytes smem"),
    "stack_bytes": re.compile(r"(\d+) bytes stack frame"),
    "spill_bytes": re.compile(r"(\d+) bytes spill stores"),
}


@dataclass(frozen=True)
class Cubin:
    """Machine code for one architecture. ``facts``: of each kernel, by name: registers a thread, and bytes of
    shared memory, of stack and of registers spilled."""

    data: bytes
    facts: dict[str, dict[str, int]]


def available() -> bool:
    """Whether NVRTC is installed."""
    try:
        return find_spec("cuda.bindings") is not None and find_spec("nvidia.cu13") is not None
    except ModuleNotFoundError:
        return False


def compile_cubin(source: str, arch: str) -> Cubin:
    """Compile for an architecture such as "sm_90". Raises CompileError with the compiler's words."""
    if not available():
        raise CompileError("compiling for CUDA needs NVRTC; pip install 'autotune[cuda]'")
    from cuda.bindings import nvrtc

    def ok(answer: tuple[Any, ...]) -> Any:
        if int(answer[0]) != 0:
            raise CompileError(f"NVRTC: {nvrtc.nvrtcGetErrorString(answer[0])[1].decode()}")
        return answer[1] if len(answer) > 1 else None

    program = ok(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    try:
        options = [*FLAGS, f"--gpu-architecture={arch}".encode()]
        failed = int(nvrtc.nvrtcCompileProgram(program, len(options), options)[0])
        log = b" " * ok(nvrtc.nvrtcGetProgramLogSize(program))
        ok(nvrtc.nvrtcGetProgramLog(program, log))
        said = log.decode(errors="replace").rstrip("\0 ")
        if failed:
            raise CompileError(f"NVRTC refused the generated code for {arch}: {said[:600]}")
        data = b" " * ok(nvrtc.nvrtcGetCUBINSize(program))
        ok(nvrtc.nvrtcGetCUBIN(program, data))
        return Cubin(data, facts(said))
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def facts(log: str) -> dict[str, dict[str, int]]:
    """What ptxas tells of each kernel."""
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
