"""A builder of hand-written kernels of a device for C = A + B: right ones, and ways to be wrong; and what
stands in for arrays of a GPU and for its driver.

A trace of one step ("fake", kind=…) chooses, as in `measure_fakes`.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.backends.drivers.cuda import CudaDevice, _ok
from autotune.backends.drivers.protocol import Device
from autotune.codegen.grid_code import GridArray, GridCode, Launch, grid_code
from autotune.codegen.simt import cuda, cxx, emulator, nvrtc, opencl
from schedules.ir.grid import GridProgram
from schedules.model import Target, Trace
from schedules.te.compute_dag import ComputeDAG

if TYPE_CHECKING:  # workers import this module too
    import pytest

NAME = f"{__name__}:build"
FAKE = "Fake GPU"  # what the fake driver calls its GPU
BODIES = {
    "right": "",
    "wrong": "if (i == 7) continue;",
    "faults": {
        "cuda": "if (at < 3) __syncthreads();",
        "opencl": "*(volatile __global float *)(size_t)(at < 3 ? 8 : 16) = 1.0f;",
    },
    "scribbles": {"cuda": "((float *)A)[i] += 1;", "opencl": "((__global float *)A)[i] += 1;"},
    "hangs": "for (volatile int x = 0; x < 1; x = 0) {}",
}


def build(dag: ComputeDAG, trace: Trace, target: Target) -> bytes:
    kind = dict(trace.steps[0].args)["kind"]
    body = BODIES[kind]
    return addition(dag, target.kind, body[target.kind] if isinstance(body, dict) else body).to_bytes()


def addition(dag: ComputeDAG, kind: str, body: str) -> GridCode:
    params = tuple(GridArray(t.name, t.dtype, t.shape, 4) for t in dag.params)
    n = prod(dag.params[0].shape)
    loop = f"for (int i = at; i < {n}; i += 64) {{ {body} C[i] = A[i] + B[i]; }}"
    if kind == "opencl":
        head = "__kernel void kernel0(__global const float *A, __global const float *B, __global float *C)"
        text = f"{head} {{ int at = get_local_id(0); {loop} }}"
    else:
        head = 'extern "C" __global__ void kernel0(const float *A, const float *B, float *C)'
        text = f"{cuda.PRELUDE}{head} {{ int at = threadIdx.x; {loop} }}"
    launch = Launch("kernel0", (1, 1, 1), (64, 1, 1), tuple(p.name for p in params))
    code = GridCode(kind, params, dag.outputs, (), (launch,), text)
    return code if kind == "opencl" else _emulated(code)


_LIBRARIES: dict[str, bytes] = {}  # by their source: tests ask for the same ones again


def _emulated(code: GridCode) -> GridCode:
    if code.source not in _LIBRARIES:
        _LIBRARIES[code.source] = emulator.driver(code, shared=True)
    return replace(code, binary=_LIBRARIES[code.source])


def code_for(program: GridProgram, device: Device) -> GridCode:
    """A program for a device, compiled as it needs."""
    if device.kind == "opencl":
        return grid_code(program, "opencl", opencl.generate(program))
    made = cuda.generate(program)
    code = grid_code(program, "cuda", made)
    if device.name() == FAKE:
        return _emulated(code)
    if device.arch() == "emulator":
        return code
    cubin = nvrtc.compile_cubin(made.text, device.arch())
    return replace(code, binary=cubin.data, facts=cubin.facts)


def fake_driver(folder: Path) -> dict[str, str]:
    """The environment of a process that finds the fake driver instead of a real one."""
    compiler = cxx.command()
    assert compiler is not None
    source, out = Path(__file__).with_name("fake_driver.cpp"), folder / "libcuda.so.1"
    how = ["-O1", "-std=c++17", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([*compiler, *how, str(source), "-o", str(out), "-ldl"], check=True)
    paths = [str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(paths)}


class Space:
    """An array library, as far as the array API says how to make an array."""

    float16, float32, float64, int32, int64 = "float16", "float32", "float64", "int32", "int64"

    def __init__(self, device: Any) -> None:
        self.device, self.made = device, 0

    def empty(self, shape: tuple[int, ...], dtype: str, device: object) -> FakeArray:
        self.made += 1
        return FakeArray(self, np.full(shape, -77, dtype))

    def streams(self, n: int) -> list[int]:
        """Handles of streams. Where none are real, numbers that nobody looks behind: a driver would."""
        if not isinstance(self.device, CudaDevice) or self.device.name() == FAKE:
            return [0x70 + 16 * i for i in range(n)]
        with self.device.current():
            return [int(_ok(self.device.driver.cuStreamCreate(0))) for _ in range(n)]


class FakeArray:
    """An array of a device as CuPy's are: ``__cuda_array_interface__`` of version 3."""

    device = "fake"

    def __init__(self, space: Space, host: np.ndarray, offset: int = 0, **interface: Any) -> None:
        """``offset``: bytes from where a device's memory begins; ``interface``: entries that are
        different."""
        self.space, self.host, self.interface = space, host, interface
        self.start = space.device.allocate(host.nbytes + offset)
        self.address = self.start + offset
        if host.nbytes:
            space.device.upload(self.address, np.ascontiguousarray(host))

    def __array_namespace__(self) -> Space:
        return self.space

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        found = {
            "shape": self.host.shape,
            "typestr": self.host.dtype.str,
            "data": (self.address, False),
            "version": 3,
        }
        return found | self.interface

    def get(self) -> np.ndarray:
        out = np.empty(self.host.shape, self.host.dtype)
        if out.nbytes:
            self.space.device.download(out, self.address)
        return out


def counted_calls(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Counter[str]]:
    """Lets the fake driver keep its calls in a file of the folder. Returns a function that says how often it
    has been called, by name, since it was last asked."""
    log = folder / "calls"

    def counted() -> Counter[str]:
        words = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return Counter(line.split()[0] for line in words)

    monkeypatch.setenv("AT_FAKE_LOG", str(log))
    return counted
