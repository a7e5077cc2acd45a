"""Models of plain loops on a device."""

from __future__ import annotations

from collections.abc import Sequence

import gpu_fakes as fakes
from model_cases import each_stage

from autotune import backends
from autotune.backends.building.from_trace import grid_program
from autotune.backends.drivers.object import DeviceObject
from autotune.backends.drivers.protocol import Device
from autotune.models.device_memory import DeviceMemory
from autotune.models.outline import Part, outline
from autotune.models.program import Program
from autotune.run.device_kernel import DeviceKernel
from autotune.run.kernel import Kernel
from schedules.graph.graph import Graph
from schedules.ir.nest import tensor_buffer
from schedules.model import Trace, Workload

EMULATOR = backends.parse("cuda-emulator")


def kernel_on(device: Device, workload: Workload) -> Kernel:
    """The kernel of the default schedule on a device."""
    code = fakes.code_for(grid_program(workload.dag, Trace(), EMULATOR), device)
    loaded = DeviceObject(code.to_bytes(), device)
    dag = workload.dag
    params = tuple(map(tensor_buffer, dag.params))
    make = Kernel if device.kind == "opencl" else DeviceKernel
    return make(loaded, params, dag.outputs, workload, EMULATOR)


def program_on(device: Device, graph: Graph, parts: Sequence[Part] | None = None) -> Program:
    """A model of default schedules on a device."""
    ol = outline(graph, each_stage(graph)[1] if parts is None else parts)
    kernels = [kernel_on(device, w) for w in ol.tasks]
    made = Program.of(ol, kernels, graph.values.__getitem__, lambda island, xs: [-x for x in xs])
    assert isinstance(made.memory, DeviceMemory)
    return made


def one_by_one(p: Program) -> Program:
    """The program that launches one kernel after the other: what capturing gains is told beside it."""
    assert isinstance(p.memory, DeviceMemory)
    plain = DeviceMemory(p.memory.device, captures=False)
    return Program(p.outline, p.kernels, p.weights, p.run_island, plain)
