"""From a trace to code: replay, lower, generate, compile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedules.dag import ComputeDAG
from schedules.lower import lower
from schedules.model import Target, Trace
from schedules.schedule import Schedule

if TYPE_CHECKING:
    from autotune.codegen.llvm import Module


def emit_module(dag: ComputeDAG, trace: Trace, target: Target) -> Module:
    """LLVM IR of a trace, with its entry points. Raises ScheduleError where the trace is not legal."""
    from autotune.codegen.entry import entry
    from autotune.codegen.llvm import Module, emit

    func = lower(Schedule.replay(dag, trace, target).nest)
    module = emit(func, target)
    tail = entry(func.params, func.outputs, module.scratch_bytes, target.threads)
    return Module(f"{module.text}\n{tail}", module.scratch_bytes)


def build_object(dag: ComputeDAG, trace: Trace, target: Target) -> bytes:
    """An ELF object of a trace. Raises ScheduleError or CompileError."""
    from autotune.codegen.compile import compile_module

    return compile_module(emit_module(dag, trace, target).text, target)
