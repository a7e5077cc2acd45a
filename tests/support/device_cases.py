"""Models of plain loops on a device."""

from __future__ import annotations

from collections.abc import Sequence

import gpu_fakes as fakes
from model_cases import each_stage

from autotune import backends
from autotune.backends.building.from_trace import grid_program
from autotune.backends.drivers.object import DeviceObject
from autotune.backends.drivers.protocol import Device
from autotune.models.device_program import DeviceProgram
from autotune.models.outline import Part, outline
from autotune.models.programs import program_of
from autotune.run.device_kernel import DeviceKernel
from autotune.run.kernel import Kernel
from schedules.expr import wrap
from schedules.graph.graph import Graph
from schedules.ir import Buffer
from schedules.model import Trace, Workload

EMULATOR = backends.parse("cuda-emulator")


def kernel_on(device: Device, workload: Workload) -> Kernel:
    """The kernel of the default schedule on a device."""
    code = fakes.code_for(grid_program(workload.dag, Trace(), EMULATOR), device)
    loaded = DeviceObject(code.to_bytes(), device)
    dag = workload.dag
    params = tuple(Buffer(t.name, tuple(map(wrap, t.shape)), t.dtype) for t in dag.params)
    make = Kernel if device.kind == "opencl" else DeviceKernel
    return make(loaded, params, dag.outputs, workload, EMULATOR)


def program_on(device: Device, graph: Graph, parts: Sequence[Part] | None = None) -> DeviceProgram:
    """A model of default schedules on a device."""
    ol = outline(graph, each_stage(graph)[1] if parts is None else parts)
    kernels = [kernel_on(device, w) for w in ol.tasks]
    made = program_of(ol, kernels, graph.values.__getitem__, lambda island, xs: [-x for x in xs])
    assert isinstance(made, DeviceProgram)
    return made
