"""Compiling for a GPU that need not be here: machine code, its source, and what it takes of the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune import targets
from schedules.model import Target, Workload
from schedules.schedule import Schedule


@dataclass(frozen=True)
class Compiled:
    """Kernels for a described target. ``cubin``: machine code for its architecture, empty for OpenCL, whose
    devices compile the ``source`` themselves. ``facts``: of each kernel by name: registers a thread, bytes of
    shared memory, of stack, and of registers spilled."""

    target: Target
    source: str
    cubin: bytes
    facts: Mapping[str, Mapping[str, int]]


def compile_for(schedule: Schedule, target: str | Target) -> Compiled:
    """Compile a schedule for a described GPU such as "a100", "h100" or "adreno-740" (``configs/targets``); no
    device and no driver is needed, only NVRTC for CUDA (extra ``cuda``).

    Raises `TargetError` for a target that is no GPU, `ScheduleError` for a schedule that no grid can
    run, and `CompileError` with the compiler's words.
    """
    from autotune.building.from_trace import grid_program
    from autotune.codegen.simt import cuda, nvrtc, opencl

    goal = targets.parse(target)
    if goal.kind not in ("cuda", "opencl") or targets.emulated(goal):
        raise targets.TargetError(
            f"target {goal.kind} {goal.arch} is no described GPU; use one such as a100, h100 or t4"
        )
    workload = Workload(schedule.dag)
    program = grid_program(workload.dag, schedule.trace, goal)
    if goal.kind == "opencl":
        return Compiled(goal, opencl.source(program), b"", {})
    source = cuda.source(program)
    made = nvrtc.compile_cubin(source, goal.arch)
    return Compiled(goal, source, made.data, made.facts)
