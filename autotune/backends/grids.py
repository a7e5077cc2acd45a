"""What backends for grids of threads share: C of one dialect, and a device that runs it."""

from __future__ import annotations

from abc import abstractmethod
from types import ModuleType
from typing import TYPE_CHECKING

from autotune.backends.base import Backend, Loaded, MeasuringPolicy
from autotune.codegen.grid_code import kind_of
from autotune.targets.names import TargetError
from schedules.model import Target, Trace
from schedules.te.compute_dag import ComputeDAG

if TYPE_CHECKING:
    from autotune.codegen.simt.emit import Generated
    from schedules.ir.grid import GridProgram

PLAIN_RATE = 1e8  # of one thread of a device


class Grids(Backend):
    """See `Backend`."""

    measuring = MeasuringPolicy(
        on_device=True,
        one_place=True,
        bounded=False,  # drivers map and write what they like
        places=1,
        builders=None,  # compilers for GPUs take ten times as long
        slower=1.0,
        plain_rate=PLAIN_RATE,
    )

    @property
    @abstractmethod
    def dialect(self) -> ModuleType:
        """The module of `autotune.codegen.simt` that writes its C."""

    @property
    @abstractmethod
    def missing(self) -> str:
        """Why there may be no device, and the remedy."""

    def detect(self, threads: int | None = None) -> Target:
        if not self.available():
            raise TargetError(self.missing)
        found = self.device()
        return Target(self.name, found.arch(), limits=tuple(sorted(found.attributes().items())))

    def runnable(self, target: Target) -> bool:
        return self.available() and self.device().arch() == target.arch

    def check_legal(self, dag: ComputeDAG, trace: Trace, target: Target) -> None:
        from autotune.backends.building.from_trace import grid_program

        grid_program(dag, trace, target)

    def generated(self, dag: ComputeDAG, trace: Trace, target: Target) -> tuple[GridProgram, Generated]:
        """The kernels of a trace, and their text. Raises ScheduleError and CompileError."""
        from autotune.backends.building.from_trace import grid_program, within_recursion

        program = grid_program(dag, trace, target)
        with within_recursion():
            return program, self.dialect.generate(program)

    def source(self, dag: ComputeDAG, trace: Trace, target: Target) -> str:
        return self.generated(dag, trace, target)[1].text

    def takes(self, code: bytes) -> bool:
        return kind_of(code) in (self.name, "")  # what is damaged fails when it is loaded

    def load(self, code: bytes) -> Loaded:
        from autotune.backends.drivers.object import DeviceObject

        return DeviceObject(code), {}
