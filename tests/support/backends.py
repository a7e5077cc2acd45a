"""One compute DAG on all that can run it here: what tests of the meaning of operations compare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from grid_cases import program
from grid_cases import sampled as sampled_on_grid
from helpers import execute, host, interpret, poisoned

from autotune.backends.drivers import opencl
from autotune.backends.drivers.object import DeviceObject
from autotune.codegen.grid_code import grid_code
from autotune.codegen.simt import cxx, emulator
from autotune.codegen.simt.opencl import generate
from schedules.ir.grid import GridProgram
from schedules.ir.nest import initial
from schedules.model import Trace
from schedules.passes.lower import lower
from schedules.space import derive
from schedules.te.compute_dag import ComputeDAG
from schedules.te.evaluator import evaluate

Arrays = Sequence[np.ndarray]


def results(dag: ComputeDAG, data: Arrays, *, devices: bool = True) -> Iterator[tuple[str, Arrays]]:
    """The outputs of a DAG by what computed them: the reference, the interpreter, the CPU by plain loops and
    by sampled schedules, which have vectors, then the emulator and OpenCL where they are."""
    yield "the reference", evaluate(dag, data)
    yield "the interpreter", interpret(lower(initial(dag)), dag, data)
    yield from (
        (f"plain loops, arrays at {at}", x) for at, x in execute(dag, Trace(()), host(), data).items()
    )
    for trace in sampled(dag):
        what = [f"{s.primitive} {dict(s.args)}" for s in trace.steps]
        yield from ((f"{what}, arrays at {at}", x) for at, x in execute(dag, trace, host(), data).items())
    if not devices:
        return
    name, trace = next(sampled_on_grid(dag, 1))
    p = program(dag, trace)
    if cxx.command() is not None:
        outputs = blank(dag)
        fault = emulator.run(emulator.build(p), p, [*data, *outputs])
        assert fault is None, f"{name}: {fault}"
        yield f"the emulator, {name}", outputs
    if opencl.context() is not None:
        yield f"OpenCL, {name}", on_opencl(p, dag, data)


def sampled(dag: ComputeDAG) -> Iterator[Trace]:
    """A valid candidate of every sketch for this CPU."""
    space, rng = derive(dag, host()), np.random.default_rng(0)
    for number in range(len(space.sketches)):
        rows = space.sample(number, 20, rng)
        for row in rows[space.valid(number, rows)][:1]:
            yield space.trace(number, row)


def on_opencl(p: GridProgram, dag: ComputeDAG, data: Arrays) -> Arrays:
    outputs = blank(dag)
    loaded = DeviceObject(grid_code(p, "opencl", generate(p)).to_bytes())
    loaded.run([x.ctypes.data for x in (*data, *outputs)])
    loaded.close()
    return outputs


def blank(dag: ComputeDAG) -> list[np.ndarray]:
    tensors = [dag.tensors[n] for n in dag.outputs]
    return [poisoned(np.empty(t.shape, t.dtype)) for t in tensors]
