"""GPUs that a C++ compiler and this CPU stand in for: their code is checked, and its times say nothing."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from autotune.backends.base import Loaded
from autotune.backends.grids import Grids
from autotune.codegen import bundle
from autotune.codegen.simt import cxx
from autotune.targets.names import from_name
from schedules.gpu_architectures import EMULATED
from schedules.model import Target, Trace
from schedules.te.compute_dag import ComputeDAG


class Emulator(Grids):
    """See `Backend`. Its code is an object of this CPU."""

    name = "cuda-emulator"
    measuring = replace(Grids.measuring, on_device=False, bounded=True)

    def owns(self, target: Target) -> bool:
        return target.kind == "cuda" and target.arch.endswith(EMULATED)

    def available(self) -> bool:
        return cxx.command() is not None

    def detect(self, threads: int | None = None) -> Target:
        return from_name(self.name)

    def runnable(self, target: Target) -> bool:
        return self.available()

    def refusal(self, target: Target) -> str:
        return f"cannot emulate a GPU: {cxx.MISSING}"

    @property
    def dialect(self) -> ModuleType:
        from autotune.codegen.simt import cuda

        return cuda

    @property
    def missing(self) -> str:
        return cxx.MISSING

    def diagnosis(self) -> tuple[str, str]:
        compiler = cxx.command()
        if compiler is None:
            return "no C++ compiler", cxx.MISSING
        return f"{cxx.name(compiler)}: use --target {self.name}", ""

    def build(self, dag: ComputeDAG, trace: Trace, target: Target) -> bytes:
        from autotune.backends.building.from_trace import grid_program, within_recursion
        from autotune.codegen.simt import emulator

        program = grid_program(dag, trace, target)
        with within_recursion():
            return emulator.build(program)

    def takes(self, code: bytes) -> bool:
        return False  # an object of a CPU, which is loaded as such

    def load(self, code: bytes) -> Loaded:
        return bundle.load(code)


BACKEND = Emulator()
