"""CPUs, through LLVM."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.backends.base import Backend, Loaded, MeasuringPolicy
from autotune.codegen import bundle
from autotune.codegen.grid_code import is_grid_code
from autotune.targets import features
from autotune.targets.names import detect
from schedules.model import Target, Trace, Workload
from schedules.te.compute_dag import ComputeDAG

if TYPE_CHECKING:
    from autotune.backends.building.model_library import KernelCode
    from autotune.backends.building.shared_library import CodeOf


class Cpu(Backend):
    """See `Backend`."""

    name = "cpu"
    measuring = MeasuringPolicy(
        on_device=False,
        one_place=False,
        bounded=True,
        places=3,  # which pages arrays are in decides up to some percent
        builders=8,  # more are faster than any worker
        slower=10.0,  # cores with narrow vectors, and types of 64 bits
        plain_rate=1e9,  # of one thread without vectors
    )

    def available(self) -> bool:
        return True

    def detect(self, threads: int | None = None) -> Target:
        return detect(threads)

    def runnable(self, target: Target) -> bool:
        return features.same_family(target) and not self.lacking(target)

    def refusal(self, target: Target) -> str:
        wanted = f"{target.kind} {target.arch}"
        return f"this CPU cannot run code for {wanted}; use target='cpu', which is this host"

    def lacking(self, target: Target) -> tuple[str, ...]:
        return features.lacking(target)

    def confined(self, target: Target) -> Target:
        """This host's processor as it is, any other by its extensions alone. The name of a processor implies
        more of them, and names and extensions that LLVM does not know end the process."""
        here = detect(1)
        if (target.arch, target.features) == (here.arch, here.features):
            return target
        return replace(
            target, arch=features.generic(target), triple=here.triple, features=features.known(target)
        )

    def check_legal(self, dag: ComputeDAG, trace: Trace, target: Target) -> None:
        from autotune.backends.building.from_trace import programs

        programs(dag, trace, target)

    def build(self, dag: ComputeDAG, trace: Trace, target: Target) -> bytes:
        """An ELF object, in a bundle (`autotune.codegen.bundle`) with those that pack constants, if there
        are any."""
        from autotune.backends.building.from_trace import module_of, programs
        from autotune.codegen.llvm.compile import compile_module

        func, packing = programs(dag, trace, target)
        kernel = compile_module(module_of(func, target).text, target)
        return bundle.join(
            kernel, {n: compile_module(module_of(f, target).text, target) for n, f in packing.items()}
        )

    def shared_library(
        self,
        dag: ComputeDAG,
        codes: Sequence[CodeOf],
        functions: Mapping[str, str],
        soname: str,
        chosen: str = "",
    ) -> bytes:
        from autotune.backends.building.shared_library import shared_library

        return shared_library(dag, codes, functions, soname, chosen)

    def kernel_code(
        self, dag: ComputeDAG, trace: Trace, target: Target, symbol: str, packing: bool = False
    ) -> KernelCode:
        from autotune.backends.building.model_library import kernel_code

        return kernel_code(dag, trace, target, symbol, packing)

    def source(self, dag: ComputeDAG, trace: Trace, target: Target) -> str:
        from autotune.backends.building.from_trace import emit_module

        return emit_module(dag, trace, self.confined(target)).text

    def takes(self, code: bytes) -> bool:
        return not is_grid_code(code)

    def load(self, code: bytes) -> Loaded:
        return bundle.load(code)

    def clocked_by(self, target: Target) -> Target:
        return target

    def waits_for_memory(self, dag: ComputeDAG, target: Target) -> bool:
        from autotune.backends.peaks.roofline import waits_for_memory

        return waits_for_memory(dag, target)

    def warm_runs(self, dag: ComputeDAG, target: Target) -> int:
        from autotune.backends.peaks.roofline import warm_runs

        return warm_runs(dag, target)

    def roofline(
        self, workload: Workload, target: Target, *, memory_afresh: bool = False
    ) -> Callable[[], float] | None:
        from autotune.backends.peaks.roofline import limit_of

        return limit_of(workload, target, memory_afresh=memory_afresh)


BACKEND = Cpu()
