"""What a backend is: all that depends on the kind of a target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from autotune.backends.building.generator_version import generator_version
from autotune.errors import CompileError
from autotune.targets.names import TargetError
from schedules.model import Target, Trace, Workload
from schedules.te.compute_dag import ComputeDAG

if TYPE_CHECKING:
    from autotune.backends.building.cross_compile import Compiled
    from autotune.backends.building.model_library import KernelCode
    from autotune.backends.building.shared_library import CodeOf
    from autotune.backends.drivers.protocol import Device

Loaded = tuple[Any, dict[int, Any]]  # what runs, and what packs constants, by the number of the input


@dataclass(frozen=True)
class MeasuringPolicy:
    """How candidates of a kind are measured.

    ``on_device``: code runs on a device, whose driver works in the worker's process. ``one_place``: one place
    of the host's arrays is as good as another. ``bounded``: the memory of a process may be limited.
    ``places``: of memory, in which finalists are timed. ``builders``: processes that compile, at most; None:
    as many as CPUs. ``slower``: how much slower than numpy's best a kernel may be that is no failure.
    ``plain_rate``: FLOP/s or bytes/s of loops without a schedule, about.
    """

    on_device: bool
    one_place: bool
    bounded: bool
    places: int
    builders: int | None
    slower: float
    plain_rate: float


class Backend(ABC):
    """One kind of target. Each is a file of this package, and a name in `BACKENDS`. They keep no state."""

    name: ClassVar[str]  # what a user asks for: the first of this machine
    measuring: ClassVar[MeasuringPolicy]

    def owns(self, target: Target) -> bool:
        """Whether a target is of this kind."""
        return target.kind == self.name

    @abstractmethod
    def available(self) -> bool:
        """Whether this machine has what runs it."""

    def has_gpu(self) -> bool:
        """Whether this machine has a GPU that runs it."""
        return False

    def compiles(self) -> bool:
        """Whether this machine has what compiles for it."""
        return True

    @abstractmethod
    def detect(self, threads: int | None = None) -> Target:
        """The first of this machine. Raises `TargetError` where there is none."""

    @abstractmethod
    def runnable(self, target: Target) -> bool:
        """Whether this machine runs code for a target."""

    def refusal(self, target: Target) -> str:
        """Why a target cannot run here, and what can."""
        return f"this CPU cannot run code for a {target.kind} target; use target='cpu', which is this host"

    def lacking(self, target: Target) -> tuple[str, ...]:
        """Extensions of the processor that a target needs and this machine lacks, sorted."""
        return ()

    def confined(self, target: Target) -> Target:
        """What to generate code for where a target that runs here comes from elsewhere."""
        return target

    @abstractmethod
    def check_legal(self, dag: ComputeDAG, trace: Trace, target: Target) -> None:
        """Raises ScheduleError for a trace that is not legal, or gives too much code. Compiles nothing."""

    @abstractmethod
    def build(self, dag: ComputeDAG, trace: Trace, target: Target) -> bytes:
        """The code of a trace, with all that loading needs. Raises ScheduleError or CompileError."""

    @abstractmethod
    def source(self, dag: ComputeDAG, trace: Trace, target: Target) -> str:
        """The text that is compiled. Raises ScheduleError."""

    def cross_compile(self, dag: ComputeDAG, trace: Trace, target: Target) -> Compiled:
        """Machine code for a target that need not be here. Raises TargetError where that has no meaning."""
        raise TargetError(
            f"target {target.kind} {target.arch} is no described GPU; use one such as a100, h100 or t4"
        )

    def shared_library(
        self,
        dag: ComputeDAG,
        codes: Sequence[CodeOf],
        functions: Mapping[str, str],
        soname: str,
        chosen: str = "",
    ) -> bytes:
        """A shared object with functions of C (`autotune.backends.building.shared_library`). Raises
        ScheduleError, and CompileError where there is none for this kind."""
        raise CompileError(
            f"a kernel for {self.name} is no function of C, so it cannot be exported; autotune.compile_for "
            "gives the machine code of a schedule for a described GPU"
        )

    def kernel_code(
        self, dag: ComputeDAG, trace: Trace, target: Target, symbol: str, packing: bool = False
    ) -> KernelCode:
        """A kernel as a function of a whole model (`autotune.backends.building.model_library`). Raises
        ScheduleError, and CompileError where there is none for this kind."""
        raise CompileError(f"a kernel for {self.name} is no function of C, so its model cannot be exported")

    def versions(self, target: Target) -> list[str]:
        """What makes the code: the words that a cache knows it by, the most exact first."""
        return [generator_version()]

    @abstractmethod
    def takes(self, code: bytes) -> bool:
        """Whether code is of this kind, by its first bytes."""

    @abstractmethod
    def load(self, code: bytes) -> Loaded:
        """Code of this machine's own cache or builders, ready to run. Raises CompileError."""

    def device(self) -> Device:
        """The first device of this kind, in this process. Raises CompileError where there is none."""
        raise CompileError(f"no device here runs code for {self.name}")

    def diagnosis(self) -> tuple[str, str]:
        """For `autotune doctor`: what there is, and how to get what is missing, or nothing."""
        return (f"use --target {self.name}" if self.available() else "not usable here"), ""

    def clocked_by(self, target: Target) -> Target:
        """The CPU whose clock times what runs for a target."""
        from autotune.targets.names import detect

        return detect(1)

    def waits_for_memory(self, dag: ComputeDAG, target: Target) -> bool:
        """Whether a CPU's clock says little of a kernel's time (`measure.roofline`)."""
        return False

    def warm_runs(self, dag: ComputeDAG, target: Target) -> int:
        """Runs after which a kernel's arrays are where they are when it is called again and again."""
        return 0

    def roofline(
        self, workload: Workload, target: Target, *, memory_afresh: bool = False
    ) -> Callable[[], float] | None:
        """A function that measures the least seconds a workload can take. None: unknown."""
        return None
