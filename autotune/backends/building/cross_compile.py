"""Compiling for a GPU that need not be here: machine code, its source, and what it takes of the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune import backends
from schedules.model import Target, Workload
from schedules.schedule import Schedule


@dataclass(frozen=True)
class Compiled:
    """Kernels for a described target. ``cubin``: machine code for its architecture, empty for OpenCL, whose
    devices compile the ``source`` themselves. ``facts``: of each kernel by name: registers a thread, bytes of
    shared memory, of stack, and of registers spilled. Where NVIDIA's disassembler is installed (extra
    ``cuda``) they have counts of instructions too: ``instructions``, and by name, such as ``FFMA``."""

    target: Target
    source: str
    cubin: bytes
    facts: Mapping[str, Mapping[str, int]]


def compile_for(schedule: Schedule, target: str | Target) -> Compiled:
    """Compile a schedule for a described GPU such as "a100", "h100" or "adreno-740" (``configs/targets``); no
    device and no driver is needed, only NVRTC for CUDA (extra ``cuda``).

    Raises `TargetError` for a target that is no GPU, `ScheduleError` for a schedule that no grid can
    run, and `CompileError` with the compiler's words.

    >>> x = te.placeholder((64,), name="x")
    >>> schedule = at.Schedule([x, te.compute((64,), lambda i: x[i] + 1.0, name="y")])
    >>> schedule.bind("y_i", "threadIdx.x")
    >>> "__kernel" in at.compile_for(schedule, "adreno-740").source
    True
    """
    goal = backends.parse(target)
    return backends.of(goal).cross_compile(Workload(schedule.dag).dag, schedule.trace, goal)
