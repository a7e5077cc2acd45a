"""OpenCL devices: GPUs of other makers, and PoCL on any CPU. They compile the source themselves."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from autotune.backends.drivers.protocol import Device
from autotune.backends.grids import Grids
from schedules.distribution import install
from schedules.model import Target, Trace
from schedules.te.compute_dag import ComputeDAG

if TYPE_CHECKING:
    from autotune.backends.building.cross_compile import Compiled


class Opencl(Grids):
    """See `Backend`."""

    name = "opencl"

    def available(self) -> bool:
        from autotune.backends.drivers import opencl

        return opencl.context() is not None

    def has_gpu(self) -> bool:
        from autotune.backends.drivers import opencl

        return self.available() and opencl.is_gpu()

    def device(self) -> Device:
        from autotune.backends.drivers import opencl

        return opencl.device()

    @property
    def dialect(self) -> ModuleType:
        from autotune.codegen.simt import opencl

        return opencl

    @property
    def missing(self) -> str:
        return (
            f"there is no OpenCL device here; {install('opencl')} and the driver of your device, "
            "or use target='cpu'"
        )

    def diagnosis(self) -> tuple[str, str]:
        if self.available():
            return f"{self.device().name()}: use --target opencl", ""
        return "no OpenCL device", f"{install('opencl')} and a driver, such as PoCL, to use one"

    def build(self, dag: ComputeDAG, trace: Trace, target: Target) -> bytes:
        from autotune.codegen.grid_code import grid_code

        program, made = self.generated(dag, trace, target)
        return grid_code(program, self.name, made).to_bytes()

    def cross_compile(self, dag: ComputeDAG, trace: Trace, target: Target) -> Compiled:
        from autotune.backends.building.cross_compile import Compiled

        return Compiled(target, self.source(dag, trace, target), b"", {})


BACKEND = Opencl()
