"""A shared object of a whole model: kernels, what runs them (`autotune.codegen.runtime.model_tables`), and
perhaps the weights. What runs them is C, so that it needs a compiler of it, as linking does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.backends.building.from_trace import module_of, programs
from autotune.backends.building.shared_library import DEFINED, link, shared_parts
from autotune.codegen.llvm.compile import compile_module
from schedules.ir import LoweredFunc
from schedules.model import Target, Trace
from schedules.te.compute_dag import ComputeDAG


def kernel_object(dag: ComputeDAG, trace: Trace, target: Target, symbol: str) -> bytes:
    """An object with the function ``void symbol(ptr args, ptr scratch, i32 threads)``, which is the kernel
    alone. Raises ScheduleError where the trace is not legal, and CompileError."""
    return function_object(programs(dag, trace, target)[0], target, symbol)


def function_object(func: LoweredFunc, target: Target, symbol: str) -> bytes:
    """The same of a program."""
    text = module_of(func, target, lambda *_: "").text
    return compile_module(text.replace(DEFINED, f"define void @{symbol}(", 1), target)


def model_library(
    objects: Sequence[bytes],
    sources: Sequence[str],
    target: Target,
    symbols: Sequence[str],
    soname: str,
    weights: Path | None = None,
) -> bytes:
    """``objects``: of kernels. ``sources``: texts in C. ``symbols``: what others see. ``weights``: a file
    that becomes a part of it. Raises CompileError, also without a compiler of C."""
    given: Mapping[str, Path] = {} if weights is None else {"weights": weights.absolute()}
    return link([*objects, *shared_parts(objects, target)], symbols, soname, sources, given)
