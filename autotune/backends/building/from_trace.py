"""From a trace to code: replay, lower, generate, compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING

from autotune import backends
from autotune.codegen.runtime.entry import entry as python_entry
from schedules import affine, ir
from schedules import expr as E
from schedules.constants import split_constants
from schedules.errors import ScheduleError
from schedules.gpu_architectures import STATIC_SHARED, features, shared_room
from schedules.ir import LoweredFunc
from schedules.ir.arguments import arguments
from schedules.ir.grid import GridKernel, GridProgram, shared_places
from schedules.model import Target, Trace
from schedules.open_program import lower_parts, parts_of
from schedules.passes.lower import lower
from schedules.passes.simt import lower_simt
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG
from schedules.te.open_sizes import OpenSize, strides_that_depend
from schedules.te.scans import check_grid_scans

if TYPE_CHECKING:
    from autotune.codegen.llvm.emit import LlvmModule

# The text that a module ends with, from its parameters, the names of outputs, bytes of scratch, threads, and
# sizes that a call tells.
Entry = Callable[[tuple[ir.Buffer, ...], tuple[str, ...], int, int, tuple[OpenSize, ...]], str]

# Operations of a kernel, loops unrolled, and lines of its code: more take a compiler many seconds. The peeled
# window of a depthwise convolution has up to 160,000 and 60,000; lanes that code must tell apart have as many
# lines each.
MAX_OPERATIONS, MAX_LINES = 1 << 18, 100_000
# Iterations for each that the expression has, and of how many it has at least: a schedule that rounds up far
# more runs for hours, or its indices leave 64 bits. What is searched rounds up 160 times at most: of few
# elements, with a tile of a GPU for each.
MAX_ROUNDING, MIN_INSTANCES = 1 << 10, 1 << 22
QUAD = 16  # bytes that a thread of a GPU moves at most, and the least vector of a CPU
MAX_SCRATCH = 1 << 36  # bytes; beyond it their sum may overflow
MAX_STEPS, MAX_ITEMS = 1000, 64  # of a trace, and of a list in a step


def scheduled(dag: ComputeDAG, trace: Trace, target: Target) -> LoweredFunc:
    """The program of a trace, lowered; without what packs its constants. Raises ScheduleError where the trace
    is not legal, or gives more code than a compiler can take: it may come from anywhere."""
    return programs(dag, trace, target)[0]


def check_legal(dag: ComputeDAG, trace: Trace, target: Target) -> None:
    """Raises ScheduleError as `scheduled` does; compiles nothing."""
    backends.of(target).check_legal(dag, trace, target)


def programs(dag: ComputeDAG, trace: Trace, target: Target) -> tuple[LoweredFunc, dict[int, LoweredFunc]]:
    """The program of a trace, and those that pack its constants, by the number of the input. Raises
    ScheduleError as `scheduled` does."""
    _check_strides(dag)
    _check_length(trace)
    with within_recursion():
        parts = [split_constants(nest, dag.constants) for nest in parts_of(dag, trace, target)]
        packing = parts[0][1]
        if any(other != packing for _, other in parts):
            raise ScheduleError(
                "constants are packed in one way for sizes at which every tile fits and in another below; "
                "pack tiles of axes whose extents are numbers"
            )
        names = [t.name for t in dag.inputs]
        sizes = dag.open.sizes if dag.open is not None else ()
        main = _checked(lower_parts([nest for nest, _ in parts], sizes), dag, target)
        return main, {names.index(n): _checked(lower(x), dag, target) for n, x in packing.items()}


@contextmanager
def within_recursion() -> Iterator[None]:
    """Raises ScheduleError in place of RecursionError. Loops and expressions are walked by recursion, of
    which Python has a limit."""
    try:
        yield
    except RecursionError:
        raise ScheduleError(
            "the program nests loops or an expression too deeply; split and fuse fewer loops, inline fewer "
            "stages, or compute the expression in several stages"
        ) from None


def grid_program(dag: ComputeDAG, trace: Trace, target: Target) -> GridProgram:
    """The kernels of a trace for a GPU. Raises ScheduleError as `scheduled` does."""
    if dag.open is not None:
        raise ScheduleError("kernels for a GPU take no open sizes; give open=False, or tune for a CPU")
    check_grid_scans(dag)
    _check_forwards(dag)
    _check_length(trace)
    with within_recursion():
        program = lower_simt(Schedule.replay(dag, trace, target).nest, features(target))
        for kernel in program.kernels:
            blocks = {x.var: (0, (ir.const(x.extent) or 1) - 1) for x in kernel.blocks}
            _check_iterations(dag, prod(kernel.grid) * iterations(kernel.body, blocks))
            _check_operations(operations(kernel.body, QUAD))
            _check_shared(kernel, target)
    return program


def _check_shared(kernel: GridKernel, target: Target) -> None:
    held = [x.buffer for x in ir.walk(kernel.body) if isinstance(x, ir.Alloc) and x.buffer.scope == "shared"]
    shared = sum(map(ir.nbytes, held))
    if shared > STATIC_SHARED:
        _, shared = shared_places(held)
    room = shared_room(target)
    if shared > room:
        raise ScheduleError(
            f"{kernel.name} keeps {_about(shared)} bytes that threads share, of which {target.arch} "
            f"has {room} for a block; use smaller tiles"
        )


def _check_forwards(dag: ComputeDAG) -> None:
    """Memory of a device is known by where it begins."""
    for t in dag.params:
        if t.strides is not None and min(t.strides) < 0:
            raise ScheduleError(
                f"argument {t.name} has strides {list(t.strides)}, and kernels for a GPU take none below 0; "
                "give the array the other way round, and turn the index in the expression"
            )


def _check_strides(dag: ComputeDAG) -> None:
    if wrong := strides_that_depend(dag):
        raise ScheduleError(wrong)


def _check_length(trace: Trace) -> None:
    if len(trace.steps) > MAX_STEPS or any(_length(x) > MAX_ITEMS for s in trace.steps for _, x in s.args):
        raise ScheduleError(
            f"the trace is longer than any schedule: more than {MAX_STEPS} steps, or a list of more than "
            f"{MAX_ITEMS} items"
        )


def _check_operations(count: int) -> None:
    if count > MAX_OPERATIONS:
        raise ScheduleError(
            f"the schedule unrolls to {_about(count)} operations, more than {MAX_OPERATIONS}; "
            f"unroll fewer loops, or split them first and unroll the inner part"
        )


def _check_iterations(dag: ComputeDAG, count: int) -> None:
    instances = sum(prod(a.extent for a in (*s.axes, *s.reduce_axes)) for s in dag.stages)
    if count > MAX_ROUNDING * max(instances, MIN_INSTANCES):
        raise ScheduleError(
            f"the loops run {_about(count)} times, where the expression has {_about(instances)} elements and "
            "terms; choose factors of about the extent of the loop that they split"
        )


def _checked(func: LoweredFunc, dag: ComputeDAG, target: Target) -> LoweredFunc:
    """The program, if it is not too large."""
    _check_operations(operations(func.body, target.limit("vector_bytes", QUAD)))
    scratch = sum(ir.nbytes(x.buffer) for x in ir.walk(func.body) if isinstance(x, ir.Alloc))
    if scratch > MAX_SCRATCH:
        raise ScheduleError(
            f"the schedule's intermediate buffers take {_about(scratch >> 30)} GiB, more than "
            f"{MAX_SCRATCH >> 30}; use smaller tiles"
        )
    _check_iterations(dag, iterations(func.body, ir.size_ranges(func.sizes)))
    return func


def emit_module(dag: ComputeDAG, trace: Trace, target: Target) -> LlvmModule:
    """LLVM IR of a trace, with its entry points. Raises ScheduleError as `scheduled` does, and where the code
    is longer than a compiler can take."""
    return module_of(scheduled(dag, trace, target), target)


def module_of(func: LoweredFunc, target: Target, entry: Entry = python_entry) -> LlvmModule:
    """LLVM IR of a program for a CPU, with its entry points. Raises ScheduleError where it is too long."""
    from autotune.codegen.llvm.emit import LlvmModule, emit

    with within_recursion():
        module = emit(func, target)
    lines = module.text.count("\n")
    if lines > MAX_LINES:
        raise ScheduleError(
            f"the schedule gives {lines} lines of code, more than {MAX_LINES}; unroll fewer loops, or "
            f"vectorize one along which memory is contiguous"
        )
    given = arguments(func.params, func.joined)
    outputs = tuple(a.buffer.name for a in given if a.buffer.name in func.outputs)
    params = tuple(a.buffer for a in given)
    tail = entry(params, outputs, module.scratch_bytes, target.threads, func.sizes)
    return LlvmModule(f"{module.text}\n{tail}", module.scratch_bytes)


def build_object(dag: ComputeDAG, trace: Trace, target: Target) -> bytes:
    """The code of a trace, as the backend of its target makes it. Raises ScheduleError or CompileError."""
    return backends.of(target).build(dag, trace, target)


def operations(s: ir.Stmt, vector_bytes: int) -> int:
    """About how many operations the code of a lowered statement has: expression nodes of its stores,
    times the copies that unrolling makes; vectors count as the registers that they fill with float32."""
    match s:
        case ir.Loop(kind=("unroll" | "vectorize") as kind):
            extent = ir.const(s.extent) or 1
            copies = extent if kind == "unroll" else -(-4 * extent // vector_bytes)
            return operations(s.body, vector_bytes) * copies
        case ir.Store():
            return sum(map(E.code_size, (*s.indices, s.value)))
        case ir.Guard():
            return E.code_size(s.cond) + operations(s.body, vector_bytes)
    return sum(operations(x, vector_bytes) for x in ir.kids(s))


def iterations(s: ir.Stmt, ranges: dict[str, tuple[int, int]]) -> int:
    """How often the statements of a lowered one run at most, whatever guards are around them."""
    if isinstance(s, ir.Loop):
        bound = affine.most(s.extent, ranges)
        if bound is None:
            raise ScheduleError(f"loop {s.var} runs {E.show(s.extent)} times, of which no bound is known")
        most = max(bound, 0)
        return most * iterations(s.body, {**ranges, s.var: (0, max(most - 1, 0))})
    return 1 if not (inner := ir.kids(s)) else sum(iterations(x, ranges) for x in inner)


def _about(count: int) -> str:
    """A number, which may have more digits than are written, or is too large for a float."""
    return str(count) if count < 10**6 else f"{min(count, 1 << 1000):.3g}"


def _length(value: object) -> int:
    return len(value) if isinstance(value, tuple) else 1
