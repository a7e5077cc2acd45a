"""NVIDIA GPUs: CUDA C through NVRTC, run by the driver through one of two bindings."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

from autotune.backends.building.generator_version import generator_version
from autotune.backends.drivers.protocol import Device
from autotune.backends.grids import Grids
from autotune.errors import CompileError
from autotune.platform.machine import driver_library
from autotune.settings import cuda_binding
from schedules.distribution import install
from schedules.gpu_architectures import compiled_for
from schedules.model import Target, Trace
from schedules.te.compute_dag import ComputeDAG

if TYPE_CHECKING:
    from autotune.backends.building.cross_compile import Compiled
    from autotune.codegen.simt.emit import Generated
    from autotune.codegen.simt.nvrtc import Cubin
    from schedules.ir.grid import GridProgram

# Tried with PyCUDA 2026.1 on Python 3.11, without a CUDA toolkit: `docs/pycuda.md`.
PYCUDA = "PyCUDA has no wheels, and needs a C++ compiler and headers of CUDA: docs/pycuda.md has the commands"


class Cuda(Grids):
    """See `Backend`."""

    name = "cuda"

    def available(self) -> bool:
        return self._binding() is not None

    def has_gpu(self) -> bool:
        return self.available()

    def compiles(self) -> bool:
        from autotune.codegen.simt import nvrtc

        return nvrtc.available()

    def device(self) -> Device:
        binding = self._binding() or next(iter(self._bindings().values()))  # which says what is missing
        device: Device = binding.device()
        return device

    def _binding(self) -> ModuleType | None:
        """The module of `autotune.backends.drivers` that reaches a GPU: the one that a setting names, or the
        first."""
        bindings = self._bindings()
        chosen = cuda_binding()
        wanted = bindings.values() if chosen == "auto" else [bindings[chosen]]
        return next((m for m in wanted if m.available()), None)

    def _bindings(self) -> dict[str, ModuleType]:
        """By the names of `settings.CUDA_BINDINGS`."""
        from autotune.backends.drivers import cuda, pycuda

        return {"cuda-python": cuda, "pycuda": pycuda}

    @property
    def dialect(self) -> ModuleType:
        from autotune.codegen.simt import cuda

        return cuda

    @property
    def missing(self) -> str:
        return (
            f"there is no NVIDIA GPU here, or no driver, or no bindings: {install('cuda')}; "
            "target='cuda-emulator' or 'h100-emulator' runs its code on this CPU, to check it"
        )

    def refusal(self, target: Target) -> str:
        return (
            f"this CPU cannot run code for a {target.kind} target; use target='cuda', the NVIDIA GPU of this "
            "machine; target='h100-emulator' runs its code on this CPU, to check it"
        )

    def diagnosis(self) -> tuple[str, str]:
        """Whether kernels can be compiled, whether one can run them, and through which binding."""
        from autotune.codegen.simt import nvrtc

        if not nvrtc.available():
            return "NVRTC is not installed", f"{install('cuda')} to compile for GPUs"
        binding = self._binding()
        if binding is not None:
            gpu = binding.device()
            through = next(name for name, m in self._bindings().items() if m is binding)
            return f"NVRTC, and {gpu.name()} ({gpu.arch()}) through {through}: use --target cuda", ""
        if cuda_binding() == "pycuda" and find_spec("pycuda") is None:
            return "NVRTC, and AUTOTUNE_CUDA_BINDING=pycuda, but PyCUDA is not installed", PYCUDA
        try:
            ctypes.CDLL(driver_library("cuda"))
            found = "a driver, but no usable GPU"
        except OSError:
            found = "no NVIDIA driver"
        return f"NVRTC compiles for described GPUs such as h100; {found}", ""

    def build(self, dag: ComputeDAG, trace: Trace, target: Target) -> bytes:
        from autotune.codegen.grid_code import grid_code

        program, made, cubin = self._compiled(dag, trace, target)
        check_registers(program, cubin.facts)
        return grid_code(program, self.name, made, cubin.data, cubin.facts).to_bytes()

    def cross_compile(self, dag: ComputeDAG, trace: Trace, target: Target) -> Compiled:
        from autotune.backends.building.cross_compile import Compiled
        from autotune.codegen.simt import sass

        _, made, cubin = self._compiled(dag, trace, target)
        counted = sass.counts(cubin.data)
        facts = {k: {**v, **counted.get(k, {})} for k, v in cubin.facts.items()}
        return Compiled(target, made.text, cubin.data, facts)

    def _compiled(
        self, dag: ComputeDAG, trace: Trace, target: Target
    ) -> tuple[GridProgram, Generated, Cubin]:
        """The kernels of a trace, their text, and machine code with what the compiler tells of them."""
        from autotune.codegen.simt import nvrtc

        program, made = self.generated(dag, trace, target)
        cubin = nvrtc.compile_cubin(made.text, compiled_for(target.arch))
        return program, made, replace(cubin, facts=with_asked(cubin.facts, made.shared))

    def versions(self, target: Target) -> list[str]:
        """With the version of NVRTC that compiles it. Then without, for where there is none: what was made
        last is found there."""
        from importlib import metadata  # takes long

        from autotune.codegen.simt.nvrtc import FIRST_OF_13

        generator = generator_version()
        number = re.match(r"sm_(\d+)", target.arch)
        old = number is not None and int(number[1]) < FIRST_OF_13
        try:
            version = metadata.version("nvidia-cuda-nvrtc-cu12" if old else "nvidia-cuda-nvrtc")
        except metadata.PackageNotFoundError:
            return [generator]
        return [f"{generator} nvrtc {version}", generator]


def with_asked(facts: Mapping[str, Mapping[str, int]], asked: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """What the compiler tells of kernels, with the shared memory that their launches ask for."""
    return {k: {**v, "shared_bytes": v["shared_bytes"] + asked.get(k, 0)} for k, v in facts.items()}


def check_registers(program: GridProgram, facts: Mapping[str, Mapping[str, int]]) -> None:
    """Raises CompileError for a kernel that uses matrix units and keeps some of its registers in memory:
    what feeds these units is to be there when they want it."""
    from schedules.ir import walk
    from schedules.ir.lanes import is_collective

    for k in program.kernels:
        kept = {n: facts[k.name][f"{n}_bytes"] for n in ("spill", "stack") if facts[k.name][f"{n}_bytes"]}
        if kept and any(map(is_collective, walk(k.body))):
            told = " and ".join(f"{n} bytes of {what}" for what, n in kept.items())
            raise CompileError(
                f"{k.name} uses matrix units, and the compiler keeps registers in memory ({told} a thread); "
                "use smaller tiles of a warp"
            )


BACKEND = Cuda()
